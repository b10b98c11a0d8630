"""Read logs of NCCL Inspector, NVIDIA's profiler plugin: durations of collectives on each rank.

One JSON object per line and collective, one file per process. A duration is from the start of the
rank's kernel to its end, including the wait for other ranks; all members leave together, so the
last to enter has the shortest duration. The plugin writes the latest collective of each
communicator whenever it wakes, so some may be missing; coll_sn tells which. Since version 4.3 of
the format a communicator's header is written once per dump, in the marker `dump_stats` before its
records.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import msgspec
import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, lines, usable
from evenstep.importers.draft import LATEST_NS, LONGEST_TEXT, Draft
from evenstep.importers.file_ranks import absent
from evenstep.importers.kineto.names import operation
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import Flag, Op
from evenstep.trace.trace import UNKNOWN, Trace

NAME = "NCCL Inspector log"
MOST_RECORDS = 20_000_000  # of all files: what fits into memory
_MOST_COMPLAINTS = 3

Whole = Annotated[int, msgspec.Meta(ge=0, lt=LATEST_NS)]
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=LATEST_NS // 1000)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
_HEAD = re.compile(rb'"(coll_perf|p2p_perf|dump_stats)"\s*:')
_COLUMNS = ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns", "group_seq", "bytes_in",
            "op")  # fmt: skip

_Process = tuple[str, int]  # host and pid


@dataclass(slots=True)
class _Log:
    """The records of all files, by communicator, process and rank in it: `_COLUMNS` of each."""

    series: dict[tuple[str, _Process, int], array[int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # ranks of a communicator
    records: int = 0
    dropped: int = 0  # records lost, by the plugin's own count


def recognises(source: SourceFile) -> bool:
    """Whether a file begins with a record of the plugin."""
    return source.head.lstrip()[:1] == b"{" and _HEAD.search(source.head) is not None


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read the logs of all processes as one trace. Raises `TraceError` where none has a record."""
    log = _Log()
    draft = Draft()
    for said in usable(sources, draft.limits, lambda source: _read_file(log, source)):
        draft.limits += said
    _enter(draft, log)
    trace = draft.trace({"source": NAME, "beside_calls": UNKNOWN})
    return infer_steps(trace, "NCCL Inspector records no steps")


# -- one file --------------------------------------------------------------------------------------


def _read_file(log: _Log, source: SourceFile) -> list[str]:
    complaints: list[str] = []
    wrong = right = 0
    before: dict[str, Any] = {}  # header and metadata of the dump that a record is of
    for line in lines(source.path):
        if not line.text.strip():
            continue
        try:
            right += _record(log, msgspec.json.decode(line.text), before)
        except (msgspec.DecodeError, RecursionError) as error:
            wrong += 1
            if len(complaints) < _MOST_COMPLAINTS:
                complaints.append(f"line {line.number}: {str(error)[:120]}")
        if log.records > MOST_RECORDS:
            return [f"only the first {MOST_RECORDS} records were read"]
    if not right:
        shown = "; ".join(complaints) or "it is empty"
        raise TraceError(f"{source.path} has no record of NCCL Inspector ({shown})")
    said = f"{source.path}: {wrong} lines were left out ({'; '.join(complaints)})"
    return [said] if wrong else []


class _Record(msgspec.Struct):
    """What a line says of a call, its header and metadata; kinds of calls are spelled alike."""

    rank: Rank
    n_ranks: Rank
    pid: Whole
    dump_timestamp_us: Microseconds
    sn: Whole
    msg_size_bytes: Whole
    exec_time_us: Microseconds
    id: Any = None
    hostname: Any = None
    event_trace_ts: Any = None


def _record(log: _Log, value: Any, before: dict[str, Any]) -> bool:
    """Take in one line; return whether it is a call. Raises ValidationError of an invalid field.

    Fields that a line lacks are those of the marker `before` it.
    """
    value = {**before, **msgspec.convert(value, dict[str, Any])}
    if "dump_stats" in value:
        before |= {name: value[name] for name in ("header", "metadata") if name in value}
        counts = msgspec.convert(value["dump_stats"], dict[str, Any])
        log.dropped += sum(
            msgspec.convert(counts[name], Whole) for name in counts if "drop" in name
        )
        return False
    kind = "coll" if "coll_perf" in value else "p2p"
    parts = [part for name in ("header", "metadata", f"{kind}_perf")
             if isinstance(part := value.get(name), dict)]  # fmt: skip
    told = {name.removeprefix(f"{kind}_"): one for part in parts for name, one in part.items()}
    said = msgspec.convert(told, _Record, strict=False)
    name = str(said.id)[:LONGEST_TEXT]
    if said.rank >= said.n_ranks or log.sizes.setdefault(name, said.n_ranks) != said.n_ranks:
        known = f", which has {log.sizes[name]}" if name in log.sizes else ""
        raise msgspec.ValidationError(
            f"rank {said.rank} of {said.n_ranks} ranks in communicator {name}{known}"
        )
    process = str(said.hostname)[:LONGEST_TEXT], said.pid
    op = operation(str(told.get(kind))[:LONGEST_TEXT]) or Op.OTHER
    numbers = log.series.setdefault((name, process, said.rank), array("q"))
    numbers.extend((*_times(said), said.sn, said.msg_size_bytes, int(op)))
    log.records += 1
    return True


def _times(said: _Record) -> tuple[int, int, int, int]:
    """Host entry and exit, then the kernel's, all in ns of the wall clock.

    Without the verbose trace only the duration is known; the end is taken to be the dump's time.
    """
    trace = said.event_trace_ts if isinstance(said.event_trace_ts, dict) else {}
    listed = trace.get("kernel_events")
    kernels = [item for item in listed if isinstance(item, dict)] if type(listed) is list else []
    ends = [end for item in kernels if (end := _stamp(item, "kernel_stop_ts"))]
    starts = [start for item in kernels if (start := _stamp(item, "kernel_start_ts"))]
    end_ns = 1000 * max(ends, default=said.dump_timestamp_us)
    start_ns = max(end_ns - 1000 * said.exec_time_us, 0)
    issued = (_stamp(trace, name) for name in ("coll_start_ts", "p2p_start_ts"))
    issued_ns = 1000 * next(filter(None, issued), min(starts, default=0))
    return min(issued_ns or start_ns, start_ns), end_ns, start_ns, end_ns


def _stamp(item: Mapping[str, Any], field_name: str) -> int:
    value = item.get(field_name)
    return value if type(value) is int and 0 < value < LATEST_NS // 1000 else 0


# -- all files -------------------------------------------------------------------------------------


def _enter(draft: Draft, log: _Log) -> None:
    """Enter all records. Ranks are those of the largest communicator; others' go by process."""
    largest = max(log.sizes, key=lambda name: log.sizes[name], default="")
    owners = _owners(log, largest, draft.limits)
    ranks: dict[_Process, list[int]] = {}
    starts = (min(_column(numbers, "device_enter_ns")) for numbers in log.series.values())
    origin = min(starts, default=0) - 1_000_000_000
    for rank, (host, pid) in sorted(owners.items()):
        draft.rank(rank, hostname=host, pid=pid, boot_id=f"clock of {host}")
        ranks.setdefault((host, pid), []).append(rank)
    single = {process: those[0] for process, those in ranks.items() if len(those) == 1}
    for name, size in log.sizes.items():
        mine = [place for place in log.series if place[0] == name]
        if name == largest:
            group = draft.group("world", range(size), "nccl")
            placed = {place: place[2] for place in mine if owners[place[2]] == place[1]}
        else:
            placed = {place: single[place[1]] for place in mine if place[1] in single}
            members = set(placed.values())
            group = draft.group(f"communicator {name}", members, "nccl")
            if len(members) != size:
                draft.limits.append(
                    f"communicator {name} has {size} ranks; {len(members)} are known from these "
                    "logs"
                )
        for place, rank in placed.items():
            columns = {one: np.array(_column(log.series[place], one)) for one in _COLUMNS}
            for one in ("device_enter_ns", "device_exit_ns"):
                columns[one] -= origin
            flags = int(Flag.EXIT_UPPER_BOUND)
            draft.calls(rank, group=group, device=0, flags=flags, **columns)
    draft.limits += _overall(log, draft, log.records - draft.length)


def _owners(log: _Log, largest: str, limits: list[str]) -> dict[int, _Process]:
    """The process of each rank; processes outside the largest communicator get free numbers."""
    owners: dict[int, _Process] = {}
    for name, process, rank in sorted(log.series):
        if name == largest and owners.setdefault(rank, process) != process:
            limits.append(f"left out: a second log of rank {rank}, by another process")
    known = {process for name, process, _ in log.series if name == largest}
    others = sorted({process for _, process, _ in log.series} - known)
    if others:
        free = (n for n in range(len(owners) + len(others)) if n not in owners)
        owners |= dict(zip(list(islice(free, len(others))), others, strict=True))
        limits.append(
            f"{len(others)} processes are not in the largest communicator: their ranks are "
            "numbers given here"
        )
    return owners


def _column(numbers: array[int], name: str) -> array[int]:
    return numbers[_COLUMNS.index(name) :: len(_COLUMNS)]


def _overall(log: _Log, draft: Draft, unmapped: int) -> list[str]:
    """Limits of these logs as a whole."""
    if not log.records:
        return []
    sequences = [_column(numbers, "group_seq") for numbers in log.series.values()]
    span = sum(max(each) - min(each) + 1 for each in sequences)
    limits = {
        "NCCL Inspector counts waiting for other ranks as execution: a rank's wait is its duration "
        "less the shortest of the members', and the shortest is taken for transfer": True,
        f"the plugin dropped {log.dropped} records by its own count": log.dropped,
        f"{log.records} of {span} operations were recorded: the plugin's interval is longer than "
        "the time between them": log.records < span,
        f"{unmapped} records were left out: their process drives several devices or is a rank's "
        "second, and whose they are is not recorded": unmapped,
    }
    told = [text for text, applies in limits.items() if applies]
    return told + absent(draft.ranks, max(log.sizes.values()))
