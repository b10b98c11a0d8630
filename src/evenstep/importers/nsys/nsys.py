"""Read SQLite exports of Nsight Systems (`nsys export --type sqlite`) as a trace.

A rank is a device of a process, and exports do not state its number; a file may hold one rank or
all ranks of a node. Device stamps are on the host's clock: nsys has converted them. Files of one
host are put on its clock by the start of their session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, TraceFormat, usable
from evenstep.importers.draft import Draft
from evenstep.importers.file_ranks import absent, natural, ranks_by_paths
from evenstep.importers.kineto.calls import CallArguments, GroupKey
from evenstep.importers.kineto.device import device_calls
from evenstep.importers.kineto.file import KinetoFile
from evenstep.importers.kineto.grouping import group_calls
from evenstep.importers.kineto.kineto import repeating, spoken
from evenstep.importers.kineto.launches import UNLAUNCHED, unroll, with_launches
from evenstep.importers.kineto.places import FilePlace
from evenstep.importers.kineto.records import FACTS, Profile, enter
from evenstep.importers.kineto.steps import steps_of
from evenstep.importers.nsys.database import MAGIC
from evenstep.importers.nsys.process import (
    MARKS,
    LaunchRanges,
    Membership,
    communicators,
    file_of,
    memberships,
    said_of,
)
from evenstep.importers.nsys.tables import Export, join_sessions, read_export
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Flag
from evenstep.trace.trace import Trace

NAME = "Nsight Systems export"


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
    told: dict[str, list[int]] = {}
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
        for text in profiles[-1].steps.limits:
            told.setdefault(text, []).append(each.rank)
    profiles, unsaid = group_calls(profiles)
    draft.limits += spoken(told, len(ranks)) + unsaid
    if profiles:
        enter(draft, profiles, 0)
    named = [member.size for each in ranks for member in each.members]
    draft.limits += absent(draft.ranks, max(named, default=0))
    trace = draft.trace({"source": NAME})
    return repeating(trace, MARKS) if all(each.steps.whole for each in profiles) else trace


FORMAT = TraceFormat(NAME, recognises, read)


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
        start = min(int(table.start.min()) for table in tables if len(table)) + _began(each)
        first[each.clock] = min(first.get(each.clock, start), start)
    return first


def _began(each: ProcessDevice) -> int:
    """Start of the session on the rank's clock."""
    return each.export.began_ns if each.export.host and each.export.began_ns else 0


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
    each: ProcessDevice,
    file: KinetoFile,
    groups: Mapping[int, GroupKey],
    places: Mapping[tuple[int, int], int],
    world: int,
    origin: int,
) -> Profile:
    """A device as a profile, with times since its clock's first event."""
    export = each.export
    calls = device_calls(file, [None] * len(file.names)).sorted_by("enter_ns", "device_enter_ns")
    sizes = {number: len(key.ranks) for number, key in groups.items()}
    parts = said_of(export, file, calls, sizes)
    calls = calls.select(np.repeat(np.arange(len(calls)), list(map(len, parts))))
    said = [one for part in parts for one in part]
    shift = _began(each) - origin
    rows = file.rows.with_columns(device=np.maximum(file.rows.device, 0))
    rows = rows.with_columns(start_ns=rows.start_ns + shift, end_ns=rows.end_ns + shift)
    file = replace(file, rows=rows)
    times = ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns")
    coalesced = np.array([int(Flag.COALESCED) * (one.calls > 1) for one in said], np.int64)
    calls = calls.with_columns(
        **{name: calls[name] + shift for name in times}, flags=calls.flags | coalesced,
        op=np.array([int(one.op) for one in said], np.int64),
    )  # fmt: skip
    steps = steps_of(file, MARKS)
    if steps is None:
        raise TraceError(f"{export.path} holds no event")
    place = FilePlace(each.rank, world, export.host, [])
    return Profile(file, place, steps, calls, [_arguments(one, groups, places) for one in said])


def _arguments(
    said: LaunchRanges, groups: Mapping[int, GroupKey], places: Mapping[tuple[int, int], int]
) -> CallArguments:
    """NVTX ranges of a launch as a call's arguments; NCCL numbers peers within the communicator."""
    group = groups.get(said.communicator)
    members = group.ranks if group else ()
    peer = members[said.peer] if 0 <= said.peer < len(members) else -1
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
        if self.export.host and self.export.began_ns:
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
