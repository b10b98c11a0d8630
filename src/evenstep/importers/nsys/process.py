"""One device of one process in an export of Nsight Systems, as a profile like Kineto's.

A collective is a kernel of NCCL. Its launch is found by correlation; its calls are the NVTX ranges
that NCCL opened on the launching thread since the previous launch: all ranges of a group of calls
precede the one launch that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenstep.importers.content import whole
from evenstep.importers.draft import MOST_BYTES
from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import kernel_operation, operation, phase
from evenstep.importers.kineto.steps import StepMarks
from evenstep.importers.nsys.tables import Export
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Op, Phase

_STEP = re.compile(
    r"^(?:ProfilerStep\*?#|(?:[\w ]*[ _])?(?:step|iteration|iter|batch_idx)[ _#:=]*)(\d{1,9})$",
    re.IGNORECASE,
)
_CALL = re.compile(r"^(?:p?nccl)([A-Z]\w+)$")
_INIT = ("CommInit", "CommSplit", "CommShrink")
_MOST_WAITING = 1_024  # ranges of calls that have not been launched


class LaunchRanges(NamedTuple):
    """A call carried by one launch, from NCCL's NVTX ranges; -1 where unknown."""

    op: Op
    bytes: int = 0
    communicator: int = -1
    peer: int = -1
    calls: int = 0


class Membership(NamedTuple):
    """A rank within a communicator."""

    communicator: int
    rank: int
    size: int


def _step_number(name: str) -> int | None:
    found = _STEP.match(name.strip())
    return int(found[1]) if found else None


MARKS = StepMarks(
    _step_number, lambda name: phase(name) is Phase.OPTIMIZER, "no NVTX range names a step",
    'no NVTX range names a step or the optimizer (torch.cuda.nvtx.range_push(f"step {n}"))',
)  # fmt: skip


def communicators(export: Export, process: int) -> set[int]:
    """The communicators that a process called, by NCCL's ranges."""
    ranges = export.ranges
    mine = ((ranges.thread >> 24) == process) & (ranges.payload >= 0)
    said = (export.payloads[number] for number in np.unique(ranges.payload[mine]).tolist())
    return {one for each in said if (one := whole(each.get("nccl communicator id"))) >= 0}


def memberships(export: Export, process: int) -> list[Membership]:
    """The communicators that a process set up, by NCCL's ranges."""
    ranges = export.ranges
    mine = np.flatnonzero(((ranges.thread >> 24) == process) & (ranges.payload >= 0))
    found = []
    for index in mine:
        match = _CALL.match(export.names[ranges.name[index]])
        if match is None or not match[1].startswith(_INIT):
            continue
        said = export.payloads[ranges.payload[index]]
        communicator, rank, size = (
            whole(said.get(name)) for name in ("nccl communicator id", "rank", "no. of ranks")
        )
        if 0 <= rank < size:
            found.append(Membership(communicator, rank, size))
    return found


def file_of(export: Export, process: int, device: int) -> KinetoFile:
    """What a process did with one of its devices, on the session's clock.

    A process counts its correlations by itself: several of one file have the same.
    """
    threads: list[tuple[Any, Any]] = [(process, -1)]
    tables = []
    for row, table in (
        (RowKind.KERNEL, export.kernels), (RowKind.COPY, export.copies),
        (RowKind.LAUNCH, export.launches), (RowKind.ANNOTATION, export.ranges),
    ):  # fmt: skip
        if "device" in table:
            mine = table.select((table.process == process) & (table.device == device))
            thread = np.zeros(len(mine), np.int64)
        else:
            known = process >= 0 or row == RowKind.ANNOTATION
            mine = table.select((table.thread >> 24) == process) if known else table
            tids, thread = np.unique(mine.thread, return_inverse=True)
            thread = thread + len(threads)
            threads += [(process, tid) for tid in tids.tolist()]
        columns = {
            "row": int(row), "start_ns": mine.start, "end_ns": mine.end, "thread": thread,
            **{name: mine[name] for name in ("name", "correlation", "device", "stream")
               if name in mine},
        }  # fmt: skip
        tables.append(Columns.filled({**_NONE, **columns}, _TYPES, len(mine)))
    rows = Columns.concatenate(tables)
    launching = rows.row == int(RowKind.LAUNCH)
    needed = np.isin(rows.correlation, rows.correlation[rows.row == int(RowKind.KERNEL)])
    needed |= np.isin(rows.correlation, rows.correlation[rows.row == int(RowKind.COPY)])
    rows = rows.select(~launching | needed)
    return KinetoFile(export.path, {}, rows, export.names, threads, [], 0, 0)


_NONE = dict.fromkeys(("correlation", "external", "device", "stream", "args"), -1)
_TYPES = dict.fromkeys(("row", "name", "start_ns", "end_ns", "thread", *_NONE), np.int64)


# -- launches --------------------------------------------------------------------------------------


def said_of(
    export: Export, file: KinetoFile, calls: Columns, sizes: Mapping[int, int]
) -> list[list[LaunchRanges]]:
    """The calls carried by each of these kernels, which are in order of issue; several for a kernel
    that carries several messages. `sizes` are those of known communicators."""
    ops = [None if "Generic" in name else kernel_operation(name) for name in export.names]
    said = [[LaunchRanges(ops[name] or Op.OTHER)] for name in calls.name.tolist()]
    able = [ops[name] for name in calls.name.tolist()]
    for number in np.unique(calls.thread[calls.thread >= 0]).tolist():
        mine = np.flatnonzero(calls.thread == number)
        thread = int(file.threads[number][1])
        for kernel, taken in _carry_ranges(export, thread, mine, calls.enter_ns, able):
            said[kernel] = _calls(said[kernel][0].op, taken, sizes)
    return said


def _carry_ranges(
    export: Export, thread: int, kernels: Array, issued: Array, able: Sequence[Op | None]
) -> Iterator[tuple[int, list[LaunchRanges]]]:
    """Yield kernels launched on a thread, with the calls that NCCL announced there for each; `able`
    are the operations of all kernels, None of one for any."""
    ranges = export.ranges
    mine = ranges.select(ranges.thread == thread).sorted_by("start")
    kinds = [_announced_operation(name) for name in export.names]
    told = mine.select(np.array([kinds[name] is not None for name in mine.name], bool))
    waiting: list[int] = []
    seen = 0
    for kernel in kernels.tolist():
        until = int(np.searchsorted(told.start, issued[kernel], side="right"))
        waiting = [*waiting, *range(seen, until)][-_MOST_WAITING:]
        seen = until
        taken = [i for i in waiting if _fits(kinds[told.name[i]], able[kernel])]
        waiting = [i for i in waiting if i not in set(taken)]
        if taken:
            payloads = [export.payloads[p] if (p := told.payload[i]) >= 0 else {} for i in taken]
            ops = [kinds[told.name[i]] or Op.OTHER for i in taken]
            yield kernel, [_call(op, said) for op, said in zip(ops, payloads, strict=True)]


def _call(op: Op, said: Mapping[str, Any]) -> LaunchRanges:
    names = "message size [bytes]", "nccl communicator id", "peer rank"
    size, communicator, peer = (whole(said.get(name)) for name in names)
    return LaunchRanges(op, max(size, 0), communicator, peer, 1)


def _announced_operation(name: str) -> Op | None:
    """The operation of a range such as "ncclAllReduce"; None for other ranges."""
    match = _CALL.match(name)
    return operation(match[1]) if match and not match[1].startswith("Comm") else None


def _fits(announced: Op | None, kernel: Op | None) -> bool:
    """Whether a kernel can carry a call; SendRecv (OTHER) carries messages and all-to-alls, one for
    any operation (None) all."""
    if kernel is Op.OTHER:
        return announced in (Op.SEND, Op.RECV, Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER)
    return kernel in (None, announced)


def _calls(
    kernel: Op, taken: Sequence[LaunchRanges], sizes: Mapping[int, int]
) -> list[LaunchRanges]:
    """The calls of one launch: messages one by one, unless they are an all-to-all of the framework,
    which sends to every member including itself, or ranges do not say to whom; else all calls
    merged into one."""
    ops = [one.op for one in taken]
    communicator = next((one.communicator for one in taken if one.communicator >= 0), -1)
    if kernel is Op.OTHER:
        sends, receives = ops.count(Op.SEND), ops.count(Op.RECV)
        everybody = sends == receives >= max(sizes.get(communicator, 0), 2)
        addressed = all(one.peer >= 0 for one in taken)
        if addressed and sends + receives == len(ops) and not everybody:
            return list(taken)
        unknown = Op.ALL_TO_ALL if addressed or communicator >= 0 else Op.OTHER
        kernel = next((op for op in ops if op not in (Op.SEND, Op.RECV)), unknown)
    total = min(sum(one.bytes for one in taken), MOST_BYTES)
    return [LaunchRanges(kernel, total, communicator, -1, len(taken))]
