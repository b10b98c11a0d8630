"""DuckDB as the store uses it: short connections, columns in and out, files of Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import MissingExtra, TraceError
from evenstep.trace.cores import available
from evenstep.trace.store.layout import ROW_GROUP

if TYPE_CHECKING:
    import duckdb

Array = npt.NDArray[Any]

CLOSED = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A database of its own, which fetches and loads nothing. Close it before processes are forked:
    its threads do not come along.

    Raises `MissingExtra` without DuckDB.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise MissingExtra("duckdb", extra="analyze", purpose="a store") from error
    return duckdb.connect(config={**CLOSED, "threads": threads or available()})


def lock(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """From here on a connection reaches no file but these, and nothing of this can be changed."""
    connection.execute(f"set allowed_paths = [{', '.join(map(literal, files))}]")
    for setting in ("python_enable_replacements", "enable_external_access"):
        connection.execute(f"set {setting} = false")
    connection.execute("set lock_configuration = true")


def read(query: str, files: Sequence[Path]) -> dict[str, Array]:
    """Columns of a query whose only `?` is the list of its files. Raises `TraceError`."""
    with connect() as connection:
        import duckdb

        try:
            found = connection.execute(query, [[str(file) for file in files]]).fetchnumpy()
        except (duckdb.Error, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise TraceError(f"a file of the store cannot be read: {reason}") from error
    return {name: np.asarray(values) for name, values in found.items()}


def write(connection: duckdb.DuckDBPyConnection, table: Mapping[str, Any], path: Path) -> None:
    """Columns as one file: deltas and dictionaries where they are short, then zstd."""
    connection.register("written", dict(table))
    connection.execute(
        f"copy (select * from written) to {literal(path)} "
        f"(format parquet, parquet_version v2, compression zstd, row_group_size {ROW_GROUP})"
    )
    connection.unregister("written")


def texts(values: Sequence[object]) -> Any:
    """A column of texts."""
    return np.array([str(value) for value in values], object)


def literal(path: Path) -> str:
    """A path as a text of SQL."""
    text = str(path).replace("'", "''")
    return f"'{text}'"
