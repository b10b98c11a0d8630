"""SQL over a run: the same tables for a store's files and for a trace in memory.

Tables are views of the records with words for numbers, defined in `tables.toml`; a query reads only
the parts of a store's files that it needs.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenstep.errors import UsageError
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.files import read_toml
from evenstep.trace.spool.layout import Actuator, DType, Flag, Kind, Op, Phase, ReduceOp
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.store import layout as store_database
from evenstep.trace.store.layout import RANKS, SUMMARIES, read_manifest
from evenstep.trace.store.reading import groups_of, read_ranks
from evenstep.trace.store.writing import rank_arrays, record_arrays, summary_arrays
from evenstep.trace.trace import Group, RankInfo, Trace

if TYPE_CHECKING:
    import duckdb


class Column(NamedTuple):
    """A column of a table."""

    name: str
    meaning: str
    sql: str = ""  # expression over a record's columns; "" for the column of the same name


class StoreTable(NamedTuple):
    """A table of `evenstep sql`."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    kind: Kind | None = None  # its rows are the records of this kind; None: all, or no records


#: Enumerations whose names stand for numbers, by the name of their lookup list.
WORDS: Mapping[str, type[IntEnum]] = {
    **{"kinds": Kind, "ops": Op, "phases": Phase},
    **{"dtypes": DType, "reductions": ReduceOp, "actuators": Actuator},
}


def words(members: type[IntEnum]) -> list[str]:
    """Names of an enumeration, each at the index of its number."""
    names = {int(member): member.name.lower() for member in members}
    return [names.get(number, "") for number in range(max(names) + 1)]


_SHORT = {
    "took": "case when exit_ns > 0 then exit_ns - enter_ns end",
    "op": f"case when kind in ({int(Kind.COLLECTIVE)}, {int(Kind.POINT_TO_POINT)}) then $ops[op] "
    f"when kind = {int(Kind.PHASE)} then $phases[op] end",
    # a float64 from its bits (IEEE 754), as the layout stores measurements
    "value": "case when (bytes_in >> 52) & 2047 = 2047 then null else "
    "(case when bytes_in >> 63 = 1 then -1.0 else 1.0 end) * "
    "pow(2.0, greatest((bytes_in >> 52) & 2047, 1)::int - 1075) * "
    "((bytes_in & 4503599627370495) + "
    "case when (bytes_in >> 52) & 2047 > 0 then 4503599627370496 else 0 end)::double end",
}
_LISTED = {name: ", ".join(filter(None, words(members))) for name, members in WORDS.items()}
_LISTED["flags"] = ", ".join(f"{int(flag)} {str(flag.name).lower()}" for flag in Flag)


def _column(name: str, meaning: str, sql: str = "") -> Column:
    """Expand the `$` abbreviations of `tables.toml`."""
    meaning = re.sub(r"\$(\w+)", lambda found: _LISTED[found[1]], meaning)
    sql = re.sub(r"\$(took|op|value)\b(?!\[)", lambda found: _SHORT[found[1]], sql)
    sql = re.sub(r"\$flag\[(\w+)\]", lambda found: f"(flags & {int(Flag[found[1]])}) <> 0", sql)
    sql = re.sub(r"\$(\w+)\[(\w+)\]", r'(select \1 from lookup)["\2"::int + 1]', sql)
    return Column(name, meaning, sql)


def _tables() -> tuple[StoreTable, ...]:
    told: dict[str, Any] = read_toml(Path(__file__).with_name("tables.toml"))
    shared = told.pop("shared")
    return tuple(
        StoreTable(
            name,
            table["meaning"],
            tuple(_column(*(shared[o] if isinstance(o, str) else o)) for o in table["columns"]),
            Kind[table["kind"]] if "kind" in table else None,
        )
        for name, table in told.items()
    )


TABLES = _tables()
EVENTS = TABLES[0]
OF_KINDS = tuple(table for table in TABLES if table.kind is not None)
FINDINGS = TABLES[-1]


def view(table: StoreTable) -> str:
    named = (f'{sql} as "{name}"' if sql else f'"{name}"' for name, _, sql in table.columns)
    columns = ", ".join(named)
    where = "" if table.kind is None else f" where kind = {int(table.kind)}"
    return f"create view {table.name} as select {columns} from records{where}"


MOST_MEMORY_GB = 2.0
BATCH_ROWS = 1024


class QueryResult:
    """The answer to a query: columns at once, rows as they are iterated."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        described = connection.description or []
        self.columns = _distinct([str(column[0]) for column in described])
        self.types = [str(column[1]) for column in described]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row. Raises `UsageError` where one cannot be computed."""
        while True:
            with _explain_errors():
                batch = self._connection.fetchmany(BATCH_ROWS)
            if not batch:
                return
            yield from batch


@contextmanager
def open_tables(
    source: Path | Trace, findings: Sequence[Mapping[str, Any]] = ()
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the tables of a store's folder or of a trace, within bounded memory: no other file,
    network or extension, with the rows `findings`. Raises `TraceError` for a damaged store."""
    with (
        tempfile.TemporaryDirectory(prefix="evenstep-sql-") as scratch,
        store_database.connect() as connection,
    ):
        connection.execute(f"set memory_limit = '{MOST_MEMORY_GB} GB'")
        connection.execute(f"set temp_directory = '{scratch}'")
        files = create_tables(connection, source)
        _of_findings(connection, findings)
        store_database.lock(connection, files)
        yield connection


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
    """Run one query. Raises `UsageError` unless it is a single valid SELECT."""
    with _explain_errors():
        statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise UsageError(f"give one SELECT, found {len(statements)} statements")
    kind = statements[0].type.name
    if kind != "SELECT":  # EXPLAIN is refused too: with ANALYZE it runs its statement
        raise UsageError(f"only SELECT can be asked, found {kind}: a trace is never changed")
    with _explain_errors():
        connection.execute(statements[0])
    answer = QueryResult(connection)
    for name, type_ in zip(answer.columns, answer.types, strict=True):
        zoned = "TIMESTAMP WITH TIME ZONE" in type_
        if zoned and importlib.util.find_spec("pytz") is None:  # DuckDB needs it to return them
            raise UsageError(f"{name} is a time with a zone; ask for it as text: …::varchar")
    return answer


def _of_findings(
    connection: duckdb.DuckDBPyConnection, findings: Sequence[Mapping[str, Any]]
) -> None:
    connection.execute(
        "create table findings (title varchar, mode varchar, layer varchar, severity double,"
        " confidence double, ranks integer[], nodes varchar[], cause varchar, action varchar,"
        " step_ns bigint)"
    )
    names = [column.name for column in FINDINGS.columns]
    marks = ", ".join("?" for _ in names)
    for row in findings:
        connection.execute(f"insert into findings values ({marks})", [row[name] for name in names])


def create_tables(connection: duckdb.DuckDBPyConnection, source: Path | Trace) -> list[Path]:
    """Create the tables of a store's folder or of a trace; return the store's files."""
    if not isinstance(source, Path):
        connection.register("records", record_arrays(source.events.only(*EVENT_COLUMNS)))
        connection.register("ranks", rank_arrays(source))
        connection.register("summaries", summary_arrays(source))
        _views(connection, source.ranks, source.names, source.groups)
        return []
    manifest, folder = read_manifest(source), source.absolute()
    parts = [folder / part.file for part in manifest.parts]
    tables = {"records": parts, "ranks": [folder / RANKS], "summaries": [folder / SUMMARIES]}
    with store_database.explain_errors("read"):
        for name, files in tables.items():
            listed = ", ".join(map(store_database.literal, files))
            connection.execute(f"create view {name} as select * from read_parquet([{listed}])")
        _views(connection, read_ranks(folder)[0], manifest.names, groups_of(manifest))
    return [file for files in tables.values() for file in files]


def _views(
    connection: duckdb.DuckDBPyConnection,
    ranks: Mapping[int, RankInfo],
    names: Sequence[str],
    groups: Sequence[Group],
) -> None:
    lists: dict[str, list[str]] = {name: words(members) for name, members in WORDS.items()}
    every = range(max(ranks, default=0) + 1)
    lists["nodes"] = [ranks[rank].node if rank in ranks else "" for rank in every]
    lists["names"] = list(names)
    lists["groups"] = _distinguished(groups)
    marks = ", ".join(f"?::varchar[] as {name}" for name in lists)
    connection.execute(f"create table lookup as select {marks}", list(lists.values()))
    columns = "name varchar, uid varchar, backend varchar, ranks integer[]"
    connection.execute(f"create table groups ({columns})")
    for name, group in zip(lists["groups"], groups, strict=True):
        row = [name, group.uid, group.backend, list(group.ranks)]
        connection.execute("insert into groups values (?, ?, ?, ?)", row)
    for table in (EVENTS, *OF_KINDS):
        connection.execute(view(table))


def _distinguished(groups: Sequence[Group]) -> list[str]:
    """Names that tell groups apart: of those that share one, as a mesh's groups of a dimension do,
    with their ranks, and with their uids where these are the same, too."""
    found = [group.name or group.uid for group in groups]
    for also in ([format_ranks(group.ranks) for group in groups], [group.uid for group in groups]):
        often = Counter(found)
        found = [f"{a} {b}" if often[a] > 1 else a for a, b in zip(found, also, strict=True)]
    return found


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Raise a `UsageError` in one sentence for DuckDB's errors."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise UsageError(
            f"the answer needs more than {MOST_MEMORY_GB:g} GB of memory; ask for fewer columns, "
            "aggregate, or restrict the steps"
        ) from error
    except duckdb.Error as error:
        said = " ".join(str(error).partition("\n\n")[0].split())
        said = re.sub(r'! Did you mean "(pg|duckdb)_\w+"\?', "", said)  # DuckDB's own tables
        said = said.rstrip(".").replace("Error:", "error:")
        raise UsageError(
            f"the question cannot be answered: {said}; `evenstep sql --tables` lists what there is"
        ) from error


def _distinct(names: Sequence[str]) -> list[str]:
    """Make names distinct: the second NAME becomes NAME_2."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in count(2))
        found.append(next(each for each in chain([name], others) if each not in found))
    return found
