"""What gaps between entries hold, on random small numbers, gap by gap."""

from statistics import mean

import numpy as np
import pytest

from evenstep.diagnose.graph.gaps import (
    FURTHEST,
    LARGEST_WEIGHT,
    SURE,
    WHOLE,
    Gaps,
    _pace_of,
    clearly,
    fit_shares,
    gaps_between,
    other_record,
    weighted_median,
)
from evenstep.diagnose.graph.reached import _beside_compute, _ends_before, _held_ns
from evenstep.diagnose.graph.streams import AT_ONCE_NS, TELLING
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op

SEEDS = pytest.mark.parametrize("seed", range(8))
US = 1_000.0


def drawn(random, count=14, kinds=4):
    """Gaps of some kinds, of which up to two pairs are alike, and what each kind waits for."""
    kind = random.integers(0, kinds, count)
    lasted = random.integers(0, 400, count) * US
    over = np.where(
        random.random((FURTHEST, count)) < 0.7, random.integers(-100, 450, (FURTHEST, count)) * US,
        -np.inf,
    )  # fmt: skip
    computed = np.where(random.random(count) < 0.2, random.integers(0, 300, count) * US, np.nan)
    gaps = Gaps(
        np.arange(1, count + 1), kind, kind // 2, random.integers(0, 6, count),
        random.random(count) < 0.2, random.random(count) < 0.2, lasted, computed, over,
    )  # fmt: skip
    share = np.full((kinds, FURTHEST), np.nan)
    for one in range(kinds):
        for ahead in random.choice(FURTHEST, random.integers(0, 3), replace=False):
            share[one, ahead] = random.choice([0.0, 0.25, 0.5, 1.0])
    return gaps, share


def waited(gaps, share, at):
    """The ends that a gap's kind waits for, and the share of its work before each."""
    return [(gaps.over[ahead, at], part) for ahead, part in enumerate(share[gaps.kind[at]])
            if part == part]  # fmt: skip


@SEEDS
def test_work_is_what_follows_the_waits_as_far_as_it_can_be_told(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        gaps, share = drawn(random)
        work, unseen = gaps.work(share)
        for at in range(len(work)):
            lasted, computed = gaps.lasted[at], gaps.computed[at]
            most = [lasted, *((lasted - over) / (1 - part)
                              for over, part in waited(gaps, share, at) if part < 1)]  # fmt: skip
            soon = max(AT_ONCE_NS, TELLING * lasted)
            hidden = any(
                part == 1 and lasted <= over + soon for over, part in waited(gaps, share, at)
            )
            if computed == computed:
                assert (work[at], unseen[at]) == (computed, False)
            else:
                assert work[at] == pytest.approx(max(min(most), 0.0))
                assert unseen[at] == (hidden or gaps.idle[at])


@SEEDS
def test_a_gap_lasts_as_long_as_its_work_and_until_its_waits_and_what_follows_are_over(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        gaps, share = drawn(random)
        work = random.integers(0, 300, len(gaps.row)) * US
        sooner = random.integers(0, 50, len(gaps.row)) * US
        lasts = gaps.expected(share, work, sooner)
        for at in range(len(work)):
            waits = waited(gaps, share, at)
            ends = [work[at] - sooner[at], *(over + (1 - part) * work[at] for over, part in waits)]
            assert lasts[at] == pytest.approx(max(ends))


@SEEDS
def test_the_usual_work_of_a_kind_is_that_of_gaps_like_it_where_its_own_is_hidden(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        gaps, _ = drawn(random)
        work = random.integers(0, 9, len(gaps.row)) * US
        unseen = random.random(len(work)) < 0.5
        kinds = int(gaps.kind.max()) + 1
        shown = [np.mean([*~unseen[gaps.kind == one], 0][: (gaps.kind == one).sum() or 1]) > 0.5
                 for one in range(kinds)]  # fmt: skip
        seen = ~unseen & np.array(shown)[gaps.kind]
        assert gaps.seen(unseen).tolist() == seen.tolist()
        known = [bool(seen[gaps.pair == pair].any()) for pair in gaps.pair]
        assert gaps.known(unseen).tolist() == known
        lengths = gaps.lengths(work, unseen)
        for one in range(kinds):
            if not (mine := gaps.kind == one).any():
                continue
            own = lower_median(work[mine & ~unseen])
            alike = lower_median(work[(gaps.pair == one // 2) & seen & (work > 0)])
            if shown[one] or not alike:
                assert lengths[one] == own
            else:
                assert lengths[one] == min(alike, own or alike)


def lower_median(values):
    ordered = sorted(values.tolist())
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


@SEEDS
def test_a_misfit_is_the_mean_difference_from_what_gaps_would_last_in_pace(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        gaps, share = drawn(random)
        pace = random.uniform(0.5, 2.0, len(gaps.row))
        misfit, length = gaps.misfit(share, pace)
        work, unseen = gaps.work(share)
        assert length == pytest.approx(gaps.lengths(work / pace, unseen))
        apart = {}
        for at, kind in enumerate(gaps.kind.tolist()):
            computed = gaps.computed[at]
            usual = computed if computed == computed else length[kind] * pace[at]
            ends = [usual, *(over + (1 - part) * usual for over, part in waited(gaps, share, at))]
            longer = gaps.lasted[at] - max(ends)
            soon = max(AT_ONCE_NS, TELLING * gaps.lasted[at])
            free = gaps.idle[at] or (unseen[at] and longer <= soon)
            apart.setdefault(kind, []).append(max(-longer, 0) if free else abs(longer))
        for kind, each in apart.items():
            assert misfit[kind] == pytest.approx(mean(each))


@SEEDS
def test_a_pace_is_the_median_of_ratios_by_their_work_drawn_to_the_usual_one(seed):
    random = np.random.default_rng(seed)
    for _ in range(20):
        count = int(random.integers(1, 9))
        cell = random.integers(0, 3, count)
        ratio = np.where(random.random(count) < 0.3, np.nan, random.integers(1, 9, count) / 4)
        weight, usual = random.integers(0, 6, count) * 3.0, random.integers(1, 5, 3) / 2
        found = _pace_of(cell, ratio, weight, usual)
        for one in range(3):
            most = LARGEST_WEIGHT * weight[cell == one].sum()
            values, by = [usual[one]], [most]
            for at in np.flatnonzero((cell == one) & ~np.isnan(ratio)):
                values.append(ratio[at])
                by.append(min(weight[at], most))
            values, by = np.array(values), np.array(by)
            expected = weighted_median(values, by, np.zeros(len(values), int))[0]
            assert found[one] == (expected if expected > 0 else usual[one])


def test_a_misfit_is_clearly_less_by_more_than_a_floor_and_a_share_of_what_is_left():
    before = np.array([10.0, 10.0, 10.0, 100.0, 100.0])
    after = np.array([5.0, 4.9, 10.0, 87.0, 86.9])
    assert clearly(after, before, 5.0).tolist() == [False, True, False, False, True]
    assert 100 - 87 < SURE * 87 < 100 - 86.9


@pytest.mark.parametrize(("part", "opens", "found"), [
    (0.0, False, 0.0), (1.0, False, 1.0),
    (0.0, True, 0.0), (1.0, True, 0.0),
])  # fmt: skip
def test_work_before_a_wait_is_none_of_a_gap_in_which_a_step_begins(part, opens, found):
    """Steps of one lane with eight gaps of 100 µs of work each, of which the first also waits for
    what is over after 50 to 330 µs."""
    steps, gaps = np.divmod(np.arange(8 * 24), 8)
    over = np.full((FURTHEST, len(steps)), -np.inf)
    over[0, gaps == 0] = (50 + 40 * (np.arange(24) % 8)) * US
    after = np.maximum(over[0] + (1 - part) * 100 * US, 100 * US)
    some = Gaps(
        np.arange(len(steps)), gaps, gaps, 2 * steps, opens & (gaps == 0), gaps < 0, after,
        np.full(len(steps), np.nan), over,
    )  # fmt: skip
    nothing = np.full((8, FURTHEST), np.nan)
    share, _ = fit_shares(some, nothing, np.ones(8, bool), WHOLE)
    expected = nothing.copy()
    expected[0, 0] = found
    np.testing.assert_array_equal(share, expected)


@SEEDS
def test_of_each_kind_the_misfit_of_the_gaps_beside_its_own_is_told(seed):
    """Of gaps of the same lane, step and direction, its own among them."""
    gaps, share = drawn(np.random.default_rng(seed), count=16)
    kind = np.arange(16) % 4
    gaps = gaps._replace(kind=kind, pair=kind // 2)
    same, beside = fit_shares(gaps, share, np.zeros(4, bool), WHOLE)
    np.testing.assert_array_equal(same, share)
    misfit = gaps.misfit(share, gaps.paces(share))[0][kind]
    of_cell = [misfit[gaps.cell == cell].mean() for cell in gaps.cell]
    assert beside == pytest.approx([np.mean(np.array(of_cell)[kind == one]) for one in range(4)])


#: Two lanes: the first has two steps, and its third entry is issued in another record.
ROWS = {
    "lane": [0, 0, 0, 0, 1, 1], "step": [3, 3, 4, 4, 3, 3], "enter_ns": [10, 30, 60, 100, 5, 50],
    "computed_ns": [1.0, 9.0, np.nan, 40.0, 2.0, 4.0], "inside": [7, 7, 8, 0, 7, 8],
    "backward": [0, 1, 1, 0, 0, 1],
}  # fmt: skip


def test_gaps_lie_between_entries_of_one_lane():
    rows = Columns({name: np.array(of) for name, of in ROWS.items()})
    rows = rows.with_column("backward", rows.backward > 0)
    over = np.array([25.0, 55, 90, 120, 45, 70])
    gaps = gaps_between(rows, over, np.array([0, 1, 0, 1, 0, 1]), np.array([5, 6, 5, 6, 5, 6]))
    assert gaps.row.tolist() == [1, 2, 3, 5]
    assert gaps.kind.tolist() == [0, 1, 0, 0]
    assert gaps.lasted.tolist() == [20, 30, 40, 45]
    assert gaps.computed.tolist()[::3] == [8, 2]
    assert np.isnan(gaps.computed[1:3]).all()
    assert gaps.opens.tolist() == [False, True, False, False]
    assert gaps.cell.tolist() == [1, 3, 2, 5]
    assert not gaps.idle.any()
    # When what was entered so many entries before was over, since the entry before.
    assert gaps.over[:4].T.tolist() == [
        [15, -np.inf, -np.inf, -np.inf], [25, -5, -np.inf, -np.inf],
        [30, -5, -35, -np.inf], [40, -np.inf, -np.inf, -np.inf],
    ]  # fmt: skip
    assert len(set(gaps.pair.tolist())) == 4  # opens, is of another direction, or record
    assert other_record(rows, gaps.row).tolist() == [False, True, False, True]


def test_gaps_alike_are_one_pair():
    rows = Columns({
        "lane": np.zeros(5, int), "step": np.zeros(5, int), "enter_ns": np.arange(5) * 10,
        "computed_ns": np.full(5, np.nan),
    })  # fmt: skip
    gaps = gaps_between(rows, np.arange(5.0), np.arange(5), np.array([5, 6, 5, 6, 6]))
    pair = gaps.pair.tolist()
    assert pair[0] == pair[2]
    assert len(set(pair)) == 3
    assert gaps.pairs.tolist() == pair


@SEEDS
def test_the_operation_before_of_its_kind_ends_before_each_entry(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        own, leave = random.integers(0, 3, 9), random.integers(1, 99, 9)
        found = _ends_before(Columns({"leave_ns": leave}), own).tolist()
        last = {}
        for at, (kind, over) in enumerate(zip(own.tolist(), leave.tolist(), strict=True)):
            assert found[at] == last.get(kind, found[at])
            assert (found[at] < 0) == (kind not in last)
            last[kind] = over


@pytest.mark.parametrize(
    ("held", "reached"),
    [([0, 1, 0, 1], [0, 0, 2, 2]), ([0, 0, 0, 0], [0, 1, 2, 3]), ([1, 1, 1, 1], [0, 1, 2, 3])],
)
def test_what_is_always_held_is_entered_where_compute_was_then(held, reached):
    """Two steps of an all-reduce and a barrier, and which of these streams or hosts hold."""
    rows = Columns({
        "lane": np.zeros(4, int), "step": np.array([0, 0, 1, 1]), "operation": np.array([0, 1] * 2),
        "enter_ns": np.array([10, 20, 30, 40]), "leave_ns": np.array([15, 25, 35, 45]),
        "slack_ns": np.zeros(4, int), "sends": np.zeros(4, bool),
    })  # fmt: skip
    operations = Columns({
        "op": np.array([int(Op.ALL_REDUCE), int(Op.BARRIER)]), "message": np.zeros(2, bool),
        "root": np.full(2, -1), "size_bytes": np.zeros(2, int), "members": np.full(2, 2),
    })  # fmt: skip
    found = _beside_compute(rows, operations, np.zeros(4, int), np.array(held, bool))
    assert found.tolist() == reached


@SEEDS
def test_held_entries_in_a_row_wait_from_when_their_lane_would_have_come(seed):
    """What the one before waited is gained by the next: its work began so much sooner."""
    random = np.random.default_rng(seed)
    for _ in range(10):
        gaps, share = drawn(random)
        rows = np.cumsum(random.integers(1, 3, len(gaps.row)))
        gaps = gaps._replace(row=rows)
        held = random.random(len(rows)) < 0.6
        work = np.where(
            random.random(len(rows)) < 0.2, np.nan, random.integers(0, 300, len(rows)) * US
        )
        found, expected = _held_ns(gaps, share, work, held), []
        for at in range(len(rows)):
            before = expected[-1] if at and held[at - 1] and rows[at] == rows[at - 1] + 1 else 0.0
            waits = waited(gaps, share, at)
            lasts = max([work[at] - before, *(over + (1 - p) * work[at] for over, p in waits)])
            told = held[at] and work[at] == work[at]
            expected.append(max(gaps.lasted[at] - lasts, 0.0) if told else 0.0)
        assert found == pytest.approx(expected)
