"""SQLite exports of Nsight Systems (`nsys export --type sqlite`) as a trace.

A rank is a device of a process; a file may hold each rank or a node's. Device stamps are on the
host's clock: nsys has converted them. Files of each host share its clock by their session's start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError
from evenstep.importers.completion import Completion
from evenstep.importers.content import reported
from evenstep.importers.draft import COMPUTE, COPY, FIRST_NS, TYPES, Draft
from evenstep.importers.format import Progress, SourceFile, TraceFormat
from evenstep.importers.kineto.sequence import in_sequence
from evenstep.importers.nsys.database import MAGIC
from evenstep.importers.nsys.process import (
    LaunchRanges,
    collectives_of,
    completion_of,
    compute_of,
    phases_of,
)
from evenstep.importers.nsys.ranks import ProcessDevice, ranks_of
from evenstep.importers.nsys.tables import Export, read_export
from evenstep.trace.columns import Columns
from evenstep.trace.ranks import MOST_RANKS, format_ranks
from evenstep.trace.repetition import with_steps
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import RankInfo, Trace

Array = npt.NDArray[Any]

NAME = "Nsight Systems export"
_STREAMS = int(np.iinfo(np.uint16).max)


def recognises(source: SourceFile) -> bool:
    """Whether it is an SQLite database, of which no other format consists."""
    return source.head.startswith(MAGIC)


def read(sources: Sequence[SourceFile], progress: Progress) -> Trace:
    """All exports as each trace. Raises `TraceError` where none is usable."""
    draft = Draft()
    exports = []
    for source in reported(sources, progress):
        try:
            exports.append(read_export(source.path))
        except TraceError as error:
            draft.limits.append(f"left out: {error}")
    draft.limits += _said(exports)
    ranks = ranks_of(exports, draft.limits)
    for each in ranks:
        identity = {
            "rank": each.rank, "hostname": each.export.host, "boot_id": each.clock,
            "source": str(each.export.path),
        }  # fmt: skip
        draft.rank(RankInfo(each.rank, identity, {"device_clock": "host"}))
    _enter(draft, ranks)
    draft.limits += _overall(ranks)
    trace = draft.trace({"source": NAME})
    if not all(each.steps.whole for each in ranks):
        return trace
    trace, inferred = with_steps(trace)
    trace.limits.append(inferred or "all of the session is taken as one step")
    return trace


FORMAT = TraceFormat(NAME, recognises, read)


def _said(exports: Sequence[Export]) -> list[str]:
    """What the files cannot tell, each once: of one file with its name."""
    files: dict[str, list[Export]] = {}
    for export in exports:
        for limit in export.limits:
            files.setdefault(limit, []).append(export)
    return [
        f"{those[0].path}: {limit}" if len(those) == 1 else f"{len(those)} files: {limit}"
        for limit, those in files.items()
    ]


# -- records ---------------------------------------------------------------------------------------


def _enter(draft: Draft, ranks: Sequence[ProcessDevice]) -> None:
    origins = _origins(ranks)
    groups = _groups(draft, ranks)
    tables = []
    for each in ranks:
        shift = origins[each.clock]
        done, waits = completion_of(each.kernels)
        tables.append(_communication(draft, each, groups, shift, done))
        _enter_steps(draft, each, shift, done, waits)
    if not tables:
        return
    numbered, limits = in_sequence(Columns.concatenate(tables))
    draft.limits += limits
    numbered = numbered.with_column("enter_ns", numbered.entered)
    for each in ranks:
        mine = numbered.select(numbered["rank"] == each.rank)
        if len(mine):
            draft.rows(each.rank, {name: mine[name] for name in mine if name != "rank"})


def _origins(ranks: Sequence[ProcessDevice]) -> dict[str, int]:
    """What to add to the times of each clock, so that its first is `FIRST_NS`."""
    first: dict[str, int] = {}
    for each in ranks:
        tables = (each.export.kernels, each.export.launches, each.export.ranges)
        start = min(int(table.start.min()) for table in tables if len(table))
        start += _began(each)
        first[each.clock] = min(first.get(each.clock, start), start)
    return {clock: FIRST_NS - start for clock, start in first.items()}


def _began(each: ProcessDevice) -> int:
    """Start of the session on the rank's clock."""
    return each.export.began_ns if each.export.host and each.export.began_ns else 0


def _groups(draft: Draft, ranks: Sequence[ProcessDevice]) -> dict[int, int]:
    """The group of each communicator (-1: the one that is assumed where none is named)."""
    members: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for each in ranks:
        for member in (member for member in each.members if member.communicator >= 0):
            members.setdefault(member.communicator, set()).add(each.rank)
            sizes[member.communicator] = member.size
    found = {-1: draft.group("world", [each.rank for each in ranks], "nccl")}
    largest = max(sizes.values(), default=0)
    for communicator, those in members.items():
        size = sizes[communicator]
        whole = size == largest and max(those) < size <= MOST_RANKS
        name = "world" if whole else f"communicator {communicator:x}"
        found[communicator] = draft.group(name, range(size) if whole else those, "nccl")
    return found


def _communication(
    draft: Draft, each: ProcessDevice, groups: Mapping[int, int], shift: int, done: Completion
) -> Columns:
    """A rank's collectives and messages as records, but for their number in the group's order.

    They are entered when issued; `entered` is when the device had come to them.
    """
    found, calls = collectives_of(each.export, each.kernels)
    ops = np.array([int(call.op) for call in calls], np.int64)
    message = np.isin(ops, [int(Op.SEND), int(Op.RECV)])
    group = np.array([groups.get(call.communicator, groups[-1]) for call in calls], np.int64)
    size = np.array([call.bytes for call in calls], np.int64)
    coalesced = np.array([call.calls > 1 for call in calls], bool)
    shift += _began(each)
    names = [draft.name(each.export.names[name].partition("(")[0]) for name in found.name]
    return Columns(
        {
            **{name: np.zeros(len(found), np.int64) for name in TYPES},
            "rank": np.full(len(found), each.rank),
            "kind": np.where(message, int(Kind.POINT_TO_POINT), int(Kind.COLLECTIVE)),
            "op": ops,
            "enter_ns": found.issued + shift,
            "entered": done.entered(found.issued, found.start) + shift,
            "exit_ns": np.maximum(found.end, found.issued + 1) + shift,
            "device_enter_ns": found.start + shift,
            "device_exit_ns": found.end + shift,
            "step": np.maximum(each.steps.at(found.issued), 0),
            "group": group,
            "assumed": np.array([call.communicator not in groups for call in calls], bool)
            | np.array([call.communicator < 0 for call in calls], bool),
            "stated": np.full(len(found), -1),
            "bytes_in": size,
            "bytes_out": size,
            "peer_or_root": _peers(draft, group, calls),
            "stream": np.clip(found.stream, 0, _STREAMS),
            "device": np.clip(found.device, 0, np.iinfo(np.int16).max),
            "name": np.array(names, np.int64),
            "flags": np.where(coalesced, int(Flag.COALESCED), 0) | int(Flag.ON_DEVICE | Flag.ASYNC),
        }
    )


def _peers(draft: Draft, group: Array, calls: Sequence[LaunchRanges]) -> Array:
    """Global ranks of peers, which NCCL counts within the communicator."""
    found = np.full(len(calls), -1)
    for index, call in enumerate(calls):
        members = draft.members(int(group[index]))
        if 0 <= call.peer < len(members):
            found[index] = members[call.peer]
    return found


def _enter_steps(
    draft: Draft, each: ProcessDevice, shift: int, done: Completion, waits: tuple[Array, Array]
) -> None:
    """Steps, their phases, and when the device computed and copied in them."""
    shift += _began(each)
    steps = each.steps.on_device(done)
    if len(steps.number):
        draft.rows(
            each.rank,
            {
                "kind": int(Kind.STEP), "step": steps.number, "peer_or_root": 0,
                "enter_ns": steps.start_ns + shift, "exit_ns": steps.end_ns + shift,
            },
        )  # fmt: skip
    phases = phases_of(each.export, each.process, each.steps, done, waits)
    if len(phases):
        draft.rows(
            each.rank,
            {
                "kind": int(Kind.PHASE), "op": phases.op, "step": phases.step,
                "enter_ns": phases.start + shift, "exit_ns": phases.end + shift,
                "group_seq": phases.leaf,
            },
        )  # fmt: skip
    for name, work in ((COMPUTE, each.kernels), (COPY, each.copies)):
        spans = compute_of(work, each.steps)
        times = spans.start + shift, spans.end + shift
        step = np.maximum(spans.step, 0)
        draft.device_spans(each.rank, name, max(each.device, 0), *times, step)


def _overall(ranks: Sequence[ProcessDevice]) -> list[str]:
    """What these exports as a whole cannot tell."""
    limits = []
    without = [each.rank for each in ranks if each.steps.whole]
    if without:
        limits.append(
            f"ranks {format_ranks(without)} have no NVTX range that names a step or the optimizer: "
            'mark steps with torch.cuda.nvtx.range_push(f"step {n}")'
        )
    counted = [each.rank for each in ranks if each.steps.counted]
    if counted:
        limits.append(
            f"steps of ranks {format_ranks(counted)} are those between two optimizer ranges"
        )
    sizes = {member.size for each in ranks for member in each.members}
    world = max(sizes, default=0)
    missing = sorted(set(range(min(world, MOST_RANKS))) - {each.rank for each in ranks})
    if missing:
        limits.append(f"there is no export of ranks {format_ranks(missing)}")
    return limits
