"""Rows of step times become a trace: random ones, against a walk through them one by one."""

import math
from random import Random

import numpy as np
import pytest

from evenstep.errors import TraceError
from evenstep.importers.draft import ORIGIN_NS, Draft
from evenstep.importers.steps.records import SYNCHRONIZED, WHOLE, Timed, trace_of
from evenstep.trace.spool.layout import Flag, Kind, Phase

PARTS = (Phase.INPUT, Phase.FORWARD, Phase.CHECKPOINT)
S = 10**9


def rows_of(*rows):
    """Rows of (rank, step, start, seconds, part)."""
    rank, number, start, seconds, part = np.array(rows, float).reshape(-1, 5).T
    return Timed(rank.astype(int), number.astype(int), start, seconds, part.astype(int))


def read(*rows, names=()):
    return trace_of(rows_of(*rows), Draft(), {"source": "table"}, dict(names))


def drawn(random):
    """Rows in any order of steps that are stated whole or by parts, some repeated, some broken."""
    ranks, steps, rows = random.randint(1, 4), random.randint(1, 5), []
    timed = random.random() < 0.5
    for turn in range(random.randint(1, 2)):  # a second time after a restart
        for step in range(turn * random.randint(0, steps - 1), steps):
            for rank in range(ranks):
                if random.random() < 0.1 and (rank or step):
                    continue
                start = 50.0 + 7 * step + random.random() if timed else math.nan
                parts = PARTS if random.random() < 0.5 else ()
                taken = [(part, random.randint(1, 999) / 1000) for part in parts]
                rows += [(rank, 3 * step, start, seconds, part) for part, seconds in taken]
                if not parts or random.random() < 0.5:
                    rows.append((rank, 3 * step, start, random.randint(3000, 5000) / 1000, WHOLE))
    broken = [(-1, 1, 0, 1, WHOLE), (0, -1, 0, 1, WHOLE), (0, 1, 0, 0, WHOLE), (0, 1, 0, -2, WHOLE)]
    return rows + random.sample(broken, random.randint(0, 4))


def walked(rows):
    """The steps: by number its begin and length, and by number and rank its own time; and its
    parts, in ns. Of a repeated row the last counts; parts make a step where none is stated."""
    last, starts = {}, {}
    for rank, number, start, seconds, part in rows:
        if rank >= 0 and number >= 0 and seconds > 0:
            last[rank, number, part] = round(seconds * S)
            starts[rank, number, part] = start
    own, parts, begun = {}, {}, {}
    for (rank, number, part), ns in last.items():
        if part == WHOLE:
            own[number, rank] = ns
        else:
            parts.setdefault((rank, number), {})[part] = ns
    for (rank, number), some in parts.items():
        own.setdefault((number, rank), sum(some.values()))
    for number, rank in own:
        told = starts[rank, number, WHOLE if (rank, number, WHOLE) in last else
                      min(parts[rank, number])]  # fmt: skip
        begun[number] = min(begun.get(number, math.inf), told if told == told else math.inf)
    numbers = sorted({number for number, _ in own})
    first = min((one for one in begun.values() if one < math.inf), default=0.0)
    steps, over = {}, 0.0
    for number in numbers:
        length = max(ns for (n, _), ns in own.items() if n == number)
        stated = begun[number] - first if begun[number] < math.inf else 0.0
        begin = max(over, stated * S)
        steps[number] = begin, length
        over = begin + length
    return steps, own, parts


@pytest.mark.parametrize("seed", range(40))
def test_steps_follow_each_other_and_end_for_all_when_the_slowest_is_done(seed):
    rows = drawn(Random(seed))
    trace = read(*rows)
    steps, own, parts = walked(rows)
    ranks = sorted({rank for _, rank in own})
    assert sorted(trace.ranks) == ranks
    found = trace.of_kind(Kind.STEP)
    assert len(found) == len(own)
    for rank, number, enter, leave in zip(
        found["rank"].tolist(), found.step.tolist(), found.enter_ns.tolist(),
        found.exit_ns.tolist(), strict=True,
    ):  # fmt: skip
        assert enter - ORIGIN_NS == pytest.approx(steps[number][0], abs=2)
        assert leave - enter == steps[number][1]
        assert (number, rank) in own
    if not any("equally long" in limit for limit in trace.limits):
        check_barriers(trace, steps, own, ranks)
        check_parts(trace, steps, parts)
    bad = sum(rank < 0 or number < 0 or seconds <= 0 for rank, number, _, seconds, _ in rows)
    told = [limit for limit in trace.limits if "left out" in limit]
    assert told == ([f"{bad} rows have no worker, step or seconds: left out"] if bad else [])


def check_barriers(trace, steps, own, ranks):
    """Of steps that all have, from when each is done until the slowest is."""
    rows = trace.of_kind(Kind.COLLECTIVE)
    whole = [n for n in steps if all((n, rank) in own for rank in ranks)] if len(ranks) > 1 else []
    assert sorted(set(rows.step.tolist())) == whole
    assert len(rows) == len(whole) * len(ranks)
    assert (SYNCHRONIZED in trace.limits) == (len(ranks) > 1)
    for rank, number, enter, leave, flags in zip(
        rows["rank"].tolist(), rows.step.tolist(), rows.enter_ns.tolist(), rows.exit_ns.tolist(),
        rows.flags.tolist(), strict=True,
    ):  # fmt: skip
        begin, length = steps[number]
        assert enter - ORIGIN_NS - begin == pytest.approx(own[number, rank], abs=2)
        assert leave - ORIGIN_NS - begin == pytest.approx(length + 1, abs=2)
        assert flags == Flag.INFERRED | Flag.HOST_BLOCKED


def check_parts(trace, steps, parts):
    """One after the other from the beginning of the step, by their numbers."""
    rows = trace.of_kind(Kind.PHASE)
    found = {}
    names = ("rank", "step", "enter_ns", "exit_ns", "op", "group_seq")
    for row in zip(*(rows[name].tolist() for name in names), strict=True):
        found.setdefault(row[:2], []).append(row[2:])
    assert found.keys() == parts.keys()
    for (rank, number), some in found.items():
        at = steps[number][0] + ORIGIN_NS
        for enter, leave, part, length in sorted(some):
            assert enter == pytest.approx(at, abs=2)
            assert leave - enter == length == parts[rank, number][part]
            at += length


@pytest.mark.parametrize("seed", range(10))
def test_times_of_a_repeated_step_are_lost_work_of_each_rank(seed):
    random = Random(seed)
    ranks, first = random.randint(1, 3), [random.randint(1, 9) for _ in range(4)]
    rows = [
        (rank, step, math.nan, first[step], WHOLE) for step in range(4) for rank in range(ranks)
    ]
    again = random.randint(0, 3)
    rows += [(rank, step, math.nan, 2, WHOLE) for step in range(again, 4) for rank in range(ranks)]
    trace = read(*rows)
    assert trace.run["lost_work_s"] == pytest.approx(sum(first[again:]))
    assert f"{4 - again} steps came again: the last time of each was used" in trace.limits
    assert "lost_work_s" not in read(*rows[: 4 * ranks]).run


def test_rows_that_make_no_step_are_refused_with_what_there_is():
    with pytest.raises(TraceError, match="no row with a worker"):
        read((0, -1, 0, 1, WHOLE), (0, 1, 0, 0, WHOLE))
    with pytest.raises(TraceError, match=r"parts of steps only \(input, checkpoint\)"):
        read((0, 1, 0, 1, Phase.CHECKPOINT), (0, 1, 0, 1, Phase.INPUT))


def test_workers_have_the_names_of_their_source():
    ranks = read((0, 1, 0, 1, WHOLE), (4, 1, 0, 2, WHOLE), names={4: "gpu012"}).ranks
    assert ranks[4].identity["place"] == "gpu012"
    assert "place" not in ranks[0].identity


def equal(*wholes):
    """Four steps of two ranks, equally long: own parts, and one that makes up for them."""
    rows = []
    for step in range(4):
        for rank, parts in enumerate(wholes):
            lasted = {part: seconds[step] for part, seconds in parts.items()}
            rows += [(rank, step, math.nan, seconds, part) for part, seconds in lasted.items()]
            rows.append((rank, step, math.nan, 10, WHOLE))
    return rows


def test_what_one_part_takes_longer_in_steps_that_are_equally_long_is_waiting():
    """Rank 1 computes 2 s longer in each step; the other waits for it in the exchange."""
    trace = read(*equal({Phase.FORWARD: [4, 5, 4, 5], Phase.SYNC: [6, 5, 6, 5]},
                        {Phase.FORWARD: [6, 7, 6, 7], Phase.SYNC: [4, 3, 4, 3]}))  # fmt: skip
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("step", "rank")
    waits = ((rows.exit_ns - rows.enter_ns - 1) / S).tolist()
    assert waits == [2, 0] * 4
    assert any("one's communication took longer" in limit for limit in trace.limits)
    phases = trace.of_kind(Kind.PHASE)
    exchanged = phases.select(phases.op == int(Phase.SYNC)).sorted_by("step", "rank")
    assert (exchanged.group_seq / S).tolist() == [4, 4, 3, 3] * 2
    assert "waits" not in trace.run


def test_where_two_parts_differ_alike_nobody_tells_in_which_the_wait_is():
    parts = Phase.BACKWARD, Phase.OPTIMIZER
    for turned in (parts, parts[::-1]):
        one, other = (
            {Phase.FORWARD: [5] * 4, turned[way]: [3, 2, 3, 2], turned[1 - way]: [2, 3, 2, 3]}
            for way in (0, 1)
        )
        trace = read(*equal(one, other))
        assert any("cannot be told" in limit for limit in trace.limits)
        assert trace.run["waits"] == "unknown"
