"""Collectives and messages that threads of the host carry out: gloo, MPI, UCC.

A call is an operator `c10d::…`, which returns at once. The backend's threads carry the calls out in
their order, and announce each as an annotation (`gloo:all_reduce`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import CALL, ON_HOST, Annotation, operation
from evenstep.importers.kineto.table import (
    NOT_SET,
    announced_ops,
    announced_peers,
    call_table,
)
from evenstep.importers.merging import without
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Op

Array = npt.NDArray[Any]


def host_calls(file: KinetoFile, announced: Sequence[Annotation | None]) -> Columns:
    """Calls from being issued to being done."""
    codes = announced_ops(announced, ON_HOST)
    done = file.of(RowKind.ANNOTATION)
    done = done.select(codes[done.name] >= 0).sorted_by("start_ns")
    issues = np.array([*map(_issue, file.names), NOT_SET])
    issued = file.of(RowKind.OPERATOR)
    issued = issued.select(issues[issued.name] >= 0).sorted_by("start_ns")
    parts = [call_table(op=[])]
    for op in np.unique(codes[done.name]):
        mine = done.select(codes[done.name] == op)
        asked = issued.select(issues[issued.name] == op)
        place = _in_order(asked.start_ns, mine.start_ns)
        parts.append(
            call_table(
                op=np.full(len(mine), op),
                enter_ns=_first(asked.start_ns, place, mine.start_ns),
                exit_ns=mine.end_ns,
                thread=_first(asked.thread, place, mine.thread),
                name=mine.name,
                args=mine.args,
                asked=_first(asked.args, place, np.full(len(mine), NOT_SET)),
                flags=int(Flag.ASYNC),
                peer_or_root=announced_peers(announced, mine),
            )
        )
    return Columns.concatenate(parts)


def host_waits(file: KinetoFile, calls: Columns) -> tuple[Array, Array]:
    """When a collective of the host was in flight and no operator was at work on any thread."""
    host = calls.select((calls.flags & int(Flag.ON_DEVICE)) == 0)
    if not len(host):
        return host.enter_ns, host.exit_ns
    issuing = np.array([name.startswith(CALL) for name in file.names], bool)
    work = file.of(RowKind.OPERATOR)
    work = work.select(~issuing[work.name])
    return without(host.enter_ns, host.exit_ns, work.start_ns, work.end_ns)


def _issue(name: str) -> int:
    """The operation that an operator issues; -1 for other names."""
    op: Op | None = operation(name.removeprefix(CALL)) if name.startswith(CALL) else None
    return NOT_SET if op is None else int(op)


def _first(values: Array, place: Array, others: Array) -> Array:
    """The value at each place; the other one where there is none."""
    return np.where(place >= 0, np.append(values, NOT_SET)[place], others)


def _in_order(issued: Array, begun: Array) -> Array:
    """Which call each beginning belongs to, first come first served; -1 for one before the file.

    The latest assignment in which none begins before it is issued: the first of the file may have
    been issued before it, the last may not have begun in it.
    """
    if not len(begun):
        return np.zeros(0, np.int64)
    index = np.arange(len(begun))
    latest = np.searchsorted(issued, begun, side="right") - 1
    return np.asarray(np.maximum(np.minimum.accumulate((latest - index)[::-1])[::-1] + index, -1))
