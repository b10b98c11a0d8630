"""One device of one process in an export of Nsight Systems: its steps, phases and collectives.

A collective is a kernel of NCCL. Its launch is found by correlation, and what it carried by the
NVTX ranges that NCCL opened on the launching thread since the launch before: those of a group of
calls stand together before the one launch that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.importers.completion import Completion, completion, exposed
from evenstep.importers.draft import MOST_BYTES
from evenstep.importers.kineto.names import communicates, kernel_operation, operation, phase
from evenstep.importers.merging import cut, leaf_lengths, united
from evenstep.importers.nsys.tables import Export
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op, Phase

Array = npt.NDArray[Any]

_STEP = re.compile(
    r"^(?:ProfilerStep\*?#|(?:[\w ]*[ _])?(?:step|iteration|iter|batch_idx)[ _#:=]*)(\d{1,9})$",
    re.IGNORECASE,
)
_CALL = re.compile(r"^(?:p?nccl)([A-Z]\w+)$")
_INIT = ("CommInit", "CommSplit", "CommShrink")
_FEWEST_STEPS = 2
_MOST_WAITING = 1_024  # ranges of a group of calls that has not been launched


class LaunchRanges(NamedTuple):
    """What NCCL's NVTX ranges say of one launch. -1: not said."""

    op: Op
    bytes: int
    communicator: int
    peer: int
    calls: int


@dataclass(slots=True, frozen=True)
class Membership:
    """A rank within a communicator."""

    communicator: int
    rank: int
    size: int


@dataclass(slots=True, frozen=True)
class ProcessSteps:
    """Steps of a device's process, in order."""

    number: Array
    start_ns: Array
    end_ns: Array
    counted: bool = False  # from optimizer ranges, not named
    whole: bool = False  # nothing marks any: all of the session is one

    def at(self, times: Array) -> Array:
        """Number of the step at each time; -1 outside all of them."""
        place = np.searchsorted(self.start_ns, times, side="right") - 1
        inside = (place >= 0) & (times < np.append(self.end_ns, 0)[place])
        return np.where(inside, np.append(self.number, -1)[place], -1)

    def on_device(self, done: Completion) -> ProcessSteps:
        """The same steps in the time of the device."""
        return replace(self, start_ns=done.at(self.start_ns), end_ns=done.at(self.end_ns))


def memberships(export: Export, process: int) -> list[Membership]:
    """The communicators that a process set up, as NCCL's ranges describe them."""
    ranges = export.ranges
    mine = np.flatnonzero(((ranges.thread >> 24) == process) & (ranges.payload >= 0))
    found = []
    for index in mine:
        match = _CALL.match(export.names[ranges.name[index]])
        if match is None or not match[1].startswith(_INIT):
            continue
        said = export.payloads[ranges.payload[index]]
        member = Membership(
            _number(said, "nccl communicator id"), _number(said, "rank"),
            _number(said, "no. of ranks"),
        )  # fmt: skip
        if 0 <= member.rank < member.size:
            found.append(member)
    return found


def steps_of(export: Export, process: int, kernels: Columns) -> ProcessSteps:
    """Steps by their ranges ("iteration 7", "ProfilerStep#7"), else by those of the optimizer.

    Else all that a device did, from its first launch to its last end, is one.
    """
    ranges = _of_process(export, process)
    numbers = {
        index: int(match[1])
        for index, name in enumerate(export.names)
        if (match := _STEP.match(name.strip()))
    }
    named = ranges.select(np.isin(ranges.name, list(numbers)))
    if len(named) >= _FEWEST_STEPS:
        number = np.array([numbers[name] for name in named.name], np.int64)
        keep = _disjoint(named.start, named.end, number)
        return ProcessSteps(number[keep], named.start[keep], named.end[keep])
    optimizing = [i for i, name in enumerate(export.names) if phase(name) is Phase.OPTIMIZER]
    ends = ranges.select(np.isin(ranges.name, optimizing))
    ends = ends.select(_outermost(ends.start, ends.end))
    if len(ends) < _FEWEST_STEPS:
        begin, end = kernels.issued.min(), kernels.end.max() + 1
        return ProcessSteps(np.zeros(1, np.int64), np.array([begin]), np.array([end]), whole=True)
    return ProcessSteps(np.arange(len(ends) - 1), ends.end[:-1], ends.end[1:], counted=True)


def completion_of(kernels: Columns) -> tuple[Completion, tuple[Array, Array]]:
    """When a device had done what it was asked, and when it only communicated."""
    times = {"launched_ns": kernels.issued, "start_ns": kernels.start, "end_ns": kernels.end}
    table = Columns(times)
    return completion(table, kernels.moving), exposed(table, kernels.moving)


def phases_of(
    export: Export, process: int, steps: ProcessSteps, done: Completion, waits: tuple[Array, Array]
) -> Columns:
    """Outermost ranges that name a phase, when the device has `done` what they launched.

    `waits` are stretches (start, end) in which it only communicated. Columns: op, start, end, leaf
    (length without such a stretch), step.
    """
    ranges = _of_process(export, process)
    codes = np.array([-1 if (p := phase(name)) is None else int(p) for name in export.names])
    marked = ranges.select(codes[ranges.name] >= 0)
    marked = marked.select(_outermost(marked.start, marked.end))
    step = steps.at(marked.start)
    start, end = done.at(marked.start), done.at(marked.end)
    kept = (step >= 0) & (end > start)
    found = {"op": codes[marked.name], "start": start, "end": end, "step": step}
    table = Columns(found).select(kept)
    steps = steps.on_device(done)
    edges = np.concatenate([table.start, table.end, steps.start_ns, steps.end_ns])
    start, end = cut(*waits, edges)
    found = {"op": np.full(len(start), int(Phase.SYNC)), "start": start, "end": end}
    waiting = Columns({**found, "step": steps.at(start)})
    table = Columns.concatenate([table, waiting.select(waiting.step >= 0)]).sorted_by("start")
    return table.with_column("leaf", leaf_lengths(table.start, table.end))


def collectives_of(export: Export, kernels: Columns) -> tuple[Columns, list[LaunchRanges]]:
    """NCCL's kernels in order of being issued, and what was said of each."""
    found = kernels.select(kernels.moving).sorted_by("issued", "start")
    ops = [kernel_operation(name) for name in export.names]
    calls: list[LaunchRanges] = [LaunchRanges(ops[name], 0, -1, -1, 0) for name in found.name]
    for thread in np.unique(found.thread[found.thread >= 0]):
        _listen(export, int(thread), found, calls)
    return found, calls


def compute_of(kernels: Columns, steps: ProcessSteps) -> Columns:
    """When a device was at work: the union of what does not communicate, step by step.

    Columns: start, end, step.
    """
    work = kernels.select(~kernels.moving)
    step = steps.at(work.issued)
    parts = []
    for number in np.unique(step):
        mine = step == number
        start, end = united(work.start[mine], work.end[mine])
        parts.append({"start": start, "end": end, "step": np.full(len(start), number)})
    empty = {name: np.zeros(0, np.int64) for name in ("start", "end", "step")}
    return Columns.concatenate([Columns(empty), *map(Columns, parts)])


# -- ranges ----------------------------------------------------------------------------------------


def _of_process(export: Export, process: int) -> Columns:
    ranges = export.ranges
    return ranges.select((ranges.thread >> 24) == process).sorted_by("start")


def _outermost(start: Array, end: Array) -> Array:
    """Which ranges, in order of their start, do not lie within one before."""
    if not len(start):
        return np.zeros(0, bool)
    return np.append(True, end[1:] > np.maximum.accumulate(end)[:-1])


def _disjoint(start: Array, end: Array, number: Array) -> Array:
    """Outermost ranges whose numbers ascend: a step's own, not those of a loop within it."""
    keep = np.flatnonzero(_outermost(start, end))
    ascending = np.append(True, np.diff(number[keep]) > 0)
    return np.asarray(keep[ascending])


# -- launches --------------------------------------------------------------------------------------


def launched(export: Export, kernels: Columns, process: int, device: int) -> Columns:
    """The kernels, or copies, of a device of a process, with how they were launched.

    Columns besides those of the export: issued and thread (of the launch; where it is not known,
    of the kernel itself and -1) and moving (whether it carries data between ranks). A process
    counts its correlations by itself: several of one file have the same.
    """
    launches = export.launches
    kernels = kernels.select((kernels.process == process) & (kernels.device == device))
    if process >= 0:
        launches = launches.select((launches.thread >> 24) == process)
    launches = launches.sorted_by("correlation")
    issued, thread = kernels.start.copy(), np.full(len(kernels), -1)
    if len(launches):
        place = np.searchsorted(launches.correlation, kernels.correlation)
        row = np.minimum(place, len(launches) - 1)
        known = (launches.correlation[row] == kernels.correlation) & (kernels.correlation >= 0)
        known &= launches.start[row] <= kernels.start
        issued[known], thread[known] = launches.start[row][known], launches.thread[row][known]
    moving = np.array([communicates(name) for name in export.names], bool)[kernels.name]
    kernels = kernels.with_column("issued", issued).with_column("thread", thread)
    return kernels.with_column("moving", moving)


def _listen(export: Export, thread: int, found: Columns, calls: list[LaunchRanges]) -> None:
    """What NCCL announced on a thread, given to the kernels it launched there."""
    ranges = export.ranges
    mine = ranges.select(ranges.thread == thread).sorted_by("start")
    kinds = [_announced(name) for name in export.names]
    told = mine.select(np.array([kinds[name] is not None for name in mine.name], bool))
    waiting: list[int] = []
    heard = 0
    for kernel in np.flatnonzero(found.thread == thread):
        until = int(np.searchsorted(told.start, found.issued[kernel], side="right"))
        waiting = [*waiting, *range(heard, until)][-_MOST_WAITING:]
        heard = until
        wanted = calls[kernel].op
        taken = [i for i in waiting if _fits(kinds[told.name[i]], wanted)]
        waiting = [i for i in waiting if i not in set(taken)]
        if taken:
            ops = [kinds[told.name[i]] or Op.OTHER for i in taken]
            said = [export.payloads[p] if (p := told.payload[i]) >= 0 else {} for i in taken]
            calls[kernel] = _call(wanted, ops, said)


def _announced(name: str) -> Op | None:
    """The operation of a range like "ncclAllReduce"."""
    match = _CALL.match(name)
    return operation(match[1]) if match and not match[1].startswith("Comm") else None


def _fits(announced: Op | None, kernel: Op) -> bool:
    """Whether a kernel can be the one of a call; SendRecv is of messages and all-to-all."""
    if kernel is Op.OTHER:
        return announced in (Op.SEND, Op.RECV, Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER)
    return announced is kernel


def _call(kernel: Op, ops: Sequence[Op], said: Sequence[dict[str, Any]]) -> LaunchRanges:
    """One launch of several calls. Sends and receives to everybody are an all-to-all."""
    sizes = [_number(payload, "message size [bytes]") for payload in said]
    communicator = next((c for p in said if (c := _number(p, "nccl communicator id")) >= 0), -1)
    peer = -1
    op = kernel
    if kernel is Op.OTHER:
        sends, receives = ops.count(Op.SEND), ops.count(Op.RECV)
        others = [item for item in ops if item not in (Op.SEND, Op.RECV)]
        if others:
            op = others[0]
        elif sends and receives:
            op = Op.ALL_TO_ALL if sends == receives and sends > 1 else Op.OTHER
        else:
            op = Op.SEND if sends else Op.RECV
        peer = _number(said[0], "peer rank") if len(ops) == 1 else -1
    total = min(sum(max(size, 0) for size in sizes), MOST_BYTES)
    return LaunchRanges(op, total, communicator, peer, len(ops))


def _number(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if isinstance(value, str) and len(value) <= 20 and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else -1
