"""Read logs of NCCL Inspector, NVIDIA's profiler plugin: durations of collectives on each rank.

One JSON object per line and collective, one file per process. A duration is from the start of the
rank's kernel to its end, including the wait for other ranks; all members leave together, so the
last to enter has the shortest duration. The plugin writes the latest collective of each
communicator whenever it wakes, so some may be missing; coll_sn tells which. Since version 4.3 of
the format a communicator's header is written once per dump, in the marker `dump_stats` before its
records.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, TraceFormat, lines, usable
from evenstep.importers.draft import LATEST_NS, MOST_BYTES, Draft
from evenstep.importers.file_ranks import absent
from evenstep.importers.kineto.names import operation
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import Flag, Op
from evenstep.trace.trace import UNKNOWN, Trace

NAME = "NCCL Inspector log"
MOST_RECORDS = 20_000_000  # of all files: what fits into memory
_MOST_COMPLAINTS = 3

_HEAD = re.compile(rb'"(coll_perf|p2p_perf|dump_stats)"\s*:')
_COLUMNS = ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns", "group_seq", "bytes", "op")

_Process = tuple[str, int]  # host and pid


@dataclass(slots=True)
class _Series:
    """The records of one rank in one communicator, as columns."""

    process: _Process
    rank: int
    columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in _COLUMNS}
    )


@dataclass(slots=True)
class _Log:
    """The records of all files, by (communicator, host, pid, rank in it)."""

    series: dict[tuple[str, str, int, int], _Series] = field(default_factory=dict)
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


FORMAT = TraceFormat(NAME, recognises, read)


# -- one file --------------------------------------------------------------------------------------


def _read_file(log: _Log, source: SourceFile) -> list[str]:
    complaints: list[str] = []
    wrong = right = 0
    before: dict[str, Any] = {}  # header and metadata of the dump that a record is of
    for line in lines(source.path):
        if not line.text.strip():
            continue
        try:
            right += _record(log, json.loads(line.text), before)
        except (ValueError, RecursionError) as error:
            wrong += 1
            if len(complaints) < _MOST_COMPLAINTS:
                complaints.append(f"line {line.number}: {_message_of(error)}")
        if log.records > MOST_RECORDS:
            return [f"only the first {MOST_RECORDS} records were read"]
    if not right:
        shown = "; ".join(complaints) or "it is empty"
        raise TraceError(f"{source.path} has no record of NCCL Inspector ({shown})")
    if not wrong:
        return []
    return [f"{source.path}: {wrong} lines were left out ({'; '.join(complaints)})"]


def _message_of(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not whole JSON at column {error.colno}"
    return str(error)[:120] if isinstance(error, ValueError) else "too deeply nested"


def _record(log: _Log, value: Any, before: dict[str, Any]) -> bool:
    """Take in one line; return whether it is a call. Raises ValueError naming an invalid field.

    Fields that a line lacks are those of the marker `before` it.
    """
    if not isinstance(value, dict):
        raise ValueError("header is missing")
    value = {**before, **value}
    if "dump_stats" in value:
        before |= {name: value[name] for name in ("header", "metadata") if name in value}
        stats = value["dump_stats"]
        log.dropped += sum(
            _whole(stats, name, MOST_BYTES)
            for name in (stats if isinstance(stats, dict) else ())
            if "drop" in name
        )
        return False
    head, meta = _part(value, "header"), _part(value, "metadata")
    kind = "coll" if "coll_perf" in value else "p2p"
    perf = _part(value, f"{kind}_perf")
    rank, size = _whole(head, "rank", MOST_RANKS), _whole(head, "n_ranks", MOST_RANKS)
    if rank >= size:
        raise ValueError(f"rank {rank} of {size} ranks")
    name = str(head.get("id"))[:64]
    if log.sizes.setdefault(name, size) != size:
        raise ValueError(f"communicator {name} has {size} ranks here and {log.sizes[name]} before")
    process = str(meta.get("hostname"))[:256], _whole(meta, "pid", LATEST_NS)
    times = _times(perf, _whole(meta, "dump_timestamp_us", LATEST_NS // 1000), kind)
    numbers = (
        *times,
        _whole(perf, f"{kind}_sn", LATEST_NS),
        _whole(perf, f"{kind}_msg_size_bytes", MOST_BYTES),
        int(operation(str(perf.get(kind))[:40]) or Op.OTHER),
    )
    series = log.series.setdefault((name, *process, rank), _Series(process, rank))
    for column, number in zip(_COLUMNS, numbers, strict=True):
        series.columns[column].append(number)
    log.records += 1
    return True


def _times(perf: Mapping[str, Any], dumped_us: int, kind: str) -> tuple[int, int, int, int]:
    """Host entry and exit, then the kernel's, all in ns of the wall clock.

    Without the verbose trace only the duration is known; the end is taken to be the dump's time.
    """
    duration_ns = _whole(perf, f"{kind}_exec_time_us", LATEST_NS // 1000) * 1000
    trace = perf.get("event_trace_ts")
    trace = trace if isinstance(trace, dict) else {}
    listed = trace.get("kernel_events")
    kernels = [item for item in listed if isinstance(item, dict)] if type(listed) is list else []
    ends = [end for item in kernels if (end := _stamp(item, "kernel_stop_ts"))]
    starts = [start for item in kernels if (start := _stamp(item, "kernel_start_ts"))]
    end_ns = (max(ends) if ends else dumped_us) * 1000
    start_ns = max(end_ns - duration_ns, 0)
    issued_ns = _stamp(trace, f"{kind}_start_ts") * 1000 or (min(starts) * 1000 if starts else 0)
    return min(issued_ns or start_ns, start_ns), end_ns, start_ns, end_ns


def _stamp(item: Mapping[str, Any], field_name: str) -> int:
    value = item.get(field_name)
    return value if type(value) is int and 0 < value < LATEST_NS // 1000 else 0


def _part(value: Any, name: str) -> dict[str, Any]:
    part = value.get(name) if isinstance(value, dict) else None
    if not isinstance(part, dict):
        raise ValueError(f"{name} is missing")
    return part


def _whole(part: Mapping[str, Any], name: str, most: int) -> int:
    value = part.get(name)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        shown = value if isinstance(value, int | float | None) else f"a {type(value).__name__}"
        raise ValueError(f"{name} is {str(shown)[:24]}, not a number of its kind")
    return value


# -- all files -------------------------------------------------------------------------------------


def _enter(draft: Draft, log: _Log) -> None:
    """Enter all records. Ranks are those of the largest communicator; in others they are mapped by
    their process."""
    largest = max(log.sizes, key=lambda name: log.sizes[name], default="")
    owners = _owners(log, largest, draft.limits)
    ranks: dict[_Process, list[int]] = {}
    starts = (min(series.columns["device_enter_ns"]) for series in log.series.values())
    origin = min(starts, default=0) - 1_000_000_000
    for rank, (host, pid) in sorted(owners.items()):
        draft.rank(rank, hostname=host, pid=pid, boot_id=f"clock of {host}")
        ranks.setdefault((host, pid), []).append(rank)
    single = {process: those[0] for process, those in ranks.items() if len(those) == 1}
    for name, size in log.sizes.items():
        parts = [series for key, series in log.series.items() if key[0] == name]
        if name == largest:
            group = draft.group("world", range(size), "nccl")
            placed = [(s.rank if owners.get(s.rank) == s.process else -1, s) for s in parts]
        else:
            placed = [(single.get(series.process, -1), series) for series in parts]
            members = {rank for rank, _ in placed if rank >= 0}
            group = draft.group(f"communicator {name}", members, "nccl")
            if len(members) != size:
                draft.limits.append(
                    f"communicator {name} has {size} ranks; {len(members)} are known from these "
                    "logs"
                )
        for rank, series in placed:
            if rank >= 0:
                _rows(draft, rank, group, series, origin)
    draft.limits += _overall(log, draft, log.records - draft.length)


def _owners(log: _Log, largest: str, limits: list[str]) -> dict[int, _Process]:
    """The process of each rank; processes outside the largest communicator get free numbers."""
    owners: dict[int, _Process] = {}
    for (name, *_, rank), series in sorted(log.series.items()):
        if name == largest and owners.setdefault(rank, series.process) != series.process:
            limits.append(f"left out: a second log of rank {rank}, by another process")
    known = {series.process for key, series in log.series.items() if key[0] == largest}
    others = sorted({series.process for series in log.series.values()} - known)
    if others:
        free = (n for n in range(len(owners) + len(others)) if n not in owners)
        owners |= dict(zip(list(islice(free, len(others))), others, strict=True))
        limits.append(
            f"{len(others)} processes are not in the largest communicator: their ranks are "
            "numbers given here"
        )
    return owners


def _rows(draft: Draft, rank: int, group: int, series: _Series, origin: int) -> None:
    """Enter a rank's records of a communicator, with device times since `origin`."""
    columns = {name: np.asarray(values, np.int64) for name, values in series.columns.items()}
    size = columns.pop("bytes")
    for name in ("device_enter_ns", "device_exit_ns"):
        columns[name] = columns[name] - origin
    more = {"group": group, "bytes_in": size, "device": 0, "flags": int(Flag.EXIT_UPPER_BOUND)}
    draft.calls(rank, columns | more)


def _overall(log: _Log, draft: Draft, unmapped: int) -> list[str]:
    """Limits of these logs as a whole."""
    if not log.records:
        return []
    limits = [
        "NCCL Inspector counts waiting for other ranks as execution: a rank's wait is its duration "
        "less the shortest of the members', and the shortest is taken for transfer",
    ]
    if log.dropped:
        limits.append(f"the plugin dropped {log.dropped} records by its own count")
    span = sum(_span(series.columns["group_seq"]) for series in log.series.values())
    if log.records < span:
        limits.append(
            f"{log.records} of {span} operations were recorded: the plugin's interval is longer "
            "than the time between them"
        )
    if unmapped:
        limits.append(
            f"{unmapped} records were left out: their process drives several devices or is a "
            "rank's second, and whose they are is not recorded"
        )
    return limits + absent(draft.ranks, max(log.sizes.values()))


def _span(sequence: Iterable[int]) -> int:
    numbers = set(sequence)
    return max(numbers) - min(numbers) + 1
