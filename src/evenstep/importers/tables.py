"""Read tables (Parquet, CSV, JSON) as named columns of numbers and of texts."""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.compression import GZIP, ZSTANDARD
from evenstep.importers.content import MOST_CONTAINERS, SourceFile, content, lines
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.importers.json_rows import rows
from evenstep.trace.columns import Array
from evenstep.trace.spool.files import read_toml
from evenstep.trace.store.layout import connect, literal

if TYPE_CHECKING:
    import duckdb

#: Names of columns, by kind of table and by what they hold.
COLUMNS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("columns.toml"))
UNITS_S: dict[str, float] = COLUMNS.pop("units")
PARQUET = b"PAR1"
SEPARATORS = ",;\t|"
_FIGURE = re.compile(r"[ \"']*[-+.]?\d")
MOST_ROWS = 20_000_000
RELATIVE = "norm"  # suffix of the names of normalized values
EXAMINED = 100  # lines in which quotes are looked for
MOST_JSON_BYTES = 64_000_000  # of a table in one value
#: Written by Python where a number is not finite; strings that hold such words are left alone.
_NOT_FINITE = re.compile(r"(?<=[\[:, ])-?(?:NaN|Infinity)(?=\s*[,}\]])")


class TableFile(NamedTuple):
    """A file that holds a table, from its head."""

    path: Path
    names: list[str]  # of the columns, in order
    separator: str = ""  # of a CSV
    before: int = 0  # lines of comments above its names
    quoted: bool = False  # values with separators in them stand in quotes
    json: str = ""  # "lines": a value in each; "whole": one value


class Table(NamedTuple):
    """Columns of one length."""

    numbers: dict[str, Array]  # float64; nan where there is no number
    #: Distinct texts, ascending, and each row's index; -1: none
    texts: dict[str, tuple[list[str], Array]]


@contextmanager
def _connection(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB for one file; its errors become a `TraceError` in one sentence."""
    with connect(2) as connection:
        import duckdb

        connection.execute("set memory_limit = '2GB'")
        try:
            yield connection
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].partition(": ")[2]
            reason = re.sub(f" ['\"]{re.escape(str(path))}['\"]", "", reason)
            raise TraceError(f"{path} cannot be read: {reason}; export it again") from error


def table_file(source: SourceFile) -> TableFile | None:
    """The names of a file's columns; None where it holds no table.

    Raises `TraceError` where Parquet cannot be read, `MissingExtra` without DuckDB.
    """
    if source.head.startswith(PARQUET):
        with _connection(source.path) as connection:
            query = "SELECT name FROM parquet_schema(?)"
            found = connection.execute(query, [escape(str(source.path))]).fetchall()
        return TableFile(source.path, [str(name) for (name,) in found])
    head = source.head.removeprefix(BOM_UTF8).splitlines() or [b""]
    text = [line.decode("utf-8", "replace") for line in head]
    at = _names_at(text)
    line = text[at].lstrip("# ")
    if line.startswith(("{", "[")):
        return _json_file(source, line)
    separator = max(SEPARATORS, key=line.count)
    if separator not in line or "\0" in line:
        return None
    try:
        names, *told = csv.reader([line, *text[at + 1 : at + EXAMINED]], delimiter=separator)
    except csv.Error:
        return None
    names = [name.strip() for name in names]
    widest = max((len(row) for row in told if any(separator in one for one in row)), default=0)
    return TableFile(source.path, names, separator, at, widest == len(names))


def _names_at(text: Sequence[str]) -> int:
    """The line of a CSV that names its columns: the first, but for comments; or of these the last
    with columns, above a row of numbers."""
    first = next((n for n, line in enumerate(text) if line.strip(" #") and line[0] != "#"), 0)
    separator = max(SEPARATORS, key=text[first].count)
    most = text[first].count(separator)
    named = [n for n in range(first) if 0 < text[n].count(separator) <= most]
    return named[-1] if named and _FIGURE.match(text[first]) else first


def _json_file(source: SourceFile, line: str) -> TableFile | None:
    """A table whose first line is a JSON value, or that is one altogether."""
    try:
        first = [next(rows(_value(line)), {})]
        kind = "lines"
        for other in source.head.decode("utf-8", "replace").splitlines()[1:]:  # of other kinds
            with suppress(msgspec.DecodeError, RecursionError):
                first.append(next(rows(_value(other)), {}))
    except (msgspec.DecodeError, RecursionError):
        try:
            first, kind = list(rows(_value(_whole_text(source.path)))), "whole"
        except (TraceError, msgspec.DecodeError, RecursionError):
            return None
    names = dict.fromkeys(name for row in first for name in row)
    return TableFile(source.path, list(names), json=kind) if names else None


def columns_of(file: TableFile, kind: str) -> dict[str, str]:
    """The columns of a kind of table, by what they hold; "" for one that is missing."""
    return {what: column_of(file, names) for what, names in COLUMNS[kind].items()}


def column_of(file: TableFile, names: Sequence[str]) -> str:
    """The column with the first of these names that a column has; "" without any."""
    plain = {"_".join(name.lower().split()): name for name in reversed(file.names)}
    return next((plain[name] for name in names if name in plain), "")


def spell(name: str) -> tuple[str, float | None]:
    """The words of a column's name in lower case, and its unit in seconds (None without one).

    `exec_time_us` is ("exec time", 1e-6); `steps_per_second` and `grad_norm` have no unit.
    """
    plain = re.sub("[\u00b5\u03bc](?=s)", "u", name.lower())  # as in µs
    words = re.sub(r"[^a-z]+", " ", plain).split()
    before, last = ["", "", *words][-2:]
    unit = UNITS_S.get(last)
    if before == "per" or (last == RELATIVE and before not in ("time", "duration")):
        unit = None
    return " ".join(words[:-1] if unit is not None and before else words), unit


def read_table(
    file: TableFile, numbers: Sequence[str], texts: Sequence[str], limits: list[str]
) -> Table:
    """Some columns of a table. Lines that are not rows are counted in `limits`.

    Raises `TraceError` where it cannot be read, `MissingExtra` without DuckDB.
    """
    place = {name: at for at, name in reversed(list(enumerate(file.names)))}
    with _connection(file.path) as connection:
        if file.json:
            wanted = {name: f"c{place[name]}" for name in (*numbers, *texts)}
            connection.register("written", _of_json(file, wanted, limits))
        _load(connection, file, place, numbers, texts)
        if file.separator:
            query = "SELECT count(DISTINCT line), min(line) FROM reject_errors"
            count, first = connection.execute(query).fetchall()[0]
            said = f"{count} lines that are not rows were left out; the first is line {first}"
            limits += [f"{file.path}: {said}"] if count else []
        table = _fetch(connection, numbers, texts)
    columns = [*table.numbers.values(), *(code for _, code in table.texts.values())]
    if any(len(column) >= MOST_ROWS for column in columns):
        limits.append(f"{file.path}: only the first {MOST_ROWS} rows were read")
    return table


def _load(
    connection: duckdb.DuckDBPyConnection, file: TableFile, place: Mapping[str, int],
    numbers: Sequence[str], texts: Sequence[str],
) -> None:  # fmt: skip
    path = literal(Path(escape(str(file.path))))
    origin = _csv_reader(file, path) if file.separator else f"read_parquet({path})"
    origin = "written" if file.json else origin

    def value(name: str) -> str:
        if file.json:
            return f"c{place[name]}"
        if file.separator:
            return f"""trim("c{place[name]}", '" ')"""
        return '"' + name.replace('"', '""') + '"'

    picked = []
    for at, name in enumerate(numbers):
        plain = value(name)
        dates = [
            f"epoch(TRY_CAST(CAST({plain} AS VARCHAR) AS {kind}))"
            for kind in ("TIMESTAMPTZ", "INTERVAL")
        ]  # since 1970, and like 5:13:22; a step may be given as 12/500
        part = f"TRY_CAST(regexp_extract({plain}::VARCHAR, '^(\\d+) */ *\\d+$', 1) AS DOUBLE)"
        picked.append(f"coalesce(TRY_CAST({plain} AS DOUBLE), {part}, {', '.join(dates)}) AS n{at}")
    picked += [f"nullif(CAST({value(name)} AS VARCHAR), '') AS t{at}"
               for at, name in enumerate(texts)]  # fmt: skip
    query = f"SELECT {', '.join(picked)} FROM {origin} LIMIT {MOST_ROWS}"
    connection.execute(f"CREATE TEMP TABLE found AS {query}")


def _csv_reader(file: TableFile, path: str) -> str:
    """DuckDB's reader of a CSV without guessing; a stray quote does not swallow rows where none
    are needed."""
    columns = ", ".join(f"'c{at}': 'VARCHAR'" for at in range(len(file.names)))
    with file.path.open("rb") as stream:
        magic = stream.read(len(ZSTANDARD))
    quote = '"' if file.quoted else ""
    packed = "gzip" if magic[:2] == GZIP else "zstd" if magic == ZSTANDARD else "none"
    return (
        f"read_csv({path}, header = true, skip = {file.before}, delim = '{file.separator}', "
        f"quote = '{quote}', escape = '{quote}', auto_detect = false, columns = {{{columns}}}, "
        f"null_padding = true, strict_mode = false, store_rejects = true, "
        f"compression = '{packed}', parallel = {not file.quoted})"  # line breaks in quotes
    )


def _fetch(
    connection: duckdb.DuckDBPyConnection, numbers: Sequence[str], texts: Sequence[str]
) -> Table:
    found = Table({}, {})
    for at, name in enumerate(texts):
        query = f"SELECT DISTINCT t{at} FROM found WHERE t{at} IS NOT NULL ORDER BY 1"
        kinds = [str(text) for (text,) in connection.execute(query).fetchall()]
        query = f"SELECT coalesce(list_position(?, t{at}), 0)::BIGINT - 1 AS code FROM found"
        found.texts[name] = kinds, connection.execute(query, [kinds]).fetchnumpy()["code"]
    if numbers:
        query = f"SELECT {', '.join(f'n{at}' for at in range(len(numbers)))} FROM found"
        rows = connection.execute(query).fetchnumpy()
        for at, name in enumerate(numbers):
            found.numbers[name] = np.ma.filled(rows[f"n{at}"].astype(float), np.nan)
    return found


def _of_json(file: TableFile, wanted: Mapping[str, str], limits: list[str]) -> dict[str, Array]:
    """The `wanted` columns of a file's JSON as texts, under their new names."""
    found: dict[str, list[str | None]] = {name: [] for name in wanted}
    wrong = 0
    read = (line.text for line in islice(lines(file.path), MOST_ROWS) if line.text.strip())
    for text in [_whole_text(file.path)] if file.json == "whole" else read:
        try:
            told = list(rows(_value(text)))
        except (msgspec.DecodeError, RecursionError):
            wrong += 1
            continue
        for name, column in found.items():
            values = (row.get(name) for row in told)
            column += [one[:LONGEST_TEXT] if isinstance(one, str) else str(one)
                       if isinstance(one, int | float) else None for one in values]  # fmt: skip
    if wrong:
        limits.append(f"{file.path}: {wrong} lines that are not JSON objects were left out")
    return {wanted[name]: np.array(column, object) for name, column in found.items()}


def _whole_text(path: Path) -> str:
    data = content(path, MOST_JSON_BYTES)
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS:
        raise TraceError(f"{path} holds more lists and objects than a table has")
    return data.decode("utf-8-sig", "replace")


def _value(text: str) -> Any:
    """An object or list, in which Python writes what is not finite as JSON does not have it."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = msgspec.json.decode(_NOT_FINITE.sub("null", text))
    if not isinstance(value, dict | list):
        raise msgspec.DecodeError("neither an object nor a list")
    return value
