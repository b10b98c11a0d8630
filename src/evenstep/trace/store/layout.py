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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from evenstep.errors import LayoutError, TraceError, refuse_as
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spooled import OfHosts

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
