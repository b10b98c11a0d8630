"""The cost of stragglers in a job with a full operation table (Lin et al., OSDI 2025).

A compute takes its duration; a message or collective, the time since its last member began. Usual
durations are those of section 3.2: the mean over all computes of a type, the median over all
transfers of a type.

The step is replayed as it was, and with the usual duration of every operation (the ideal). The cost
of a part of the job is the ideal step with only that part as it was, relative to the ideal step
(equations 2 and 4); M_W and M_S are the shares of the slowdown that go away when the slowest
workers (equation 5), or the last stage (section 5.2), become ideal.

The graph of the run takes the earliest end of a collective and begins a message when it is sent;
the published figures use every member's own duration. So a table has graphs of its own, built and
replayed by the same code, with equal steps as scenarios of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.graph.dependency import Dependencies, dependencies
from evenstep.diagnose.graph.lanes import ENTRY, STEP_END, WAIT
from evenstep.diagnose.graph.replay import CELLS, Change, replay
from evenstep.diagnose.graph.segments import segments
from evenstep.diagnose.graph.structure import NEVER_NS, Graph
from evenstep.trace.columns import Array, Columns, begins
from evenstep.trace.operation_messages import lanes
from evenstep.trace.operations import (
    ANYWHERE,
    CLOCK_ERROR_S,
    COLLECTIVES,
    COMPUTES,
    MESSAGES,
    Role,
    extent,
    on_one_line,
    reduces_behind,
)

Parts = dict[Any, Array]  # by label of a part of the job: (steps,) seconds

SLOWEST = 0.03  # of the workers make up M_W
UNRECORDED = 1.03  # slowdown by unrecorded work from which it is attributed to parts
FIRST = "first-op"


class _Pattern(NamedTuple):
    """Equal steps, each a scenario of one graph; or all steps, where they overlap."""

    steps: Array  # (copies, steps of the graph), by index
    rows: Array  # (operations, copies) of the table
    graph: Graph
    place: Array  # of each operation, in the graph's operations
    ready: Array  # likewise, the one over when it could begin: the same where it begins alone


class OperationJob(NamedTuple):
    """An operation table with its graphs. Arrays beside the table are per row, seconds."""

    table: Columns
    steps: Array  # numbers, ascending
    patterns: list[_Pattern]
    own_s: Array  # what the operation itself took
    usual_s: Array  # what one of its type usually takes
    delay_s: Array  # from when it could have begun until it did: unrecorded work
    measured_s: Array  # (steps,) from its first start, or the end of the previous step, to its end
    names: tuple[str, ...]  # of types, by `optype`


def job(operations: Columns, names: tuple[str, ...]) -> OperationJob:
    """Dependencies and durations of a table with the columns of `trace.operations`."""
    table = prepare_table(operations)
    _, begun, over = extent(operations)
    apart = not on_one_line(operations) or bool((begun[1:] >= over[:-1]).all())
    left = np.zeros(len(table))
    if not apart:  # when each row's worker ended the previous step, since the start of its own
        ended = np.full((len(begun) + 1, int(table.column.max()) + 1), begun[0])
        np.maximum.at(ended, (table.turn + 1, table.column), table.end_s + begun[table.turn])
        left = np.maximum.accumulate(ended)[table.turn, table.column] - begun[table.turn]
    overlapping = reduces_behind(table, table.worker)
    own, delay = np.zeros(len(table)), np.zeros(len(table))
    patterns = []
    for rows in _alike(table) if apart else [np.arange(len(table))[:, None]]:
        waits = dependencies(table.select(rows[:, 0]), overlapping=overlapping)
        patterns.append(_pattern(table, rows, waits))
        own[rows], delay[rows] = _durations_and_delays(table, rows, waits, left[rows])
    measured = over - (begun if apart else np.append(begun[0], over[:-1]))
    usual = _usual(table, own)
    steps = np.unique(table.step)
    return OperationJob(table, steps, patterns, own, usual, delay, measured, names)


def prepare_table(operations: Columns) -> Columns:
    """The table sorted, equal steps alike, with `turn` (index of the step), `column` (of the rank),
    `worker` (of both), `lane` (among ranks of one stage and data-parallel rank, for tensor
    parallelism), and `start_s` and `end_s` since the start of the step.
    """
    turn, begun, _ = extent(operations)
    ranks, column = np.unique(operations["rank"], return_inverse=True)
    start = operations.start_s - begun[turn]
    table = Columns(
        {
            **{name: operations[name].astype(np.int64) for name in _WHOLE},
            "turn": turn,
            "column": column,
            "worker": turn * len(ranks) + column,
            "lane": lanes(operations, column),
            "start_s": start,
            "end_s": start + operations.duration_s,
        }
    )
    thread = np.isin(table.role, (*COMPUTES, *ANYWHERE))
    stream = np.where(thread, -2, np.where(np.isin(table.role, _FLYING), -1, table.optype))
    return table.select(np.lexsort([table.seq_id, start, stream, table.worker]))


_FLYING = (Role.PARAMS, Role.GRADS)
_FORM = ("column", "dp_rank", "stage", "optype", "seq_id", "mc", "gmc", "mb_id")
_WHOLE = ("rank", "step", "role", *_FORM[1:])


def _alike(table: Columns) -> list[Array]:
    """For each structure of steps, the rows of its steps: (operations, steps)."""
    form = np.stack([table[name] for name in _FORM], axis=1).astype(np.int32)
    bounds = np.append(np.flatnonzero(begins(table.turn)), len(table)).tolist()
    alike: dict[bytes, list[int]] = {}
    for first, last in pairwise(bounds):
        alike.setdefault(form[first:last].tobytes(), []).append(first)
    length = dict(pairwise(bounds))
    return [np.arange(length[firsts[0]] - firsts[0])[:, None] + firsts for firsts in alike.values()]


def _pattern(table: Columns, rows: Array, found: Dependencies) -> _Pattern:
    """The graph of these rows; operations that begin together depend on one more operation."""
    ops = table.select(rows[:, 0])
    together = np.bincount(found.group)[found.group] > 1
    place = np.cumsum(1 + together) - 1
    ready = place - together
    steps, lanes_of = np.unique(ops.turn), np.arange(int(ops.column.max()) + 1)
    _, begin = np.unique(found.group[together], return_inverse=True)
    begin += place[-1] + 1
    nodes = np.arange(max(place[-1], begin.max(initial=0)) + 1)
    queues = np.isin(nodes, place[together])
    chained = found.source == found.target - 1
    queues[ready[found.target[chained]]] = True
    entries = _entry_rows(ops, found, (place, ready, begin), together)
    zero, known = 0 * nodes, np.zeros((len(steps), len(lanes_of)), np.int64)
    names = ("queue", "op", "over_ns", "last_ns")
    operations = Columns({**dict.fromkeys(names, zero), "queues": queues, "number": nodes})
    never = known + NEVER_NS
    graph = segments(entries, operations, steps, lanes_of, (known, never, never))
    number = np.argsort(graph.operations.number)
    turns = np.unique(table.turn[rows], axis=0).T
    return _Pattern(turns, rows, graph, number[place], number[ready])


def _entry_rows(
    ops: Columns, found: Dependencies, nodes: tuple[Array, Array, Array], together: Array
) -> Columns:
    """Rows of a graph: a lane enters all operations at the beginning of its step, each to begin
    after its dependencies, and ends the step when all are over. `nodes`: the operation of each row,
    the one over when it could begin, and for those `together` with others the one that begins
    them."""
    place, ready, begin = nodes
    count, grouped = len(ops), np.flatnonzero(together)
    apart = found.source != found.target - 1  # else it queues
    source, target = found.source[apart], found.target[apart]
    first, last = (np.setdiff1d(np.arange(count), one) for one in (target, found.source))
    none, ends = np.full(count, -1), np.flatnonzero(begins(ops.worker))
    parts = [  # the row, what its lane does, enters, after what, and waits for
        (target, ENTRY, ready[target], place[source], none[target]),
        (first, ENTRY, ready[first], none[first], none[first]),
        (grouped, ENTRY, begin, ready[grouped], none[grouped]),
        (grouped, ENTRY, place[grouped], begin, none[grouped]),
        (last, WAIT, none[last], none[last], place[last]),
        (ends, STEP_END, none[ends], none[ends], none[ends]),
    ]
    names = ("of", "order", "enter", "after", "wait")
    full = [[np.broadcast_to(each, len(part[0])) for each in part] for part in parts]
    columns = dict(zip(names, map(np.concatenate, zip(*full, strict=True)), strict=True))
    of = columns.pop("of")
    where = {"lane": ops.column[of], "step": ops.turn[of], "at_ns": 0 * of}
    return Columns(where | columns).sorted_by("lane", "step", "order")


def _durations_and_delays(
    table: Columns, rows: Array, waits: Dependencies, left: Array
) -> tuple[Array, Array]:
    """The own duration of each operation, and its delay since it could have begun; (operations,
    steps). `left`: when their workers ended the previous step."""
    start, end = table.start_s[rows], table.end_s[rows]
    role = table.role[rows[:, 0]]
    together = np.isin(role, (*MESSAGES, *COLLECTIVES))[:, None]
    order = np.argsort(waits.group, kind="stable")
    last = np.maximum.reduceat(start[order], np.flatnonzero(begins(waits.group[order])), axis=0)[
        waits.group
    ]
    transfer = end - last
    own = np.where(together, np.where(transfer <= -CLOCK_ERROR_S, 0.0, transfer), end - start)
    free = left.copy()
    first = np.flatnonzero(begins(waits.target))
    if len(first):
        free[waits.target[first]] = np.maximum.reduceat(end[waits.source], first, axis=0)
    delay = start - free
    return own, np.where(delay <= -CLOCK_ERROR_S, 0.0, delay)


def _usual(table: Columns, own: Array) -> Array:
    """Mean of computes, median of transfers, by type of operation."""
    usual = np.zeros(len(table))
    transfers = np.isin(table.role, (*MESSAGES, *COLLECTIVES, Role.LAYERNORM))
    for kind in np.unique(table.optype):
        mine = table.optype == kind
        middle = np.median if transfers[np.argmax(mine)] else np.mean
        usual[mine] = middle(own[mine])
    return usual


def replay_job(plan: OperationJob, durations_s: Array, delays_s: Array | None = None) -> Array:
    """Length of each step, (steps, scenarios), in seconds if its operations took `durations_s`,
    (rows, scenarios), and began `delays_s` after their dependencies had ended."""
    found = np.zeros((len(plan.steps), durations_s.shape[1]))
    for one in plan.patterns:
        shape = len(one.steps), durations_s.shape[1]
        took = np.zeros((len(one.graph.operations), *shape))
        if delays_s is not None:
            took[one.ready] = delays_s[one.rows]
        took[one.place] += durations_s[one.rows]
        change = Change.none()._replace(operations=np.arange(len(took)))
        each_ns = 1e9 * took.reshape(len(took), -1).T
        changes = [change._replace(took_ns=one_ns) for one_ns in each_ns]
        ends = np.nanmax(replay(one.graph, changes), axis=2).reshape(*shape, -1) / 1e9
        found[one.steps] = np.diff(ends, axis=2, prepend=0.0).transpose(0, 2, 1)
    return found


# -- the published figures -------------------------------------------------------------------------


def published_results(plan: OperationJob) -> dict[str, Any]:
    """The results under the names of the authors' own tool; times in seconds. None where there is
    no duration to divide by, or too little unrecorded work."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: _finite_or_none(value) for name, value in _publish(plan).items()}


def _publish(plan: OperationJob) -> dict[str, Any]:
    steps, measured = plan.steps.tolist(), plan.measured_s
    last = plan.table.stage == plan.table.stage.max()
    mend = np.stack([np.ones_like(last), np.zeros_like(last), ~last, last], axis=1)
    was, ideal, mended, broken = _lengths(plan, mend).T
    lost = _parts_of_each(plan, *_optypes(plan), lambda keep: _lengths(plan, keep))
    ranks = _workers(plan, lost, ideal)
    slowest = sorted(ranks, key=lambda rank: (-ranks[rank], rank))
    count = -(-round(len(ranks) * SLOWEST * 100) // 100)
    slow = np.isin(plan.table["rank"], slowest[:count])
    without, alone = _lengths(plan, np.stack([~slow, slow], axis=1)).T
    result = {
        "step_t_base": dict(zip(steps, measured.tolist(), strict=True)),
        "step_t_nodelay": dict(zip(steps, was.tolist(), strict=True)),
        "step_t_noblk": dict(zip(steps, ideal.tolist(), strict=True)),
        "launch_slowdown": _ratio(measured, was),
        "blocking_slowdown": _ratio(was, ideal),
        "blocking_step_slowdown": _sort(dict(zip(steps, (was / ideal).tolist(), strict=True))),
        "launch_step_slowdown": _sort(dict(zip(steps, (measured / was).tolist(), strict=True))),
    }
    late = _parts_with_delays(plan) if measured.mean() >= UNRECORDED * was.mean() else {}
    for kind in lost:
        result |= _decompose(f"blocking_decompose_by_{kind}", lost[kind], ideal, steps)
        result |= _decompose(f"launch_decompose_by_{kind}", late.get(kind), was, steps)
    result["blocking_decompose_by_rank"] = _sort(ranks)
    result["ms"] = _explained_shares("Ms", mended, broken, was, ideal)
    result["mw"] = _explained_shares("Mw", without, alone, was, ideal)
    return result


def _finite_or_none(value: Any) -> Any:
    """A result with None for values that are not finite."""
    if isinstance(value, dict):
        return {key: _finite_or_none(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _ratio(one_s: Array, other_s: Array) -> float:
    """Ratio of mean steps (equation 1)."""
    return float(one_s.mean() / other_s.mean())


def _decompose(name: str, parts: Parts | None, base: Array, steps: list[int]) -> dict[str, Any]:
    """The cost of each part relative to the base step, on average and in every step."""
    if parts is None:
        return dict.fromkeys((name, f"{name}_per_step"))
    ratios = {label: (lengths / base).tolist() for label, lengths in parts.items()}
    return {
        name: _sort({label: _ratio(lengths, base) for label, lengths in parts.items()}),
        f"{name}_per_step": {
            step: _sort({label: values[at] for label, values in ratios.items()})
            for at, step in enumerate(steps)
        },
    }


def _sort(values: dict[Any, float]) -> dict[Any, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _lengths(plan: OperationJob, keep: Array) -> Array:
    """Step lengths with the rows in `keep` (rows, scenarios) as they were, the others ideal."""
    return replay_job(plan, np.where(keep, plan.own_s[:, None], plan.usual_s[:, None]))


def _explained_shares(
    name: str, mended_s: Array, broken_s: Array, was: Array, ideal: Array
) -> dict[str, float | None]:
    """The part's contribution to the slowdown: mean step with it ideal and the rest as it was, and
    the reverse; the share that it removes (above 1 where others profit too), and that it adds."""
    lengths = (mended_s, broken_s, was, ideal)
    mended, broken, before, best = (float(length.mean()) for length in lengths)
    whole = before - best
    known = abs(whole) > 1e-9 * before
    removed, added = (gain / whole if known else None for gain in (before - mended, broken - best))
    times = {"trem": mended, "tadd": broken, "tori": before, "tideal": best}
    return {**times, "rem": removed, "add": added, name: removed}


# -- parts of the job ------------------------------------------------------------------------------


def _parts_of_each(
    plan: OperationJob, labels: list[str], types: Array, replay: Callable[[Array], Array]
) -> dict[str, Parts]:
    """Step lengths by type, stage and data-parallel rank; `replay` is given masks of the rows of
    several parts at a time."""
    kinds = {"optype": types, "stage": plan.table.stage, "dp_rank": plan.table.dp_rank}
    found: dict[str, Parts] = {}
    width = max(1, CELLS // len(plan.table))
    for kind, values in kinds.items():
        there = np.unique(values)
        found[kind] = {}
        for first in range(0, len(there), width):
            part = there[first : first + width]
            length = replay(values[:, None] == part)
            found[kind] |= dict(zip(part.tolist(), length.T, strict=True))
    return found | {"optype": {labels[at]: value for at, value in found["optype"].items()}}


def _optypes(plan: OperationJob) -> tuple[list[str], Array]:
    """Labels of types, both ends of a message being one, and the index of each row's label."""
    names = [
        re.sub("^((?:for|back)ward)-(?:send|recv)$", r"\1-pp-comm", name) for name in plan.names
    ]
    labels, number = np.unique(names, return_inverse=True)
    return [*labels.tolist(), FIRST], number[plan.table.optype]


def _workers(plan: OperationJob, alone: dict[str, Parts], ideal: Array) -> dict[int, float]:
    """Upper bound of equation 4: a worker costs at most as much as its stage, or its dp rank."""
    rows = np.unique(plan.table["rank"], return_index=True)[1]
    of = plan.table.select(rows)
    places = zip(of["rank"].tolist(), of.dp_rank.tolist(), of.stage.tolist(), strict=True)
    return {
        rank: min(_ratio(alone["dp_rank"][dp_rank], ideal), _ratio(alone["stage"][stage], ideal))
        for rank, dp_rank, stage in places
    }


def _parts_with_delays(plan: OperationJob) -> dict[str, Parts]:
    """The replay with the delays of one part only."""
    table = plan.table
    first = (table.role == Role.FORWARD) & (table.stage == 0)
    first |= (table.role == Role.FORWARD_RECV) & (table.stage > 0)
    labels, types = _optypes(plan)
    types = np.where(first & (table.seq_id == 0), len(labels) - 1, types)

    def held(keep: Array) -> Array:
        own = np.broadcast_to(plan.own_s[:, None], keep.shape)
        return replay_job(plan, own, np.where(keep, plan.delay_s[:, None], 0.0))

    return _parts_of_each(plan, labels, types, held)
