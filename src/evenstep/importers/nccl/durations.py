"""Read tables of durations of collectives: CSV, JSON lines or Parquet.

Timers around a library's calls and observers of its kernels write them: a row per rank, group and
call, with its position in the group's order and its duration. No clock is needed: all members of a
synchronizing collective leave it together, so a rank's wait is its duration less the shortest of
the members'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from evenstep.errors import TraceError, nothing_read
from evenstep.importers.content import SourceFile, usable
from evenstep.importers.draft import LATEST_NS, MOST_BYTES, ORIGIN_NS, Draft
from evenstep.importers.kineto.names import operation
from evenstep.importers.tables import TableFile, columns_of, read_table, spell, table_file
from evenstep.trace.columns import (
    Array,
    Columns,
    begins,
    key_numbers,
    positions_by_key,
    run_numbers,
)
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import UNKNOWN, Trace

NAME = "table of collectives"
_DURATION = re.compile(r"\b(?:duration|elapsed|latency|(?:exec|execution|run|kernel|coll) time)\b")
SAMPLE = 50_000  # rows that tell which calls run behind others
#: How a call runs: a rank goes on when it has ended; at once; at once, but waits for it and all
#: those before it when it next makes a call that runs alone.
ALONE, BEHIND, AWAITED = range(3)


class DurationColumns(NamedTuple):
    """The names of a table's columns; "" for one that is missing."""

    file: TableFile
    rank: str
    group: str
    sequence: str
    op: str
    size: str
    duration: str
    unit_s: float


def recognises(source: SourceFile) -> bool:
    """Whether a table has ranks, positions in an order of calls, and durations."""
    return layout_of(source) is not None


def layout_of(source: SourceFile) -> DurationColumns | None:
    """Find the columns of a table; None where it is not of collectives."""
    file = table_file(source)
    if file is None:
        return None
    named = columns_of(file, "collectives")
    message = named.pop("message")
    if not named["rank"] or not (
        message or (named["sequence"] and (named["group"] or named["op"]))
    ):
        return None
    for name in file.names:
        core, unit = spell(name)
        if _DURATION.search(core) and "step" not in core:
            return DurationColumns(file, **named, duration=name, unit_s=unit or 1.0)
    return None


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all tables as one trace. Raises `TraceError` where none has a usable row."""
    draft = Draft()
    read_one = partial(_rows, draft=draft)
    table = Columns.concatenate(list(usable(sources, draft.limits, read_one)))
    if not len(table):
        raise nothing_read(draft.limits, f"{sources[0].path} has no collective")
    for rank in np.unique(table["rank"]).tolist():
        draft.rank(rank, {"device_clock": "host"}, boot_id="one table")
    _enter(draft, table)
    draft.limits.append(
        "only durations of collectives are known: a rank's wait is its own less the shortest of "
        "the members', which is taken for transfer; the time between collectives, and so the "
        "length of steps, is unknown: shares are of the time in collectives, and of step time at "
        "most as much"
    )
    return infer_steps(
        draft.trace({"source": NAME, "between_calls": UNKNOWN}), "no steps are known"
    )


def _rows(source: SourceFile, draft: Draft) -> Columns:
    """The usable rows of a table: rank, group (its number among the names), sequence, op, …"""
    layout = layout_of(source)
    if layout is None:
        raise TraceError(f"{source.path} is not a table any more; it was changed while it was read")
    numbers = [name for name in (layout.rank, layout.sequence, layout.size) if name]
    texts = [name for name in (layout.group, layout.op) if name]
    table = read_table(layout.file, [*numbers, layout.duration], texts, draft.limits)
    rank = table.numbers[layout.rank]
    names, group = table.texts.get(layout.group, ([], np.full(len(rank), -1)))
    sequence = table.numbers.get(layout.sequence)  # without one, calls are in order of the rows
    sequence = positions_by_key(rank, group) if sequence is None else sequence
    length = np.rint(table.numbers[layout.duration] * layout.unit_s * 1e9)
    good = (rank >= 0) & (rank < MOST_RANKS) & (rank % 1 == 0) & (sequence >= 0)
    good &= (sequence < LATEST_NS) & (length >= 0) & (length < LATEST_NS / max(len(rank), 1))
    if not good.all():
        draft.limits.append(
            f"{layout.file.path}: {int((~good).sum())} rows have no rank, place or duration: "
            "left out"
        )
    size = table.numbers.get(layout.size, np.zeros(len(rank)))
    kinds, code = table.texts.get(layout.op, ([], np.full(len(rank), -1)))
    unnamed = Op.OTHER if layout.op else Op.ALL_REDUCE  # the most frequent one, without a column
    ops = np.array([*(int(operation(kind) or Op.OTHER) for kind in kinds), int(unnamed)])
    shared = np.array([*(draft.name(name) for name in names), draft.name("world")])
    columns = {
        "rank": rank, "group": shared[group], "group_seq": sequence, "op": ops[code],
        "length": length, "bytes": np.where((size > 0) & (size < MOST_BYTES), size, 0),
    }  # fmt: skip
    return Columns({name: values[good].astype(np.int64) for name, values in columns.items()})


def _enter(draft: Draft, table: Columns) -> None:
    """Enter calls on a constructed clock: each ends as early as all durations before it allow.

    All members leave a call together, and enter it after they have left the one before, if they
    waited for that. So the time between calls is what a rank needs in excess of the others.
    """
    table = table.with_column("row", np.arange(len(table)))
    table = table.sorted_by("group_seq", "group", "rank", "row")
    call = run_numbers(table.group_seq, table.group)
    runs, found = np.zeros(len(table), np.int8), None
    if _in_turn(table):
        runs = _run(table, call)
        found = _place(table, call, table.row, runs)
    if found is None:
        draft.limits.append(
            "rows are not in the order in which ranks made their calls: the order of calls of "
            "different groups, and so which rank delayed which across groups, is not known"
        )
        runs[:] = ALONE
        group = table.group[begins(call)]  # of which training repeats its share in every step
        share = ((positions_by_key(group) + 0.5) / np.bincount(group)[group])[call]
        found = _place(table, call, share, runs)
    assert found is not None  # a single order of all calls has no cycle
    enter, end = (ORIGIN_NS + times for times in found[:2])
    names = draft.names
    pairs = np.unique(np.stack([table.group, table["rank"]]), axis=1)
    groups, first = np.unique(pairs[0], return_index=True)
    numbers = np.full(len(names), -1)
    for group, ranks in zip(groups.tolist(), np.split(pairs[1], first[1:]), strict=True):
        numbers[group] = draft.group(names[group], ranks.tolist())
    draft.calls(
        table["rank"],
        op=table.op, group=numbers[table.group], group_seq=table.group_seq,
        bytes_in=table.bytes, enter_ns=enter, exit_ns=end,
        flags=np.where(runs > ALONE, int(Flag.ASYNC), int(Flag.HOST_BLOCKED)),
    )  # fmt: skip
    waits = Columns(rank=table["rank"], enter_ns=enter, exit_ns=end).select(runs == AWAITED)
    draft.rows(waits["rank"], kind=int(Kind.PHASE), op=int(Phase.SYNC), **waits)


def _in_turn(table: Columns) -> bool:
    """Whether rows are in the order of calls: ascending within each rank and group, and not sorted
    by group."""
    by_group = table.select(np.lexsort([table.row, table.group, table["rank"]]))
    other = np.diff(by_group["rank"]) != 0
    new = other | (np.diff(by_group.group) != 0)
    by_rank = table.group[np.lexsort([table.row, table["rank"]])]
    changes = np.count_nonzero(~other & (np.diff(by_rank) != 0))
    least = np.count_nonzero(new & ~other)
    ascending = bool((np.diff(by_group.group_seq)[~new] >= 0).all())
    return ascending and bool(changes > least or least == 0)


def _run(table: Columns, call: Array) -> Array:
    """How each call runs. Calls of a kind run behind the others if that leaves less of the
    durations to work that nothing else shows."""
    line = np.lexsort([table.row, table["rank"]])
    first = np.searchsorted(table["rank"][line], table["rank"][line])
    some = np.zeros(len(table), bool)
    some[line[np.arange(len(line)) - first < SAMPLE // len(np.unique(first))]] = True
    sample, its = table.select(some), np.unique(call[some], return_inverse=True)[1].reshape(-1)

    def excess(runs: Array) -> float:
        found = _place(sample, its, sample.row, runs[some])
        return np.inf if found is None else found[2]

    best, left = np.zeros(len(table), np.int8), _kinds(table)
    least = excess(best)
    while left:
        tries = [np.maximum(best, _behind(table["rank"], line, kind)) for kind in left]
        sums = [excess(one) for one in tries]
        at = int(np.argmin(sums))
        if sums[at] >= least:
            break
        best, least = tries[at], sums[at]
        del left[at]
    return best


def _kinds(table: Columns) -> list[Array]:
    """Masks of the calls of one operation in groups of one size with equally many calls; without
    the most frequent ones, which no others can run before."""
    pairs = np.unique(np.stack([table.group, table["rank"]]), axis=1)
    members, rows = np.bincount(pairs[0]), np.bincount(table.group)
    number = key_numbers(table.op, members[table.group], rows[table.group])
    usual = np.bincount(number).argmax()
    return [number == one for one in np.unique(number) if one != usual]


def _behind(rank: Array, line: Array, kind: Array) -> Array:
    """How calls run if those of a kind run behind others and are awaited before the longest runs
    of these; if all such runs are equally long, one after the other."""
    at = np.flatnonzero(kind[line])
    last = np.diff(rank[line[at]], append=-1) != 0
    others = np.where(last, 0, np.diff(at, append=0) - 1)
    awaited = last | (2 * others > others.max(initial=0))
    runs = np.full(len(line), ALONE, np.int8)
    runs[line[at]] = ALONE if awaited.all() else np.where(awaited, AWAITED, BEHIND)
    return runs


def _place(
    table: Columns, call: Array, turn: Array, runs: Array
) -> tuple[Array, Array, int] | None:
    """When the call of each row was entered and ended, ns, and the sum of what ranks need in
    excess; None if calls wait for each other in a cycle. `turn` orders the rows of each rank.

    When a call behind others was made is not known if one before it was then still under way.
    """
    line = np.lexsort([call, turn, table["rank"]])
    follows = (np.diff(table["rank"][line]) == 0) & (np.diff(call[line]) != 0)
    following = np.full(len(call), -1)
    following[line[:-1][follows]] = line[1:][follows]
    waiting = np.bincount(call[line[1:][follows]], minlength=int(call[-1]) + 1).tolist()
    members = np.searchsorted(call, np.arange(len(waiting) + 1)).tolist()
    rank, length, after = table["rank"].tolist(), table.length.tolist(), following.tolist()
    calls, how = call.tolist(), runs.tolist()
    free, over, due = (dict.fromkeys(rank, 0) for _ in range(3))
    enter, ends, excess = [0] * len(calls), [0] * len(waiting), 0
    ready, left = [at for at, count in enumerate(waiting) if not count], len(waiting)
    while ready:
        at, left = ready.pop(), left - 1
        rows = range(members[at], members[at + 1])
        for row in rows:
            if not how[row]:
                free[rank[row]] = max(free[rank[row]], due[rank[row]])
        ends[at] = end = 1 + max(free[rank[row]] + length[row] for row in rows)
        for row in rows:
            mine, begun = rank[row], end - length[row]
            if not how[row] or begun > over[mine]:
                excess += begun - free[mine]
                free[mine] = begun
            enter[row] = free[mine]
            if not how[row]:
                free[mine] = end
            else:
                over[mine] = max(over[mine], end)
                due[mine] = over[mine] if how[row] == AWAITED else due[mine]
            if after[row] >= 0:
                waiting[calls[after[row]]] -= 1
                if not waiting[calls[after[row]]]:
                    ready.append(calls[after[row]])
    return None if left else (np.array(enter), np.array(ends)[call], excess)
