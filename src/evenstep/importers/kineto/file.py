"""Read one Kineto file as columns: operators, launches, kernels and annotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.importers.compression import Stream
from evenstep.importers.content import whole
from evenstep.importers.kineto.names import CALL, COMMS, annotation
from evenstep.importers.merging import append_window
from evenstep.importers.trace_events import Args, TraceEvent, TraceEvents
from evenstep.trace.columns import Array, Columns

LATEST_US = 4e15  # the year 2096 in µs: a time beyond it, either way, is damage
_MASK = (1 << 62) - 1


class RowKind(IntEnum):
    """The kind of an event."""

    KERNEL = 1
    LAUNCH = 2  # the runtime's or driver's call that started a kernel or copy
    OPERATOR = 3
    ANNOTATION = 4
    COPY = 5  # of memory, or setting it


_CATEGORIES = {
    "kernel": RowKind.KERNEL, "gpu_memcpy": RowKind.COPY, "gpu_memset": RowKind.COPY,
    "cpu_op": RowKind.OPERATOR, "user_annotation": RowKind.ANNOTATION,
    "operator": RowKind.OPERATOR, "memcpy": RowKind.COPY, "memset": RowKind.COPY,  # torch 1.8
}  # fmt: skip


@dataclass(slots=True)
class KinetoFile:
    """The events of one file that are used.

    `rows` has: row (`RowKind`), name (index of `names`), start_ns and end_ns (since 1970 where the
    file has a base time), thread (index of `threads`), correlation, external, device, stream, args
    (index of `calls`), the last five -1 for none. In order of the file.
    """

    path: Path
    header: dict[str, Any]
    rows: Columns
    names: list[str]
    threads: list[tuple[Any, Any]]  # (pid, tid)
    calls: list[Args]  # arguments of events that communicate
    damaged: int  # events with an impossible time or duration
    unpaired: int  # events that only begin or only end

    def of(self, *kinds: RowKind) -> Columns:
        """The rows of these kinds."""
        return self.rows.select(np.isin(self.rows.row, [int(kind) for kind in kinds]))

    @property
    def host(self) -> Columns:
        """Events of the host: operators and annotations."""
        return self.of(RowKind.OPERATOR, RowKind.ANNOTATION)

    def by_name(self, meaning: Callable[[str], Any], names: Array, none: int = False) -> Array:
        """The meaning of each of these names, indices of `names`; `none` of -1."""
        return np.array([*map(meaning, self.names), none])[names]

    def moved(self, by_ns: int) -> KinetoFile:
        """The file with this added to all times."""
        start_ns, end_ns = (self.rows[name] + by_ns for name in ("start_ns", "end_ns"))
        return replace(self, rows=self.rows.with_columns(start_ns=start_ns, end_ns=end_ns))

    def followed_by(self, later: KinetoFile) -> KinetoFile:
        """The events of both files, of which the other one is a later window of the same rank."""
        rows = later.rows
        threads = list(dict.fromkeys([*self.threads, *later.threads]))
        place = np.array([threads.index(one) for one in later.threads])
        own = np.where(rows.external == 0, -1, rows.external)
        rows = rows.with_columns(thread=place[rows.thread], external=own)
        more = {"name": len(self.names), "args": len(self.calls)}
        more |= {name: int(self.rows[name].max()) + 1 for name in ("correlation", "external")}
        return KinetoFile(
            self.path, self.header, append_window(self.rows, rows, more),
            [*self.names, *later.names], threads,
            [*self.calls, *later.calls], self.damaged + later.damaged,
            self.unpaired + later.unpaired,
        )  # fmt: skip


def read_file(path: Path) -> KinetoFile:
    """Read one file. Raises `TraceError` where it cannot be read to its end."""
    with Stream(path) as stream:
        events = TraceEvents(stream)
        gathering = _Gathering()
        for piece in events:
            gathering.add(piece)
    return gathering.file(path, events.header)


class _Gathering:
    """Builds the columns, one piece of the file after the other."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._kinds: dict[str | None, int] = {}  # by category
        self._calls: list[Args] = []
        self._communicating: list[int] = []  # numbers of names of events that communicate
        self._judged = 0  # names examined for that
        self._tables: list[Columns] = []
        self._damaged = 0
        self._unpaired = 0

    def add(self, events: list[TraceEvent]) -> None:
        """Take in the events of known kinds."""
        kinds = self._kinds
        for category in {event.cat for event in events}.difference(kinds):
            kinds[category] = _kind(category)
        kept = [event for event in events if event.ph == "X" and kinds[event.cat]]
        self._unpaired += sum(event.ph in ("B", "E") for event in events)
        if not kept:
            return
        start, end, sane = _times(kept)
        if not sane.all():
            self._damaged += int(np.count_nonzero(~sane))
            kept = [event for event, good in zip(kept, sane, strict=True) if good]
            start, end = start[sane], end[sane]
        self._tables.append(self._columns(kept, start, end))

    def _columns(self, kept: list[TraceEvent], start: Array, end: Array) -> Columns:
        names, threads, kinds = self._names, self._threads, self._kinds
        args = [event.args or _NONE for event in kept]
        name = np.array([names.setdefault(e.name or "", len(names)) for e in kept], np.int32)
        row = np.array([kinds[event.cat] for event in kept], np.uint8)
        device = _numbers([item.device for item in args])
        on_device = np.isin(row, [int(RowKind.KERNEL), int(RowKind.COPY)])
        if (homeless := on_device & (device < 0)).any():  # the process of a kernel is its device
            device = np.where(homeless, _numbers([event.pid for event in kept]), device)
        return Columns(
            row=row, name=name, start_ns=start, end_ns=end,
            thread=np.array([threads.setdefault((e.pid, e.tid), len(threads)) for e in kept],
                            np.int32),
            correlation=_numbers([item.correlation for item in args]),
            external=_numbers([item.external for item in args]),
            device=np.where(device < 1 << 15, device, -1).astype(np.int16),
            stream=_numbers([item.stream for item in args]), args=self._kept_args(args, name),
        )  # fmt: skip

    def _kept_args(self, args: list[Args], name: Array) -> Array:
        """Index of the arguments of each row that communicates; -1 for other rows."""
        new = len(self._names) - self._judged
        for number, text in enumerate(islice(reversed(self._names), new), start=1):
            if text == COMMS or text.startswith(CALL) or annotation(text) is not None:
                self._communicating.append(len(self._names) - number)
        self._judged = len(self._names)
        told = np.array([item.collective is not None for item in args], bool)
        rows = np.flatnonzero(told | np.isin(name, self._communicating))
        index = np.full(len(args), -1, np.int32)
        index[rows] = np.arange(len(rows)) + len(self._calls)
        for row in rows:
            item = args[row]
            for part in ("dims", "types", "inputs"):  # release the file's text
                setattr(item, part, getattr(item, part).copy())
            self._calls.append(item)
        return index

    def file(self, path: Path, header: dict[str, Any]) -> KinetoFile:
        rows = Columns.concatenate([event_rows(0), *self._tables])
        base = header.get("baseTimeNanoseconds")
        base = base if type(base) is int and 0 < base < LATEST_US * 1000 else 0
        return KinetoFile(
            path, header, rows, list(self._names), list(self._threads), self._calls,
            self._damaged, self._unpaired,
        ).moved(base)  # fmt: skip


_NONE = Args()
_UNKNOWN = dict.fromkeys(("thread", "correlation", "external", "device", "stream", "args"), -1)
_TYPES = {
    "row": np.uint8, "name": np.int32, "start_ns": np.int64, "end_ns": np.int64,
    "thread": np.int32, "correlation": np.int64, "external": np.int64, "device": np.int16,
    "stream": np.int64, "args": np.int32,
}  # fmt: skip


def event_rows(length: int, **columns: Any) -> Columns:
    """Rows of events with these columns, arrays or one value for all; others are unknown."""
    return Columns.filled(_UNKNOWN | columns, _TYPES, length)


def _kind(category: str | None) -> int:
    """The kind of a category's events; 0 for events that are not used."""
    name = (category or "").lower()
    if name.endswith(("runtime", "_driver")):
        return int(RowKind.LAUNCH)
    return int(_CATEGORIES.get(name, 0))


def _times(events: list[TraceEvent]) -> tuple[Array, Array, Array]:
    """Start and end in ns, and which of them are possible."""
    length = np.array([event.dur for event in events], np.float64)
    if isinstance(events[0].ts, float):
        start = np.array([event.ts for event in events], np.float64)
        sane = (np.abs(start) < LATEST_US) & (length >= 0) & (length < LATEST_US)
        start, length = np.where(sane, start, 0), np.where(sane, length, 0)
        whole = np.floor(start)
        start_ns = whole.astype(np.int64) * 1000 + np.rint((start - whole) * 1000).astype(np.int64)
    else:
        fine = [int(event.ts * 1000) if abs(event.ts) < LATEST_US else None for event in events]
        sane = np.array([ns is not None for ns in fine]) & (length >= 0) & (length < LATEST_US)
        length = np.where(sane, length, 0)
        start_ns = np.array([ns or 0 for ns in fine], np.int64)
    return start_ns, start_ns + np.rint(length * 1000).astype(np.int64), sane


def _numbers(values: list[Any]) -> Array:
    """Values as numbers; -1 for anything but a whole number."""
    try:
        return np.maximum(np.array(values, np.int64), -1)
    except (TypeError, ValueError, OverflowError):
        found = [whole(value) for value in values]
        return np.array([each & _MASK if each >= 0 else -1 for each in found], np.int64)
