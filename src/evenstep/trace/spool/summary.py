"""Step summaries: one record per step, merged with its neighbours as it ages, never lost.

The region is a stack of rings. Level 0 keeps the latest steps one by one; every 16 adjacent steps
are merged into one record of level 1, sixteen of those into one of level 2, and so on. Each level
is a ring, so recent steps stay exact and old ones become coarser: half the region holds single
steps, five coarser levels share the rest (16 MB: 15,625 single steps, then 3,125 records each of
16, 256, 4,096, 65,536 and 1,048,576 steps, more than any run has). A merge costs one pass over 16
records every 16 steps, on average under 3 µs a step, and writes nothing in place.

A ring must hold the `FANOUT` records that become one of the next level until that one is written:
`FEWEST_RECORDS` in all. In a smaller region old steps are lost.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from evenstep.trace.spool.layout import SUMMARY_BYTES

LEVELS = 6
FANOUT = 16
PHASES = 8
FEWEST_RECORDS = LEVELS * FANOUT
SKETCH_BINS = 60
SKETCH_PER_OCTAVE = 4
SKETCH_FLOOR_NS = 1 << 20  # about a millisecond; the last bin begins at about 29 s

#: Counters that are summed by a merge, in the order they are stored (u64 each).
COUNTERS = (
    "wait_ns",  # waiting for other ranks, in the steps where it is known
    "wait_known",  # number of those steps
    "in_flight_ns",  # union of the collectives' in-flight intervals
    "held_ns",  # pacing delay
    "pause_ns",  # garbage collection
    "pauses",
    "cpu_ns",
    "minor_faults",
    "major_faults",
    "involuntary_switches",
    "voluntary_switches",
    "samples",
    "collectives",
    "bytes",
    "agent_ns",  # evenstep's own cost on the training threads
)

#: 504 of the 512 bytes of a record.
_BODY = struct.Struct(f"<QIIIIqqqQQQd{PHASES}Q{len(COUNTERS)}Q{SKETCH_BINS}I")

SUMMARY_FIELDS: tuple[tuple[str, str], ...] = (
    ("seq", "<u8"),  # 1, 2, 3 … within its level; 0 while being written
    ("first_step", "<u4"),
    ("last_step", "<u4"),
    ("count", "<u4"),
    ("level", "<u4"),
    ("start_ns", "<i8"),  # monotonic, start of the first step
    ("end_ns", "<i8"),  # monotonic, end of the last
    ("realtime_ns", "<i8"),  # wall clock read together with end_ns
    ("step_sum_ns", "<u8"),
    ("step_min_ns", "<u8"),
    ("step_max_ns", "<u8"),
    ("step_square_sum", "<f8"),  # of seconds squared
    ("phase_ns", f"({PHASES},)<u8"),
    *((name, "<u8") for name in COUNTERS),
    ("sketch", f"({SKETCH_BINS},)<u4"),  # step times, 4 bins an octave from SKETCH_FLOOR_NS
)


def sketch_bin(step_ns: int) -> int:
    """Bin of a step time; the first and last bins are open-ended."""
    if step_ns <= SKETCH_FLOOR_NS:
        return 0
    return min(int(math.log2(step_ns / SKETCH_FLOOR_NS) * SKETCH_PER_OCTAVE), SKETCH_BINS - 1)


class StepSummary:
    """Summary of one step, or of several adjacent ones (see `merge`)."""

    __slots__ = (
        "count", "counters", "end_ns", "first_step", "last_step", "level", "phase_ns",
        "realtime_ns", "sketch", "start_ns", "step_max_ns", "step_min_ns", "step_square_sum",
        "step_sum_ns",
    )  # fmt: skip

    def __init__(
        self, first_step: int, last_step: int, start_ns: int, end_ns: int, realtime_ns: int,
        phase_ns: Sequence[int] = (0,) * PHASES, counters: Sequence[int] = (0,) * len(COUNTERS),
    ) -> None:  # fmt: skip
        self.first_step, self.last_step = first_step, last_step
        self.start_ns, self.end_ns, self.realtime_ns = start_ns, end_ns, realtime_ns
        self.phase_ns, self.counters = list(phase_ns), list(counters)
        self.count, self.level = 1, 0
        self.step_sum_ns = self.step_min_ns = self.step_max_ns = end_ns - start_ns
        self.step_square_sum = (self.step_sum_ns * 1e-9) ** 2
        self.sketch = [0] * SKETCH_BINS
        self.sketch[sketch_bin(self.step_sum_ns)] = 1


def merge(parts: list[StepSummary]) -> StepSummary:
    """Merge adjacent summaries, oldest first: counts and sums add, extremes stay."""
    first, last = parts[0], parts[-1]
    merged = StepSummary(
        first.first_step, last.last_step, first.start_ns, last.end_ns, last.realtime_ns,
        [sum(column) for column in zip(*(p.phase_ns for p in parts), strict=True)],
        [sum(column) for column in zip(*(p.counters for p in parts), strict=True)],
    )  # fmt: skip
    merged.count, merged.level = sum(p.count for p in parts), first.level + 1
    merged.step_sum_ns = sum(p.step_sum_ns for p in parts)
    merged.step_min_ns = min(p.step_min_ns for p in parts)
    merged.step_max_ns = max(p.step_max_ns for p in parts)
    merged.step_square_sum = sum(p.step_square_sum for p in parts)
    merged.sketch = [sum(column) for column in zip(*(p.sketch for p in parts), strict=True)]
    return merged


def pack(summary: StepSummary, seq: int) -> bytes:
    """The record's bytes (without the padding at its end)."""
    return _BODY.pack(
        seq, summary.first_step, summary.last_step, summary.count, summary.level,
        summary.start_ns, summary.end_ns, summary.realtime_ns, summary.step_sum_ns,
        summary.step_min_ns, summary.step_max_ns, summary.step_square_sum,
        *summary.phase_ns, *summary.counters, *summary.sketch,
    )  # fmt: skip


def level_slots(capacity: int) -> list[tuple[int, int]]:
    """(first slot, number of slots) of every level in a region of `capacity` records."""
    fair = (capacity - capacity // 2) // (LEVELS - 1)
    each = min(max(fair, FANOUT), capacity // LEVELS)
    single = capacity - each * (LEVELS - 1)
    return [(0, single)] + [(single + index * each, each) for index in range(LEVELS - 1)]


class SummaryLog:
    """The writer of summaries, for one thread; `region` is memory for `capacity` records."""

    def __init__(self, region: memoryview, capacity: int) -> None:
        self._region = region
        self._levels = level_slots(capacity)
        self._seq = [0] * LEVELS
        self._open: list[list[StepSummary]] = [[] for _ in range(LEVELS)]

    def append(self, summary: StepSummary) -> None:
        """Store a step, and the records of coarser levels that it completes."""
        level = summary.level
        self._store(summary)
        if level + 1 >= LEVELS:
            return
        parts = self._open[level]
        parts.append(summary)
        if len(parts) == FANOUT:
            self._open[level] = []
            self.append(merge(parts))

    def release(self) -> None:
        """Release the memory, so that the file can be unmapped."""
        self._region.release()

    def _store(self, summary: StepSummary) -> None:
        level = summary.level
        first, slots = self._levels[level]
        if slots == 0:
            return
        self._seq[level] += 1
        seq = self._seq[level]
        start = (first + (seq - 1) % slots) * SUMMARY_BYTES
        data = pack(summary, seq)
        struct.pack_into("<Q", self._region, start, 0)
        self._region[start + 8 : start + len(data)] = data[8:]
        self._region[start : start + 8] = data[:8]
