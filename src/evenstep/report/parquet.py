"""A run as Parquet files, for questions nobody has foreseen: events, steps and findings.

Written by DuckDB, which reads them back: select * from 'events.parquet'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.waits import step_table
from evenstep.errors import MissingExtra, UsageError
from evenstep.trace.layout import Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Trace

if TYPE_CHECKING:
    import duckdb

_EVENTS = """
select e.* exclude (kind, op, name, "group"), n.node, k.text as kind, o.text as op,
  names.text as name, g.text as "group"
from events e
left join nodes n on n.rank = e.rank
left join event_kinds k on k.number = e.kind
left join operations o on o.kind = e.kind and o.number = e.op
left join event_names names on names.number = e.name
left join event_groups g on g.number = e."group"
order by e.rank, e.seq
"""


class Written(NamedTuple):
    """A file, how many rows it has and how long it is."""

    path: Path
    rows: int
    size_bytes: int


def write(
    trace: Trace, diagnosis: Diagnosis, folder: Path, *, force: bool = False
) -> list[Written]:
    """Write the files into a folder, which is made where there is none.

    Raises `UsageError` where one exists and `force` is not set, `MissingExtra` without DuckDB.
    """
    names = ("events", "steps", "findings")
    targets = {name: folder / f"{name}.parquet" for name in names}
    taken = [path for path in targets.values() if path.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists; give another folder, or --force to replace it")
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise MissingExtra("duckdb", extra="analyze", purpose="Parquet") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with duckdb.connect(config={"threads": 2}) as connection:
            _register(connection, trace, diagnosis)
            return [
                _copied(connection, _EVENTS if name == "events" else f"select * from {name}", path)
                for name, path in targets.items()
            ]
    except (OSError, duckdb.IOException) as error:
        raise UsageError(f"cannot write into {folder}: {error}; give another place") from error


def _register(connection: duckdb.DuckDBPyConnection, trace: Trace, diagnosis: Diagnosis) -> None:
    """Make the tables known that the queries name."""
    events, steps = trace.events, step_table(trace)
    tables: dict[str, Mapping[str, Any]] = {
        "events": {name: np.ascontiguousarray(events[name]) for name in EVENT_COLUMNS},
        "steps": {name: steps[name] for name in steps},
        "findings": _findings(diagnosis),
        "nodes": {
            "rank": np.array(list(trace.ranks), np.int32),
            "node": _texts([info.node for info in trace.ranks.values()]),
        },
        "event_names": _numbered(trace.names),
        "event_groups": _numbered([group.name or group.uid for group in trace.groups]),
        "event_kinds": _members(Kind),
        "operations": _operations(),
    }
    for name, table in tables.items():
        connection.register(name, dict(table))


def _texts(values: Sequence[object]) -> Any:
    return np.array([str(value) for value in values], object)


def _numbered(texts: Sequence[str]) -> dict[str, Any]:
    return {"number": np.arange(len(texts)), "text": _texts(texts)}


def _members(kinds: Any) -> dict[str, Any]:
    members = list(kinds)
    numbers = np.array([int(member) for member in members])
    return {"number": numbers, "text": _texts([member.name.lower() for member in members])}


def _operations() -> dict[str, Any]:
    """What `op` means for the kinds that have one."""
    ops = ((Kind.COLLECTIVE, Op), (Kind.POINT_TO_POINT, Op), (Kind.PHASE, Phase))
    tables = [{"kind": np.full(len(kinds), int(kind)), **_members(kinds)} for kind, kinds in ops]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _findings(diagnosis: Diagnosis) -> dict[str, Any]:
    """One row a finding; what is a list or an object is JSON."""
    rows = [finding.to_json() for finding in diagnosis.findings]
    numbers = ("severity", "confidence")
    texts = ("mode", "layer", "observation", "cause")
    nested = ("where", "when", "effect", "options", "evidence")
    found: dict[str, Any] = {name: _texts([row[name] for row in rows]) for name in texts}
    for name in numbers:
        values = [np.nan if row[name] is None else row[name] for row in rows]
        found[name] = np.array(values, np.float64)
    return found | {name: _texts([json.dumps(row[name]) for row in rows]) for name in nested}


def _copied(connection: duckdb.DuckDBPyConnection, query: str, path: Path) -> Written:
    place = str(path).replace("'", "''")
    connection.execute(f"copy ({query}) to '{place}' (format parquet, compression zstd)")
    count = connection.execute("select count(*) from read_parquet(?)", [str(path)]).fetchone()
    return Written(path, int(count[0]) if count else 0, path.stat().st_size)
