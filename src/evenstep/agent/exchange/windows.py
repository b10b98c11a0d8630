"""What ranks tell each other about a window of steps, and who of them is late.

One message of fixed size per rank and window. It carries durations only, each measured on one
clock, so that no clocks need to agree.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from evenstep import lateness

_MESSAGE = struct.Struct("<BxHIIIqqqqqqqqqqqq")
VERSION = 3
MESSAGE_BYTES = _MESSAGE.size  # invariant: <= 256


class WindowReport(NamedTuple):
    """One rank's window. `wait_ns` is the mean over the steps where the wait could be told."""

    rank: int
    end: int  # the step after its last
    steps: int
    waits_known: int
    work_ns: int  # median of own work per step
    entry_low_ns: int  # 10 % quantile of the work before the step's first collective
    wait_ns: int
    delay_ns: int  # median of the pacing delay
    delay_high_ns: int
    loss_ns: int  # what pacing may have cost so far, as booked by this rank
    floor_ns: int  # of the step's most frequent collective; 0 unknown
    step_ns: int  # median
    first_op: int  # of each step's first collective, where that is always the same; else -1
    first_bytes: int
    first_low_ns: int  # quantiles of how long it was in flight: 10 and 90 %
    first_high_ns: int

    @property
    def first(self) -> int:
        """Its first step."""
        return self.end - self.steps

    def pack(self) -> bytes:
        """The message, `MESSAGE_BYTES` long."""
        return _MESSAGE.pack(VERSION, self.steps, self.rank, self.end, self.waits_known, *self[4:])

    @classmethod
    def unpack(cls, data: bytes) -> WindowReport | None:
        """The inverse; None for anything that is not such a message."""
        if len(data) != MESSAGE_BYTES or data[0] != VERSION:
            return None
        _, steps, rank, end, known, *rest = _MESSAGE.unpack(data)
        return cls(rank, end, steps, known, *rest)


def window_steps(step_ns: int, period_ns: int) -> int:
    """After how many steps a window ends, so that it lasts two exchange periods: a power of two.

    Ranks exchange at different moments and keep two windows each: shorter ones would be gone before
    all are there. Windows of ranks with different step times nest: where the longest of them end,
    all do.
    """
    steps = 1
    while steps * max(step_ns, 1) < 2 * period_ns:
        steps *= 2
    return steps


class FirstCollective(NamedTuple):
    """The first collective of a step, as one rank saw it."""

    op: int
    nbytes: int
    in_flight_ns: int


class StepRow(NamedTuple):
    """What a window is made from, one per step."""

    step_ns: int
    work_ns: int
    wait_ns: int | None
    delay_ns: int
    entry_ns: int  # own work between the last collective and the next: the pacer's u_i
    first: FirstCollective | None = None


def summarize(
    rows: Sequence[StepRow], *, rank: int, end: int, loss_ns: int, floor_ns: int
) -> WindowReport:
    """The message of a finished window of at least one step; `end` is the step after its last."""
    work = sorted(row.work_ns for row in rows)
    delays = sorted(row.delay_ns for row in rows)
    entries = sorted(row.entry_ns for row in rows)
    waits = [row.wait_ns for row in rows if row.wait_ns is not None]
    steps = sorted(row.step_ns for row in rows)
    last = len(rows) - 1
    alike = len({row.first and row.first[:2] for row in rows}) == 1
    firsts = sorted(row.first for row in rows if row.first) if alike else []
    return WindowReport(
        rank=rank,
        end=end,
        steps=len(rows),
        waits_known=len(waits),
        work_ns=work[last // 2],
        entry_low_ns=entries[last // 10],
        wait_ns=sum(waits) // len(waits) if waits else 0,
        delay_ns=delays[last // 2],
        delay_high_ns=delays[-1],
        loss_ns=loss_ns,
        floor_ns=floor_ns,
        step_ns=steps[last // 2],
        first_op=firsts[0].op if firsts else -1,
        first_bytes=firsts[0].nbytes if firsts else 0,
        first_low_ns=firsts[last // 10].in_flight_ns if firsts else 0,
        first_high_ns=firsts[(9 * last + 9) // 10].in_flight_ns if firsts else 0,
    )


class Late(NamedTuple):
    """The rank that the others waited for in a window."""

    rank: int
    excess_ns: int  # its work above the median rank's, per step
    share: float  # the same as a share of the step
    waiting_ranks: int  # ranks that waited, or were blocked, at least half as long


def latest_rank(reports: Sequence[WindowReport], *, threshold: float) -> Late | None:
    """Who is late by more than `threshold` of a step (see `evenstep.lateness`); None for nobody."""
    if len(reports) < 2:
        return None
    work = [report.work_ns for report in reports]
    step_ns = max(report.step_ns for report in reports)
    blocked = _blocked(reports)
    places = lateness.late(work, blocked, step_ns, threshold=threshold)
    if not places:
        return None
    latest = max(places, key=lambda place: work[place])
    excess_ns = int(max(lateness.excess(work)))
    waiting = sum(each >= excess_ns // 2 for i, each in enumerate(blocked) if i != latest)
    slowest = reports[latest]
    return Late(slowest.rank, excess_ns, excess_ns / slowest.step_ns, waiting)


def _blocked(reports: Sequence[WindowReport]) -> list[int]:
    """Per step what each rank waited, where all could tell; else what was no work, transfers too:
    a wait that is not known is none of zero."""
    if all(report.waits_known for report in reports):
        return [report.wait_ns for report in reports]
    return [max(each.step_ns - each.work_ns - each.delay_ns, 0) for each in reports]
