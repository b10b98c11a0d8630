"""Read a store as a trace: a small one into memory, the records of a large one left on disk.

Like the table of `evenstep.trace.spooled`, that of a store is in order of rank and sequence,
whatever the order in its files. Only the columns and steps that are needed are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace import facts as shapes
from evenstep.trace.columns import Array, Chosen, Columns
from evenstep.trace.ranks import MOST_MEMBERS, MOST_RANKS, parse_ranks
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import (
    EVENT_COLUMNS,
    EVENT_TYPES,
    KEPT_BYTES,
    OnDisk,
    empty,
    row_numbers,
)
from evenstep.trace.spools import LARGE_RECORDS
from evenstep.trace.store import layout
from evenstep.trace.trace import ByKind, EventTable, Group, RankInfo, Trace

_IN_ORDER = " order by rank, seq"
FEW = 8_000_000  # rows of a table whose selections are read column by column, through its cache


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
    found = layout.read(query, [folder / layout.RANKS], layout.RANK_TYPES)
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
    found = layout.read(query, [folder / layout.SUMMARIES], layout.SUMMARY_TYPES)
    table = np.zeros(len(found["rank"]), SUMMARY)
    for column, (name, cell) in layout.SUMMARY_CELLS.items():
        table[name][(slice(None), *cell)] = found[column]
    return table, found["rank"]


# -- records ---------------------------------------------------------------------------------------


class StoredEvents(OnDisk):
    """All records of some kinds."""

    __slots__ = ("_folder", "_kinds", "_manifest", "_parts")

    def __init__(
        self,
        folder: Path,
        manifest: layout.Manifest,
        kinds: Sequence[Kind],
        oldest: Mapping[int, int],
    ) -> None:
        length = sum(part.counts.get(int(kind), 0) for part in manifest.parts for kind in kinds)
        super().__init__(length, manifest.steps, oldest, on_device=manifest.on_device)
        self._folder, self._manifest = folder, manifest
        self._parts, self._kinds = list(manifest.parts), tuple(kinds)

    def __getitem__(self, name: str) -> Array:
        if name not in EVENT_COLUMNS:
            raise KeyError(name)
        if name in self._cache:
            return self._cache[name]
        found = self._alike(name)
        if found is None:
            found = self._whole([name])[name]
            if len(found) and found[0] == found[-1] and (found == found[0]).all():  # one value
                found = np.broadcast_to(found[0], found.shape)
        if found.strides == (0,) or found.nbytes <= KEPT_BYTES:
            self._cache[name] = found
        return found

    def of_kind(self, *kinds: Kind) -> Columns:
        key = tuple(sorted(set(kinds) & set(self._kinds)))
        if key not in self._views:
            parts = [part for part in self._parts if any(part.counts.get(int(k)) for k in key)]
            manifest = replace(self._manifest, parts=parts)
            self._views[key] = StoredEvents(self._folder, manifest, key, self._oldest)
        return self._views[key]

    def select(self, which: Array | slice) -> Columns:
        rows = row_numbers(which, self._length)
        if not len(rows):
            return empty(EVENT_COLUMNS)
        if self._length > FEW:
            return self._picked(rows)
        return EventTable({n: Chosen(partial(self.__getitem__, n), rows) for n in EVENT_COLUMNS})

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """Records of steps [first, last), of each wanted kind with the columns named for it."""
        parts = [part for part in self._parts if part.overlaps(first, last)]
        cut = any(part.first_step < first or part.last_step >= last for part in parts)
        where = f" and step >= {int(first)} and step < {int(last)}" if cut else ""
        return ByKind({k: self._read(parts, [k], ("rank", *wanted[k]), where) for k in wanted})

    def in_memory(self) -> Columns:
        return self._whole((*EVENT_COLUMNS, *self._manifest.of_hosts))

    def step_numbers(self) -> Array:
        if not self._parts:
            return np.zeros(0, np.int64)
        query = "select distinct step from read_parquet(?) order by step"
        files = [self._folder / part.file for part in self._parts]
        return layout.read(query, files, EVENT_TYPES)["step"].astype(np.int64)

    # -- reading -------------------------------------------------------------------------------

    def _alike(self, name: str) -> Array | None:
        """A column of a single value, known from the manifest, without its memory; else None."""
        values = {
            part.alike.get(int(kind), {}).get(name)
            for part in self._parts
            for kind in self._kinds
            if part.counts.get(int(kind))
        }
        if len(values) != 1 or None in values:
            return None
        try:
            return np.broadcast_to(np.array(values.pop(), EVENT_TYPES[name]), self._length)
        except OverflowError:
            what = f"{self._folder}: store.json is damaged"
            raise TraceError(f"{what}; store the run again") from None

    def _whole(self, names: Sequence[str]) -> Columns:
        found = [self._read(block, self._kinds, names) for block in self._blocks()]
        return Columns.concatenate([empty(names), *found])

    def _blocks(self) -> list[list[layout.StoredPart]]:
        """Files by block, in order of rank; one list of all if the blocks' ranks interleave."""
        blocks: dict[int, list[layout.StoredPart]] = {}
        for part in self._parts:
            blocks.setdefault(part.block, []).append(part)
        reach = sorted(
            (min(p.first_rank for p in block), max(p.last_rank for p in block), number)
            for number, block in blocks.items()
        )
        apart = all(one[1] < other[0] for one, other in pairwise(reach))
        return [blocks[number] for *_, number in reach] if apart else [self._parts]

    def _read(
        self,
        parts: Sequence[layout.StoredPart],
        kinds: Sequence[Kind],
        names: Sequence[str],
        where: str = "",
    ) -> Columns:
        """Columns of records of these kinds in these files, in order of rank and sequence."""
        parts = [part for part in parts if any(part.counts.get(int(kind)) for kind in kinds)]
        if not parts:
            return empty(names)
        taken = ", ".join(f'"{name}"' for name in dict.fromkeys(names))
        among = ", ".join(str(int(kind)) for kind in kinds)
        query = f"select {taken} from read_parquet(?) where kind in ({among}){where}{_IN_ORDER}"
        files = [self._folder / part.file for part in parts]
        return Columns(layout.read(query, files, EVENT_TYPES))

    def _picked(self, rows: Array) -> Columns:
        """Read a few of very many rows, found by their rank and sequence."""
        rows, again = np.unique(rows, return_inverse=True)  # in order of rank and sequence
        identity = np.stack([self["rank"][rows], self["seq"][rows]]).astype(np.int64)
        taken = ", ".join(f'e."{name}"' for name in EVENT_COLUMNS)
        found = layout.read(
            f"select {taken} from read_parquet(?) e semi join wanted w "
            f"on w.rank = e.rank and w.seq = e.seq{_IN_ORDER}",
            [self._folder / part.file for part in self._parts],
            EVENT_TYPES,
            wanted={"rank": identity[0], "seq": identity[1]},
        )
        return Columns(found).select(again)
