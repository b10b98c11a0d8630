"""Schedules of segments, chunks of replays, changes and lengths, against plain recursions."""

from collections import defaultdict

import numpy as np
import pytest

from evenstep.diagnose.graph import replay as replaying
from evenstep.diagnose.graph.replay import Change, combine, replay, step_lengths
from evenstep.diagnose.graph.schedule import Links, carried_over, evaluate, schedule
from evenstep.diagnose.graph.structure import issued_behind, last_lanes
from tests.diagnose.graph.executed import (
    draw,
    durations,
    execute,
    numbers,
    recorded,
    tells,
)
from tests.diagnose.graph.test_structure import ISSUED, made
from tests.diagnose.synthetic import BOOT_NS, MS

SEEDS = pytest.mark.parametrize("seed", range(8))


def segment(random, *, cyclic=False):
    """Links of a random segment, and when its rows and operations were over in an order that they
    allow, but for a few edges against it where it is `cyclic`."""
    rows, operations, lanes, queues = random.integers((1, 0, 1, 1), (9, 6, 4, 3))
    count = rows + operations
    when = random.permutation(count).astype(float)  # of the rows, then of the operations
    state = np.arange(count, count + lanes + queues)
    never = count + lanes + queues

    def before(node, choices):
        """A node that was over before this one, or one as it was left; or none."""
        earlier = [
            one for one in choices if when[one] < when[node] or random.random() < 0.3 * cyclic
        ]
        return int(random.choice([*earlier, *state, never]))

    mine, entered = np.arange(rows), []
    for operation in range(operations):
        needs = {before(rows + operation, range(count)) for _ in range(random.integers(1, 4))}
        entered += [(operation, one) for one in sorted(needs - {never}) or [int(state[0])]]
    entries = np.array(entered, int).reshape(-1, 2).T
    theirs = range(rows, count)
    links = Links(
        np.array([before(one, mine) for one in mine]),
        np.array([before(one, theirs) if random.random() < 0.6 else never for one in mine]),
        entries[0], entries[1],
        np.array([before(one, theirs) for one in theirs], int),
        random.integers(0, rows, lanes), np.where(random.random(lanes) < 0.5, never, count - 1),
        random.integers(0, count, queues),
        np.array([before(one, theirs) for one in mine]) if random.random() < 0.5 else None,
    )  # fmt: skip
    return links, when


def over(links, work, took, carried):
    """When each node is over: by the definition, one after the other; no circles."""
    rows, found = len(links.previous), {}
    needs = defaultdict(list)
    for operation, node in zip(links.entry_operation, links.entry_row, strict=True):
        needs[int(operation)].append(int(node))

    def at(node):
        if node not in found:
            if node == links.never:
                found[node] = -np.inf
            elif node >= rows + len(links.queued):
                found[node] = carried[node - rows - len(links.queued)]
            elif node >= rows:
                operation = node - rows
                begin = max(at(one) for one in (*needs[operation], int(links.queued[operation])))
                found[node] = begin + took[operation]
            else:
                begin = max(at(int(links.previous[node])), at(int(links.awaited[node])))
                found[node] = begin + work[node]
                if links.issued is not None:
                    found[node] = max(found[node], at(int(links.issued[node])))
        return found[node]

    return np.array([at(node) for node in range(links.never + 1)])


@SEEDS
def test_a_segment_is_over_when_all_is_that_it_depends_on(seed):
    random = np.random.default_rng(seed)
    for _ in range(25):
        links, when = segment(random)
        plan = schedule(links, when)
        rows, operations = len(links.previous), len(links.queued)
        states = len(links.lane_end) + len(links.queue_end)
        work, took, carried = (
            random.integers(0, 50, (size, 3)).astype(float) for size in (rows, operations, states)
        )
        buffer = evaluate(plan, work[plan.rows], took[plan.operations], carried)
        for column in range(3):
            expected = over(links, *(one[:, column] for one in (work, took, carried)))
            assert buffer[plan.place, column].tolist() == expected.tolist()
            lanes = np.maximum(expected[links.lane_end], expected[links.lane_awaited])
            left = carried_over(plan, buffer)[:, column]
            assert left.tolist() == [*lanes, *expected[links.queue_end]]


@SEEDS
def test_records_that_contradict_each_other_still_have_an_order(seed):
    """Each node comes once, and what is not cut is before what depends on it."""
    random = np.random.default_rng(seed)
    for _ in range(25):
        links, when = segment(random, cyclic=True)
        plan = schedule(links, when)
        rows, operations = len(links.previous), len(links.queued)
        assert sorted(plan.place.tolist()) == list(range(links.never + 1))
        assert sorted(plan.rows.tolist()) == list(range(rows))
        assert sorted(plan.operations.tolist()) == list(range(operations))
        done, turn = set(range(rows + operations, links.never + 1)), 0
        for level in plan.levels:
            needed = [level.previous, level.sources]
            needed += [
                one for one in (level.awaited, level.queued, level.issued) if one is not None
            ]
            assert set(np.concatenate(needed).tolist()) <= done
            assert (level.rows.start, level.rows.stop) == (turn, level.operations.start)
            done |= set(range(level.rows.start, turn := level.operations.stop))


def jobs(seed, count=4):
    random = np.random.default_rng(seed)
    while count:
        job = draw(random)._replace(steps=9)
        work, took = durations(job, random)
        if tells(job, done := execute(job, work, took)):
            yield job, work, took, done
            count -= 1


@pytest.mark.parametrize(("most", "rounds"), [(2, 4), (9, 4), (9, 1), (3, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_side_by_side_agree_with_one_after_the_other(monkeypatch, seed, most, rounds):
    """Also where they do not in so many rounds, and where scenarios do not fit at once."""
    monkeypatch.setattr(replaying, "SHORTEST", 1)
    monkeypatch.setattr(replaying, "MOST_CHUNKS", most)
    monkeypatch.setattr(replaying, "ROUNDS", rounds)
    random = np.random.default_rng(seed)
    for job, work, took, done in jobs(seed + 40):
        found = recorded(job, done).graph()
        monkeypatch.setattr(replaying, "CELLS", 2 * len(found.rows))
        factors = random.uniform(0.2, 3.0, (3, job.steps, 1, job.ranks))
        changes = [Change.none()]
        for factor in factors:
            each = factor[found.rows.step, 0, found.rows.lane]
            changes.append(Change.of_work(np.arange(len(found.rows)), found.own_ns * each))
        ends = replay(found, changes) - BOOT_NS
        expected = [execute(job, work * factor, took).ends for factor in (1.0, *factors)]
        assert ends == pytest.approx(np.stack(expected), abs=2)


@SEEDS
def test_changes_together_are_the_sum_of_their_differences(seed):
    random = np.random.default_rng(seed)
    job, _, _, done = next(jobs(seed + 60, 1))
    found = recorded(job, done).graph()
    own, lasts = found.own_ns.tolist(), found.took_ns.tolist()
    changes = []
    for _ in range(3):
        rows = random.choice(len(own), random.integers(0, 5), replace=False)
        of = random.choice(len(lasts), random.integers(0, 3), replace=False)
        new = np.rint(random.uniform(-5, 30, len(rows)) * MS)
        longer = np.rint(random.uniform(0, 12, len(of)) * MS)
        changes.append(Change(rows, new, of, longer))
    both = combine(found, changes)
    more, least, slower = defaultdict(float), defaultdict(float), defaultdict(float)
    for change in changes:
        for row, to in zip(change.rows.tolist(), change.own_ns.tolist(), strict=True):
            more[row] += to - own[row]
            least[row] = min(least[row], to)
        for row, to in zip(change.operations.tolist(), change.took_ns.tolist(), strict=True):
            slower[row] += to - lasts[row]
    assert dict(zip(both.rows.tolist(), both.own_ns.tolist(), strict=True)) == {
        row: max(own[row] + by, least[row]) for row, by in more.items() if by
    }
    assert dict(zip(both.operations.tolist(), both.took_ns.tolist(), strict=True)) == {
        row: max(lasts[row] + by, 0) for row, by in slower.items() if by
    }
    assert Change.of_work(np.array([0, 1]), np.array([-5.0, 7.0])).own_ns.tolist() == [0, 7]
    assert Change.of_transfers(np.array([0]), np.array([-5.0])).took_ns.tolist() == [0]


def ends_of(*rows):
    return np.array(rows, float).reshape(1, len(rows), -1)


def graph_of(steps, stretches, starts):
    """Only what lengths of steps are told by."""
    found = made({"lane": []}, steps=steps, lanes=len(starts[0]))
    for name, value in (("starts_ns", starts), ("stretch_of", stretches)):
        object.__setattr__(found, name, np.array(value))
    return found


def test_a_step_lasts_from_median_end_to_median_end():
    found = graph_of(3, [0] * 3, [[0, 2, 10]])
    ends = ends_of([20, 22, 90], [30, 35, 36], [60, 60, 61])
    assert step_lengths(found, ends).tolist() == [[20, 13, 25]]


def test_steps_of_which_no_end_is_known_share_the_time_evenly_and_the_last_have_none():
    nan = np.nan
    found = graph_of(5, [0] * 5, [[0, 0]])
    ends = ends_of([10, nan], [nan, nan], [nan, nan], [40, 44], [nan, nan])
    (lengths,) = step_lengths(found, ends)
    assert lengths == pytest.approx([10, *[32 / 3] * 3, 0])
    later = np.concatenate([ends, ends + 5])
    assert step_lengths(found, later)[1] == pytest.approx([15, *[32 / 3] * 3, 0])


def test_where_steps_were_left_out_they_last_between_the_last_ends_of_each_stretch():
    found = graph_of(4, [0, 0, 1, 1], [[0, 3], [100, 107]])
    ends = ends_of([10, 13], [21, 20], [120, 117], [125, 133])
    assert step_lengths(found, ends).tolist() == [[10, 8, 13, 13]]


@SEEDS
def test_the_last_lane_of_each_operation(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        count = int(random.integers(1, 15))
        enter, at, lane = random.integers(-1, 4, count), *random.integers(0, 5, (2, count))
        last = [max(at[enter == one], default=9) for one in range(4)]
        found = last_lanes(made({"enter": enter, "at_ns": at, "lane": lane}, {"last_ns": last}))
        expected = [
            next((lane[n] for n in range(count) if enter[n] == one and at[n] == last[one]), -1)
            for one in range(4)
        ]
        assert found.tolist() == expected


def test_what_was_issued_behind_an_interval_counts_beyond_what_steps_without_have():
    """Two steps of a device with three entries each, issued 4 before. In the second its host is
    held up from 112 to 115 between two issues, and the work before the entry is 20 instead of 8."""
    rows = {
        "lane": [0] * 6, "index": [0, 0, 0, 1, 1, 1], "inside": [1, 2, 3, 4, 5, 6],
        "at_ns": [10, 18, 26, 110, 130, 138], "slack_ns": [4] * 6,
        "own_ns": [5.0, 8, 8, 5, 20, 8],
    }  # fmt: skip
    found = made(rows, lanes=1)
    interval = [np.array([one]) for one in (0, 112, 115)]
    assert issued_behind(found, *interval).tolist() == pytest.approx([0, 0, 0, 0, 12, 0])
    between = [np.array([one]) for one in (0, 100, 105)]  # two steps, where it has 5 to do
    assert issued_behind(found, *between).tolist() == pytest.approx([0, 0, 0, 5, 0, 0])
    always = [np.array(one) for one in ([0, 0], [10, 112], [11, 115])]
    behind = issued_behind(found, *always)  # no step without: all of the work
    assert behind.tolist() == pytest.approx([0, 0, 0, 0, 0, 0])
    assert issued_behind(made(ISSUED), *interval).tolist() == [0] * 6


def test_numbers_of_operations_are_those_of_the_reference():
    """The tests above stand on it: each act has an operation of its own in each step."""
    job, _, _, done = next(jobs(99, 1))
    place = numbers(job, recorded(job, done).graph())
    there = place[place >= 0]
    assert len(set(there.tolist())) == there.size > 0
