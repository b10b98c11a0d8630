"""Write a trace as a store, one range of steps after another: never all of it in memory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import UsageError, refuse_as
from evenstep.trace.columns import Array, Columns, positions_by_key
from evenstep.trace.cores import iterate_on_cores
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.spooled import EVENT_COLUMNS, EVENT_TYPES, LIGHT, OF_HOSTS, OnDisk
from evenstep.trace.store import layout
from evenstep.trace.store import layout as store_database
from evenstep.trace.trace import Trace

STRETCH_RECORDS = 500_000  # in the files of a range of steps: a query about a step reads these
FILE_RECORDS = 250_000  # in a file

_EVERYTHING = dict.fromkeys(Kind, EVENT_COLUMNS[1:])


class Written(NamedTuple):
    """A file or a store that was written."""

    path: Path
    rows: int
    size_bytes: int  # of all files


def write_store(
    trace: Trace, folder: Path, *, force: bool = False,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Written:  # fmt: skip
    """Write a trace as a store, whole or not at all; `progress` gets how many of how many ranges of
    steps are done. Raises `UsageError` where the folder is taken (unless `force`), cannot be
    written, or the trace has no records."""
    if trace.operations is not None:
        raise UsageError("an operation table has no records to store; it is a table already")
    check_free(folder, force=force)
    with refuse_as(UsageError, f"cannot write {folder}", "; give another place"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            parts = _write(_number(trace), private / "store", progress)
            if force and folder.is_dir():
                shutil.rmtree(folder)
            (private / "store").rename(folder)
        finally:
            shutil.rmtree(private, ignore_errors=True)
    records = sum(sum(part.counts.values()) for part in parts)
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Written(folder, records, size_bytes)


def check_free(folder: Path, *, force: bool) -> None:
    """Raise `UsageError` where the folder is taken, unless by a store and with `force`."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not layout.is_store(folder):
        raise UsageError(f"{folder} exists and is not a store; give another folder")
    if not force:
        raise UsageError(f"{folder} exists; give another folder, or --force to replace it")


def _write(
    trace: Trace, folder: Path, progress: Callable[[int, int], object]
) -> list[layout.StoredPart]:
    (folder / layout.EVENTS).mkdir(parents=True)
    steps = trace.table.step_numbers()
    blocks = _blocks(trace, len(steps))
    of_hosts = [one for one in OF_HOSTS if one in trace.events and trace.events[one].any()]
    names = (*EVENT_COLUMNS, *of_hosts)
    most = max(int(STRETCH_RECORDS / max(trace.table.per_step(), 1)), 1)
    stretches = [steps[first : first + most] for first in range(0, len(steps), most)]
    parts: list[layout.StoredPart] = []
    found = iterate_on_cores(
        lambda each: _stretch(trace, folder, int(each[0]), int(each[-1]), blocks, names), stretches
    )
    for done, stretch in enumerate(found, start=1):
        parts += stretch
        progress(done, len(stretches))
    with store_database.connect() as connection:
        store_database.write(connection, rank_arrays(trace), folder / layout.RANKS)
        store_database.write(connection, summary_arrays(trace), folder / layout.SUMMARIES)
    groups = [
        layout.StoredGroup(g.uid, g.name, format_ranks(g.ranks), g.backend) for g in trace.groups
    ]
    layout.Manifest(
        run=trace.run,
        world=trace.world,
        attempt=trace.attempt,
        groups=groups,
        names=trace.names,
        limits=trace.limits,
        on_device=trace.table.flagged(Kind.COLLECTIVE, Flag.ON_DEVICE),
        steps=len(steps),
        parts=parts,
        of_hosts=of_hosts,
    ).write(folder)
    return parts


def _blocks(trace: Trace, steps: int) -> Array:
    """For each rank, the number of the file (within a range of steps) for its node's records."""
    per_stretch = min(max(STRETCH_RECORDS, trace.table.per_step()), len(trace.events))
    files = min(max(-(-int(per_stretch) // FILE_RECORDS), 1), max(len(trace.nodes), 1))
    number = {node: index * files // len(trace.nodes) for index, node in enumerate(trace.nodes)}
    found = np.zeros(max(trace.ranks) + 1, np.int32)
    for rank, info in trace.ranks.items():
        found[rank] = number[info.node] if steps else 0
    return found


def _stretch(
    trace: Trace, folder: Path, first: int, last: int, blocks: Array, names: Sequence[str]
) -> list[layout.StoredPart]:
    window = trace.window(first, last + 1, _EVERYTHING)
    tables = [window.of_kind(kind) for kind in Kind]
    owner = [blocks[table["rank"]] for table in tables]
    place = folder / layout.EVENTS / f"steps-{first:08d}-{last:08d}"
    place.mkdir()
    found = []
    with store_database.connect(1) as connection:
        for block in np.unique(np.concatenate(owner)):
            mine = [table.select(of == block) for table, of in zip(tables, owner, strict=True)]
            arrays = record_arrays(Columns.concatenate([one.only(*names) for one in mine]))
            path = place / f"nodes-{block:05d}.parquet"
            store_database.write(connection, arrays, path)
            found.append(
                layout.StoredPart(
                    file=str(path.relative_to(folder)),
                    first_step=first,
                    last_step=last,
                    first_rank=int(arrays["rank"].min()),
                    last_rank=int(arrays["rank"].max()),
                    block=int(block),
                    counts={int(k): len(rows) for k, rows in zip(Kind, mine, strict=True)},
                    alike={int(k): _alike(rows) for k, rows in zip(Kind, mine, strict=True)},
                )
            )
    return found


def _alike(rows: Columns) -> dict[str, int]:
    """The columns among `LIGHT` that hold a single value, and that value."""
    columns = {name: rows[name] for name in LIGHT if len(rows)}
    return {name: int(each[0]) for name, each in columns.items() if (each == each[0]).all()}


def _number(trace: Trace) -> Trace:
    """The trace with records in order of rank and sequence, and distinct sequence numbers, which
    records imported from other tools may lack."""
    events = trace.events
    if isinstance(events, OnDisk) or _distinct(events):
        return trace
    ordered = events.sorted_by("rank", "seq")
    if not _distinct(ordered):
        ordered = events.sorted_by("rank")
        ordered = ordered.with_columns(seq=positions_by_key(ordered["rank"]).astype("u8") + 1)
    return replace(trace, events=ordered)


def _distinct(events: Columns) -> bool:
    """Whether rows ascend strictly in rank and sequence."""
    rank, seq = events["rank"].astype(np.int64), events.seq.astype(np.int64)
    return bool(((np.diff(rank) > 0) | ((np.diff(rank) == 0) & (np.diff(seq) > 0))).all())


def record_arrays(table: Columns) -> dict[str, Array]:
    return {name: np.ascontiguousarray(table[name], EVENT_TYPES[name]) for name in table}


def rank_arrays(trace: Trace) -> dict[str, Any]:
    infos = [trace.ranks[rank] for rank in sorted(trace.ranks)]
    oldest = trace.table.oldest_steps()
    return {
        "rank": np.array([info.rank for info in infos], np.int32),
        "node": np.array([info.node for info in infos], object),
        "closed": np.array([info.closed for info in infos], bool),
        "dropped": np.array([info.dropped for info in infos], np.int64),
        "oldest_step": np.array([oldest.get(info.rank, -1) for info in infos], np.int64),
        "identity": np.array([json.dumps(info.identity) for info in infos], object),
        "facts": np.array([json.dumps(info.facts) for info in infos], object),
    }


def summary_arrays(trace: Trace) -> dict[str, Any]:
    """The summaries of a trace as columns; those of a phase or bin are named NAME_INDEX."""
    found: dict[str, Any] = {"rank": np.ascontiguousarray(trace.summary_rank, np.int32)}
    for column, (name, cell) in layout.SUMMARY_CELLS.items():
        found[column] = np.ascontiguousarray(trace.summaries[name][(slice(None), *cell)])
    return found
