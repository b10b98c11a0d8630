"""Collectives and messages of profiles as a table, and their position in each group's order, which
identifies the same collective on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import CALL, ON_HOST, Annotation, operation
from evenstep.importers.merging import subtract
from evenstep.trace.columns import Array, Columns, begins, key_numbers, positions_by_key
from evenstep.trace.spool.layout import Flag, Kind, Op

UNKNOWN_NS = int(np.iinfo(np.int64).min)  # a device time that the file does not have
NOT_SET = -1

#: Columns as in a record, with `enter_ns` the issue and device times on the host's clock. But
#: `thread` indexes the file's threads, `name` its names, `args` and `asked` the arguments of the
#: call and of the operator that issued it (-1: none).
COLUMNS = (
    *("op", "enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns", "thread", "device"),
    *("stream", "name", "args", "asked", "flags", "peer_or_root"),
)


def call_table(**columns: Any) -> Columns:
    """Calls with these columns; missing columns get the value for none."""
    none = {**dict.fromkeys(COLUMNS, NOT_SET), "stream": 0}
    none |= {"device_enter_ns": UNKNOWN_NS, "device_exit_ns": UNKNOWN_NS}
    return Columns.filled(none | columns, dict.fromkeys(COLUMNS, np.int64), len(columns["op"]))


def announced_peers(announced: Sequence[Annotation | None], notes: Columns) -> Array:
    peers = np.array([told.peer if told else NOT_SET for told in announced] + [NOT_SET])
    return np.asarray(peers[notes.name])


def announced_ops(announced: Sequence[Annotation | None], backends: frozenset[str]) -> Array:
    """The operation that each name announces for one of these backends; -1 for other names."""
    return np.array(
        [int(told.op) if told and told.backend in backends else NOT_SET for told in announced]
        + [NOT_SET]
    )


# -- the order of each group -----------------------------------------------------------------------

_PER_STEP = 1 << 20  # sequence numbers of a step, where calls are counted within steps


def in_sequence(table: Columns) -> tuple[Columns, list[str]]:
    """The records with `group_seq`, and limits in words.

    If every call of a group states its number, that is used, and calls of one rank with the same
    number are merged as coalesced. Else calls are counted within each step, and matched only if
    every rank issued the same (operation, size, type) in that step; other calls lose their group.
    """
    if not len(table):
        return table.with_column("group_seq", np.zeros(0, np.int64)), []
    table = table.sorted_by("enter_ns")
    collective = table.kind == int(Kind.COLLECTIVE)
    stated = ~np.isin(table.group, table.group[collective & (table.stated < 0)])
    first = table.select(collective & stated)
    counted = table.select(collective & ~stated)
    messages = table.select(~collective)
    first = _coalesce(first.with_column("group_seq", first.stated))
    counted = counted.with_column("group_seq", _count_alike(counted, "group"))
    counted, limits = _agreeing(counted)
    messages = messages.with_column(
        "group_seq", _count_alike(messages, "group", "peer_or_root", "op", "payload")
    )
    return Columns.concatenate([first, counted, messages]), limits


def _coalesce(table: Columns) -> Columns:
    """One row per rank, group and number: from the first entry to the last exit."""
    if not len(table):
        return table
    table = table.sorted_by("rank", "group", "group_seq", "enter_ns")
    run = key_numbers(table["rank"], table.group, table.group_seq)
    first = np.flatnonzero(begins(run))
    many = np.diff(np.append(first, len(run))) > 1
    merged = table.select(first)
    for name in ("exit_ns", "device_exit_ns"):
        merged = merged.with_column(name, np.maximum.reduceat(table[name], first))
    for name in ("bytes_in", "bytes_out"):
        merged = merged.with_column(name, np.add.reduceat(table[name], first))
    known = np.where(table.device_enter_ns > 0, table.device_enter_ns, np.iinfo(np.int64).max)
    start = np.minimum.reduceat(known, first)
    start = np.where(start == np.iinfo(np.int64).max, 0, start)
    flags = np.where(many, merged.flags | int(Flag.COALESCED), merged.flags)
    return merged.with_columns(device_enter_ns=start, flags=flags)


def _count_alike(table: Columns, *keys: str) -> Array:
    """Number rows of the same keys: by step, then by their position among those of the rank.

    Rows are in order of entry.
    """
    position = positions_by_key(*(table[name] for name in ("rank", "step", *keys)))
    return table.step.astype(np.int64) * _PER_STEP + np.minimum(position, _PER_STEP - 1)


def _differ(table: Columns) -> Array:
    """Whether each row and the one before it cannot be the same collective.

    Ranks of an all-to-all, gather or scatter may have different sizes, but the same type.
    """
    sized = ~np.isin(table.op, [int(op) for op in (Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER)])
    size = np.where(sized, table.bytes_in, 0)
    return np.asarray((np.diff(table.op) != 0) | (np.diff(table.dtype) != 0) | (np.diff(size) != 0))


def _agreeing(table: Columns) -> tuple[Columns, list[str]]:
    """Remove the group of rows in steps where the group's ranks did not issue the same calls."""
    table = table.sorted_by("group", "step", "group_seq", "rank")
    cell = key_numbers(table.group, table.step)
    place = key_numbers(table.group, table.step, table.group_seq)
    if not len(cell):
        return table, []
    there = np.zeros(int(cell[-1]) + 1, np.int64)
    pairs = np.unique(np.stack([cell, table["rank"]]), axis=1)
    np.add.at(there, pairs[0], 1)
    differ = np.append(False, (np.diff(place) == 0) & _differ(table))
    some_lack = np.bincount(place)[place] != there[cell]
    wrong = (np.bincount(cell, weights=differ | some_lack) > 0)[cell]
    limits = []
    if (known := int((wrong & (table.group >= 0)).sum())) > 0:
        limits.append(
            f"{known} collectives have no number in the files and are not the "
            "same on all ranks of a step: they are not matched between ranks"
        )
    lonely = np.arange(len(table))  # distinct numbers, so that no two are matched
    alone = wrong | (table.group < 0)
    number, group = np.where(alone, lonely, table.group_seq), np.where(alone, -1, table.group)
    return table.with_columns(group_seq=number, group=group), limits


# -- calls that threads of the host carry out ------------------------------------------------------
#
# gloo, MPI, UCC. A call is an operator `c10d::…`, which returns at once. The backend's threads
# execute the calls in order, and mark each by an annotation (`gloo:all_reduce`).


def host_calls(file: KinetoFile, announced: Sequence[Annotation | None]) -> Columns:
    """Calls of backends of the host, from issue to end."""
    codes = announced_ops(announced, ON_HOST)
    done = file.of(RowKind.ANNOTATION)
    done = done.select(codes[done.name] >= 0).sorted_by("start_ns")
    issued = file.of(RowKind.OPERATOR)
    issued = issued.with_column("op", file.by_name(_issue, issued.name, NOT_SET))
    issued = issued.select(issued.op >= 0).sorted_by("start_ns")
    parts = [call_table(op=[])]
    for op in np.unique(codes[done.name]):
        mine = done.select(codes[done.name] == op)
        asked = issued.select(issued.op == op)
        place = _in_order(asked.start_ns, mine.start_ns)
        parts.append(
            call_table(
                op=np.full(len(mine), op), enter_ns=_first(asked.start_ns, place, mine.start_ns),
                exit_ns=mine.end_ns, thread=_first(asked.thread, place, mine.thread),
                name=mine.name, args=mine.args,
                asked=_first(asked.args, place, np.full(len(mine), NOT_SET)), flags=int(Flag.ASYNC),
                peer_or_root=announced_peers(announced, mine),
            )
        )  # fmt: skip
    return Columns.concatenate(parts)


def host_waits(file: KinetoFile, calls: Columns) -> tuple[Array, Array]:
    """Intervals in which a collective of the host was in flight and no thread ran an operator."""
    host = calls.select((calls.flags & int(Flag.ON_DEVICE)) == 0)
    if not len(host):
        return host.enter_ns, host.exit_ns
    work = file.of(RowKind.OPERATOR)
    work = work.select(~file.by_name(lambda name: name.startswith(CALL), work.name))
    return subtract(host.enter_ns, host.exit_ns, work.start_ns, work.end_ns)


def _issue(name: str) -> int:
    """The operation that an operator issues; -1 for other names."""
    op: Op | None = operation(name.removeprefix(CALL)) if name.startswith(CALL) else None
    return NOT_SET if op is None else int(op)


def _first(values: Array, place: Array, others: Array) -> Array:
    """Values at indices; `others` where the index is -1."""
    return np.where(place >= 0, np.append(values, NOT_SET)[place], others)


def _in_order(issued: Array, begun: Array) -> Array:
    """Index of the issued call that each beginning belongs to, in order; -1 if issued before the
    file.

    The latest assignment in which no call begins before its issue: the first beginnings may belong
    to calls issued before the file, and the last calls may not begin within it.
    """
    index = np.arange(len(begun))
    latest = np.searchsorted(issued, begun, side="right") - 1
    return np.asarray(np.maximum(np.minimum.accumulate((latest - index)[::-1])[::-1] + index, -1))
