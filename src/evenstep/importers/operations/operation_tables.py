"""Operation tables, Parquet or CSV: one row per operation of every worker of a job.

The form in which Lin et al. (OSDI 2025) published the traces of their what-if analysis; columns are
described in `evenstep.trace.operations`. A file `meta-X.yaml` beside `trace-X.parquet` says how the
job was laid out; without it that follows from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import MissingExtra, TraceError
from evenstep.importers.draft import Draft
from evenstep.importers.format import Progress, Source, TraceFormat
from evenstep.importers.operations.duckdb_file import Connection, PlainPath
from evenstep.importers.operations.operation_records import trace_of
from evenstep.trace.columns import Columns
from evenstep.trace.operations import COMPUTES, ROLES, Role
from evenstep.trace.trace import Trace

if TYPE_CHECKING:
    import duckdb

Array = npt.NDArray[Any]

NAME = "operation table"
REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
WHOLE = ("dp_rank", "stage", "step", "rank", "seq_id", "mc", "gmc", "mb_id")
UNKNOWN = -1
LARGEST = 2**20  # of the whole numbers, but for steps and orders
COUNTED = {"step": 2**31, "seq_id": 2**31}
SHORTEST_S = 1e-9  # of a step: what a trace can hold
LONGEST_S = 4e9  # what nanoseconds in 64 bits can hold, with room: a time until 2096
PARQUET = b"PAR1"
SEPARATORS = ",;\t|"
GZIP = b"\x1f\x8b"


def recognises(source: Source) -> bool:
    """Whether a file has the columns of an operation table."""
    if source.head.startswith(PARQUET):
        return _has_columns(_parquet_columns(source.path))
    return _has_columns(_csv_columns(source)[1])


def _has_columns(names: Sequence[str]) -> bool:
    return set(REQUIRED) <= set(names)


def _header(line: str, mark: str) -> list[str]:
    return [name.strip().strip('"') for name in line.split(mark)]


def _parquet_columns(path: Path) -> list[str]:
    """Names of a Parquet file's columns; none where it cannot be read."""
    try:
        with Connection(path) as connection, PlainPath(path) as plain:
            found = connection.execute("SELECT name FROM parquet_schema(?)", [plain]).fetchall()
    except (MissingExtra, TraceError):
        return list(REQUIRED) if _names_in(path) else []
    return [str(name) for (name,) in found]


def _names_in(path: Path) -> bool:
    """Whether the end of a file, where Parquet keeps its columns, names those of a table."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        tail = file.read()
    return all(name.encode() in tail for name in REQUIRED)


# -- reading ---------------------------------------------------------------------------------------


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """All rows of all files as one trace."""
    tables, draft = [], Draft()
    for source in sources:
        size = source.path.stat().st_size
        progress(str(source.path), 0, size)
        tables.append(_table(source, draft))
        progress(str(source.path), size, size)
    table = _without_duplicates(Columns.concatenate(tables), draft.limits)
    table = _lasting(table, sources[0].path, draft.limits)
    if not len(table):
        reasons = "; ".join(draft.limits) or "it has no rows"
        raise TraceError(f"{sources[0].path} has no operation that could be read: {reasons}")
    return trace_of(table, draft, _meta(sources[0].path, draft.limits))


FORMAT = TraceFormat(NAME, recognises, read)


def _table(source: Source, draft: Draft) -> Columns:
    """One file's rows; types of operations are entered as names."""
    with Connection(source.path) as connection, PlainPath(source.path) as plain:
        kinds, rows = _query(connection, source, plain, draft.limits)
    whole = _sound(rows, source.path, draft.limits)
    columns = {name: values[whole] for name, values in rows.items()}
    number = np.array([draft.name(kind) for kind in kinds], np.int64)
    roles = np.array([ROLES.get(kind, Role.OTHER) for kind in kinds], np.int64)
    optype = columns["optype"].astype(np.int64)
    return _completed(
        Columns(
            {
                **{name: columns[name].astype(np.int64) for name in WHOLE},
                "optype": number[optype],
                "role": roles[optype],
                "start_s": columns["start_ts"],
                "duration_s": columns["duration"],
            }
        )
    )


def _query(
    connection: duckdb.DuckDBPyConnection, source: Source, plain: str, limits: list[str]
) -> tuple[list[str], dict[str, Array]]:
    """Types of operations, and columns as arrays: nan is what is not a number, or has no type."""
    parquet = source.head.startswith(PARQUET)
    origin = "read_parquet(?)" if parquet else _csv_reader(source)
    value = '"{}"' if parquet else """trim("{}", '" ')"""
    if parquet:
        found = connection.execute("SELECT name FROM parquet_schema(?)", [plain]).fetchall()
        names = [str(name) for (name,) in found]
    else:
        names = _csv_columns(source)[1]
    numbers = [name for name in (*WHOLE, "start_ts", "duration") if name in names]
    picked = [f'TRY_CAST({value.format(name)} AS DOUBLE) AS "{name}"' for name in numbers]
    kind = f"nullif(CAST({value.format('optype')} AS VARCHAR), '')"
    connection.execute(
        f"CREATE TEMP TABLE operations AS SELECT {', '.join(picked)}, {kind} AS optype "
        f"FROM {origin}",
        [plain],
    )
    if not parquet:
        limits += _rejected(connection, source.path)
    query = "SELECT DISTINCT optype FROM operations WHERE optype IS NOT NULL ORDER BY optype"
    kinds = [str(name) for (name,) in connection.execute(query).fetchall()]
    columns = ", ".join(f'"{name}"' for name in numbers)
    query = f"SELECT {columns}, list_position(?, optype)::DOUBLE - 1 AS optype FROM operations"
    rows = connection.execute(query, [kinds]).fetchnumpy()
    read = {name: np.ma.filled(rows[name].astype(float), np.nan) for name in (*numbers, "optype")}
    empty = np.full(len(read["optype"]), np.nan)
    return kinds, {name: read.get(name, empty) for name in (*WHOLE, *REQUIRED)}


def _csv_columns(source: Source) -> tuple[str, list[str]]:
    """What separates columns, and their names."""
    line = source.head.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("\ufeff")
    found = {mark: _header(line, mark) for mark in SEPARATORS}
    return max(found.items(), key=lambda item: len(set(REQUIRED) & set(item[1])))


def _csv_reader(source: Source) -> str:
    """DuckDB's reader of this file; nothing is guessed, and a stray quote does not swallow rows."""
    mark, names = _csv_columns(source)
    columns = ", ".join(
        "'"
        + (name if name in (*REQUIRED, *WHOLE) and name not in names[:at] else f"unused{at}")
        + "': 'VARCHAR'"
        for at, name in enumerate(names)
    )
    with source.path.open("rb") as file:
        packed = "gzip" if file.read(2) == GZIP else "none"
    return (
        f"read_csv(?, header = true, delim = '{mark}', quote = '', escape = '', "
        f"auto_detect = false, columns = {{{columns}}}, null_padding = true, "
        f"strict_mode = false, store_rejects = true, compression = '{packed}')"
    )


def _rejected(connection: duckdb.DuckDBPyConnection, path: Path) -> list[str]:
    """What is to be said of lines that are no rows."""
    query = "SELECT count(DISTINCT line), min(line) FROM reject_errors"
    count, first = connection.execute(query).fetchall()[0]
    if not count:
        return []
    return [f"{path}: {count} lines were left out that are no rows; the first is line {first}"]


def _sound(rows: dict[str, Array], path: Path, limits: list[str]) -> Array:
    """Rows that can be used; what is wrong with the others is said, with the first of them."""
    good = np.ones(len(rows["optype"]), bool)
    for name in (*REQUIRED, *WHOLE):
        values = rows[name]
        if name == "optype":
            bad, expected = np.isnan(values), "a name"
        elif name in WHOLE:
            known = np.isfinite(values) if name in REQUIRED else ~np.isnan(values)
            inside = (values >= (0 if name in REQUIRED else UNKNOWN)) & (
                values < COUNTED.get(name, LARGEST)
            )
            bad = (known & (~inside | (values % 1 != 0))) | (~known & (name in REQUIRED))
            expected = "a whole number, not negative"
        else:
            bad = ~(np.abs(values) < LONGEST_S) | ((values < 0) & (name == "duration"))
            expected = "seconds, not negative" if name == "duration" else "seconds"
        bad &= good
        if bad.any():
            row = int(np.argmax(bad))
            limits.append(
                f"{path}: {np.count_nonzero(bad)} rows were left out because {name} must be "
                f"{expected}; the first is row {row + 1}, with {values[row]!s}"
            )
            good &= ~bad
    for name in WHOLE:
        rows[name] = np.where(np.isnan(rows[name]), UNKNOWN, rows[name])
    return good


def _completed(table: Columns) -> Columns:
    """Columns that are not there, from those that are: rank, order and virtual stage."""
    if not len(table):
        return table
    stages, dp_ranks = int(table.stage.max()) + 1, int(table.dp_rank.max()) + 1
    rank = np.where(table["rank"] >= 0, table["rank"], table.stage * dp_ranks + table.dp_rank)
    computes = np.isin(table.role, COMPUTES)
    mc = np.where(computes, np.maximum(table.mc, 0), table.mc)
    gmc = np.where(computes & (table.gmc < 0), mc * stages + table.stage, table.gmc)
    table = table.with_column("rank", rank).with_column("mc", mc).with_column("gmc", gmc)
    if (table.seq_id >= 0).all():
        return table
    order = np.lexsort([table.start_s, table.optype, rank, table.step])
    same = np.ones(len(table), bool)
    for name in ("optype", "rank", "step"):
        same &= np.diff(table[name][order], prepend=-1) == 0
    place = np.arange(len(table))
    turn = np.empty(len(table), np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(same, 0, place))
    return table.with_column("seq_id", turn)


def _without_duplicates(table: Columns, limits: list[str]) -> Columns:
    """One row per operation: the first of those with one rank, step, type and order."""
    key = [table.seq_id, table.optype, table["rank"], table.step]
    order = np.lexsort(key)
    again = np.ones(len(table), bool)
    for values in key:
        again &= np.diff(values[order], prepend=-2) == 0
    if again.any():
        limits.append(
            f"{np.count_nonzero(again)} rows repeat an operation (the same rank, step, type and "
            "seq_id); the first of each was used"
        )
    return table.select(np.sort(order[~again]))


def _lasting(table: Columns, path: Path, limits: list[str]) -> Columns:
    """Without steps that took no time; raises `TraceError` where they take more than there is."""
    steps, index = np.unique(table.step, return_inverse=True)
    begin, end = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begin, index, table.start_s)
    np.maximum.at(end, index, table.start_s + table.duration_s)
    if (end - begin).sum() > LONGEST_S:
        raise TraceError(
            f"{path}: its steps take {(end - begin).sum():.3g} seconds together; start_ts and "
            "duration must be in seconds"
        )
    empty = end - begin < SHORTEST_S
    if not empty.any():
        return table
    limits.append(f"{np.count_nonzero(empty)} steps were left out because they took no time")
    return table.select(~empty[index])


# -- the description beside the table --------------------------------------------------------------


def _meta(path: Path, limits: list[str]) -> dict[str, Any]:
    """What `meta-X.yaml` beside `trace-X.…` says; empty where there is none."""
    trial = path.name.partition(".")[0].removeprefix("trace-")
    for suffix in (".yaml", ".yml"):
        file = path.with_name(f"meta-{trial}{suffix}")
        if file.is_file():
            try:
                return _key_values(file.read_text("utf-8"), file, limits)
            except (OSError, UnicodeDecodeError) as error:
                limits.append(f"{file} cannot be read ({error}); the table speaks for itself")
    return {}


def _key_values(text: str, file: Path, limits: list[str]) -> dict[str, Any]:
    """Lines of "key: value"; whole numbers become numbers."""
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition(" #")[0].strip()
        if not line or line.startswith(("#", "---")):
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.strip():
            limits.append(f'{file}, line {number}: expected "key: value", found {line[:40]!r}')
            continue
        value = value.strip().strip("\"'")
        found[key.strip()] = int(value) if value.isdecimal() and len(value) < 10 else value
    return found
