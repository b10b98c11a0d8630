"""A run as Parquet files: events, steps and findings, written by DuckDB."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.measure.overview import step_table
from evenstep.errors import MissingExtra, UsageError
from evenstep.trace.spooled import OnDisk
from evenstep.trace.store import layout as store_database
from evenstep.trace.store import query as store_query
from evenstep.trace.store.writing import Written, write_store
from evenstep.trace.trace import Trace

if TYPE_CHECKING:
    import duckdb


def check_free(folder: Path, *, force: bool) -> dict[str, Path]:
    """The files to write, by table. Raises `UsageError` if one exists without `force`, and
    `MissingExtra` without DuckDB."""
    targets = {name: folder / f"{name}.parquet" for name in ("events", "steps", "findings")}
    taken = [path for path in targets.values() if path.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists; choose another folder, or overwrite it with --force")
    if find_spec("duckdb") is None:
        raise MissingExtra("duckdb", extra="analyze", purpose="Parquet")
    return targets


def write(
    trace: Trace, diagnosis: Diagnosis, folder: Path, *, force: bool = False
) -> list[Written]:
    """Write all of the files into a folder, or none. Raises like `check_free`, and `UsageError` if
    one cannot be written."""
    targets = check_free(folder, force=force)
    import duckdb

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".parquet-", dir=folder) as place:
            scratch, steps = Path(place), step_table(trace)
            source: Path | Trace = trace
            if isinstance(trace.events, OnDisk):  # more than fits into memory
                source = write_store(trace, scratch / "store").path
            with store_database.connect() as connection:
                spilled = store_database.literal(scratch / "spilled")
                connection.execute(f"set temp_directory = {spilled}")
                store_query.create_tables(connection, source)  # records as in `evenstep sql`
                connection.execute("drop view steps")  # replaced by the diagnosed steps
                connection.register("steps", dict(steps))
                connection.register("findings", _findings(diagnosis))
                rows = {
                    name: _copy(connection, name, scratch / path.name)
                    for name, path in targets.items()
                }
            for path in targets.values():
                (scratch / path.name).replace(path)
    except (OSError, duckdb.IOException) as error:
        why = store_database.reason(error)
        raise UsageError(f"cannot write into {folder}: {why}; name another folder") from error
    return [Written(path, rows[name], path.stat().st_size) for name, path in targets.items()]


def _findings(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return one row per finding; lists and objects are JSON."""
    rows = [finding.to_json() for finding in diagnosis.findings]
    found: dict[str, Any] = {}
    for name in ("mode", "layer", "observation", "cause"):
        found[name] = np.array([row[name] for row in rows], object)
    for name in ("severity", "confidence"):
        found[name] = np.array([row[name] for row in rows], np.float64)  # None is NaN
    for name in ("where", "when", "effect", "options", "evidence"):
        found[name] = np.array([json.dumps(row[name]) for row in rows], object)
    return found


def _copy(connection: duckdb.DuckDBPyConnection, name: str, path: Path) -> int:
    query = f"select * from {name}{' order by rank, seq' if name == 'events' else ''}"
    place = store_database.literal(path)
    copied = connection.execute(f"copy ({query}) to {place} (format parquet, compression zstd)")
    return int(copied.fetchall()[0][0])
