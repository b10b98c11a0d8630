"""Collectives and messages that run on a device, and spans of its other work.

A call is `record_param_comms`. Its kernels have its external id; else they are found through the
launch with their correlation, which lies within the call on its thread. The messages of a batch are
issued one after the other, and one kernel launched after the last of them carries them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.launches import LATEST_START_NS, find_launches, lookup
from evenstep.importers.kineto.names import (
    COMMS,
    MESSAGES,
    ON_DEVICE,
    Annotation,
    communicates,
    kernel_operation,
    operation,
)
from evenstep.importers.kineto.steps import Steps
from evenstep.importers.kineto.table import (
    NOT_SET,
    UNKNOWN_NS,
    announced_ops,
    announced_peers,
    call_table,
)
from evenstep.importers.merging import Completion, completion, exposed_intervals, unite
from evenstep.trace.columns import Array, Columns, begins, largest_of, smallest_of
from evenstep.trace.spool.layout import Flag, Op
from evenstep.trace.trace import COMPUTE, COPY

_NEVER = np.iinfo(np.int64).max
_NESTED = 4  # calls within calls (a coalesced group's), and one to spare


def device_calls(file: KinetoFile, announced: Sequence[Annotation | None]) -> Columns:
    """Calls with their kernels, and communication kernels without a call in the file."""
    issued = _issue_times(file, announced)
    kernels = file.of(RowKind.KERNEL)
    kernels = kernels.select(_communicating(file, kernels))
    launches = find_launches(file, kernels)
    owner = _calls_by_external_id(issued, kernels)
    owner = np.where(owner >= 0, owner, _enclosing(issued, launches.thread, launches.start_ns))
    message, batch = _batches(file, issued, kernels, launches, owner)
    owned = np.flatnonzero(owner >= 0)
    alone = np.setdiff1d(np.flatnonzero(owner < 0), batch)
    carried = np.append(owned, batch)
    return Columns.concatenate(
        [
            _with_kernels(issued, kernels.select(carried), np.append(owner[owned], message)),
            _kernels_alone(file, kernels.select(alone), launches.select(alone)),
        ]
    )


def work_of(file: KinetoFile, steps: Steps) -> dict[str, Columns]:
    """Spans of compute (kernels that do not communicate) and of copying or setting memory."""
    kernels = file.of(RowKind.KERNEL)
    parts = {COMPUTE: kernels.select(~_communicating(file, kernels)), COPY: file.of(RowKind.COPY)}
    return {name: _unite(file, rows, steps) for name, rows in parts.items()}


def _unite(file: KinetoFile, kernels: Columns, steps: Steps) -> Columns:
    """The union of kernels by device and step: device, enter_ns, exit_ns, step (in which they were
    launched)."""
    kernels = kernels.select(kernels.device >= 0)
    step = steps.at(find_launches(file, kernels).start_ns)
    order = np.lexsort([kernels.start_ns, step, kernels.device])
    kernels, step = kernels.select(order), step[order]
    first = np.flatnonzero(begins(step, kernels.device))
    cells = Columns(device=kernels.device, step=step)
    parts = [cells.select(slice(0)).with_columns(enter_ns=step[:0], exit_ns=step[:0])]
    for low, high in itertools.pairwise([*first, len(step)]):
        start, end = unite(kernels.start_ns[low:high], kernels.end_ns[low:high])
        cell = cells.select(np.full(len(start), low))
        parts.append(cell.with_columns(enter_ns=start, exit_ns=end))
    return Columns.concatenate(parts)


def completion_of(file: KinetoFile) -> tuple[Completion, tuple[Array, Array]]:
    """Completion of a file's kernels, and the intervals of exposed communication.

    A device that comes to its first compute long after its launch, with no recorded work before it,
    was at work that the file lacks: what was launched before a capture began.
    """
    work = file.of(RowKind.KERNEL, RowKind.COPY)
    launches = find_launches(file, work)
    work = work.with_columns(launched_ns=launches.start_ns, called_ns=launches.end_ns)
    kernels = work.select(work.row == int(RowKind.KERNEL))
    moving = _communicating(file, kernels)
    done = completion(kernels, moving)
    if not moving.all():
        lasted = (kernels.end_ns - kernels.start_ns) * ~moving
        streams, which = np.unique(kernels.stream, return_inverse=True)
        stream = streams[np.argmax(np.bincount(which, lasted))]  # where most is computed
        first = work.select(work.stream == stream).sorted_by("launched_ns").select(slice(1))
        earlier = work.end_ns[work.launched_ns < first.launched_ns]
        lag = int(first.start_ns[0]) - max(int(first.called_ns[0]), int(earlier.max(initial=0)))
        if lag > LATEST_START_NS:
            done = done._replace(began_ns=int(first.start_ns[0]), lag_ns=lag)
    return done, exposed_intervals(kernels, moving)


def _communicating(file: KinetoFile, kernels: Columns) -> Array:
    """Which kernels move data between ranks."""
    told = np.array([args.collective is not None for args in file.calls] + [False])
    return np.asarray(file.by_name(communicates, kernels.name) | told[kernels.args])


def _calls_by_external_id(issued: Columns, kernels: Columns) -> Array:
    """Index of the one call with each kernel's external id; -1 for none or several.

    This comes before nesting, since stamps of operators and launches are from different clocks: a
    launch may seem to begin before its call.
    """
    ids, index, count = np.unique(issued.external, return_index=True, return_counts=True)
    place = lookup(ids, kernels.external)
    alone = (place >= 0) & (kernels.external > 0)  # 0 is not an operator's
    alone &= np.append(count == 1, False)[place]
    return np.where(alone, np.append(index, -1)[place], -1)


def _batches(
    file: KinetoFile, issued: Columns, kernels: Columns, launches: Columns, owner: Array
) -> tuple[Array, Array]:
    """Calls of batches, and the kernel that carries each.

    For a message without a kernel of its own it is the first kernel launched on the thread after
    the issue, if that sends and receives. It may have the id of one call of the batch.
    """
    messages = np.isin(issued.op, [int(op) for op in MESSAGES])
    bare = messages.copy()
    bare[owner[owner >= 0]] = False
    carries = file.by_name(kernel_operation, kernels.name) == int(Op.OTHER)
    carries &= np.append(messages, True)[owner]
    order = np.argsort(launches.start_ns, kind="stable")
    found = np.full(len(issued), -1)
    for thread in np.unique(issued.thread[bare]):
        calls = np.flatnonzero(bare & (issued.thread == thread))
        mine = order[launches.thread[order] == thread]
        after = np.searchsorted(launches.start_ns[mine], issued.start_ns[calls], side="right")
        found[calls] = np.append(mine, -1)[after]
    calls = np.flatnonzero((found >= 0) & np.append(carries, False)[found])
    return calls, found[calls]


def _issue_times(file: KinetoFile, announced: Sequence[Annotation | None]) -> Columns:
    """Calls to process groups of devices, with their operation, arguments and peer."""
    host = file.host
    codes = announced_ops(announced, ON_DEVICE)
    notes = host.select(codes[host.name] >= 0).sorted_by("start_ns")
    calls = host.select(file.by_name(COMMS.__eq__, host.name)).sorted_by("start_ns")
    inside = _enclosing(calls, notes.thread, notes.start_ns)
    op = np.array([_stated_operation(file, index) for index in calls.args], np.int64)
    note_of = np.full(len(calls), -1)
    note_of[inside[inside >= 0][::-1]] = np.flatnonzero(inside >= 0)[::-1]
    bare = (op < 0) & (note_of >= 0)
    op[bare] = codes[notes.name[note_of[bare]]]
    args = np.where(bare, notes.args[note_of], calls.args) if len(notes) else calls.args
    peer = np.append(announced_peers(announced, notes), -1)[note_of]
    calls = calls.with_columns(op=op, args=args, peer=peer)
    alone = notes.select(inside < 0)
    alone = alone.with_columns(op=codes[alone.name], peer=announced_peers(announced, alone))
    found = Columns.concatenate([calls, alone])
    return found.select(found.op >= 0).sorted_by("start_ns")


def _stated_operation(file: KinetoFile, index: int) -> int:
    """The operation that a call's arguments state."""
    stated = file.calls[index].collective if index >= 0 else None
    op = operation(stated) if isinstance(stated, str) else None
    return NOT_SET if op is None else int(op)


def _enclosing(outer: Columns, thread: Array, time: Array) -> Array:
    """Index of the innermost row of the same thread that is open at a time; -1 for none.

    Rows of a thread nest: where the last row to begin has ended, the ones before are tried.
    """
    found = np.full(len(thread), -1)
    order = np.lexsort([outer.start_ns, outer.thread])
    sorted_thread, sorted_start = outer.thread[order], outer.start_ns[order]
    for number in np.unique(thread[thread >= 0]):
        low, high = np.searchsorted(sorted_thread, [number, number + 1])
        mine = np.flatnonzero(thread == number)
        place = low + np.searchsorted(sorted_start[low:high], time[mine], side="right") - 1
        for back in range(_NESTED):
            tried = np.flatnonzero((place - back >= low) & (found[mine] < 0))
            row = order[place[tried] - back]
            fits = outer.end_ns[row] >= time[mine[tried]]
            found[mine[tried[fits]]] = row[fits]
    return found


def _with_kernels(issued: Columns, kernels: Columns, owner: Array) -> Columns:
    """The calls, with device times from the start of the first kernel to the end of the last."""
    count, which = len(issued), np.full(len(issued), -1)
    first = smallest_of(kernels.start_ns, owner, count, most=_NEVER)
    last = largest_of(kernels.end_ns, owner, count, least=UNKNOWN_NS)
    which[owner[::-1]] = np.arange(len(kernels))[::-1]
    known = which >= 0
    args = np.where(issued.args >= 0, issued.args, np.append(kernels.args, -1)[which])
    return call_table(
        op=issued.op, enter_ns=issued.start_ns, exit_ns=last,
        device_enter_ns=np.where(known, first, UNKNOWN_NS), device_exit_ns=last,
        thread=issued.thread, device=np.append(kernels.device, -1)[which],
        stream=np.append(kernels.stream, -1)[which], name=np.append(kernels.name, -1)[which],
        args=args, flags=int(Flag.ON_DEVICE | Flag.ASYNC),
        peer_or_root=issued.peer,
    )  # fmt: skip


def _kernels_alone(file: KinetoFile, kernels: Columns, launches: Columns) -> Columns:
    """Communication kernels without a call in the file, as calls."""
    named = file.by_name(kernel_operation, kernels.name)
    stated = np.array([_stated_operation(file, index) for index in kernels.args], np.int64)
    return call_table(
        op=np.where(stated >= 0, stated, named), enter_ns=launches.start_ns,
        exit_ns=kernels.end_ns, device_enter_ns=kernels.start_ns, device_exit_ns=kernels.end_ns,
        thread=launches.thread, device=kernels.device, stream=kernels.stream, name=kernels.name,
        args=kernels.args, flags=int(Flag.ON_DEVICE | Flag.ASYNC),
    )  # fmt: skip
