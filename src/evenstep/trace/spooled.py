"""Records of a large run, left in their spools and read when they are asked for.

A thousand ranks leave gigabytes. Diagnosis needs them a stretch of steps at a time, and all of a
few rare kinds; so each spool is surveyed once (which steps lie where, how many of each kind), the
rare kinds are kept, and everything else is read again from the file. `Spooled` is a table like any
other: a column asked for is read whole, rows selected are read alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.cores import each
from evenstep.trace.reader import CHUNK, RECORD, Ring
from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.spools import BULK, NO_STEPS, StepIndex

Array = npt.NDArray[Any]

#: Columns of `Trace.events`: the record's own (see `layout.RECORD_FIELDS`) and the rank.
EVENT_COLUMNS: tuple[str, ...] = ("rank", *(name for name, _ in layout.RECORD_FIELDS))

LIGHT = ("op", "flags", "group", "step")  # asked for of many records: read together, and kept
KEPT_BYTES = 64 << 20  # any other column up to this size is kept once it was read
STRETCHES = 16  # of ranks, whose columns are read side by side


class RankRows(NamedTuple):
    """A rank's share of the table."""

    rank: int
    group_map: Array  # from the rank's own table of groups to the trace's
    name_map: Array
    ring: Ring = Ring(Path(), 0, 0, settled=True)  # where it lies: nowhere, if it is in memory
    where: StepIndex = NO_STEPS
    counts: Array = np.zeros(256, np.int64)
    shift: int = 0  # added to its step numbers

    @property
    def oldest_step(self) -> int:
        """Step of its first record: the last of those that have no other before them."""
        where = self.where
        return int(where.steps[where.first == where.first[0]].max()) + self.shift

    def chunks(self, kinds: Array) -> Iterator[Array]:
        """Its records of these kinds, in order."""
        if not len(self.where.steps) or not self.counts[kinds].any():
            return
        first, end = int(self.where.first[0]), int(self.where.end.max())
        for begin in range(first, end, CHUNK):
            data = self.ring.between(begin, min(begin + CHUNK, end))
            yield data[kinds[data["kind"]]]

    def table(self, records: Array, names: Sequence[str]) -> Columns:
        """Some of its records as a table, with the numbers that all ranks share."""
        return _table([self], np.zeros(len(records), np.intp), records, slice(None), names)


class ByKind(Columns):
    """Events sorted out by kind, each kind with the columns that are needed of it.

    Columns are those of a kind: ask for the kind first.
    """

    __slots__ = ("_tables",)

    def __init__(self, tables: Mapping[Kind, Columns]) -> None:
        super().__init__({})
        self._tables = dict(tables)
        self._length = sum(len(table) for table in tables.values())

    def of_kind(self, *kinds: Kind) -> Columns:
        """The rows of these kinds."""
        tables = [self._tables[kind] for kind in kinds]
        return tables[0] if len(tables) == 1 else Columns.concatenate(tables)


class OnDisk(Columns):
    """A table of records too large to hold: what a trace asks of it, wherever it lies."""

    __slots__ = ("_cache", "_oldest", "_steps", "_views", "on_device")

    def __init__(
        self, length: int, steps: int, oldest: Mapping[int, int], *, on_device: bool
    ) -> None:
        super().__init__({})
        self._length = length
        self._steps = steps  # that it has records of
        self._oldest = oldest
        self._cache: dict[str, Array] = {}
        self._views: dict[tuple[int, ...], OnDisk] = {}
        self.on_device = on_device  # some collectives ran on a device

    def __iter__(self) -> Iterator[str]:
        return iter(EVENT_COLUMNS)

    def of_kind(self, *kinds: Kind) -> Columns:
        """The rows of these kinds."""
        raise NotImplementedError

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """The records of the steps from `first`, before `last`: of each kind some columns."""
        raise NotImplementedError

    def step_numbers(self) -> Array:
        """Every step there is a record of, ascending."""
        raise NotImplementedError

    def oldest_steps(self) -> dict[int, int]:
        """Step of the first record that each rank still has."""
        return dict(self._oldest)

    def per_step(self) -> float:
        """Records of a step, all ranks together: about how many."""
        return self._length / max(self._steps, 1)

    def flagged(self, kind: Kind, flag: Flag) -> bool:
        """Whether any record of a kind has a flag."""
        return bool(((self.of_kind(kind).flags & int(flag)) != 0).any())

    def held(self) -> Columns:
        """All of it, in memory."""
        return self.select(slice(None))

    def with_column(self, name: str, array: Array) -> Columns:
        """A table in memory with one column added or replaced."""
        return self.held().with_column(name, array)


class Spooled(OnDisk):
    """The table of all ranks' records in their spools, in order of rank and sequence."""

    __slots__ = ("_flags", "_held", "_kinds", "_parts", "_starts")

    def __init__(
        self, parts: Sequence[RankRows], held: Columns, kinds: Array, flags: Array
    ) -> None:
        sizes = [int(part.counts[kinds].sum()) for part in parts]
        super().__init__(
            sum(sizes),
            max((len(part.where.steps) for part in parts), default=0),
            {part.rank: part.oldest_step for part in parts if len(part.where.steps)},
            on_device=bool(flags[int(Kind.COLLECTIVE)] & int(Flag.ON_DEVICE)),
        )
        self._parts = list(parts)
        self._held = held  # all records of the kinds that are not `BULK`
        self._kinds = kinds  # mask by code: the kinds this table shows
        self._flags = flags  # all that any record of a kind has, by its code
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __getitem__(self, name: str) -> Array:
        if name not in EVENT_COLUMNS:
            raise KeyError(name)
        if name == "rank":
            ranks = np.array([part.rank for part in self._parts], np.int32)
            return np.repeat(ranks, np.diff(self._starts))
        if name not in self._cache:
            found = self._read(LIGHT if name in LIGHT else (name,))
            if name not in LIGHT and found[name].nbytes > KEPT_BYTES:
                return found[name]
            self._cache |= found
        return self._cache[name]

    def _read(self, names: Sequence[str]) -> dict[str, Array]:
        """Whole columns, from all files; several in one go."""
        each_of = -(-len(self._parts) // STRETCHES)
        stretches = [self._parts[i : i + each_of] for i in range(0, len(self._parts), each_of)]
        found = each(lambda parts: self._columns_of(parts, names), stretches)
        return {name: np.concatenate([columns[name] for columns in found]) for name in names}

    def _columns_of(self, parts: Sequence[RankRows], names: Sequence[str]) -> dict[str, Array]:
        pieces: dict[str, list[Array]] = {name: [empty([name])[name]] for name in names}
        for part in parts:
            for records in part.chunks(self._kinds):
                table = part.table(records, names)
                for name in names:
                    pieces[name].append(table[name])
        return {name: np.concatenate(arrays) for name, arrays in pieces.items()}

    def of_kind(self, *kinds: Kind) -> Columns:
        """The rows of these kinds: at hand for rare ones, else left on disk."""
        if not set(kinds) & BULK:
            return self._held.select(np.isin(self._held.kind, [int(kind) for kind in kinds]))
        key = tuple(sorted({int(kind) for kind in kinds}))
        if key not in self._views:
            wanted = np.zeros(256, bool)
            wanted[list(key)] = self._kinds[list(key)]
            view = Spooled(self._parts, self._held, wanted, self._flags)
            self._views[key] = view
        return self._views[key]

    def select(self, which: Array | slice) -> Columns:
        """The rows picked by a mask, an index array or a slice, read from the files."""
        rows = row_numbers(which, self._length)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        tables = [empty(EVENT_COLUMNS)]
        for part, first, end in zip(self._parts, self._starts, self._starts[1:], strict=False):
            begin, stop = np.searchsorted(ascending, [first, end])
            if begin < stop:
                tables.append(self._picked(part, ascending[begin:stop] - first))
        table = Columns.concatenate(tables)
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        return table.select(place)

    def _picked(self, part: RankRows, rows: Array) -> Columns:
        tables, passed = [empty(EVENT_COLUMNS)], 0
        for records in part.chunks(self._kinds):
            begin, stop = np.searchsorted(rows, [passed, passed + len(records)])
            if begin < stop:
                tables.append(part.table(records[rows[begin:stop] - passed], EVENT_COLUMNS))
            passed += len(records)
        return Columns.concatenate(tables)

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """The records of the steps from `first`, before `last`: of each kind some columns."""
        tables: dict[Kind, list[Columns]] = {
            kind: [empty(["rank", *names])] for kind, names in wanted.items()
        }
        batch: list[tuple[RankRows, Array]] = []
        gathered = 0
        for part in self._parts:
            begin, end = part.where.span(first - part.shift, last - part.shift)
            if begin < end:
                batch.append((part, part.ring.between(begin, end)))
                gathered += len(batch[-1][1])
            if gathered >= CHUNK or part is self._parts[-1]:
                for kind, table in _sorted_out(batch, first, last, wanted):
                    tables[kind].append(table)
                batch, gathered = [], 0
        return ByKind({kind: Columns.concatenate(parts) for kind, parts in tables.items()})

    def flagged(self, kind: Kind, flag: Flag) -> bool:
        """Whether any record of a kind has a flag: told when they were surveyed."""
        return bool(self._flags[int(kind)] & int(flag))

    def step_numbers(self) -> Array:
        """Every step there is a record of, ascending."""
        steps = [part.where.steps + part.shift for part in self._parts]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *steps]))


def _sorted_out(
    batch: Sequence[tuple[RankRows, Array]],
    first: int,
    last: int,
    wanted: Mapping[Kind, Sequence[str]],
) -> Iterator[tuple[Kind, Columns]]:
    """The records of some ranks by kind, as far as they belong to these steps."""
    if not batch:
        return
    whole = np.dtype(("V", layout.RECORD_BYTES))  # else numpy copies field by field
    records = np.concatenate([rows.view(whole) for _, rows in batch]).view(RECORD)
    owner = np.repeat(np.arange(len(batch)), [len(rows) for _, rows in batch])
    parts = [part for part, _ in batch]
    shifts = np.array([part.shift for part in parts])
    steps = records["step"] + shifts[owner] if shifts.any() else records["step"]
    inside, kinds = (steps >= first) & (steps < last), records["kind"]
    for kind, names in wanted.items():
        rows = np.flatnonzero(inside & (kinds == int(kind)))
        if len(rows):
            yield kind, _table(parts, owner[rows], records, rows, ["rank", *names])


def _table(
    parts: Sequence[RankRows], owner: Array, records: Array, rows: Array | slice,
    names: Sequence[str],
) -> Columns:  # fmt: skip
    """Some records of several ranks as a table; `owner` tells whose each row is."""
    found: dict[str, Array] = {}
    for name in names:
        if name == "rank":
            found[name] = np.array([part.rank for part in parts], np.int32)[owner]
        elif name == "group":
            maps = [part.group_map for part in parts]
            found[name] = _mapped(maps, owner, records[name][rows], -1)
        elif name == "name":
            maps = [part.name_map for part in parts]
            found[name] = _mapped(maps, owner, records[name][rows], 0)
        else:
            found[name] = np.ascontiguousarray(records[name][rows])
    shifts = np.array([part.shift for part in parts], np.uint32)
    if "step" in found and shifts.any():
        found["step"] = found["step"] + shifts[owner]
    return Columns(found)


def _mapped(tables: Sequence[Array], owner: Array, index: Array, missing: int) -> Array:
    """Entries of the owners' tables, `missing` where they have none."""
    sizes = np.array([len(table) for table in tables])
    begins = np.cumsum(sizes) - sizes
    known = index < sizes[owner]
    place = np.where(known, begins[owner] + index, 0)
    return np.where(known, np.concatenate(tables)[place], missing).astype(np.int32)


def empty(names: Sequence[str]) -> Columns:
    """A table of these columns without a row."""
    own = ("rank", "group", "name")
    return Columns({name: np.zeros(0, np.int32 if name in own else RECORD[name]) for name in names})


def row_numbers(which: Array | slice, length: int) -> Array:
    """The places that a mask, an index array or a slice picks."""
    if isinstance(which, slice):
        return np.arange(*which.indices(length))
    if which.dtype == bool:
        return np.flatnonzero(which)
    return np.where(which < 0, which + length, which)
