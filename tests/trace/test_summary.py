"""One record per step that only ever gets coarser."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.trace.reader import read_spool
from evenstep.trace.spool import layout, summary
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import (
    COUNTERS,
    FANOUT,
    FEWEST_RECORDS,
    LEVELS,
    StepSummary,
    SummaryLog,
    level_slots,
    merge,
    sketch_bin,
)

DURATIONS = st.lists(st.integers(1, 10**11), min_size=1, max_size=40)


def steps(durations):
    """Adjacent steps of these lengths, the n-th with n in every phase and counter."""
    start = 10**9
    for number, duration in enumerate(durations):
        yield StepSummary(
            number, number, start, start + duration, 7, [number] * 8, [number] * len(COUNTERS)
        )
        start += duration


def brute_force_sketch(durations):
    """Four bins an octave from 2^20 ns by their edges, the ends open (the module's definition)."""
    edges = [2.0 ** (20 + index / 4) for index in range(1, summary.SKETCH_BINS)]
    bins = [sum(duration >= edge for edge in edges) for duration in durations]
    return np.bincount(bins, minlength=summary.SKETCH_BINS).tolist()


@given(DURATIONS)
def test_merging_keeps_count_sum_extremes_and_squares_of_all_steps(durations):
    merged = merge(list(steps(durations)))
    assert merged.count == len(durations)
    assert merged.step_sum_ns == merged.end_ns - merged.start_ns == sum(durations)
    assert (merged.step_min_ns, merged.step_max_ns) == (min(durations), max(durations))
    assert merged.step_square_sum == pytest.approx(sum((d * 1e-9) ** 2 for d in durations))


@given(DURATIONS)
def test_merging_adds_phases_and_counters_and_spans_the_steps(durations):
    merged = merge(list(steps(durations)))
    last = len(durations) - 1
    total = last * (last + 1) // 2  # 0 + 1 + … + last
    assert merged.phase_ns == [total] * 8
    assert merged.counters == [total] * len(COUNTERS)
    assert (merged.first_step, merged.last_step) == (0, last)


@given(st.lists(st.integers(1, 10**11).filter(lambda d: not _near_an_edge(d)), min_size=1))
def test_a_merged_sketch_is_the_histogram_of_all_steps(durations):
    assert merge(list(steps(durations))).sketch == brute_force_sketch(durations)


def _near_an_edge(duration):
    """Within a part in 10^9 of an edge rounding may choose either bin."""
    return abs(np.log2(duration / 2**20) * 4 % 1 - 0.5) > 0.5 - 1e-8


@given(DURATIONS, st.integers(1, 39))
def test_merging_in_two_stages_is_merging_at_once(durations, cut):
    whole = list(steps(durations))
    parts = [merge(part) for part in (whole[:cut], whole[cut:]) if part]
    once, twice = merge(whole), merge(parts)
    assert twice.step_square_sum == pytest.approx(once.step_square_sum)
    for name in ("count", "step_sum_ns", "step_min_ns", "step_max_ns", "sketch", "phase_ns"):
        assert getattr(once, name) == getattr(twice, name)


@given(st.integers(1, 10**12))
def test_a_step_lies_between_the_edges_of_its_bin(step_ns):
    index = sketch_bin(step_ns)
    edges = [2.0 ** (20 + at / 4) for at in (index, index + 1)]  # four bins an octave, from 2^20 ns
    if index > 0:
        assert edges[0] <= step_ns * (1 + 1e-9)
    if index < summary.SKETCH_BINS - 1:
        assert step_ns <= edges[1] * (1 + 1e-9)


def test_a_record_fits_its_512_bytes_and_the_fields_are_those_that_are_packed():
    body = len(summary.pack(next(steps([1])), 1))
    assert body == np.dtype(list(summary.SUMMARY_FIELDS)).itemsize == 504 <= layout.SUMMARY_BYTES


def test_sixteen_megabytes_hold_what_the_documentation_says():
    slots = level_slots(16_000_000 // layout.SUMMARY_BYTES)
    assert slots[0] == (0, 15_625)  # half of 31,250 records
    assert {number for _, number in slots[1:]} == {3_125}  # a fifth of the other half
    assert 3_125 * 1_048_576 > 24 * 3600 * 1000 * 30  # a month of steps of 1 ms in the last level


@given(st.integers(FEWEST_RECORDS, 50_000))
def test_levels_lie_side_by_side_within_the_region_and_hold_a_merge_each(capacity):
    ends = [0]
    for first, number in level_slots(capacity):
        assert first == ends[-1]
        assert number >= FANOUT
        ends.append(first + number)
    assert len(ends) == LEVELS + 1
    assert ends[-1] <= capacity


@given(st.integers(0, FEWEST_RECORDS - 1))
def test_a_region_too_small_for_all_levels_is_never_left(capacity):
    assert all(first + number <= capacity for first, number in level_slots(capacity))


# -- what a reader finds ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    """A spool with the smallest summary region one may configure: 65,536 bytes, 128 records."""
    path = tmp_path_factory.mktemp("summary") / "s"
    opened = Spool.create(path, {"rank": 0}, ring_bytes=1, summary_bytes=65_536)
    yield opened
    opened.shut()


def written(spool, durations):
    """What a reader finds after these steps."""
    view = spool.summary_view()
    view[:] = bytes(len(view))
    log = SummaryLog(view, spool.regions.summary_capacity)
    for step in steps(durations):
        log.append(step)
    log.release()
    return read_spool(spool.path).summaries


def assert_every_step_once(found, number):
    """The records of a reader cover steps 0 to `number` - 1 without gap or overlap."""
    assert found["first_step"][0] == 0
    assert found["last_step"][-1] == number - 1
    assert (found["first_step"][1:] == found["last_step"][:-1] + 1).all()
    assert (found["last_step"] - found["first_step"] + 1 == found["count"]).all()


@settings(max_examples=25, deadline=None)
@given(number=st.integers(1, 3000))
def test_every_step_is_read_exactly_once_however_small_the_region(spool, number):
    found = written(spool, [1000] * number)
    assert_every_step_once(found, number)
    assert found["step_sum_ns"].sum() == 1000 * number


def test_nothing_is_lost_after_many_thousand_steps_and_the_latest_are_single(spool):
    durations = [1_000_000 + 1000 * (n % 977) for n in range(40_000)]
    found = written(spool, durations)
    assert_every_step_once(found, len(durations))
    assert found["step_sum_ns"].sum() == sum(durations)
    assert found["wait_ns"].sum() == 40_000 * 39_999 // 2  # every counter holds the step's number
    assert found["sketch"].sum() == 40_000
    assert (found["count"][-FANOUT:] == 1).all()
    assert sorted(found["count"], reverse=True) == found["count"].tolist()  # older is coarser


def test_records_come_back_as_they_were_stored(spool):
    found = written(spool, [5_000_000, 7_000_000])
    assert found["step_max_ns"].tolist() == [5_000_000, 7_000_000]
    assert found["realtime_ns"].tolist() == [7, 7]
    assert found["phase_ns"][1].tolist() == [1] * 8
    assert found["agent_ns"].tolist() == [0, 1]


@settings(max_examples=40, deadline=None)
@given(number=st.integers(1, 400), torn=st.integers(8, 504))
def test_a_kill_in_the_middle_of_a_store_costs_that_step_and_no_other(spool, number, torn):
    written(spool, [1000] * number)
    before = bytes(spool.summary_view())
    written(spool, [1000] * (number + 1))
    after = bytes(spool.summary_view())
    first, slots = level_slots(spool.regions.summary_capacity)[0]
    start = (first + number % slots) * layout.SUMMARY_BYTES
    # The number is zeroed first and written last; `torn` bytes of the new record are there.
    half = before[:start] + bytes(8) + after[start + 8 : start + torn] + before[start + torn :]
    spool.summary_view()[:] = half
    assert_every_step_once(read_spool(spool.path).summaries, number)
