"""A rank's spool followed while it is written: the latest steps and facts, never the whole file.

A refresh reads new summary records and table entries; the last records of the ring are read only if
a rank makes no progress. Nothing is written and no lock is taken.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace.columns import Array
from evenstep.trace.reader import RECORD, SUMMARY, spool_header
from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.spool.summary import level_slots

KEPT_STEPS = 64  # of each rank
SUMMARIES_PER_READ = 32
RECORDS_READ = 1024  # to find the operation of a silent rank among later samples
TABLE_READ_BYTES = 1 << 16
_SEQ_BYTES = 8
_UNREADABLE = (OSError, OverflowError)  # the second: of sizes in a damaged header
_OPERATIONS = (int(Kind.COLLECTIVE), int(Kind.POINT_TO_POINT))

#: Fields of a summary that are kept.
LIVE_FIELDS = (
    "first_step", "start_ns", "end_ns", "realtime_ns", "step_sum_ns", "phase_ns",
    "wait_ns", "wait_known", "held_ns", "pause_ns", "samples",
)  # fmt: skip
LIVE = np.dtype([(name, SUMMARY[name].base, SUMMARY[name].shape) for name in LIVE_FIELDS])


class Inside(NamedTuple):
    """The operation that a rank has entered and not left."""

    op: str
    group_seq: int
    enter_ns: int  # on that rank's clock


class SpoolTail:
    """The latest steps and facts of one rank. `refresh` may be called at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heartbeat_ns = 0  # time of the last heartbeat, on the rank's clock; 0 unknown
        self._page = b""  # header of the followed file
        self._reset()

    def _reset(self) -> None:
        """Start again: the file is new, or another file has replaced it."""
        self.identity: dict[str, Any] = {}  # empty until the header has been written
        self.damage = ""  # why the file is no spool, in words
        self.facts: dict[str, Any] = {}
        self.steps: Array = np.empty(0, LIVE)  # the latest, at most KEPT_STEPS, oldest first
        self.steps_seen = 0  # number of the last summary read
        self._slots = self._ring_slots = 0
        self._summaries_at = self._ring_at = 0
        self._table_at = self._table_end = 0

    @property
    def closed(self) -> bool:
        """Whether the rank has closed its trace itself."""
        return "closed" in self.facts

    def refresh(self) -> bool:
        """Read new steps and facts; return whether there was a new step."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return self._read(file.fileno())
        except _UNREADABLE:
            return False

    def _read(self, file: int) -> bool:
        page, at = os.pread(file, layout.PAGE_BYTES, 0), layout.HEARTBEAT_OFFSET
        self.heartbeat_ns = int.from_bytes(page[at : at + 8], "little")
        page = page[:at] + bytes(8) + page[at + 8 :]  # the only word that changes
        if page != self._page:
            self._reset()
            self._page = page
        if not self.identity and not self._open_header(page):
            return False
        self._read_tables(file)  # before the steps: a closed trace gets no more steps
        return self._read_steps(file)

    def _open_header(self, page: bytes) -> bool:
        try:
            self.identity, regions = spool_header(self.path, page)
        except TraceError as error:
            self.damage = str(error) if any(page[: len(layout.MAGIC)]) else ""
            return False
        self._ring_at, self._ring_slots, first, slots, tables, size = regions
        self._summaries_at, self._slots = first, level_slots(slots)[0][1]
        self._table_at, self._table_end = tables, tables + size
        return True

    # -- tables ----------------------------------------------------------------------------------

    def _read_tables(self, file: int) -> None:
        """Read new table entries, up to the first length of zero."""
        while self._table_at + layout.TABLE_ENTRY.size <= self._table_end:
            length = int.from_bytes(os.pread(file, 4, self._table_at), "little")
            if length == 0:
                return
            want = min(max(TABLE_READ_BYTES, length), self._table_end - self._table_at)
            entries = list(layout.unpack_entries(os.pread(file, want, self._table_at)))
            if not entries:  # none is complete
                return
            for _, kind, _, text in entries:
                if kind == layout.TABLE_FACT:
                    with suppress(ValueError, KeyError, TypeError, RecursionError):  # damaged
                        fact = json.loads(text)
                        self.facts[fact["key"]] = fact["value"]
            self._table_at += entries[-1][0]

    # -- steps -----------------------------------------------------------------------------------

    def _read_steps(self, file: int) -> bool:
        before = self.steps_seen
        if not before or self._is_behind(file):
            newest = newest_number(partial(self._number, file), self._slots)
            self.steps_seen = max(newest - min(KEPT_STEPS, self._slots - 1), before)
        parts = [self.steps]
        while len(rows := self._next_steps(file)):
            parts.append(rows[list(LIVE_FIELDS)].astype(LIVE))
            self.steps_seen += len(rows)
        if len(parts) > 1:
            self.steps = np.concatenate(parts)[-KEPT_STEPS:]
        return self.steps_seen > before

    def _next_steps(self, file: int) -> Array:
        """Return the next complete summaries, at most one read."""
        place = self.steps_seen % self._slots if self._slots else 0
        count = min(SUMMARIES_PER_READ, self._slots - place)
        start = self._summaries_at + place * layout.SUMMARY_BYTES
        data = os.pread(file, count * layout.SUMMARY_BYTES, start)
        rows = np.frombuffer(data, SUMMARY, len(data) // layout.SUMMARY_BYTES)
        expected = np.arange(self.steps_seen + 1, self.steps_seen + 1 + len(rows), dtype=np.uint64)
        fits = np.append(rows["seq"] == expected, False)
        rows = rows[: int(np.argmin(fits))]
        # Slots are overwritten in order: if the first is unchanged, so are the others.
        if len(rows) and not self._is_there(file, self.steps_seen + 1):
            return rows[:0]
        return rows

    def _number(self, file: int, slot: int) -> int:
        return _number(file, self._summaries_at + slot * layout.SUMMARY_BYTES)

    def _is_behind(self, file: int) -> bool:
        """Whether the next summary is overwritten, or more than the window was written since."""
        if not self._slots:
            return False
        following = self._number(file, self.steps_seen % self._slots)
        return following > self.steps_seen + 1 or self._is_there(file, self.steps_seen + KEPT_STEPS)

    def _is_there(self, file: int, number: int) -> bool:
        return bool(self._slots) and self._number(file, (number - 1) % self._slots) == number

    # -- records ---------------------------------------------------------------------------------

    def inside(self) -> Inside | None:
        """Return the operation that the rank has entered and not left."""
        records = self._records()
        on_device = (records["flags"] & int(Flag.ON_DEVICE)) != 0
        pending = np.isin(records["kind"], _OPERATIONS) & (records["exit_ns"] == 0) & ~on_device
        if not pending.any():
            return None
        row = records[int(np.flatnonzero(pending)[0])]  # the first blocks the others
        code = int(row["op"])
        name = Op(code).name.lower() if code in set(Op) else "an operation"
        return Inside(name, int(row["group_seq"]), int(row["enter_ns"]))

    def last_operation_failed(self) -> bool:
        rows = self._records()
        rows = rows[np.isin(rows["kind"], _OPERATIONS)]
        return bool(len(rows)) and bool(rows["flags"][-1] & int(Flag.FAILED))

    def is_outside(self) -> bool:
        """Whether the rank goes on, in no operation."""
        self.refresh()
        over = self.closed or "raised" in self.facts or self.last_operation_failed()
        return not over and self.inside() is None

    def current_step(self) -> int | None:
        """Return the step that the rank is in; summaries are some steps behind."""
        rows = self._records()
        ended = rows["kind"] == int(Kind.STEP)
        return int((rows["step"] + ended).max()) if len(rows) else None

    def _records(self) -> Array:
        """Return the latest records of the ring; none if the file cannot be read."""
        size, slots = layout.RECORD_BYTES, self._ring_slots
        try:
            with self.path.open("rb", buffering=0) as opened:
                file = opened.fileno()
                newest = newest_number(lambda n: _number(file, self._ring_at + n * size), slots)
                end = (newest - 1) % slots + 1 if newest else 0
                begin = max(end - RECORDS_READ, 0)
                data = os.pread(file, (end - begin) * size, self._ring_at + begin * size)
        except _UNREADABLE:
            return np.empty(0, RECORD)
        rows = np.frombuffer(data, RECORD, len(data) // size)
        return np.asarray(rows[rows["seq"] != 0])


def newest_number(number_at: Callable[[int], int], slots: int) -> int:
    """Return the highest number in a ring by bisection; 0 if empty. Slot i holds the first slot's
    number plus i up to the newest, and older numbers after it."""
    first = number_at(0) if slots else 0
    if first == 0:
        return 0
    return first + bisect_left(range(1, slots), True, key=lambda at: number_at(at) != first + at)


def _number(file: int, at: int) -> int:
    return int.from_bytes(os.pread(file, _SEQ_BYTES, at), "little")
