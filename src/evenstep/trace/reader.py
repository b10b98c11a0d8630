"""Read a spool file into arrays, whether its rank is alive, ended or was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import LayoutError, SpoolError, refuse_as
from evenstep.trace import facts
from evenstep.trace.columns import Array
from evenstep.trace.pack import Extent
from evenstep.trace.ranks import MOST_MEMBERS, MOST_RANKS, parse_ranks
from evenstep.trace.spool import layout, summary


def _pad(fields: Iterable[tuple[str, str]], itemsize: int) -> np.dtype[Any]:
    """A packed dtype followed by unused bytes up to `itemsize`."""
    names, formats = zip(*fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "itemsize": itemsize})


RECORD = _pad(layout.RECORD_FIELDS, layout.RECORD_BYTES)
SUMMARY = _pad(summary.SUMMARY_FIELDS, layout.SUMMARY_BYTES)

TIMES = ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns")
LONGEST_NS = 100 * 86_400 * 10**9  # a time farther from a ring's median time is damage
CHUNK = 16_384  # records read at a time: as many as the processor's cache holds
_NAME = layout.MAGIC[:7].decode()
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_IN_STEPS = [int(layout.Kind[n]) for n in ("STEP", "PHASE", "COLLECTIVE", "POINT_TO_POINT")]
SUMMARY_STRETCH = 64  # summaries examined together to find the last one written


@dataclass(slots=True)
class SpoolContents:
    """Everything one rank wrote. Records and summaries are in order of their start."""

    path: Path
    identity: dict[str, Any]
    records: Array  # dtype RECORD, ascending seq
    summaries: Array  # dtype SUMMARY, oldest first, no step twice
    names: dict[int, str] = field(default_factory=dict)
    groups: dict[int, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    dropped: int = 0  # records the ring has overwritten
    damage: str = ""  # what is wrong with the file, in words
    members: int = 0  # number of ranks of all groups together

    @property
    def rank(self) -> int:
        """Global rank of the writer."""
        return int(self.identity["rank"])

    @property
    def closed(self) -> bool:
        """Whether the rank ended its trace itself; False if it is alive or was killed."""
        return "closed" in self.facts


class Ring(NamedTuple):
    """The part of a spool's file that holds its records."""

    path: Path
    offset: int
    slots: int
    settled: bool  # no process writes to it any more
    damaged: frozenset[int] = frozenset()  # sequence numbers of records that are left out
    every: int = 1  # of one in so many windows of steps, records are read

    def chunks(self, records: int) -> Iterator[Array]:
        """Yield all whole records, `records` slots at a time, in order of slot (not sequence)."""
        for slot in range(0, self.slots, records):
            data = self._slots(slot, min(slot + records, self.slots))
            if not data["seq"].any():
                return  # slots fill in order: nothing was written beyond an empty chunk
            here = np.arange(slot, slot + len(data), dtype=np.uint64)
            if not (data["seq"] == here + np.uint64(1)).all():  # the ring has wrapped
                place = (data["seq"] - np.uint64(1)) % np.uint64(self.slots)
                data = data[(data["seq"] != 0) & (place == here)]
            if len(kept := self._in_windows(data)):
                yield kept

    def between(self, first: int, last: int) -> Array:
        """Whole records with sequence numbers [first, last), ascending."""
        begin, count = (first - 1) % self.slots, max(0, min(last - first, self.slots))
        end = begin + count
        data = self._slots(begin, min(end, self.slots))
        if end > self.slots:
            data = np.concatenate([data, self._slots(0, end - self.slots)])
        whole = (data["seq"] >= np.uint64(first)) & (data["seq"] < np.uint64(last))
        return self._in_windows(data if whole.all() else np.asarray(data[whole]))

    def _in_windows(self, data: Array) -> Array:
        if self.every == 1:
            return data
        return np.asarray(data[in_windows(data["kind"], data["step"], self.every)])

    def _slots(self, first: int, last: int) -> Array:
        """Copy slots [first, last); those written to during the copy get the number 0."""
        with self.path.open("rb", buffering=0) as file:
            data = _read_at(file.fileno(), self.offset, first, last)
            if not self.settled:
                again = _read_at(file.fileno(), self.offset, first, last)["seq"]
                data = data[: len(again)]
                data["seq"][data["seq"] != again[: len(data)]] = 0
        if self.damaged:
            data["seq"][np.isin(data["seq"], list(self.damaged))] = 0
        return data


def in_windows(kind: Array, step: Array, every: int) -> Array:
    """Mask of the records in windows that a rank with this `every` of its hooks recorded, and those
    that are no part of a step."""
    windows = step.astype(np.int64) // layout.WINDOW_STEPS
    recorded = (windows < layout.FIRST_WINDOWS) | (windows % every == 0)
    return np.asarray(recorded | ~np.isin(kind, _IN_STEPS))


def _read_at(file: int, offset: int, first: int, last: int) -> Array:
    """Slots [first, last) of a ring at `offset`, fewer where the file ends earlier."""
    data = np.empty(last - first, RECORD)
    start = offset + first * layout.RECORD_BYTES
    length = os.preadv(file, [data.view(np.uint8).data], start)
    return data[: length // layout.RECORD_BYTES]


def read_spool(path: Path | Extent) -> SpoolContents:
    """Read one spool, as far as it goes if it was cut short after its header (`damage`). Raises
    `LayoutError` for another version and `SpoolError` for what is no spool."""
    contents, ring = open_spool(path)
    records = in_order([np.empty(0, RECORD), *ring.chunks(CHUNK)])
    contents.records = records[timely(contents, {name: records[name] for name in TIMES})]
    if contents.records.size:
        contents.dropped = max(0, int(contents.records["seq"][-1]) - contents.records.size)
    return contents


def in_order(parts: Sequence[Array]) -> Array:
    """Concatenate records of one rank and sort them by sequence number."""
    records = np.concatenate(parts)
    return np.asarray(records[np.argsort(records["seq"], kind="stable")])


def open_spool(place: Path | Extent) -> tuple[SpoolContents, Ring]:
    """Read a spool except its records; the ring reads those. Raises like `read_spool`."""
    extent = place if isinstance(place, Extent) else Extent(place)
    path, data = extent.path, _bytes_of(extent)
    identity, regions = spool_header(path, bytes(data[: layout.PAGE_BYTES]))
    ring, capacity, first_summary, summaries, tables, tables_bytes = regions
    contents = SpoolContents(path, identity, np.empty(0, RECORD), np.empty(0, SUMMARY))
    end = ring + capacity * layout.RECORD_BYTES
    if len(data) < end:
        contents.damage = f"{path} is cut short: {len(data)} bytes of {end}"
    _read_tables(contents, data[tables : tables + tables_bytes])
    at = layout.HEARTBEAT_OFFSET
    if beat_ns := int.from_bytes(bytes(data[at : at + 8]), "little"):
        contents.facts["heartbeat_ns"] = beat_ns
    contents.summaries = _summaries(data[first_summary:], summaries)
    settled = contents.closed or bool(extent.name)
    return contents, Ring(extent.file, extent.offset + ring, capacity, settled=settled)


def _bytes_of(extent: Extent) -> Array:
    with refuse_as(SpoolError, f"cannot read {extent.path}"):
        if extent.file.stat().st_size <= extent.offset:  # nothing cannot be mapped
            return np.empty(0, np.uint8)
        return np.memmap(extent.file, np.uint8, "r", extent.offset)[: extent.size]


def spool_header(path: Path, head: bytes) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The identity in a header page, and the start and size of its ring (records), its summaries
    (records) and its tables (bytes); raises like `read_spool`."""
    if head[: len(layout.MAGIC)] != layout.MAGIC[: len(head)]:
        raise SpoolError(f"{path} is not a spool: it does not begin with {_NAME}")
    if len(head) < layout.PAGE_BYTES:
        raise SpoolError(f"{path} is cut short within its header: all that it recorded is lost")
    header: tuple[Any, ...] = layout.HEADER.unpack_from(head)
    if header[1] != layout.VERSION or header[3] != layout.RECORD_BYTES:
        raise LayoutError(
            f"{path} has record layout {header[1]}, this evenstep reads layout {layout.VERSION}; "
            "read it with the version that wrote it"
        )
    _, _, page, _, summary_bytes, *regions, length = header
    ring, _, first, summaries, tables, tables_bytes = regions
    # Every region begins where the one before ends: a flipped bit in any of these fields shows.
    ends = (tables + tables_bytes, first + summaries * layout.SUMMARY_BYTES)
    sizes = (page, tables, summary_bytes)
    if (first, ring) != ends or sizes != (layout.PAGE_BYTES,) * 2 + (layout.SUMMARY_BYTES,):
        raise SpoolError(f"{path}: the header is damaged: its regions do not meet")
    start = layout.HEADER_TEXT_OFFSET
    try:
        identity = json.loads(head[start : start + length])
        for number in (identity["rank"], identity.get("world", 1)):
            if type(number) is not int or not 0 <= number <= MOST_RANKS:
                raise ValueError(f"{number} is not a number of ranks")
    except _DAMAGE as error:
        raise SpoolError(f"{path}: the identity at byte {start} is damaged") from error
    return identity, tuple(regions)


def timely(contents: SpoolContents, times: Mapping[str, Array]) -> Array:
    """Mask of the records with all `TIMES` within `LONGEST_NS` of the median; others are damage."""
    mask = np.ones(len(times[TIMES[0]]), bool)
    for values in times.values():
        known = values != 0
        if known.any():
            median = np.median(values[known].astype(float))
            mask &= ~known | (np.abs(values - median) <= LONGEST_NS)
    if not mask.all():
        odd = np.count_nonzero(~mask)
        contents.damage = f"{contents.path}: times of {odd} records are not of this run"
    return mask


def whole_slots(live: Array, ring: int) -> Array:
    """Copy the valid slots of a ring of `ring` slots, oldest first: those whose number belongs
    there and was the same before and after the copy."""
    copy = np.array(live)
    again = np.array(live["seq"])
    seq = copy["seq"]
    place = (seq - np.uint64(1)) % np.uint64(max(ring, 1))
    whole = (seq != 0) & (seq == again) & (place == np.arange(len(copy), dtype=np.uint64))
    records: Array = copy[whole]
    return records[np.argsort(records["seq"], kind="stable")]


def _count_filled(seq: Array) -> int:
    """Number of slots before the first unused stretch; slots fill in order."""
    for first in range(0, len(seq), SUMMARY_STRETCH):
        if not seq[first : first + SUMMARY_STRETCH].any():
            return first
    return len(seq)


def coarsen(summaries: Array, most: int) -> Array:
    """Merge neighbouring summaries of one rank until at most `most` are left."""
    each = -(-len(summaries) // most)
    if each < 2:
        return summaries
    first = np.arange(0, len(summaries), each)
    last = np.append(first[1:], len(summaries)) - 1
    merged = summaries[first].copy()
    for name in ("last_step", "end_ns", "realtime_ns"):
        merged[name] = summaries[name][last]
    merged["step_min_ns"] = np.minimum.reduceat(summaries["step_min_ns"], first)
    merged["step_max_ns"] = np.maximum.reduceat(summaries["step_max_ns"], first)
    merged["level"] = np.maximum.reduceat(summaries["level"], first) + np.uint32(1)
    sums = ("count", "step_sum_ns", "step_square_sum", "phase_ns", "sketch", *summary.COUNTERS)
    for name in sums:
        merged[name] = np.add.reduceat(summaries[name], first, axis=0)
    return merged


def _summaries(region: Array, capacity: int) -> Array:
    """The finest summary of every step: coarser levels only for steps that finer ones lost."""
    slots = min(capacity, len(region) // layout.SUMMARY_BYTES)
    live = region[: slots * layout.SUMMARY_BYTES].view(SUMMARY)
    kept: Array = np.empty(0, SUMMARY)
    for first, number in summary.level_slots(capacity):
        level = live[first : max(first, min(first + number, slots))]
        level = whole_slots(level[: _count_filled(level["seq"])], number)
        level = level[level["count"] != 0]
        if kept.size:
            level = level[level["first_step"] < kept["first_step"][0]]
        if level.size:
            finer = kept[kept["first_step"] > level["last_step"][-1]]
            kept = np.concatenate([level, finer])
    return kept


def _read_tables(contents: SpoolContents, region: Array) -> None:
    for end, kind, number, text in layout.unpack_entries(memoryview(region.data)):
        try:
            _enter(contents, kind, number, text)
        except _DAMAGE:
            contents.damage = f"{contents.path}: a table entry before byte {end} is damaged"


def _enter(contents: SpoolContents, kind: int, number: int, text: bytes) -> None:
    if kind == layout.TABLE_NAME:
        contents.names[number] = text.decode()
    elif kind == layout.TABLE_GROUP:
        group = json.loads(text)
        contents.members += len(parse_ranks(group.setdefault("ranks", "")))
        if contents.members > MOST_MEMBERS:
            raise ValueError("groups of more ranks than there can be")
        contents.groups[number] = {**group, "uid": str(group["uid"])}
    elif kind == layout.TABLE_FACT:
        fact = json.loads(text)
        facts.check(fact["key"], fact["value"])
        contents.facts[fact["key"]] = fact["value"]
