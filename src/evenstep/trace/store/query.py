"""A database to ask about a run: a store's files, or a trace in memory, under the same tables."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.errors import UsageError
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.store import database as store_database
from evenstep.trace.store.layout import RANKS, SUMMARIES, read_manifest
from evenstep.trace.store.tables import EVENTS, FINDINGS, OF_KINDS, WORDS, view, words
from evenstep.trace.store.writing import rank_arrays, record_arrays, summary_arrays

if TYPE_CHECKING:
    import duckdb

    from evenstep.trace.trace import Group, Trace

MOST_MEMORY_GB = 2.0
BATCH_ROWS = 1024


class QueryResult:
    """What a question came to: columns now, rows as they are taken."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        described = connection.description or []
        self.columns = _distinct([str(column[0]) for column in described])
        self.types = [str(column[1]) for column in described]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row. Raises `UsageError` where one cannot be worked out."""
        while True:
            with _explained():
                batch = self._connection.fetchmany(BATCH_ROWS)
            if not batch:
                return
            yield from batch


@contextmanager
def open_tables(
    source: Path | Trace, findings: Sequence[Mapping[str, Any]] = ()
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables of a store's folder or of a trace, within bounded memory; no question asked of
    them reaches another file, the network or an extension. `findings` are a diagnosis' rows."""
    with (
        tempfile.TemporaryDirectory(prefix="evenstep-sql-") as scratch,
        store_database.connect() as connection,
    ):
        connection.execute(f"set memory_limit = '{MOST_MEMORY_GB} GB'")
        connection.execute(f"set temp_directory = '{scratch}'")
        files: Sequence[Path] = ()
        if isinstance(source, Path):
            files = _of_store(connection, source)
        else:
            of_trace(connection, source)
        _of_findings(connection, findings)
        store_database.lock(connection, files)
        yield connection


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
    """Run one question. Raises `UsageError` where it is none, or is not understood."""
    with _explained():
        statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise UsageError(f"give one SELECT, found {len(statements)} statements")
    kind = statements[0].type.name
    if kind != "SELECT":  # EXPLAIN is not let through: with ANALYZE it runs what it explains
        raise UsageError(f"only SELECT can be asked, found {kind}: a trace is never changed")
    with _explained():
        connection.execute(statements[0])
    answer = QueryResult(connection)
    _refuse_zones(answer)
    return answer


def _refuse_zones(answer: QueryResult) -> None:
    """DuckDB needs pytz to hand out times with a zone."""
    if importlib.util.find_spec("pytz") is not None:
        return
    for name, kind in zip(answer.columns, answer.types, strict=True):
        if "TIMESTAMP WITH TIME ZONE" in kind:
            raise UsageError(f"{name} is a time with a zone; ask for it as text: …::varchar")


def of_trace(connection: duckdb.DuckDBPyConnection, trace: Trace) -> None:
    """Make the tables of a trace known."""
    connection.register("records", record_arrays(trace.events.only(*EVENT_COLUMNS)))
    connection.register("ranks", rank_arrays(trace))
    connection.register("summaries", summary_arrays(trace))
    nodes = {rank: info.node for rank, info in trace.ranks.items()}
    _views(connection, nodes, trace.names, trace.groups)


def _of_findings(
    connection: duckdb.DuckDBPyConnection, findings: Sequence[Mapping[str, Any]]
) -> None:
    connection.execute(
        "create table findings (title varchar, mode varchar, layer varchar, severity double,"
        " confidence double, ranks integer[], nodes varchar[], cause varchar, action varchar)"
    )
    names = [column.name for column in FINDINGS.columns]
    marks = ", ".join("?" for _ in names)
    for row in findings:
        connection.execute(f"insert into findings values ({marks})", [row[name] for name in names])


def _of_store(connection: duckdb.DuckDBPyConnection, folder: Path) -> list[Path]:
    """Make the tables of a store known; the files they lie in."""
    from evenstep.trace.store.reading import groups_of

    manifest = read_manifest(folder)
    folder = folder.absolute()
    parts = [folder / part.file for part in manifest.parts]
    tables = {"records": parts, "ranks": [folder / RANKS], "summaries": [folder / SUMMARIES]}
    for name, files in tables.items():
        listed = ", ".join(map(store_database.literal, files))
        connection.execute(f"create view {name} as select * from read_parquet([{listed}])")
    nodes = dict(connection.execute("select rank, node from ranks").fetchall())
    _views(connection, nodes, manifest.names, groups_of(manifest))
    return [file for files in tables.values() for file in files]


def _views(
    connection: duckdb.DuckDBPyConnection,
    nodes: dict[int, str],
    names: Sequence[str],
    groups: Sequence[Group],
) -> None:
    lists: dict[str, list[str]] = {name: words(members) for name, members in WORDS.items()}
    lists["nodes"] = [nodes.get(rank, "") for rank in range(max(nodes, default=0) + 1)]
    lists["names"] = list(names)
    lists["groups"] = [group.name or group.uid for group in groups]
    marks = ", ".join(f"?::varchar[] as {name}" for name in lists)
    connection.execute(f"create table lookup as select {marks}", list(lists.values()))
    connection.execute(
        "create table groups (name varchar, uid varchar, backend varchar, ranks integer[])"
    )
    for group in groups:
        row = [group.name or group.uid, group.uid, group.backend, list(group.ranks)]
        connection.execute("insert into groups values (?, ?, ?, ?)", row)
    for table in (EVENTS, *OF_KINDS):
        connection.execute(view(table))


@contextmanager
def _explained() -> Iterator[None]:
    """DuckDB's errors as one sentence."""
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
        said = said.rstrip(".").replace("Error:", "error:")
        raise UsageError(
            f"the question cannot be answered: {said}; `evenstep sql --tables` lists what there is"
        ) from error


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, the second of a kind with its number."""
    found: list[str] = []
    for name in names:
        count, fresh = 1, name
        while fresh in found:
            count += 1
            fresh = f"{name}_{count}"
        found.append(fresh)
    return found
