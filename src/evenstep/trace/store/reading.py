"""Read a store as a trace: a small one into memory, the records of a large one left on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace import facts as shapes
from evenstep.trace.columns import Array
from evenstep.trace.ranks import MOST_MEMBERS, MOST_RANKS, parse_ranks
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spools import LARGE_RECORDS
from evenstep.trace.store import database as store_database
from evenstep.trace.store import layout
from evenstep.trace.store.events import StoredEvents
from evenstep.trace.trace import Group, RankInfo, Trace


def load_store(folder: Path, *, attempt: int | None = None) -> Trace:
    """Read a store. Raises `TraceError` where it is damaged or holds another attempt."""
    manifest = layout.read_manifest(folder)
    if attempt not in (None, manifest.attempt):
        raise TraceError(f"{folder} has no attempt {attempt}; it holds attempt {manifest.attempt}")
    groups = groups_of(manifest)
    ranks, oldest = read_ranks(folder)
    events = StoredEvents(folder, manifest, tuple(Kind), oldest)
    summaries, summary_rank = _summaries(folder)
    few = len(events) <= LARGE_RECORDS
    return Trace(
        run=manifest.run,
        world=manifest.world,
        attempt=manifest.attempt,
        ranks=ranks,
        events=events.in_memory() if few else events,
        groups=groups,
        names=tuple(manifest.names),
        summaries=summaries,
        summary_rank=summary_rank,
        limits=list(manifest.limits),
    )


def groups_of(manifest: layout.Manifest) -> tuple[Group, ...]:
    """The process groups of a store. Raises `TraceError` where their ranks are damaged."""
    groups: list[Group] = []
    left = MOST_MEMBERS
    for each in manifest.groups:
        try:
            ranks = parse_ranks(each.ranks)
            left -= len(ranks)
            if left < 0:
                raise ValueError
        except ValueError:
            name = each.name[:80]
            raise TraceError(f"a store's group {name!r} is damaged; store the run again") from None
        groups.append(Group(each.uid, each.name, ranks, each.backend))
    return tuple(groups)


def read_ranks(folder: Path) -> tuple[dict[int, RankInfo], dict[int, int]]:
    """The ranks of a store, and the step of each rank's oldest record. Raises `TraceError` where
    the file is damaged."""
    query = f"select {', '.join(layout.RANK_TYPES)} from read_parquet(?) order by rank"
    found = store_database.read(query, [folder / layout.RANKS], layout.RANK_TYPES)
    rows = zip(*(found[name].tolist() for name in layout.RANK_TYPES), strict=True)
    ranks, oldest = {}, {}
    for rank, _, closed, dropped, oldest_step, identity, facts in rows:
        try:
            ranks[rank] = RankInfo(rank, _object(identity), _object(facts), closed, dropped)
            for key, value in ranks[rank].facts.items():
                shapes.check(key, value)
            if not 0 <= rank < MOST_RANKS:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise TraceError(f"{folder / layout.RANKS} is damaged; store the run again") from None
        if oldest_step >= 0:
            oldest[rank] = oldest_step
    return ranks, oldest


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _summaries(folder: Path) -> tuple[Array, Array]:
    query = f"select {', '.join(layout.SUMMARY_TYPES)} from read_parquet(?)"
    found = store_database.read(query, [folder / layout.SUMMARIES], layout.SUMMARY_TYPES)
    table = np.zeros(len(found["rank"]), SUMMARY)
    for column, (name, cell) in layout.SUMMARY_CELLS.items():
        table[name][(slice(None), *cell)] = found[column]
    return table, found["rank"]
