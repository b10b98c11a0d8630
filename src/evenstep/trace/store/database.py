"""DuckDB as the store uses it: short connections, and Parquet files to and from columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.errors import MissingExtra, TraceError
from evenstep.trace.columns import Array
from evenstep.trace.cores import available
from evenstep.trace.store.layout import ROW_GROUP

if TYPE_CHECKING:
    import duckdb

CLOSED = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database that loads no extensions. Close it before forking: a child lacks
    its threads. Raises `MissingExtra` without DuckDB."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise MissingExtra("duckdb", extra="analyze", purpose="a store") from error
    return duckdb.connect(config={**CLOSED, "threads": threads or available()})


def lock(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Restrict a connection to these files, irrevocably."""
    connection.execute(f"set allowed_paths = [{', '.join(map(literal, files))}]")
    for setting in ("python_enable_replacements", "enable_external_access"):
        connection.execute(f"set {setting} = false")
    connection.execute("set lock_configuration = true")


def read(
    query: str, files: Sequence[Path], types: Mapping[str, Any], **tables: Mapping[str, Array]
) -> dict[str, Array]:
    """Columns, of these numpy `types`, of a query whose only `?` is the list of its files; it may
    also use `tables`. Raises `TraceError` where a file is damaged."""
    with connect() as connection, explain_errors("read"):
        for name, table in tables.items():
            connection.register(name, dict(table))
        found = connection.execute(query, [[str(file) for file in files]]).fetchnumpy()
    for name, values in found.items():
        if values.dtype != types[name] or np.ma.is_masked(values):
            raise TraceError(
                f"a file of the store is damaged: {name} is not what evenstep writes there; "
                "store the run again"
            )
    return {name: np.asarray(values) for name, values in found.items()}


@contextmanager
def explain_errors(done: str) -> Iterator[None]:
    """Raise a `TraceError` in one sentence for DuckDB's errors; `done` is "read" or "written"."""
    import duckdb

    try:
        yield
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise TraceError(f"a file of the store cannot be {done}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The message of an error of DuckDB in one line, taken out of the JSON that may surround it."""
    text = str(error).partition("\n")[0]
    inner = re.search(r'"exception_message":("(?:[^"\\]|\\.)*")', text)
    return str(json.loads(inner[1])) if inner else text


def write(connection: duckdb.DuckDBPyConnection, table: Mapping[str, Any], path: Path) -> None:
    """Write columns to a file, zstd over deltas and dictionaries. Raises `TraceError`."""
    connection.register("written", dict(table))
    with explain_errors("written"):
        connection.execute(
            f"copy (select * from written) to {literal(path)} "
            f"(format parquet, parquet_version v2, compression zstd, row_group_size {ROW_GROUP})"
        )
    connection.unregister("written")


def literal(text: Path | str) -> str:
    return "'" + str(text).replace("'", "''") + "'"
