"""Read SQLite exports of Nsight Systems (`nsys export --type sqlite`) as a trace.

A rank is a device of a process, and exports do not state its number; a file may hold one rank or
all ranks of a node. Device stamps are on the host's clock: nsys has converted them. Files of one
host are put on its clock by the start of their session.

A collective is a kernel of NCCL. Its launch is found by correlation; its calls are the NVTX ranges
that NCCL opened on the launching thread since the previous launch: all ranges of a group of calls
precede the one launch that ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenstep.importers.content import SourceFile, usable, whole
from evenstep.importers.draft import FIRST_NS, MOST_BYTES, Draft
from evenstep.importers.file_ranks import absent, ranks_by_paths
from evenstep.importers.kineto.calls import CallArguments, GroupKey
from evenstep.importers.kineto.device import device_calls
from evenstep.importers.kineto.file import KinetoFile, RowKind, event_rows
from evenstep.importers.kineto.grouping import group_calls
from evenstep.importers.kineto.kineto import repeating, spoken
from evenstep.importers.kineto.launches import UNLAUNCHED, unroll, with_launches
from evenstep.importers.kineto.names import kernel_operation, operation, phase
from evenstep.importers.kineto.places import FilePlace
from evenstep.importers.kineto.records import FACTS, Profile, enter
from evenstep.importers.kineto.steps import StepMarks, steps_of
from evenstep.importers.nsys.database import MAGIC
from evenstep.importers.nsys.tables import Export, join_sessions, read_export
from evenstep.trace.columns import Array, Columns
from evenstep.trace.ranks import MOST_RANKS, natural
from evenstep.trace.spool.layout import Flag, Op, Phase
from evenstep.trace.trace import Trace

NAME = "Nsight Systems export"
_STEP = re.compile(
    r"^(?:ProfilerStep\*?#|(?:[\w ]*[ _])?(?:step|iteration|iter|batch_idx)[ _#:=]*)(\d{1,9})$",
    re.IGNORECASE,
)
_CALL = re.compile(r"^(?:p?nccl)([A-Z]\w+)$")
_INIT = ("CommInit", "CommSplit", "CommShrink")
_MOST_WAITING = 1_024  # ranges of calls that have not been launched


def recognises(source: SourceFile) -> bool:
    """Whether a file is an SQLite database, which no other format is."""
    return source.head.startswith(MAGIC)


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all exports as one trace. Raises `TraceError` where none is usable."""
    draft = Draft()
    exports = join_sessions(
        list(usable(sources, draft.limits, lambda source: read_export(source.path)))
    )
    draft.limits += _merge_limits(exports)
    ranks = ranks_of(exports, draft.limits)
    origins, groups = _origins(ranks), _groups(ranks)
    places = {(one.communicator, one.rank): each.rank for each in ranks for one in each.members}
    world = max(
        [0, *(each.rank + 1 for each in ranks), *(len(key.ranks) for key in groups.values())]
    )
    profiles = []
    files, unlaunched = with_launches(
        unroll([file_of(each.export, each.process, each.device) for each in ranks])
    )
    draft.limits += [UNLAUNCHED] * bool(unlaunched)
    for each, file in zip(ranks, files, strict=True):
        draft.rank(
            each.rank, FACTS, hostname=each.export.host, boot_id=each.clock,
            source=str(each.export.path),
        )  # fmt: skip
        profiles.append(_profile(each, file, groups, places, world, origins[each.clock]))
    profiles, unsaid = group_calls(profiles)
    draft.limits += spoken(profiles) + unsaid
    if profiles:
        enter(draft, profiles)
    named = [member.size for each in ranks for member in each.members]
    draft.limits += absent(draft.ranks, max(named, default=0))
    return repeating(draft.trace({"source": NAME}), profiles, MARKS)


def _merge_limits(exports: Sequence[Export]) -> list[str]:
    """Each limit of the exports once, with the file's name or the number of files."""
    files: dict[str, list[Export]] = {}
    for export in exports:
        for limit in export.limits:
            files.setdefault(limit, []).append(export)
    return [
        f"{those[0].path}: {limit}" if len(those) == 1 else f"{len(those)} files: {limit}"
        for limit, those in files.items()
    ]


def _origins(ranks: Sequence[ProcessDevice]) -> dict[str, int]:
    """Time of the first event on each clock."""
    first: dict[str, int] = {}
    for each in ranks:
        tables = (each.export.kernels, each.export.launches, each.export.ranges)
        start = min(int(table.start.min()) for table in tables if len(table)) + each.export.began_ns
        first[each.clock] = min(first.get(each.clock, start), start)
    return first


def _groups(ranks: Sequence[ProcessDevice]) -> dict[int, GroupKey]:
    """The group of each communicator: the ranks that set it up or call it."""
    members: dict[int, set[int]] = {}
    for each in ranks:
        for communicator in each.calls | {one.communicator for one in each.members} - {-1}:
            members.setdefault(communicator, set()).add(each.rank)
    sizes = {communicator: len(those) for communicator, those in members.items()}
    set_up = (one for each in ranks for one in each.members if one.communicator >= 0)
    sizes |= {one.communicator: one.size for one in set_up}
    largest = max(sizes.values(), default=0)
    found = {}
    for communicator, those in members.items():
        size = sizes[communicator]
        whole = size == largest and max(those) < size <= MOST_RANKS
        name = "world" if whole else f"communicator {communicator:x}"
        found[communicator] = GroupKey(name, range(size) if whole else tuple(sorted(those)))
    return found


def _profile(
    each: ProcessDevice, file: KinetoFile, groups: Mapping[int, GroupKey],
    places: Mapping[tuple[int, int], int], world: int, origin: int,
) -> Profile:  # fmt: skip
    """A device as a profile, with its clock's first event at `FIRST_NS`."""
    export = each.export
    calls = device_calls(file, [None] * len(file.names)).sorted_by("enter_ns", "device_enter_ns")
    sizes = {number: len(key.ranks) for number, key in groups.items()}
    parts = said_of(export, file, calls, sizes)
    calls = calls.select(np.repeat(np.arange(len(calls)), list(map(len, parts))))
    said = [one for part in parts for one in part]
    shift = FIRST_NS + export.began_ns - origin
    file = file.moved(shift)
    times = ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns")
    coalesced = np.array([int(Flag.COALESCED) * (one.calls > 1) for one in said], np.int64)
    calls = calls.with_columns(
        **{name: calls[name] + shift for name in times}, flags=calls.flags | coalesced,
        op=np.array([int(one.op) for one in said], np.int64),
    )  # fmt: skip
    place = FilePlace(each.rank, world, export.host, [])
    told = [_arguments(one, groups, places) for one in said]
    return Profile(file, place, steps_of(file, MARKS), calls, told)


def _arguments(
    said: LaunchRanges, groups: Mapping[int, GroupKey], places: Mapping[tuple[int, int], int]
) -> CallArguments:
    """NVTX ranges of a launch as a call's arguments; NCCL numbers peers within the communicator."""
    group = groups.get(said.communicator)
    peer = group.member(said.peer) if group else -1
    peer = places.get((said.communicator, said.peer), peer)
    return CallArguments(group, said.bytes, said.bytes, source=peer, destination=peer)


# -- ranks -----------------------------------------------------------------------------------------

MOST_DEVICES = 1_024  # of one file: a table with more is damaged


@dataclass(slots=True)
class ProcessDevice:
    """One device of each process."""

    export: Export
    process: int
    device: int
    members: list[Membership]
    calls: set[int]  # communicators
    rank: int = -1

    @property
    def clock(self) -> str:
        """Ranks with the same value share a clock."""
        if self.export.began_ns:
            return f"clock of {self.export.host}"
        return f"session {self.export.path}"


def ranks_of(exports: Sequence[Export], limits: list[str]) -> list[ProcessDevice]:
    """The devices of all exports with their ranks; a second trace of a rank is left out."""
    ordered = sorted(exports, key=lambda export: natural(export.path))
    ranks = [rank for export in ordered for rank in _devices(export, limits)]
    _number(ranks, limits)
    return _without_doubles(ranks, limits)


def _devices(export: Export, limits: list[str]) -> list[ProcessDevice]:
    """The devices that ran kernels, process by process."""
    pairs = np.unique(np.stack([export.kernels.process, export.kernels.device]), axis=1).T
    if len(pairs) > MOST_DEVICES:
        limits.append(f"left out: {export.path} has kernels of {len(pairs)} devices, on one node")
        return []
    return [
        ProcessDevice(
            export, process, device, memberships(export, process), communicators(export, process)
        )
        for process, device in pairs.tolist()
    ]


def _number(ranks: list[ProcessDevice], limits: list[str]) -> None:
    """Set the ranks: NCCL's in the largest communicator, else by file name, else in order."""
    largest = [max(each.members, key=lambda member: member.size, default=None) for each in ranks]
    said = [member.rank if member and member.size <= MOST_RANKS else None for member in largest]
    files = {each.export.path for each in ranks}
    paths = [each.export.path for each in ranks]
    by_path = ranks_by_paths(list(dict.fromkeys(paths)))
    named = list(map(by_path.get, paths))
    if None not in said and len(set(said)) == len(said):
        numbers = said
    elif None not in named and len(files) == len(ranks):
        numbers = named
    else:
        numbers = list(range(len(ranks)))
        if len(ranks) > 1:
            limits.append(
                "neither NCCL's ranges nor the file names say which rank is which: they are "
                "numbered in order of files, processes and devices"
            )
    for each, number in zip(ranks, numbers, strict=True):
        each.rank = number or 0


def _without_doubles(ranks: Sequence[ProcessDevice], limits: list[str]) -> list[ProcessDevice]:
    kept: dict[int, ProcessDevice] = {}
    for each in ranks:
        if each.rank in kept:
            limits.append(
                f"left out: {each.export.path} is a second trace of rank {each.rank}, besides "
                f"{kept[each.rank].export.path}"
            )
        else:
            kept[each.rank] = each
    return [kept[rank] for rank in sorted(kept)]


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


MARKS = StepMarks(
    _STEP, lambda name: phase(name) is Phase.OPTIMIZER, "no NVTX range names a step",
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
            told = process >= 0 or row == RowKind.ANNOTATION
            mine = table.select((table.thread >> 24) == process) if told else table
            tids, thread = np.unique(mine.thread, return_inverse=True)
            thread = thread + len(threads)
            threads += [(process, tid) for tid in tids.tolist()]
        known = {"row": int(row), "start_ns": mine.start, "end_ns": mine.end, "thread": thread}
        tables.append(event_rows(len(mine), **{**mine, **known}))
    rows = Columns.concatenate(tables)
    launching = rows.row == int(RowKind.LAUNCH)
    needed = np.isin(rows.correlation, rows.correlation[rows.row == int(RowKind.KERNEL)])
    needed |= np.isin(rows.correlation, rows.correlation[rows.row == int(RowKind.COPY)])
    rows = rows.select(~launching | needed)
    return KinetoFile(export.path, {}, rows, export.names, threads, [], 0, 0)


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
    named = map(_CALL.match, export.names)  # a range such as "ncclAllReduce"
    kinds = [operation(it[1]) if it and not it[1].startswith("Comm") else None for it in named]
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
