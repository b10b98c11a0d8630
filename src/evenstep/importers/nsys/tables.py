"""Read the tables of an SQLite export of Nsight Systems as columns.

The schema changes between versions: a missing table or column is a line in `limits`. Rows whose
times are not possible are left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.merging import append_window
from evenstep.importers.nsys.database import (
    MOST_ROWS,
    Names,
    key,
    open_database,
    pieces,
    stamp,
    table_of,
    tables_of,
    whole_number,
)
from evenstep.trace.columns import Array, Columns

_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges of NVTX, and as nsys imports them
_DEPTH = 4  # of nesting in a payload
MOST_PAYLOADS = 2_000_000
LONGEST_NS = 30 * 86_400 * 10**9  # of a session
LATEST_BEGIN_NS = 4 * 10**18  # the year 2096

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
SYSTEM = "TARGET_INFO_SYSTEM_ENV"
SESSION = "TARGET_INFO_SESSION_START_TIME"
_ON_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
TABLES = (KERNELS, *COPIES, RUNTIME, NVTX, STRINGS, SYSTEM, SESSION)


@dataclass(slots=True)
class Export:
    """The contents of one file. Times are ns since the session began; a name indexes `names`."""

    path: Path
    kernels: Columns  # start, end, device, stream, correlation, process, name
    copies: Columns  # the same, nameless
    launches: Columns  # start, end, thread, correlation
    ranges: Columns  # start, end, thread, name, payload
    names: list[str]
    payloads: list[dict[str, Any]]  # by index; -1 is none
    host: str
    began_ns: int  # the session, UTC; 0 unknown
    limits: list[str]

    @property
    def extent_ns(self) -> tuple[int, int]:
        """From the first to the last kernel, on the host's clock."""
        kernels = self.kernels
        return int(kernels.start.min()) + self.began_ns, int(kernels.end.max()) + self.began_ns

    @property
    def processes(self) -> tuple[str, tuple[int, ...], bool]:
        """The host and the processes that ran kernels, and whether its clock is known."""
        known = bool(self.host and self.began_ns)
        return self.host, tuple(np.unique(self.kernels.process).tolist()), known

    def followed_by(self, later: Export) -> Export:
        """The contents of both files, of which the other one is a later session of these
        processes."""
        tables = ("kernels", "copies", "launches", "ranges")
        used = [getattr(self, table) for table in ("kernels", "copies", "launches")]
        more = dict.fromkeys(("start", "end"), later.began_ns - self.began_ns)
        more |= {"name": len(self.names), "payload": len(self.payloads)}
        more["correlation"] = 1 + max(int(rows.correlation.max(initial=-1)) for rows in used)
        joint = {
            name: append_window(getattr(self, name), getattr(later, name), more) for name in tables
        }
        return Export(
            self.path, **joint, names=self.names + later.names,
            payloads=self.payloads + later.payloads, host=self.host, began_ns=self.began_ns,
            limits=list(dict.fromkeys(self.limits + later.limits)),
        )  # fmt: skip


def join_sessions(exports: Sequence[Export]) -> list[Export]:
    """The exports with sessions of the same processes, one after the other (`--capture-range-end
    repeat`), as one, named as the first."""
    found: dict[Any, Export] = {}
    for export in sorted(exports, key=lambda export: export.extent_ns):
        first = found.get(export.processes)
        follows = first and export.processes[-1] and first.extent_ns[1] <= export.extent_ns[0]
        if first and follows:
            found[export.processes] = first.followed_by(export)
        else:
            found[export.processes if first is None else export.path] = export
    return list(found.values())


def read_export(path: Path) -> Export:
    """Read a file. Raises `TraceError` where it is not an export, or has no kernel."""
    try:
        with open_database(path) as database:
            return _Reader(path, database).export()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a damaged schema
        raise TraceError(
            f"{path} is not a whole SQLite database ({str(error)[:80]}); export it again with "
            "nsys export --type sqlite"
        ) from None


class _Reader:
    """Reader of one file's tables. Raises `TraceError` without kernels."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        self.tables = tables_of(database, TABLES)
        self.limits: list[str] = []
        self.payloads: list[dict[str, Any]] = []
        if KERNELS not in self.tables:
            raise TraceError(
                f"{path} has no table {KERNELS}: no kernel was traced; profile with nsys profile "
                "--trace=cuda,nvtx"
            )
        self.names = Names(database, self.tables, STRINGS)

    def export(self) -> Export:
        """Read all tables."""
        return Export(
            self.path, self._kernels(), self._copies(), self._launches(), self._ranges(),
            self.names.listed, self.payloads, self._hostname(), self._began(), self.limits,
        )  # fmt: skip

    def _has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.tables.get(table, frozenset())

    def _rows(
        self, tables: Sequence[str], wanted: Sequence[str], convert: Callable[[Any], list[int]],
        names: Sequence[str], what: str, where: str = "1",
    ) -> Columns:  # fmt: skip
        """The rows of some tables as columns, without those whose times are not possible."""
        parts = [
            table_of([convert(row) for row in rows])
            for table in tables
            for rows in pieces(self.database, self.tables, table, wanted, where=where)
        ]
        return _timed_rows(parts, names, what, self.limits)

    def _kernels(self) -> Columns:
        if not self._has(KERNELS, "start", "end"):
            raise TraceError(f"{self.path}: table {KERNELS} has no start and end; export it again")
        text = "shortName" if self._has(KERNELS, "shortName") else "demangledName"
        found = self._on_device([KERNELS], (*_ON_DEVICE, text), "kernels")
        if not len(found):
            raise TraceError(
                f"{self.path} holds no kernel; profile with nsys profile --trace=cuda,nvtx"
            )
        return found

    def _copies(self) -> Columns:
        there = [table for table in COPIES if self._has(table, "start", "end")]
        return self._on_device(there, (*_ON_DEVICE, "unnamed"), "copies")

    def _on_device(self, tables: Sequence[str], wanted: Sequence[str], what: str) -> Columns:
        number = self.names.number
        found = self._rows(
            tables, wanted,
            lambda row: [*map(stamp, row[:2]), *map(key, row[2:-1]), number(row[-1])],
            ("start", "end", "device", "stream", "correlation", "process", "name"), what,
        )  # fmt: skip
        return found.with_column("process", found.process >> 24)

    def _launches(self) -> Columns:
        wanted = ("start", "end", "globalTid", "correlationId")
        return self._rows(
            [RUNTIME] * self._has(RUNTIME, *wanted), wanted,
            lambda row: [*map(stamp, row[:2]), *map(key, row[2:])],
            ("start", "end", "thread", "correlation"), "calls of the runtime",
        )  # fmt: skip

    def _ranges(self) -> Columns:
        known = self._has(NVTX, "start", "end", "globalTid")
        if not known:
            self.limits.append("no NVTX ranges were traced: there are neither steps nor sizes")
        where = f"eventType IN {_RANGES}" if self._has(NVTX, "eventType") else "1"
        return self._rows(
            [NVTX] * known,
            ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId"), self._range,
            ("start", "end", "thread", "name", "payload"), "NVTX ranges",
            f'{where} AND "end" IS NOT NULL',
        )  # fmt: skip

    def _range(self, row: tuple[Any, ...]) -> list[int]:
        """One range as numbers. Only payloads of NCCL's ranges are kept."""
        start, end, thread, text, text_id, payload, payload_id = row
        name = text_id if text is None else text
        names, place = self.names, -1
        if "nccl" in names.text(name)[:6] and len(self.payloads) < MOST_PAYLOADS:
            said = names.text(payload_id if payload is None else payload)
            place = _payload(self.payloads, said)
        return [whole_number(start), whole_number(end), key(thread), names.number(name), place]

    def _hostname(self) -> str:
        if not self._has(SYSTEM, "name", "value"):
            return ""
        for rows in pieces(self.database, self.tables, SYSTEM, ("name", "value")):
            for name, value in rows:
                if str(name).lower() == "hostname":
                    return str(value)[:256]
        return ""

    def _began(self) -> int:
        if not self._has(SESSION, "utcEpochNs"):
            return 0
        rows = next(pieces(self.database, self.tables, SESSION, ("utcEpochNs",)), [])
        began = whole_number(rows[0][0]) if rows else 0
        return began if 0 <= began < LATEST_BEGIN_NS else 0


def _payload(payloads: list[dict[str, Any]], text: str) -> int:
    """Keep a payload's entries by name, with nesting removed; return its index, -1 without any."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return -1
    found: dict[str, Any] = {}
    _flatten(value, found, _DEPTH)
    if not found:
        return -1
    payloads.append(found)
    return len(payloads) - 1


def _flatten(value: Any, found: dict[str, Any], depth: int) -> None:
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, dict | list):
                _flatten(inner, found, depth - 1)
            else:
                found[name.lower()] = inner
    elif isinstance(value, list):
        for inner in value:
            _flatten(inner, found, depth - 1)


def _timed_rows(parts: list[Array], names: Sequence[str], what: str, limits: list[str]) -> Columns:
    """Rows as columns, without rows whose times are not possible."""
    table = np.concatenate([np.zeros((0, len(names)), np.int64), *parts])
    start, end = table[:, 0], table[:, 1]
    sane = (start >= 0) & (end >= start)
    if sane.any():  # a session is not longer, whenever its clock began
        middle = int(np.median(start[sane]))
        sane &= (np.abs(start - middle) < LONGEST_NS) & (end - start < LONGEST_NS)
    if not sane.all():
        limits.append(f"{int((~sane).sum())} {what} have no times that make sense: left out")
    if len(table) >= MOST_ROWS:
        limits.append(f"only the first {MOST_ROWS} {what} were read")
    return Columns({name: table[sane, i].copy() for i, name in enumerate(names)})
