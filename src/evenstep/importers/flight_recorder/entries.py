"""Check an entry of a flight recorder's ring and convert it to plain numbers.

The fields are those of version 2 of the format (torch's `FlightRecorder.hpp`). A coalesced
group (several operations launched together) is written as its members, with sizes and peers but no
outcome, and a closing entry with the outcome only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Annotated, Any

import msgspec

from evenstep.importers.draft import LATEST_NS, LONGEST_TEXT, MOST_BYTES
from evenstep.importers.kineto.names import MESSAGES, element_type, operation
from evenstep.trace.spool.layout import DType, Op

_PEERS = re.compile(r"\d\s*(?:->|<-)\s*(\d{1,9})")
_COALESCED = "coalesced"
LONGEST_MS = LATEST_NS / 1e6 / 65_536  # of an operation: all of a ring's together are a time
Whole = Annotated[int, msgspec.Meta(ge=0, lt=LATEST_NS)]
Shape = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=MOST_BYTES)]], msgspec.Meta(max_length=64)
]


@dataclass(slots=True, frozen=True)
class Entry:
    """One operation of one rank. Times are the host's wall clock in ns; 0 is unknown.

    `peer` is a rank within the group. `done`: it has ended, perhaps at an unknown time.
    `timed_out`: it was given up. Neither: it was in flight when the dump was written.
    """

    record: int
    group: tuple[str, str]  # name and description
    pg: str  # key of the group in pg_status
    sequence: int
    message: bool  # point to point
    op: Op
    backend: str
    closes: bool  # ends a coalesced group
    peer: int
    bytes_in: int
    bytes_out: int
    dtype: DType
    created_ns: int
    completed_ns: int
    done: bool
    timed_out: bool
    duration_ns: int
    timeout_ns: int
    site: str  # call site in the program: "train (loop.py:31)"
    unseen: bool = False  # it has ended since the watchdog's last round
    coalesced: bool = False


class _Raw(msgspec.Struct):
    """An entry as files have it; None where a field is unknown."""

    profiling_name: str
    record_id: Whole
    time_created_ns: Whole
    process_group: tuple[str, str]  # name and description
    pg_id: Any = ""
    collective_seq_id: Whole | None = None
    p2p_seq_id: Whole | None = None
    is_p2p: Any = False
    time_discovered_completed_ns: Whole | None = None
    state: Any = None
    retired: Any = False
    input_sizes: list[Shape] | None = None
    output_sizes: list[Shape] | None = None
    input_dtypes: list[Any] | None = None
    output_dtypes: list[Any] | None = None
    duration_ms: Annotated[float, msgspec.Meta(ge=0, lt=LONGEST_MS)] | None = None
    timeout_ms: Annotated[float, msgspec.Meta(ge=0, lt=LATEST_NS / 1e6)] | None = None
    frames: Any = None


def entry(raw: Any) -> Entry:
    """Parse an entry of a dump. Raises ValidationError of an invalid field."""
    said = msgspec.convert(raw, _Raw)
    backend, _, name = said.profiling_name[:LONGEST_TEXT].rpartition(":")
    op = operation(name) or Op.OTHER
    message = said.is_p2p is True or op in MESSAGES
    sequence = said.p2p_seq_id if message else said.collective_seq_id
    if sequence is None:
        raise msgspec.ValidationError("it has no number")
    completed = said.time_discovered_completed_ns or 0
    # gloo's recorder never says "completed": it retires an entry when its work has ended. On a
    # device an entry that was retired without having completed has timed out.
    retired = said.retired is True
    done = completed > 0 or said.state == "completed" or (retired and backend == "gloo")
    in_bytes, dtype = _tensors(said.input_sizes, said.input_dtypes)
    out_bytes, out_dtype = _tensors(said.output_sizes, said.output_dtypes)
    pg = str(said.pg_id)[:LONGEST_TEXT]
    title, description = said.process_group
    peer = _PEERS.search(name)  # as a rank within the group: "send 0->1" has 1
    return Entry(
        record=said.record_id, group=(title[:LONGEST_TEXT], description[:LONGEST_TEXT]), pg=pg,
        sequence=sequence, message=message, op=op, backend=backend,
        closes=name.lower().endswith(_COALESCED), peer=int(peer[1]) if peer else -1,
        bytes_in=in_bytes, bytes_out=out_bytes,
        dtype=dtype if dtype is not DType.OTHER else out_dtype,
        created_ns=said.time_created_ns, completed_ns=completed, done=done,
        timed_out=retired and not done, duration_ns=round((said.duration_ms or 0) * 1e6),
        timeout_ns=round((said.timeout_ms or 0) * 1e6), site=_site(said.frames),
        unseen=done and said.retired is False,
    )  # fmt: skip


def fold_coalesced(entries: Sequence[Entry]) -> list[Entry]:
    """Merge each coalesced group of collectives into one entry.

    Messages of a group stay separate, for each has its own peer; all share the group's outcome.
    """
    launches: dict[tuple[tuple[str, str], bool, int], list[Entry]] = {}
    for item in entries:
        launches.setdefault((item.group, item.message, item.sequence), []).append(item)
    found: list[Entry] = []
    for launch in launches.values():
        found += launch if len(launch) == 1 else _merge(launch)
    return sorted(found, key=lambda item: item.record)


def _merge(launch: list[Entry]) -> list[Entry]:
    last = launch[-1]
    members = launch[:-1] if last.closes else launch
    shared = [
        replace(
            member, completed_ns=last.completed_ns, done=last.done, timed_out=last.timed_out,
            duration_ns=last.duration_ns, unseen=last.unseen, coalesced=True,
        )
        for member in members
    ]  # fmt: skip
    if last.message:
        return shared
    whole = replace(
        shared[0],
        bytes_in=sum(member.bytes_in for member in shared),
        bytes_out=sum(member.bytes_out for member in shared),
    )
    return [whole]


def _tensors(shapes: list[list[int]] | None, types: list[Any] | None) -> tuple[int, DType]:
    """Bytes of all tensors of a side, and the element type of the first."""
    shapes, types = shapes or [], types or []
    known = [element_type(str(name)[:LONGEST_TEXT]) for name in types[: len(shapes)]]
    widths = [size for _, size in known] + [known[-1][1] if known else 4] * len(shapes)
    total = sum(math.prod(shape) * width for shape, width in zip(shapes, widths, strict=False))
    if total > MOST_BYTES:
        raise msgspec.ValidationError("its tensors hold more than a machine can")
    return total, known[0][0] if known else DType.OTHER


def _site(frames: Any) -> str:
    """The first frame that is not torch's."""
    if not isinstance(frames, list | tuple):
        return ""
    for frame in frames:
        if not isinstance(frame, Mapping):
            return ""
        file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
        if isinstance(file, str) and "torch/" not in file.replace("\\", "/"):
            return f"{name} ({PurePath(file).name}:{line})"[:LONGEST_TEXT]
    return ""
