"""Alignment of hosts, on synthetic collectives whose true clocks are known."""

from statistics import median, quantiles

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.trace.clocks import clocks
from evenstep.trace.clocks.bounds import DRIFT, WANDER, OffsetLine, line
from evenstep.trace.clocks.clocks import align, sharpen
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op
from tests.trace.synthetic import collectives, trace_of

COUNT = 600
BOOTS = {0: "a", 1: "a", 2: "b"}


def world(seed, *, period_ns=20e6, transfer_ns=2e5, drift=100e-6, late_ns=5e6):
    """Three ranks on two hosts; (trace, offset of host b at its own times, those times).

    Everybody enters at its own moment and leaves, at its own delay, after the last has entered.
    Host b's clock reads (1 + rate) t + offset, offset up to 5 s and rate up to `drift`.
    """
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.uniform(0.5, 1.5, COUNT) * period_ns) + 1e12
    enter = {rank: start + rng.exponential(late_ns, COUNT) for rank in BOOTS}
    last = np.max(list(enter.values()), axis=0)
    leave = {rank: last + transfer_ns + rng.exponential(transfer_ns, COUNT) for rank in BOOTS}
    offset, rate = rng.uniform(-5e9, 5e9), rng.uniform(-drift, drift)
    for times in (enter, leave):
        times[2] = times[2] * (1 + rate) + offset
    as_int = [{rank: times.astype(np.int64) for rank, times in t.items()} for t in (enter, leave)]
    own = as_int[0][2].astype(float)
    return trace_of(collectives(*as_int), BOOTS), (own - offset) / (1 + rate) - own, own


def error_and_bar(seed, **knobs):
    """Distance of the placed times from the truth, and the bar at the same times."""
    trace, truth, own = world(seed, **knobs)
    found = align(trace).by_rank[2]
    placed = np.interp(own, found.at_ns, found.offset_ns)
    return np.abs(placed - truth), np.interp(own, found.at_ns, found.error_ns)


@pytest.mark.parametrize("period_ns", [1e6, 20e6, 1e9])  # back to back, a step, a slow step
@pytest.mark.parametrize("drift", [0.0, 5e-6, 100e-6])
def test_the_truth_lies_within_the_error_bars(period_ns, drift):
    inside = []
    for seed in range(20):
        error, bar = error_and_bar(seed, period_ns=period_ns, drift=drift)
        inside.append(np.mean(error <= bar + 2.0))  # times are whole nanoseconds
    assert np.mean(inside) >= 0.95


@pytest.mark.parametrize("drift", [0.0, 100e-6])
def test_the_error_bars_are_not_wider_than_twice_a_transfer(drift):
    # With latecomers on both sides the bounds are a transfer (0.2 ms) and its jitter apart.
    _, bar = error_and_bar(3, transfer_ns=2e5, drift=drift)
    assert np.median(bar) < 4e5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_after_alignment_nobody_leaves_before_the_last_has_entered(seed):
    trace, _, _ = world(seed)
    clocks = align(trace)
    events, placed = trace.events, clocks.by_rank[2]
    enter = {r: events.enter_ns[events["rank"] == r] for r in BOOTS}
    leave = {r: events.exit_ns[events["rank"] == r] for r in BOOTS}
    slack = np.interp(enter[2], placed.at_ns, placed.error_ns) + 2 * DRIFT * 40e6  # thinned
    for times in (enter, leave):
        times[2] = placed.shift(times[2])
    last, first = np.max(list(enter.values()), axis=0), np.min(list(leave.values()), axis=0)
    assert (first >= last - slack).all()


def test_ranks_of_one_boot_share_a_clock_exactly():
    trace, _, _ = world(1)
    clocks = align(trace)
    assert clocks.reference == "a"
    for rank in (0, 1):
        assert clocks.by_rank[rank].error_ns.max() == 0.0
        assert clocks.by_rank[rank].shift(trace.events.enter_ns).tolist() == (
            trace.events.enter_ns.tolist()
        )


def test_one_host_alone_needs_no_alignment():
    trace = trace_of(world(1)[0].events, dict.fromkeys(BOOTS, "a"))
    assert align(trace).error_ns == 0.0
    assert align(trace).unplaced == ()


@pytest.mark.parametrize(
    "changes",
    [{"op": Op.BROADCAST}, {"kind": Kind.POINT_TO_POINT}],  # the root leaves without waiting
)
def test_a_host_without_common_synchronizing_collectives_is_not_placed(changes):
    enter = {rank: np.arange(10) * 1000 for rank in BOOTS}
    leave = {rank: times + 500 for rank, times in enter.items()}
    clocks = align(trace_of(collectives(enter, leave, **changes), BOOTS))
    assert clocks.unplaced == (2,)
    assert clocks.by_rank[0] is not None


def test_open_collectives_do_not_place_a_host():
    enter = {rank: np.arange(10) * 1000 for rank in BOOTS}
    leave = {rank: times + 500 for rank, times in enter.items()}
    leave[2] = np.zeros(10, np.int64)
    assert align(trace_of(collectives(enter, leave), BOOTS)).unplaced == (2,)


def test_a_rank_whose_boot_is_unknown_has_a_clock_of_its_own():
    trace, _, _ = world(1)
    for rank in trace.ranks:
        trace.ranks[rank].identity["boot_id"] = ""
    clocks = align(trace)
    assert clocks.reference == "rank 0"
    assert clocks.error_ns > 0


def test_a_clock_that_was_set_before_its_last_operation_is_right_at_that_one_too():
    when = np.append(np.arange(10), 10.0) * 1e9
    offset = np.append(np.zeros(10), 5e8)
    drawn = line(when, when - offset, offset - 1000, offset + 1000)
    assert len(drawn.breaks_ns) == 1
    assert drawn.offset_at(when - offset) == pytest.approx(offset)
    assert (drawn.error_at(when[:9]) < 1e6).all()


def test_a_host_that_is_always_late_is_placed_by_when_all_leave():
    trace, truth, own = world(2, late_ns=0.0, transfer_ns=5e4)
    late = np.where(trace.events["rank"] == 2, 0, -5_000_000)  # the others come 5 ms before it
    trace.events = trace.events.with_column("enter_ns", trace.events.enter_ns + late)
    bounds = align(trace)
    found = sharpen(trace, bounds)
    off = [abs(np.median(each.by_rank[2].offset_at(own) - truth)) for each in (bounds, found)]
    assert off[0] > 1e6  # the middle of its bounds
    assert off[1] < 5e4
    assert not found.by_rank[0].offset_ns.any()
    assert (found.by_rank[2].error_ns <= bounds.by_rank[2].error_ns.max()).all()


def test_where_bounds_grow_one_sided_the_drift_is_that_of_leaving_together():
    """Host b waits ever longer, up to 20 ms: half of that is the error of the bounds' middle."""
    rng, start = np.random.default_rng(2), np.arange(1, 61) * 1e9
    late = np.linspace(0, 20e6, 60)
    enter = {0: start + late, 1: start + late, 2: start}
    leave = {rank: start + late + 2e5 + rng.exponential(2e4, 60) for rank in BOOTS}
    as_int = [{rank: one.astype(np.int64) for rank, one in t.items()} for t in (enter, leave)]
    trace = trace_of(collectives(*as_int), BOOTS)
    bounds = align(trace)
    ends = start[[0, -1]]
    assert abs(bounds.by_rank[2].offset_at(ends)).max() > 2e6
    assert abs(sharpen(trace, bounds).by_rank[2].offset_at(ends)).max() < 1e5


@pytest.mark.parametrize("count", [5, 8, 9, 128, 129, 131])
def test_one_exit_told_late_at_the_end_does_not_move_a_clock(count):
    """Host b comes 20 ms after the others, and its last exit is stamped 8 ms late."""
    rng, start = np.random.default_rng(2), np.arange(1, count + 1) * 1e9
    enter = {0: start, 1: start, 2: start + 20e6}
    leave = {rank: start + 20.2e6 + rng.exponential(2e4, count) for rank in BOOTS}
    leave[2][-1] += 8e6
    as_int = [{rank: one.astype(np.int64) for rank, one in t.items()} for t in (enter, leave)]
    trace = trace_of(collectives(*as_int), BOOTS)
    assert abs(sharpen(trace, align(trace)).by_rank[2].offset_at(start)).max() < 1e5


@pytest.mark.parametrize(
    ("flags", "unplaced"),
    [
        (Flag.ON_DEVICE, (2,)),  # its stamps are those of issuing it
        (Flag.ON_DEVICE | Flag.EXIT_UPPER_BOUND, ()),
        (Flag.ON_DEVICE | Flag.HOST_BLOCKED, ()),
        (Flag.FAILED, (2,)),
    ],
)
def test_a_device_places_its_host_where_somebody_saw_the_end(flags, unplaced):
    trace, _, _ = world(1)
    same = np.full(len(trace.events), int(flags), np.uint16)
    trace.events = trace.events.with_column("flags", same)
    assert align(trace).unplaced == unplaced


@pytest.mark.parametrize("since", [0.0, 1e12])
def test_beyond_its_bounds_a_line_goes_on_at_the_drift_found_within_them(since):
    when = since + np.arange(200) * 1e9
    truth = 5e6 + 40e-6 * (when - since)
    found = line(when, when, truth - 1e3, truth + 1e3)
    ahead = when[-1] + 100e9
    assert found.offset_at(np.array([ahead]))[0] == pytest.approx(
        truth[-1] + 40e-6 * 100e9, rel=1e-3
    )
    # The rate is known to its bounds' width over the stretch, and may wander.
    assert found.error_at(np.array([ahead]))[0] < 1e3 + 100e9 * (2 * 2e3 / 199e9 + 2 * WANDER)


def test_times_of_hosts_with_one_clock_and_of_those_nobody_can_place_stay_as_they_are():
    enter = {rank: np.arange(10) * 1000 for rank in BOOTS}
    leave = {rank: times + 500 for rank, times in enter.items()}
    trace = trace_of(collectives(enter, leave, op=Op.BROADCAST), BOOTS)
    rank, times = np.array([2, 0, 1]), np.array([30, 10, 20])
    assert align(trace).common(rank, times).tolist() == [30, 10, 20]


@pytest.mark.parametrize("tight", [0, 1])
def test_a_bound_holds_before_and_after_it_looser_by_what_clocks_drift(tight):
    """A bound of ±1 ns, and one an hour from it that says next to nothing."""
    when, hour = np.array([0.0, 3.6e12]), 3.6e12
    bound = np.where(np.arange(2) == tight, 1.0, 1e12)
    found = line(when, when, -bound, bound)
    assert found.offset_ns == pytest.approx([0.0, 0.0])
    assert found.error_ns[tight] == 1.0
    assert found.error_ns[1 - tight] == pytest.approx(1 + DRIFT * hour)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("drifts", "breaks"), [(0.9, 0), (1.1, 1)])
def test_a_clock_was_set_where_it_went_further_than_clocks_drift(sign, drifts, breaks):
    """Ten bounds a second apart, then ten more of an offset that is reached within a second."""
    when = np.arange(20) * 1e9
    offset = sign * drifts * DRIFT * 1e9 * (np.arange(20) >= 10)
    found = line(when, when, offset - 1, offset + 1)
    assert len(found.breaks_ns) == breaks
    assert found.offset_at(when[[0, -1]]) == pytest.approx(offset[[0, -1]], abs=2)
    if breaks:
        assert 9e9 < found.breaks_ns[0] < 10e9


@pytest.mark.parametrize(("crossed_ns", "middle"), [(0, 50), (2, 49), (3, None)])
def test_a_bound_that_crosses_itself_by_more_than_stamps_are_rounded_by_tells_nothing(
    crossed_ns, middle
):
    """Also where there is no other."""
    only = np.zeros(1)
    found = line(only, only, only + 50, only + 50 - crossed_ns)
    assert (found and found.offset_ns.tolist()) == (middle and [middle])


BOUNDS = st.lists(
    st.tuples(st.floats(1e6, 1e9), st.floats(1, 1e6), st.floats(1, 1e6), st.integers(0, 3)),
    min_size=1, max_size=40,
)  # fmt: skip


@given(BOUNDS, st.floats(-50e-6, 50e-6))
def test_a_line_is_as_tight_as_all_its_bounds_and_holds_the_truth(bounds, rate):
    """Against every bound carried to every place, looser by all that clocks can drift."""
    gaps, below, above, sides = (np.array(column) for column in zip(*bounds, strict=True))
    when = np.cumsum(gaps)
    truth = 1e6 + rate * when
    low = np.where(sides == 1, -np.inf, truth - below)
    high = np.where(sides == 2, np.inf, truth + above)
    found = line(when, when, low, high)
    if not (np.isfinite(low).any() and np.isfinite(high).any()):
        assert found is None
        return
    away = DRIFT * np.abs(found.at_ns[:, None] - when)
    widest = (high + away).min(axis=1) - (low - away).max(axis=1)
    assert (2 * found.error_ns <= widest + 1e-3).all()
    assert (np.abs(found.offset_at(when) - (1e6 + rate * when)) <= found.error_at(when) + 2).all()
    assert not len(found.breaks_ns)


def test_of_two_places_of_a_clock_the_surer_one_counts_and_one_is_better_than_none():
    loose, tight = (
        OffsetLine(np.zeros(2), np.ones(2), np.array([error, 90.0])) for error in (9, 1)
    )
    same = tight._replace(offset_ns=np.zeros(2))
    for one, other, surer in (
        (loose, tight, tight), (tight, loose, tight), (tight, same, tight),
        (loose, None, loose), (None, loose, loose), (None, None, None),
    ):  # fmt: skip
        assert clocks._surer(one, other) is surer


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 400)), min_size=1, max_size=20),
    st.floats(-1, 1), st.floats(-1, 1),
)  # fmt: skip
def test_times_of_each_rank_are_put_on_the_common_line_by_its_own_offset(rows, before, after):
    """By plain arithmetic: offsets are linear between points, and go on at a rate beyond them."""
    at, offsets = np.array([0.0, 100.0, 300.0]), np.array([5.0, 25.0, -75.0])
    bent = OffsetLine(at, offsets, np.ones(3), rate=(before, after))
    still = OffsetLine(at, 0 * at, np.full(3, 4.0))
    line_up = clocks.Clocks("a", {0: still, 1: bent, 2: None})

    def shifted(rank, time):
        if rank != 1:
            return time
        if time < 0:
            return time + int(5 + before * time)
        if time <= 300:
            slope = 0.2 if time <= 100 else -0.5
            return time + int(5 + slope * time if time <= 100 else 25 + slope * (time - 100))
        return time + int(-75 + after * (time - 300))

    rank, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    found = line_up.common(rank, times)
    expected = [shifted(*row) for row in rows]
    assert np.abs(found - expected).max() <= 1
    spans = Columns(rank=rank, enter_ns=times, exit_ns=np.where(times % 2 == 0, 0, times + 60))
    start, end = line_up.placed(spans)
    assert start.tolist() == found.tolist()
    for row, (number, time) in enumerate(rows):
        ended = 0 if time % 2 == 0 or time + 60 <= 0 else shifted(number, time + 60)
        assert abs(end[row] - ended) <= 1
    assert line_up.error_ns == 4.0
    assert line_up.unplaced == (2,)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(-99, 99)), min_size=2, max_size=40),
    st.floats(-9, 9),
)
def test_a_resistant_line_goes_through_medians_of_the_outer_thirds(steps, slope):
    """By Python's own medians; with less than three points in a third at the slope it had."""
    x = np.cumsum([step for step, _ in steps]).astype(float)
    y = np.array([value for _, value in steps]) * 7.0
    before = slope * x[[0, -1]] + 5.0
    third = len(x) // 3
    if third >= 3:
        rise, run = (median(one[len(x) - third :]) - median(one[:third]) for one in (y, x))
        slope = rise / max(run, 1.0)
    rest = sorted(y - slope * (x - x[0]))
    ends, scatter = clocks._resistant_line(x, y, before)
    assert ends == pytest.approx(median(rest) + slope * (x[[0, -1]] - x[0]), abs=1e-6)
    low, _, high = quantiles(rest, method="inclusive")
    assert scatter == pytest.approx((high - low) / 2, abs=1e-6)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_an_end_of_any_time_is_moved_and_what_is_open_stays_open(ends):
    ahead = OffsetLine(np.zeros(1), np.full(1, 1000.0), np.zeros(1))
    ends = np.array([*ends, 0])
    rows = Columns(rank=0 * ends, enter_ns=0 * ends, exit_ns=ends)
    start, end = clocks.Clocks("a", {0: ahead}).placed(rows)
    assert start.tolist() == [1000] * len(ends)
    assert end.tolist() == [*(ends[:-1] + 1000).tolist(), 0]
