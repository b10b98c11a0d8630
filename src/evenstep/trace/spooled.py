"""Records of a large run, left in their spools and read on demand.

A thousand ranks leave gigabytes. Diagnosis needs a window of steps at a time, and all records of a
few rare kinds; so each spool is surveyed once (where each step lies, how many records of each
kind), the rare kinds are kept, and the rest is read from the file on demand. `Spooled` is used like
any table: reading a column reads all of it, selecting rows reads only these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace.columns import Array, Columns
from evenstep.trace.cores import map_on_cores
from evenstep.trace.reader import CHUNK, RECORD, Ring
from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.spools import BULK, NO_STEPS, StepIndex
from evenstep.trace.trace import ByKind, EventTable

_NUMBERS = dict.fromkeys(("rank", "group", "name"), np.dtype(np.int32))
#: Columns of `Trace.events` and their types: the rank, and the fields of a record.
EVENT_TYPES = _NUMBERS | {name: RECORD[name] for name, _ in layout.RECORD_FIELDS} | _NUMBERS
#: Columns of profiles: when the host issued a device's call, and when it last was blocked before; 0
#: where that is not known.
OfHosts = Literal["issued_ns", "freed_ns"]
OF_HOSTS: tuple[OfHosts, ...] = get_args(OfHosts)
EVENT_TYPES |= dict.fromkeys(OF_HOSTS, np.dtype(np.int64))
EVENT_COLUMNS: tuple[str, ...] = ("rank", *(name for name, _ in layout.RECORD_FIELDS))
#: Values that stand for none, of columns in which 0 does not.
NONE_VALUES = {"peer_or_root": layout.NO_PEER, "device": layout.HOST_DEVICE, "group": -1}

LIGHT = ("op", "flags", "group", "step")  # often read for all records: read together, and cached
KEPT_BYTES = 64 << 20  # any other column up to this size is cached
STRETCHES = 16  # batches of ranks whose columns are read in parallel


class RankRows(NamedTuple):
    """One rank's rows of the table."""

    rank: int
    group_map: Array  # index in the rank's table of groups to index in the trace's
    name_map: Array
    ring: Ring = Ring(Path(), 0, 0, settled=True)  # empty where the records are in memory
    where: StepIndex = NO_STEPS
    counts: Array = np.zeros(256, np.int64)  # records of each kind, by its code
    shift: int = 0  # added to the rank's step numbers

    @property
    def oldest_step(self) -> int:
        """Step of the oldest record: the highest of the steps whose range begins with it."""
        where = self.where
        return int(where.steps[where.first == where.first[0]].max()) + self.shift

    def chunks(self, kinds: Array) -> Iterator[Array]:
        """Records of these kinds (a mask by code), in order of sequence. Raises `TraceError` if a
        live rank has overwritten some since the survey."""
        if not len(self.where.steps) or not self.counts[kinds].any():
            return
        first, end = int(self.where.first[0]), int(self.where.end.max())
        left = int(self.counts[kinds].sum())
        for begin in range(first, end, CHUNK):
            data = self.ring.between(begin, min(begin + CHUNK, end))
            chosen = data[kinds[data["kind"]]]
            left -= len(chosen)
            yield chosen
        if left:
            what = f"{self.ring.path} was written to while it was read"
            raise TraceError(f"{what}; give a copy of the folder")

    def table(self, records: Array, names: Sequence[str]) -> Columns:
        """Records of this rank as a table, with the trace's group, name and step numbers."""
        return _table([self], np.zeros(len(records), np.intp), records, slice(None), names)


class OnDisk(EventTable):
    """A table of events too large for memory, however it is stored."""

    __slots__ = ("_cache", "_oldest", "_steps", "_views", "on_device")

    def __init__(
        self, length: int, steps: int, oldest: Mapping[int, int], *, on_device: bool
    ) -> None:
        super().__init__({})
        self._length = length
        self._steps = steps  # number of steps with records
        self._oldest = oldest  # step of each rank's oldest record
        self._cache: dict[str, Array] = {}
        self._views: dict[tuple[int, ...], OnDisk] = {}
        self.on_device = on_device  # some collectives ran on a device

    def __iter__(self) -> Iterator[str]:
        return iter(EVENT_COLUMNS)

    def oldest_steps(self) -> dict[int, int]:
        return dict(self._oldest)

    def per_step(self) -> float:
        return self._length / max(self._steps, 1)

    def in_memory(self) -> Columns:
        return self.select(slice(None))

    def with_columns(self, **arrays: Array) -> Columns:
        """Read the whole table, and add or replace columns."""
        return self.in_memory().with_columns(**arrays)


class Spooled(OnDisk):
    """The table of all ranks' records in their spools, in order of rank and sequence."""

    __slots__ = ("_flags", "_kinds", "_parts", "_rare", "_starts")

    def __init__(
        self, parts: Sequence[RankRows], rare: Columns, kinds: Array, flags: Array
    ) -> None:
        sizes = [int(part.counts[kinds].sum()) for part in parts]
        super().__init__(
            sum(sizes),
            max((len(part.where.steps) for part in parts), default=0),
            {part.rank: part.oldest_step for part in parts if len(part.where.steps)},
            on_device=bool(flags[int(Kind.COLLECTIVE)] & int(Flag.ON_DEVICE)),
        )
        self._parts = list(parts)
        self._rare = rare  # all records of the kinds that are not `BULK`
        self._kinds = kinds  # mask by code: the kinds of this table
        self._flags = flags  # union of the flags of a kind's records, by its code
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
        """Read whole columns from all spools in one pass."""
        each_of = -(-len(self._parts) // STRETCHES)
        stretches = [self._parts[i : i + each_of] for i in range(0, len(self._parts), each_of)]
        found = map_on_cores(lambda parts: self._columns_of(parts, names), stretches)
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
        """Select rows of these kinds: from memory if all are rare, else left on disk."""
        if not set(kinds) & BULK:
            return EventTable.of(self._rare).of_kind(*kinds)
        key = tuple(sorted({int(kind) for kind in kinds}))
        if key not in self._views:
            wanted = np.zeros(256, bool)
            wanted[list(key)] = self._kinds[list(key)]
            self._views[key] = Spooled(self._parts, self._rare, wanted, self._flags)
        return self._views[key]

    def select(self, which: Array | slice) -> Columns:
        rows = row_numbers(which, self._length)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        tables = [empty(EVENT_COLUMNS)]
        for part, first, end in zip(self._parts, self._starts, self._starts[1:], strict=False):
            begin, stop = np.searchsorted(ascending, [first, end])
            if begin < stop:
                tables.append(self._picked(part, ascending[begin:stop] - first))
        return Columns.concatenate(tables).select(np.argsort(order))

    def _picked(self, part: RankRows, rows: Array) -> Columns:
        tables, passed = [empty(EVENT_COLUMNS)], 0
        for records in part.chunks(self._kinds):
            begin, stop = np.searchsorted(rows, [passed, passed + len(records)])
            if begin < stop:
                tables.append(part.table(records[rows[begin:stop] - passed], EVENT_COLUMNS))
            passed += len(records)
        return Columns.concatenate(tables)

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """Records of steps [first, last), of each wanted kind with the columns named for it."""
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
                for kind, table in _by_kind(batch, first, last, wanted):
                    tables[kind].append(table)
                batch, gathered = [], 0
        return ByKind({kind: Columns.concatenate(parts) for kind, parts in tables.items()})

    def flagged(self, kind: Kind, flag: Flag) -> bool:
        """Whether any record of a kind has a flag, known from the survey."""
        return bool(self._flags[int(kind)] & int(flag))

    def step_numbers(self) -> Array:
        steps = [part.where.steps + part.shift for part in self._parts]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *steps]))


def _by_kind(
    batch: Sequence[tuple[RankRows, Array]],
    first: int,
    last: int,
    wanted: Mapping[Kind, Sequence[str]],
) -> Iterator[tuple[Kind, Columns]]:
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
    """Records of several ranks as a table; `owner` is each row's index in `parts`."""
    found: dict[str, Array] = {}
    for name in names:
        if name == "rank":
            found[name] = np.array([part.rank for part in parts], np.int32)[owner]
        elif name in ("group", "name"):
            maps = [part.group_map if name == "group" else part.name_map for part in parts]
            found[name] = _look_up(maps, owner, records[name][rows], NONE_VALUES.get(name, 0))
        else:
            found[name] = np.ascontiguousarray(records[name][rows])
    shifts = np.array([part.shift for part in parts], np.uint32)
    if "step" in found and shifts.any():
        found["step"] = found["step"] + shifts[owner]
    return Columns(found)


def _look_up(tables: Sequence[Array], owner: Array, index: Array, missing: int) -> Array:
    """Look each row's index up in its owner's table; `missing` where the table is shorter."""
    sizes = np.array([len(table) for table in tables])
    begins = np.cumsum(sizes) - sizes
    known = index < sizes[owner]
    place = np.where(known, begins[owner] + index, 0)
    return np.where(known, np.concatenate(tables)[place], missing).astype(np.int32)


def empty(names: Sequence[str]) -> Columns:
    """A table of these columns with no rows."""
    return Columns({name: np.zeros(0, EVENT_TYPES[name]) for name in names})


def row_numbers(which: Array | slice, length: int) -> Array:
    """Row numbers selected by a mask, an index array or a slice."""
    if isinstance(which, slice):
        return np.arange(*which.indices(length))
    if which.dtype == bool:
        return np.flatnonzero(which)
    return np.where(which < 0, which + length, which)
