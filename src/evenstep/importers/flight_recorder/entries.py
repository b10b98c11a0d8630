"""Check an entry of a flight recorder's ring and convert it to plain numbers.

The fields are those of versions 1 and 2 of the format (torch's `FlightRecorder.hpp`). A coalesced
group (several operations launched together) is written as its members, with sizes and peers but no
outcome, and a closing entry with the outcome only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from evenstep.importers.draft import LATEST_NS, MOST_BYTES
from evenstep.importers.kineto.names import MESSAGES, element_type, operation
from evenstep.trace.spool.layout import DType, Op

_PEERS = re.compile(r"(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
_COALESCED = "coalesced"
LONGEST_MS = LATEST_NS / 1e6 / 65_536  # of an operation: all of a ring's together are a time
_LONGEST_NAME = 200
_MOST_DIMENSIONS = 64


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

    @property
    def latest_ns(self) -> int:
        """The latest time in this entry."""
        return max(self.created_ns, self.completed_ns)


def entry(raw: Any, number: int) -> Entry:
    """Parse an entry of a dump, the n-th. Raises ValueError naming the invalid field."""
    if not isinstance(raw, Mapping):
        raise ValueError("is not a dictionary")
    backend, name = _profiling_name(raw)
    op = operation(name) or Op.OTHER
    message = raw.get("is_p2p") is True or op in MESSAGES
    completed = _whole(raw, "time_discovered_completed_ns", 0)
    retired = raw.get("retired") is True
    # gloo's recorder never says "completed": it retires an entry when its work has ended. On a
    # device an entry that was retired without having completed has timed out.
    done = completed > 0 or raw.get("state") == "completed" or (retired and backend == "gloo")
    in_bytes, dtype = _tensors(raw, "input")
    out_bytes, out_dtype = _tensors(raw, "output")
    return Entry(
        record=_whole(raw, "record_id", number), group=_group(raw),
        pg=str(raw.get("pg_id", ""))[:_LONGEST_NAME], sequence=_sequence(raw, message),
        message=message, op=op, backend=backend, closes=name.lower().endswith(_COALESCED),
        peer=_peer(name), bytes_in=in_bytes, bytes_out=out_bytes,
        dtype=dtype if dtype is not DType.OTHER else out_dtype,
        created_ns=_created(raw), completed_ns=completed, done=done,
        timed_out=retired and not done, duration_ns=_milliseconds(raw, "duration_ms", LONGEST_MS),
        timeout_ns=_milliseconds(raw, "timeout_ms", LATEST_NS / 1e6), site=_site(raw.get("frames")),
        unseen=done and raw.get("retired") is False,
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


# -- fields ----------------------------------------------------------------------------------------


def _whole(raw: Mapping[Any, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field, default)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LATEST_NS:
        raise ValueError(f"{field} is {_show(value)}, not a number of its kind")
    return value


def _created(raw: Mapping[Any, Any]) -> int:
    """When the call was made; torch 2.2 wrote whole microseconds, and no record_id."""
    if "time_created_us" in raw:
        return 1000 * _whole(raw, "time_created_us")
    return _whole(raw, "time_created_ns")


def _milliseconds(raw: Mapping[Any, Any], field: str, most: float) -> int:
    value = raw.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if not 0 <= value < most:
        raise ValueError(f"{field} is {_show(value)}, not a duration")
    return round(value * 1e6)


def _sequence(raw: Mapping[Any, Any], message: bool) -> int:
    field = "p2p_seq_id" if message else "collective_seq_id"
    return _whole(raw, field if field in raw else "seq_id")  # version 1 has one count for both


def _profiling_name(raw: Mapping[Any, Any]) -> tuple[str, str]:
    text = raw.get("profiling_name")
    if not isinstance(text, str):
        raise ValueError(f"profiling_name is {_show(text)}, not text")
    backend, _, name = text[:_LONGEST_NAME].rpartition(":")
    return backend, name


def _peer(name: str) -> int:
    """The peer of a message, as a rank within the group: "send 0->1" has 1."""
    match = _PEERS.search(name)
    return int(match[3]) if match else -1


def _group(raw: Mapping[Any, Any]) -> tuple[str, str]:
    pair = raw.get("process_group")
    if pair is None:  # version 1
        return str(raw.get("pg_id", ""))[:_LONGEST_NAME], ""
    if not isinstance(pair, list | tuple) or not all(isinstance(part, str) for part in pair):
        raise ValueError("process_group is not a name and a description")
    name, description = (*pair, "", "")[:2]
    return name[:_LONGEST_NAME], description[:_LONGEST_NAME]


def _tensors(raw: Mapping[Any, Any], side: str) -> tuple[int, DType]:
    """Bytes of all input or output tensors, and the element type of the first."""
    shapes, types = raw.get(f"{side}_sizes") or [], raw.get(f"{side}_dtypes") or []
    if not isinstance(shapes, list | tuple) or not isinstance(types, list | tuple):
        raise ValueError(f"{side}_sizes is not a list of shapes")
    known = [element_type(str(name)[:40]) for name in types[: len(shapes)]]
    widths = [size for _, size in known] + [known[-1][1] if known else 4] * len(shapes)
    pairs = zip(shapes, widths, strict=False)
    total = sum(_elements(shape, side) * width for shape, width in pairs)
    if total > MOST_BYTES:
        raise ValueError(f"{side}_sizes hold more than a machine can")
    return total, known[0][0] if known else DType.OTHER


def _elements(shape: Any, side: str) -> int:
    if not isinstance(shape, list | tuple) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{side}_sizes is not a list of shapes")
    if not all(type(size) is int and 0 <= size < MOST_BYTES for size in shape):
        raise ValueError(f"{side}_sizes has {_show(shape)}, which is not a shape")
    return math.prod(shape)


def _site(frames: Any) -> str:
    """The first frame that is not torch's."""
    if not isinstance(frames, list | tuple):
        return ""
    for frame in frames:
        if not isinstance(frame, Mapping):
            return ""
        file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
        if isinstance(file, str) and "torch/" not in file.replace("\\", "/"):
            return f"{str(name)[:80]} ({PurePath(file).name[:80]}:{str(line)[:12]})"
    return ""


def _show(value: Any) -> str:
    """A short form of any value, for messages."""
    if value is None or isinstance(value, bool | float):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < LATEST_NS else "a huge number"
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"
