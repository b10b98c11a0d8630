"""A store becomes a trace again: small ones in memory, large ones left in their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError
from evenstep.trace.ranks import MOST_MEMBERS, parse_ranks
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spools import LARGE_RECORDS
from evenstep.trace.store import database as store_database
from evenstep.trace.store.events import StoredEvents
from evenstep.trace.store.layout import RANKS, SUMMARIES, Manifest, read_manifest
from evenstep.trace.trace import Group, RankInfo, Trace

Array = npt.NDArray[Any]


def load_store(folder: Path, *, attempt: int | None = None) -> Trace:
    """Read a store. Raises `TraceError` where it is damaged or holds another attempt."""
    manifest = read_manifest(folder)
    if attempt not in (None, manifest.attempt):
        raise TraceError(f"{folder} has no attempt {attempt}; it holds attempt {manifest.attempt}")
    groups = groups_of(manifest)
    ranks, oldest = _ranks(folder)
    events = StoredEvents(
        folder,
        manifest.parts,
        tuple(Kind),
        oldest,
        steps=manifest.steps,
        on_device=manifest.on_device,
    )
    summaries, summary_rank = _summaries(folder)
    few = len(events) <= LARGE_RECORDS
    return Trace(
        run=manifest.run,
        world=manifest.world,
        attempt=manifest.attempt,
        ranks=ranks,
        events=events.held() if few else events,
        groups=groups,
        names=tuple(manifest.names),
        summaries=summaries,
        summary_rank=summary_rank,
        limits=list(manifest.limits),
    )


def groups_of(manifest: Manifest) -> tuple[Group, ...]:
    """The process groups of a store. Raises `TraceError` where their ranks are none."""
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


def _ranks(folder: Path) -> tuple[dict[int, RankInfo], dict[int, int]]:
    """The ranks, and the step of the first record of each that has some."""
    columns = "rank, identity, facts, closed, dropped, oldest_step"
    query = f"select {columns} from read_parquet(?) order by rank"
    found = store_database.read(query, [folder / RANKS])
    ranks, oldest = {}, {}
    for index, rank in enumerate(found["rank"].tolist()):
        identity, facts = (_table(found[name][index], folder) for name in ("identity", "facts"))
        closed, dropped = bool(found["closed"][index]), int(found["dropped"][index])
        ranks[rank] = RankInfo(rank, identity, facts, closed, dropped)
        if found["oldest_step"][index] >= 0:
            oldest[rank] = int(found["oldest_step"][index])
    return ranks, oldest


def _table(text: str, folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TraceError(f"{folder / RANKS} is damaged; store the run again")
    return found


def _summaries(folder: Path) -> tuple[Array, Array]:
    found = store_database.read("select * from read_parquet(?)", [folder / SUMMARIES])
    table = np.zeros(len(found["rank"]), SUMMARY)
    for name in SUMMARY.names or ():
        if SUMMARY[name].shape:
            for index in range(SUMMARY[name].shape[0]):
                table[name][:, index] = found[f"{name}_{index}"]
        else:
            table[name] = found[name]
    return table, found["rank"].astype(np.int32)
