"""Enter profiles into one draft: collectives, messages, steps, phases and device spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenstep.importers.draft import Draft
from evenstep.importers.kineto.calls import CallArguments
from evenstep.importers.kineto.device import completion_of, work_of
from evenstep.importers.kineto.file import KinetoFile
from evenstep.importers.kineto.launches import QUEUED_NS, last_freed
from evenstep.importers.kineto.names import MESSAGES, ROOTED
from evenstep.importers.kineto.places import FilePlace, info_of
from evenstep.importers.kineto.steps import Steps, phases_of
from evenstep.importers.kineto.table import UNKNOWN_NS, host_waits, in_sequence
from evenstep.importers.merging import Completion, unite
from evenstep.trace.columns import Array, Columns, key_numbers
from evenstep.trace.spool.layout import Kind, Op, ReduceOp

_REDUCTIONS = (
    ("sum", ReduceOp.SUM), ("prod", ReduceOp.PRODUCT), ("minmax", ReduceOp.OTHER),
    ("max", ReduceOp.MAX), ("min", ReduceOp.MIN), ("avg", ReduceOp.AVG),
)  # fmt: skip

#: Facts of each rank: device stamps are on the host's clock, calls are entered in device time.
FACTS = {"device_clock": "host", "entered": "device"}


class Profile(NamedTuple):
    """One file with its place in the run, steps and calls."""

    file: KinetoFile
    place: FilePlace
    steps: Steps
    calls: Columns
    said: list[CallArguments]  # the arguments of each call
    unlaunched: bool = False  # launches of some kernels are inferred


def enter(draft: Draft, profiles: Sequence[Profile]) -> None:
    """Enter all records of the profiles, whose first event is at `FIRST_NS`."""
    found = [completion_of(each.file) for each in profiles]
    tables = [
        _communication(draft, each, done) for each, (done, _) in zip(profiles, found, strict=True)
    ]
    numbered, limits = in_sequence(Columns.concatenate(tables))
    draft.limits += limits
    numbered = numbered.sorted_by("enter_ns")  # calls with one device entry keep order of issue
    left = np.maximum(numbered.entered, numbered.exit_ns)
    left = np.where(numbered.exit_ns > 0, left, 0)
    issued = np.where(numbered.freed_ns > 0, numbered.enter_ns, 0)
    numbered = numbered.with_columns(enter_ns=numbered.entered, exit_ns=left, issued_ns=issued)
    for each, (done, waits) in zip(profiles, found, strict=True):
        rank = each.place.rank
        mine = numbered.select(numbered["rank"] == rank)
        if len(mine):
            draft.rows(rank, **mine)
        _enter_steps(draft, each, done, waits)
        for name, spans in work_of(each.file, each.steps).items():
            times = spans.enter_ns, spans.exit_ns
            draft.device_spans(rank, name, spans.device, *times, spans.step)


def _known(times: Array) -> Array:
    """Times, 0 for unknown ones."""
    return np.where(times == UNKNOWN_NS, 0, times)


def _communication(draft: Draft, each: Profile, done: Completion) -> Columns:
    """A rank's collectives and messages as records without `group_seq`.

    `enter_ns` is the time of issue; `entered` is when the device reached the call, which for a
    receive may be after `exit_ns`.
    """
    calls, numbers = each.calls, [call[1:] for call in each.said]
    table = np.array(numbers, np.int64).reshape(len(calls), len(CallArguments._fields) - 1)
    said = Columns(dict(zip(CallArguments._fields[1:], table.T, strict=True)))
    message = np.isin(calls.op, [int(op) for op in MESSAGES])
    backend = str(info_of(each.file).get("backend") or "")
    threads = np.append(np.unique(calls.thread), each.steps.thread)
    freed = last_freed(each.file, threads, calls.enter_ns)
    keys = dict.fromkeys(call.group for call in each.said)
    groups = {key: -1 if key is None else draft.group(*key, backend) for key in keys}
    group = np.array([groups[call.group] for call in each.said], np.int64)
    return Columns(
        rank=np.full(len(calls), each.place.rank),
        kind=np.where(message, int(Kind.POINT_TO_POINT), int(Kind.COLLECTIVE)),
        op=calls.op, enter_ns=calls.enter_ns,
        entered=_entry_times(each, done, np.where(message, -1, group)),
        exit_ns=_known(calls.exit_ns), device_enter_ns=_known(calls.device_enter_ns),
        device_exit_ns=_known(calls.device_exit_ns),
        step=each.steps.at(calls.enter_ns), group=group,
        freed_ns=freed * (not each.unlaunched),
        stated=said.sequence, bytes_in=said.bytes_in, bytes_out=said.bytes_out,
        dtype=said.dtype, reduce_op=_reductions(each.file, calls),
        peer_or_root=_peers(calls, said), payload=said.tag,
        thread=_threads(calls.thread, each.steps.thread),
        stream=np.clip(calls.stream, 0, np.iinfo(np.uint16).max), device=calls.device,
        name=_names(draft, each.file, calls.name), flags=calls.flags,
    )  # fmt: skip


def _entry_times(each: Profile, done: Completion, group: Array) -> Array:
    """When calls were entered: in device time for calls of a device, in host time for others.

    A receive may begin and end before compute reaches it, unless its kernel also sends. Collectives
    of a `group` (-1 none) follow each other, on whatever streams: NCCL puts them in order.
    """
    calls, began = each.calls, each.calls.device_enter_ns
    stream = key_numbers(calls.device, calls.stream)
    kernel = key_numbers(stream, began)
    sends = np.bincount(kernel, calls.op == int(Op.SEND), 1)[kernel] > 0
    free = np.ones(len(began), bool)
    for queue in (stream, np.where(group < 0, ~stream, group)):
        kernel = key_numbers(queue, began)
        line, end = np.full((2, int(kernel.max(initial=0)) + 2), UNKNOWN_NS)
        line[kernel], end[kernel] = queue, calls.device_exit_ns
        free &= (line[kernel - 1] != queue) | (end[kernel - 1] < began - QUEUED_NS)
    entered = done.entered(calls.enter_ns, began, free, (calls.op == int(Op.RECV)) & ~sends)
    return np.where(began != UNKNOWN_NS, entered, calls.enter_ns)


def _peers(calls: Columns, said: Columns) -> Array:
    """Roots of rooted operations and peers of messages; -1 unknown."""
    rooted = np.isin(calls.op, [int(op) for op in ROOTED])
    stated = np.select(
        [calls.op == int(Op.SEND), calls.op == int(Op.RECV), rooted],
        [said.destination, said.source, said.root],
        -1,
    )
    return np.where(stated >= 0, stated, calls.peer_or_root)


def _reductions(file: KinetoFile, calls: Columns) -> Array:
    """The reduction of each call, from its kernel's name."""

    def named(name: str) -> int:
        words = name.partition("(")[0].lower()
        return next((int(op) for word, op in _REDUCTIONS if f"_{word}" in words), 0)

    reducing = np.isin(calls.op, [int(Op.ALL_REDUCE), int(Op.REDUCE), int(Op.REDUCE_SCATTER)])
    return np.where(reducing, file.by_name(named, calls.name), 0)


def _threads(threads: Array, training: int) -> Array:
    """Number threads: 0 for the training thread, others in order of appearance."""
    found, first, which = np.unique(threads, return_index=True, return_inverse=True)
    others = [int(index) for index in np.argsort(first) if found[index] != training]
    number = np.zeros(len(found), np.int64)
    number[others] = np.arange(1, len(others) + 1)
    return np.minimum(number[which], np.iinfo(np.uint16).max)


def _names(draft: Draft, file: KinetoFile, names: Array) -> Array:
    """Numbers in the trace's table of the names, without their parameters."""
    numbers = np.zeros(len(file.names) + 1, np.int64)
    for index in np.unique(names[names >= 0]):
        numbers[index] = draft.name(file.names[index].partition("(")[0])
    return numbers[names]


def _enter_steps(
    draft: Draft, each: Profile, done: Completion, on_device: tuple[Array, Array]
) -> None:
    """Enter steps and their phases, in device time where there is a device.

    `on_device`: intervals in which it only communicated.
    """
    steps = each.steps.on_device(done)
    draft.rows(
        each.place.rank,
        kind=int(Kind.STEP), step=steps.number,
        enter_ns=steps.start_ns, exit_ns=steps.end_ns, peer_or_root=0,
    )  # fmt: skip
    on_host = host_waits(each.file, each.calls)
    waits = unite(*map(np.concatenate, zip(on_host, on_device, strict=True)))
    phases = phases_of(each.file, each.steps, done, waits)
    if len(phases):
        draft.rows(each.place.rank, kind=int(Kind.PHASE), **phases)
