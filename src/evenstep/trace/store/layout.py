"""A store on disk: a run as Parquet files, cut by steps and by nodes.

    STORE/store.json                                   the run, its groups, and what lies where
    STORE/ranks.parquet                                who recorded, on which host
    STORE/summaries.parquet                            step summaries of all ranks
    STORE/events/steps-…/nodes-….parquet               records of some steps of some nodes

Within a file records are in order of kind, rank and sequence: neighbours differ little, so that
deltas are short, and any Parquet reader can skip row groups of other kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from evenstep.errors import LayoutError, MissingExtra, TraceError, refuse_as
from evenstep.trace.columns import Array
from evenstep.trace.cores import available
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spooled import OfHosts

if TYPE_CHECKING:
    import duckdb


SCHEMA = "evenstep.store/1"
MANIFEST = "store.json"
RANKS = "ranks.parquet"
SUMMARIES = "summaries.parquet"
EVENTS = "events"

ROW_GROUP = 122_880  # records that a reader takes or skips together; a multiple of DuckDB's 2,048

_TEXT, _INT32, _INT64 = np.dtype(object), np.dtype(np.int32), np.dtype(np.int64)
RANK_TYPES = {
    **{"rank": _INT32, "node": _TEXT, "closed": np.dtype(bool), "dropped": _INT64},
    **{"oldest_step": _INT64, "identity": _TEXT, "facts": _TEXT},
}
#: Columns of summaries: the field of each, and the index of its phase or bin (or nothing).
SUMMARY_CELLS = {
    "_".join([name, *map(str, cell)]): (name, cell)
    for name in SUMMARY.names or ()
    for cell in np.ndindex(SUMMARY[name].shape)
}
SUMMARY_TYPES = {"rank": _INT32} | {
    column: SUMMARY[name].base for column, (name, _) in SUMMARY_CELLS.items()
}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One file of records: some steps of the ranks of some nodes."""

    file: Annotated[str, msgspec.Meta(pattern="^[ -~]{1,250}$")]  # from the store's folder
    first_step: int
    last_step: int
    first_rank: int  # lowest and highest of its ranks
    last_rank: int
    block: int  # files of the same nodes have the same number
    counts: Mapping[int, Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]]  # records of each kind
    alike: Mapping[int, Mapping[str, int]]  # of each kind: columns with a single value, and it

    def overlaps(self, first: int, last: int) -> bool:
        return self.first_step < last and self.last_step >= first


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A process group."""

    uid: str
    name: str
    ranks: str  # "0-7"
    backend: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of `store.json`."""

    run: dict[str, Any]
    world: Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS + 1)]
    attempt: int
    groups: Sequence[StoredGroup]
    names: Sequence[str]
    limits: Sequence[str]
    on_device: bool  # some collectives ran on a device
    steps: int  # number of steps with records
    parts: Sequence[StoredPart]
    of_hosts: Sequence[OfHosts] = ()  # those that it has

    def write(self, folder: Path) -> None:
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"))
        (folder / MANIFEST).write_text(text + "\n")


def is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read `store.json`. Raises `TraceError` if it is damaged or names a file not in it."""
    path = folder / MANIFEST
    try:
        with refuse_as(TraceError, f"cannot read {path}"):
            document = path.read_bytes()
        schema = msgspec.json.decode(document, type=_Schema).schema
        if schema != SCHEMA:
            raise LayoutError(
                f"{path} is of {schema!r}, this evenstep reads {SCHEMA!r}; "
                "read it with the version that wrote it"
            )
        manifest = msgspec.json.decode(document, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is damaged; store the run again") from error
    home = folder.resolve()
    for file in (RANKS, SUMMARIES, *(part.file for part in manifest.parts)):
        # A manifest may come from a stranger: only files in its own folder belong to the store.
        if not (folder / file).resolve().is_relative_to(home):
            raise TraceError(f"{path} names {file}, which lies outside the store; do not trust it")
    missing = [part.file for part in manifest.parts if not (folder / part.file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TraceError(f"{folder} lacks {missing[0]}{more}; copy the whole folder")
    return manifest


class _Schema(msgspec.Struct):
    schema: str


# -- DuckDB: short connections, and Parquet files to and from columns ------------------------------

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
