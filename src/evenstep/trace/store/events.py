"""Records of a stored run, left in their Parquet files and read on demand.

Like the table of `evenstep.trace.spooled`, rows are in order of rank and sequence, whatever the
order in the files. Only the columns and steps that are needed are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace import spooled
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.store import database as store_database
from evenstep.trace.store.layout import Manifest, StoredPart
from evenstep.trace.trace import ByKind, EventTable

FEW = 8_000_000  # rows of a table whose selections are read column by column, through its cache


class StoredEvents(spooled.OnDisk):
    """All records of some kinds."""

    __slots__ = ("_folder", "_kinds", "_manifest", "_parts")

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        kinds: Sequence[Kind],
        oldest: Mapping[int, int],
    ) -> None:
        length = sum(part.counts.get(int(kind), 0) for part in manifest.parts for kind in kinds)
        super().__init__(length, manifest.steps, oldest, on_device=manifest.on_device)
        self._folder, self._manifest = folder, manifest
        self._parts, self._kinds = list(manifest.parts), tuple(kinds)

    def __getitem__(self, name: str) -> Array:
        if name not in spooled.EVENT_COLUMNS:
            raise KeyError(name)
        if name in self._cache:
            return self._cache[name]
        found = self._alike(name)
        if found is None:
            found = self._whole([name])[name]
            if len(found) and found[0] == found[-1] and (found == found[0]).all():  # one value
                found = np.broadcast_to(found[0], found.shape)
        if found.strides == (0,) or found.nbytes <= spooled.KEPT_BYTES:
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
        rows = spooled.row_numbers(which, self._length)
        if not len(rows):
            return spooled.empty(spooled.EVENT_COLUMNS)
        return Picked(self, rows) if self._length <= FEW else self._picked(rows)

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """Records of steps [first, last), of each wanted kind with the columns named for it."""
        parts = [part for part in self._parts if part.overlaps(first, last)]
        cut = any(part.first_step < first or part.last_step >= last for part in parts)
        where = f" and step >= {int(first)} and step < {int(last)}" if cut else ""
        return ByKind({k: self._read(parts, [k], ("rank", *wanted[k]), where) for k in wanted})

    def in_memory(self) -> Columns:
        return self._whole(spooled.EVENT_COLUMNS)

    def step_numbers(self) -> Array:
        if not self._parts:
            return np.zeros(0, np.int64)
        query = "select distinct step from read_parquet(?) order by step"
        files = [self._folder / part.file for part in self._parts]
        return store_database.read(query, files, spooled.EVENT_TYPES)["step"].astype(np.int64)

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
            return np.broadcast_to(np.array(values.pop(), spooled.EVENT_TYPES[name]), self._length)
        except OverflowError:
            what = f"{self._folder}: store.json is damaged"
            raise TraceError(f"{what}; store the run again") from None

    def _whole(self, names: Sequence[str]) -> Columns:
        found = [self._read(block, self._kinds, names) for block in self._blocks()]
        return Columns.concatenate([spooled.empty(names), *found])

    def _blocks(self) -> list[list[StoredPart]]:
        """Files by block, in order of rank; one list of all if the blocks' ranks interleave."""
        blocks: dict[int, list[StoredPart]] = {}
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
        parts: Sequence[StoredPart],
        kinds: Sequence[Kind],
        names: Sequence[str],
        where: str = "",
    ) -> Columns:
        """Columns of records of these kinds in these files, in order of rank and sequence."""
        parts = [part for part in parts if any(part.counts.get(int(kind)) for kind in kinds)]
        if not parts:
            return spooled.empty(names)
        taken = ", ".join(f'"{name}"' for name in dict.fromkeys(("rank", "seq", *names)))
        among = ", ".join(str(int(kind)) for kind in kinds)
        query = f"select {taken} from read_parquet(?) where kind in ({among}){where}"
        files = [self._folder / part.file for part in parts]
        found = store_database.read(query, files, spooled.EVENT_TYPES)
        order = _order(found["rank"], found["seq"])
        return Columns({n: found[n] if order is None else found[n][order] for n in names})

    def _picked(self, rows: Array) -> Columns:
        """Read a few of very many rows, found by their rank and sequence."""
        rows, again = np.unique(rows, return_inverse=True)  # in order of rank and sequence
        identity = np.stack([self["rank"][rows], self["seq"][rows]]).astype(np.int64)
        taken = ", ".join(f'e."{name}"' for name in spooled.EVENT_COLUMNS)
        found = store_database.read(
            f"select {taken} from read_parquet(?) e semi join wanted w "
            "on w.rank = e.rank and w.seq = e.seq",
            [self._folder / part.file for part in self._parts],
            spooled.EVENT_TYPES,
            wanted={"rank": identity[0], "seq": identity[1]},
        )
        order = np.lexsort([found["seq"], found["rank"]])[again]
        return Columns({name: found[name][order] for name in spooled.EVENT_COLUMNS})


class Picked(EventTable):
    """Some rows of a table on disk, read column by column on demand."""

    __slots__ = ("_of", "_rows")

    def __init__(self, of: StoredEvents, rows: Array) -> None:
        super().__init__({})
        self._of, self._rows = of, rows
        self._length = len(rows)

    def __iter__(self) -> Iterator[str]:
        return iter(spooled.EVENT_COLUMNS)

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = self._of[name][self._rows]
        return self._arrays[name]

    def select(self, which: Array | slice) -> Columns:
        return Picked(self._of, self._rows[which])

    def with_column(self, name: str, array: Array) -> Columns:
        return Columns({each: self[each] for each in spooled.EVENT_COLUMNS} | {name: array})


def _order(rank: Array, seq: Array) -> Array | None:
    """Index array that sorts rows by rank and sequence; None if they are sorted."""
    if _ascending(rank, seq):
        return None
    order = np.argsort(rank, kind="stable")
    if _ascending(rank[order], seq[order]):
        return order
    return np.lexsort([seq, rank])


def _ascending(rank: Array, seq: Array) -> bool:
    same = rank[1:] == rank[:-1]
    return bool((rank[1:] >= rank[:-1]).all() and (seq[1:] >= seq[:-1])[same].all())
