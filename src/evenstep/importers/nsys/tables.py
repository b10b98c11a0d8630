"""Read the tables of an SQLite export of Nsight Systems as columns.

The schema changes between versions: a missing table or column is a line in `limits`. Rows whose
times are not possible are left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import unquoted
from evenstep.importers.draft import LATEST_NS, LONGEST_TEXT
from evenstep.importers.merging import append_window
from evenstep.importers.nsys.database import MOST_ROWS, Names, open_database, pieces, tables_of
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
#: Our columns, and those of nsys.
_ON_DEVICE = {"start": "start", "end": "end", "device": "deviceId", "stream": "streamId",
              "correlation": "correlationId", "process": "globalPid"}  # fmt: skip
_LAUNCHES = {"start": "start", "end": "end", "thread": "globalTid", "correlation": "correlationId"}
_NAMED = {"start": "start", "end": "end", "thread": "globalTid"}
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
    began_ns: int  # the session, UTC; 0 unknown, as of an unknown host
    limits: list[str]

    @property
    def extent_ns(self) -> tuple[int, int]:
        """From the first to the last kernel, on the host's clock."""
        kernels = self.kernels
        return int(kernels.start.min()) + self.began_ns, int(kernels.end.max()) + self.began_ns

    @property
    def processes(self) -> tuple[str, tuple[int, ...], bool]:
        """The host and the processes that ran kernels, and whether its clock is known."""
        return self.host, tuple(np.unique(self.kernels.process).tolist()), self.began_ns > 0

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
        kernels = self._kernels()
        copied = [table for table in COPIES if self._has(table, "start", "end")]
        copies = self._on_device(copied, "copies", "unnamed")
        called = [RUNTIME] * self._has(RUNTIME, *_LAUNCHES.values())
        launches = self._rows(called, _LAUNCHES, "calls of the runtime")
        ranges, host = self._ranges(), self._hostname()
        return Export(
            self.path, kernels, copies, launches, ranges, self.names.listed, self.payloads, host,
            self._began() if host else 0, self.limits,
        )  # fmt: skip

    def _has(self, table: str, *columns: str) -> bool:
        return set(columns) <= self.tables.get(table, frozenset())

    def _rows(
        self, tables: Sequence[str], columns: Mapping[str, str], what: str,
        texts: Sequence[str] = (), where: str = "1", earliest: int = 1, **more: Callable[..., int],
    ) -> Columns:  # fmt: skip
        """The rows of some tables as columns, with `more` made of their texts; without those whose
        times are not possible (CUPTI writes 0 for a missing one)."""
        names = [*columns, *more]
        parts = [np.zeros((0, len(names)), np.int64)]
        for table in tables:
            read = pieces(self.database, self.tables, table, columns.values(), texts, where=where)
            for rows in read:
                told = [row[len(columns) :] for row in rows]
                numbers = np.array([row[: len(columns)] for row in rows], np.int64)
                made = [np.array([make(*each) for each in told]) for make in more.values()]
                parts.append(np.column_stack([numbers, *made]))
        found = Columns(dict(zip(names, np.concatenate(parts).T.copy(), strict=True)))
        sane = _possible(found.start, found.end, earliest)
        if not sane.all():
            wrong = int((~sane).sum())
            self.limits.append(f"{wrong} {what} have no times that make sense: left out")
        if len(found) >= MOST_ROWS:
            self.limits.append(f"only the first {MOST_ROWS} {what} were read")
        return found.select(sane)

    def _on_device(self, tables: Sequence[str], what: str, text: str) -> Columns:
        found = self._rows(tables, _ON_DEVICE, what, [text], name=self.names.number)
        return found.with_columns(process=found.process >> 24, device=np.maximum(found.device, 0))

    def _kernels(self) -> Columns:
        named = (text for text in ("shortName", "demangledName") if self._has(KERNELS, text))
        if not (text := next(named, "")) or not self._has(KERNELS, "start", "end"):
            raise TraceError(
                f"{self.path}: table {KERNELS} is none of Nsight Systems (of nvprof, perhaps): it "
                "lacks names, starts or ends; profile with nsys profile --trace=cuda,nvtx"
            )
        found = self._on_device([KERNELS], "kernels", text)
        if not len(found):
            raise TraceError(
                f"{self.path} holds no kernel; profile with nsys profile --trace=cuda,nvtx"
            )
        return found

    def _ranges(self) -> Columns:
        known = self._has(NVTX, *_NAMED.values())
        if not known:
            self.limits.append("no NVTX ranges were traced: there are neither steps nor sizes")
        where = f"eventType IN {_RANGES}" if self._has(NVTX, "eventType") else "1"
        return self._rows(
            [NVTX] * known, _NAMED, "NVTX ranges", ("text", "textId", "jsonText", "jsonTextId"),
            f'{where} AND "end" IS NOT NULL', 0, payload=self._payload,
            name=lambda text, number, *_: self.names.number(number if text is None else text),
        )  # fmt: skip

    def _payload(self, text: Any, text_id: Any, payload: Any, payload_id: Any) -> int:
        """The number of a range's payload, which is kept of NCCL's ranges; else -1."""
        called = self.names.text(text_id if text is None else text)
        if "nccl" not in called[:6] or len(self.payloads) >= MOST_PAYLOADS:
            return -1
        said = unquoted(self.names.text(payload_id if payload is None else payload))
        if not (found := dict(_entries(said))):
            return -1
        self.payloads.append(found)
        return len(self.payloads) - 1

    def _hostname(self) -> str:
        if not self._has(SYSTEM, "name", "value"):
            return ""
        for rows in pieces(self.database, self.tables, SYSTEM, (), ("name", "value")):
            for name, value in rows:
                if str(name).lower() == "hostname":
                    return str(value)[:LONGEST_TEXT]
        return ""

    def _began(self) -> int:
        if not self._has(SESSION, "utcEpochNs"):
            return 0
        rows = next(pieces(self.database, self.tables, SESSION, ["utcEpochNs"]), [(0,)])
        return rows[0][0] if 0 <= rows[0][0] < LATEST_BEGIN_NS else 0


def _entries(value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Names and values of a payload, those in others' too."""
    listed = [("", one) for one in value] if isinstance(value, list) else ()
    for name, one in value.items() if isinstance(value, dict) else listed:
        if isinstance(one, dict | list) and depth > 1:
            yield from _entries(one, depth - 1)
        elif name and not isinstance(one, dict | list):
            yield name.lower(), one


def _possible(start: Array, end: Array, earliest: int) -> Array:
    """Which times are possible: no session is longer than some days, whenever its clock began."""
    sane = (start >= earliest) & (end >= start) & (end < LATEST_NS)
    middle = int(np.median(start[sane])) if sane.any() else 0
    return np.asarray(sane & (np.abs(start - middle) < LONGEST_NS) & (end - start < LONGEST_NS))
