"""Read one file of a flight recorder: its rank, its groups and its entries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from evenstep.errors import TraceError
from evenstep.importers.content import content, parsed_json, whole
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.importers.file_ranks import rank_of
from evenstep.importers.flight_recorder.entries import Entry, entry, fold_coalesced
from evenstep.importers.flight_recorder.restricted_pickle import loads
from evenstep.importers.kineto.calls import ranks_of
from evenstep.trace.spool.layout import Op

MOST_BYTES = 256_000_000  # a ring of 2,000 entries with their stacks takes 1 to 20 MB
MOST_ENTRIES = 65_536  # of a ring; the default is 2,000
COARSE_NS = 10_000_000  # a filesystem's stamps lag the clock by up to a tick of the kernel
LATE_WRITE_NS = 600_000_000_000  # a file with a later modification time is a copy
PICKLE = re.compile(rb"\x80[\x02-\x05]")

Place = tuple[int, int, Op]  # messages of a rank: number of the group, peer, direction
_MOST_COMPLAINTS = 3


@dataclass(slots=True)
class Dump:
    """The contents of one file."""

    path: Path
    rank: int
    version: str
    library: str
    config: dict[str, tuple[int, ...]]  # members of a group by its name, where the file has them
    reached: dict[str, int]  # last collective issued, by pg_id; empty for gloo
    entries: list[Entry]
    written_ns: int  # wall clock; 0 unknown
    limits: list[str] = field(default_factory=list)
    overwritten: dict[Place, int] = field(default_factory=dict)  # messages, where others tell

    @property
    def world(self) -> int:
        """Number of members of the default group; 0 unknown."""
        names = {name for name, said in (one.group for one in self.entries) if said == "default_pg"}
        return max((len(self.config.get(name, ())) for name in names), default=0)

    @property
    def last_ns(self) -> int:
        """The latest time in this dump."""
        return max((max(item.created_ns, item.completed_ns) for item in self.entries), default=0)

    @property
    def timeout_ns(self) -> int:
        """The longest timeout of an operation."""
        return max((item.timeout_ns for item in self.entries), default=0)


def read_dump(path: Path, taken: Mapping[int, Dump], named: Mapping[Path, int]) -> Dump:
    """Read a file; `named` are ranks from paths.

    Raises `TraceError` for a file that is not a dump, and for a second dump of a rank.
    """
    value = _value(path)
    if not isinstance(value, dict) or not ({"entries", "pg_config", "pg_status"} & value.keys()):
        raise TraceError(f"{path} is not a flight recorder dump: it has neither entries nor groups")
    raw = value.get("entries") or []
    if not isinstance(raw, list | tuple):
        raise TraceError(f"{path}: entries is a {type(raw).__name__}, expected a list")
    if len(raw) > MOST_ENTRIES:
        raise TraceError(f"{path} has {len(raw)} entries, more than any ring ({MOST_ENTRIES})")
    limits: list[str] = []
    entries = _entries(path, raw, limits)
    groups = _each(value.get("pg_config"), "ranks")  # gloo's have no name
    config = {name: those for name, said in groups if name and (those := tuple(ranks_of(said)))}
    rank = rank_of(value.get("rank"))
    rank = named.get(path) if rank is None else rank
    if rank is None:
        rank = _other_rank(path, config, taken, limits)
    if rank in taken:
        raise TraceError(f"{path} is a second dump of rank {rank}, besides {taken[rank].path}")
    version = str(value.get("version", ""))[:LONGEST_TEXT]
    if not version.startswith("2."):
        limits.append(f"{path} has format version {version!r}; it was read as 2.x")
    dump = Dump(
        path=path, rank=rank, version=version,
        library=str(value.get("comm_lib_version", value.get("nccl_version", "")))[:LONGEST_TEXT],
        config=config, reached=_last_issued(value.get("pg_status"), entries), entries=entries,
        written_ns=0, limits=limits,
    )  # fmt: skip
    dump.written_ns = _time_written(dump)
    return dump


def _value(path: Path) -> Any:
    data = content(path, MOST_BYTES)
    if not data:
        raise TraceError(f"{path} is empty; the process may have died while it wrote it")
    if PICKLE.match(data):
        return loads(data, str(path))
    return parsed_json(data, path)


def _entries(path: Path, raw: Sequence[Any], limits: list[str]) -> list[Entry]:
    found: list[Entry] = []
    complaints: list[str] = []
    for number, item in enumerate(raw):
        try:
            found.append(entry(item))
        except msgspec.ValidationError as error:
            complaints.append(f"entry {number}: {error}")
    if complaints:
        shown = "; ".join(complaints[:_MOST_COMPLAINTS])
        if not found:
            raise TraceError(f"{path} has no entry that makes sense ({shown})")
        limits.append(f"{path}: {len(complaints)} entries were left out ({shown})")
    return fold_coalesced(sorted(found, key=lambda item: item.record))


def _other_rank(
    path: Path, config: Mapping[str, tuple[int, ...]], taken: Mapping[int, Dump], limits: list[str]
) -> int:
    """The only rank that all groups of a file share; else a free number."""
    common = set.intersection(*map(set, config.values())) if config else set()
    if len(common) == 1:
        return int(common.pop())
    number = next(n for n in range(len(taken) + 1) if n not in taken)
    limits.append(f"{path} does not say of which rank it is; it is called rank {number} here")
    return number


def _last_issued(raw: Any, entries: Sequence[Entry]) -> dict[str, int]:
    """The last collective issued in each group that has any and whose count is of them only.

    gloo counts messages, too, and so do groups that have had any.
    """
    unusable = {item.pg for item in entries if item.message or item.backend == "gloo"}
    found: dict[str, int] = {}
    for key, last in _each(raw, "last_enqueued_collective"):
        if key not in unusable and (number := whole(last)) >= 0:
            found[key] = number
    return found


def _each(raw: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The keys of a dictionary of dictionaries, and a value of each."""
    for key, described in raw.items() if isinstance(raw, dict) else ():
        if isinstance(described, dict):
            yield str(key), described.get(name)


def _time_written(dump: Dump) -> int:
    """When the file was written: its modification time if plausible; less than a round of the
    watchdog after the latest time, if a call has ended since the last round; else 0."""
    try:
        changed_ns = dump.path.stat().st_mtime_ns
    except OSError:
        return 0
    latest = dump.last_ns + max(dump.timeout_ns, 0) + LATE_WRITE_NS
    plausible = dump.last_ns - COARSE_NS <= changed_ns <= latest
    if dump.entries and plausible:
        return max(changed_ns, dump.last_ns)
    return dump.last_ns if any(item.unseen for item in dump.entries) else 0
