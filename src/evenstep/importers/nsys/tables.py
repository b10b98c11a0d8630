"""The tables of an SQLite export of Nsight Systems that matter here, as columns.

The schema changes between versions: a table or column that is not there costs what it would have
told, with a line in `limits`. Rows whose values are no times are left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.nsys.database import (
    MOST_ROWS,
    Array,
    Names,
    Tables,
    key,
    open_database,
    pieces,
    stamp,
    table_of,
    tables_of,
    whole_number,
)
from evenstep.trace.columns import Columns

_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges of NVTX, and as nsys imports them
_DEPTH = 4  # of what a payload nests
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
TABLES = (KERNELS, *COPIES, RUNTIME, NVTX, STRINGS, SYSTEM, SESSION)


def _nothing() -> Columns:
    return Columns({})


@dataclass(slots=True)
class Export:
    """What one file holds. Times are ns since the session began; a name indexes `names`."""

    path: Path
    kernels: Columns = field(default_factory=_nothing)  # start, end, device, stream, …
    #                                                     correlation, process, name
    copies: Columns = field(default_factory=_nothing)  # the same, nameless
    launches: Columns = field(default_factory=_nothing)  # start, end, thread, correlation
    ranges: Columns = field(default_factory=_nothing)  # start, end, thread, name, payload
    names: list[str] = field(default_factory=lambda: [""])
    payloads: list[dict[str, Any]] = field(default_factory=list)  # by index; -1 is none
    host: str = ""
    began_ns: int = 0  # the session, UTC; 0 unknown
    limits: list[str] = field(default_factory=list)


def read_export(path: Path) -> Export:
    """Read a file. Raises `TraceError` where it is no export, or holds no kernel."""
    try:
        with open_database(path) as database:
            return _read(path, database)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a damaged schema
        raise TraceError(
            f"{path} is no whole SQLite database ({str(error)[:80]}); export it again with "
            "nsys export --type sqlite"
        ) from None


def _read(path: Path, database: sqlite3.Connection) -> Export:
    tables = tables_of(database, TABLES)
    if KERNELS not in tables:
        raise TraceError(
            f"{path} has no table {KERNELS}: no kernel was traced; profile with nsys profile "
            "--trace=cuda,nvtx"
        )
    export = Export(path)
    names = Names(database, tables, STRINGS, export.names)
    export.kernels = _kernels(path, database, tables, names, export.limits)
    export.copies = _copies(database, tables, export.limits)
    export.launches = _launches(database, tables, export.limits)
    export.ranges = _nvtx(database, tables, names, export)
    export.host = _hostname(database, tables)
    export.began_ns = _began(database, tables)
    return export


def _kernels(
    path: Path, database: sqlite3.Connection, tables: Tables,
    names: Names, limits: list[str],
) -> Columns:  # fmt: skip
    if not {"start", "end"} <= tables[KERNELS]:
        raise TraceError(f"{path}: table {KERNELS} has no start and end; export it again")
    wanted = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    text = "shortName" if "shortName" in tables[KERNELS] else "demangledName"
    parts = [
        table_of(
            [[*map(stamp, row[:2]), *map(key, row[2:-1]), names.number(row[-1])] for row in rows]
        )
        for rows in pieces(database, tables, KERNELS, (*wanted, text))
    ]
    columns = ("start", "end", "device", "stream", "correlation", "process", "name")
    found = _timed(parts, columns, "kernels", limits)
    if not len(found):
        raise TraceError(f"{path} holds no kernel; profile with nsys profile --trace=cuda,nvtx")
    return found.with_column("process", found.process >> 24)


def _copies(database: sqlite3.Connection, tables: Tables, limits: list[str]) -> Columns:
    wanted = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    parts = [
        table_of([[*map(stamp, row[:2]), *map(key, row[2:]), 0] for row in rows])
        for table in COPIES
        if {"start", "end"} <= tables.get(table, frozenset())
        for rows in pieces(database, tables, table, wanted)
    ]
    columns = ("start", "end", "device", "stream", "correlation", "process", "name")
    found = _timed(parts, columns, "copies", limits)
    return found.with_column("process", found.process >> 24)


def _launches(database: sqlite3.Connection, tables: Tables, limits: list[str]) -> Columns:
    wanted = ("start", "end", "globalTid", "correlationId")
    parts: list[Array] = []
    if set(wanted) <= tables.get(RUNTIME, frozenset()):
        parts = [
            table_of([[*map(stamp, row[:2]), *map(key, row[2:])] for row in rows])
            for rows in pieces(database, tables, RUNTIME, wanted)
        ]
    else:
        limits.append("the CUDA runtime was not traced: when kernels were issued is not known")
    columns = ("start", "end", "thread", "correlation")
    return _timed(parts, columns, "calls of the runtime", limits)


def _nvtx(
    database: sqlite3.Connection,
    tables: Tables,
    names: Names,
    export: Export,
) -> Columns:
    parts: list[Array] = []
    if {"start", "end", "globalTid"} <= tables.get(NVTX, frozenset()):
        where = f"eventType IN {_RANGES}" if "eventType" in tables[NVTX] else "1"
        wanted = ("start", "end", "globalTid", "text", "textId", "jsonText", "jsonTextId")
        where = f'{where} AND "end" IS NOT NULL'
        parts = [
            table_of([_range(row, names, export.payloads) for row in rows])
            for rows in pieces(database, tables, NVTX, wanted, where=where)
        ]
    else:
        export.limits.append("no NVTX ranges were traced: there are neither steps nor sizes")
    columns = ("start", "end", "thread", "name", "payload")
    return _timed(parts, columns, "NVTX ranges", export.limits)


def _range(row: tuple[Any, ...], names: Names, payloads: list[dict[str, Any]]) -> list[int]:
    """One range. Of payloads only NCCL's are kept."""
    start, end, thread, text, text_id, payload, payload_id = row
    name = text_id if text is None else text
    place = -1
    if "nccl" in names.text(name)[:6] and len(payloads) < MOST_PAYLOADS:
        place = _payload(payloads, names.text(payload_id if payload is None else payload))
    return [whole_number(start), whole_number(end), key(thread), names.number(name), place]


def _payload(payloads: list[dict[str, Any]], text: str) -> int:
    """Index of a payload's entries by their name, however they are nested; -1 for no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return -1
    found: dict[str, Any] = {}
    _flattened(value, found, _DEPTH)
    if not found:
        return -1
    payloads.append(found)
    return len(payloads) - 1


def _flattened(value: Any, found: dict[str, Any], depth: int) -> None:
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, dict | list):
                _flattened(inner, found, depth - 1)
            else:
                found[name.lower()] = inner
    elif isinstance(value, list):
        for inner in value:
            _flattened(inner, found, depth - 1)


def _hostname(database: sqlite3.Connection, tables: Tables) -> str:
    if not {"name", "value"} <= tables.get(SYSTEM, frozenset()):
        return ""
    for rows in pieces(database, tables, SYSTEM, ("name", "value")):
        for name, value in rows:
            if str(name).lower() == "hostname":
                return str(value)[:256]
    return ""


def _began(database: sqlite3.Connection, tables: Tables) -> int:
    if "utcEpochNs" not in tables.get(SESSION, frozenset()):
        return 0
    rows = next(pieces(database, tables, SESSION, ("utcEpochNs",)), [])
    began = whole_number(rows[0][0]) if rows else 0
    return began if 0 <= began < LATEST_BEGIN_NS else 0


def _timed(parts: list[Array], names: Sequence[str], what: str, limits: list[str]) -> Columns:
    """Rows as columns, without those whose times make no sense."""
    table = np.concatenate([np.zeros((0, len(names)), np.int64), *parts])
    start, end = table[:, 0], table[:, 1]
    sane = (start >= 0) & (end >= start)
    if sane.any():  # whatever else the clock began at, a session is not longer than that
        middle = int(np.median(start[sane]))
        sane &= (np.abs(start - middle) < LONGEST_NS) & (end - start < LONGEST_NS)
    if not sane.all():
        limits.append(f"{int((~sane).sum())} {what} have no times that make sense: left out")
    if len(table) >= MOST_ROWS:
        limits.append(f"only the first {MOST_ROWS} {what} were read")
    return Columns({name: table[sane, i].copy() for i, name in enumerate(names)})
