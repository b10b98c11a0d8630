"""Read OTF2 archives (`traces.otf2` and the files beside it): MPI's collectives and messages.

A rank is a location that communicates, in MPI's order. Recorders align clocks with errors that are
often longer than a collective: here each process keeps its own clock, and shared operations align
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.draft import FIRST_NS, MOST_BYTES, Draft
from evenstep.importers.otf2.archive import Archive
from evenstep.importers.otf2.archive import read as read_archive
from evenstep.trace.columns import positions_by_key
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import Flag, Op
from evenstep.trace.trace import Trace

NAME = "OTF2 archive"
_MAGIC = b"OTF2"
LONGEST_S = 1e7
#: Operations by OTF2's number of a collective; higher numbers allocate and free.
_OPS = (
    Op.BARRIER, Op.BROADCAST, Op.GATHER, Op.GATHER, Op.SCATTER, Op.SCATTER, Op.ALL_GATHER,
    Op.ALL_GATHER, Op.ALL_TO_ALL, Op.ALL_TO_ALL, Op.ALL_TO_ALL, Op.ALL_REDUCE, Op.REDUCE,
    Op.REDUCE_SCATTER, Op.OTHER, Op.OTHER, Op.REDUCE_SCATTER,
)  # fmt: skip


def recognises(source: SourceFile) -> bool:
    """Whether a file is an archive's anchor."""
    return source.path.suffix == ".otf2" and _MAGIC in source.head[:8]


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read the archive as a trace. Raises `TraceError` where no process communicates in it."""
    draft = Draft()
    draft.limits += [f"left out: {each.path} is a second archive" for each in sources[1:]]
    path = sources[0].path
    archive = read_archive(path)
    world = max((those for _, those in archive.communicators.values()), key=len, default=[])
    if not world or not len(archive.operations) or archive.ticks_per_s < 1:
        raise TraceError(f"{path} holds no communication of MPI; record MPI's functions")
    for rank, location in enumerate(world[:MOST_RANKS]):
        name, process = archive.locations.get(location, ("", -1))
        place = archive.processes.get(process) or name
        draft.rank(rank, place=place, source=str(path), boot_id=f"process {rank}")
    _enter(draft, archive, {location: rank for rank, location in enumerate(world)})
    return infer_steps(draft.trace({"source": NAME}), "the archive marks no steps")


def _enter(draft: Draft, archive: Archive, ranks: dict[int, int]) -> None:
    """Enter every operation of a rank, numbered in the order of its communicator."""
    rows = archive.operations.sorted_by("enter")
    rank_of = np.array([ranks.get(each, -1) for each in rows.location.tolist()], np.int64)
    groups, members = {}, {}
    for number, (name, locations) in archive.communicators.items():
        members[number] = [ranks.get(location, -1) for location in locations]
        if members[number] and min(members[number]) >= 0:
            groups[number] = draft.group(name, members[number], "mpi")
    known = (rank_of >= 0) & np.isin(rows.communicator, list(groups)) & (rows.kind < len(_OPS))
    known &= (rows.exit >= rows.enter) & (
        rows.exit - rows.enter[0] < LONGEST_S * archive.ticks_per_s
    )
    rows, rank = rows.select(known), rank_of[known]
    if not len(rows):
        raise TraceError("its operations are of no known process and communicator")
    message = rows.kind < 0
    ops = np.array([*map(int, _OPS), int(Op.RECV), int(Op.SEND)])[rows.kind]  # from the end: -1, -2
    pairs = zip(rows.communicator.tolist(), rows.peer.tolist(), strict=True)
    peer = np.array(  # which MPI numbers within the communicator
        [members[comm][at] if 0 <= at < len(members[comm]) else -1 for comm, at in pairs]
    )
    place = (rows.communicator, np.minimum(rows.kind, 0), np.where(message, peer, -1), rows.tag)
    scale = 1e9 / archive.ticks_per_s
    first = int(rows.enter.min())
    draft.calls(
        rank,
        op=ops, group=np.array([groups[each] for each in rows.communicator.tolist()]),
        group_seq=positions_by_key(rank, *place),
        peer_or_root=peer, payload=rows.tag,
        bytes_in=np.clip(rows.sent, 0, MOST_BYTES),
        bytes_out=np.clip(rows.received, 0, MOST_BYTES),
        enter_ns=FIRST_NS + ((rows.enter - first) * scale).astype(np.int64),
        exit_ns=FIRST_NS + ((rows.exit - first) * scale).astype(np.int64) + 1,
        flags=int(Flag.HOST_BLOCKED),
    )  # fmt: skip
