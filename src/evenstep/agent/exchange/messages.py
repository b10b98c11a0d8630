"""Messages between ranks: each rank's report of a window of steps, and rank 0's orders of pacing.

A report has a fixed size and carries durations only, each measured by one clock, so that no clocks
need to agree; the late rank is found by comparing all reports. Orders (plan, slowest rank, floor)
are one message under one key, overwritten whenever one of them changes. A rank that misses one
reads the next; a rank without a plan for a step is not held in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from evenstep import lateness
from evenstep.pacing import Plan, Slowest

_MESSAGE = struct.Struct("<BxHIIIqqqqqqqqqqq")
VERSION = 6
MESSAGE_BYTES = _MESSAGE.size  # invariant: <= 256
#: version, whether slowest and floor are known, the three values of the one, four of the other
_ORDERS = struct.Struct("<BBBqqqqqqq")
ORDERS_VERSION = 2
MOST_BYTES = 256  # of orders


class WindowReport(NamedTuple):
    """One rank's window. `wait_ns` is the mean over the steps whose wait is known."""

    rank: int
    end: int  # the step after its last
    steps: int
    waits_known: int
    work_ns: int  # mean of own work per step: where every other one is late, each costs half
    entry_low_ns: int  # 10 % quantile of the work before the step's first collective
    wait_ns: int
    delay_ns: int  # median of the pacing delay
    step_ns: int  # mean
    first_op: int  # of each step's first collective if that is always the same, else -1
    first_bytes: int
    first_low_ns: int  # quantiles of its time in flight: 10 and 90 %
    first_high_ns: int
    queued_ns: int = 0  # mean wait for workers of a loader, a part of work_ns
    #: 1: a single step, shifted: from the first collective of a step to that of the next, which has
    #: only begun.
    begun: int = 0

    @property
    def window(self) -> int:
        """The number of the window, by its end."""
        return 2 * self.end - self.begun

    @property
    def first(self) -> int:
        return self.end - self.steps

    def pack(self) -> bytes:
        """Encode in `MESSAGE_BYTES` bytes."""
        return _MESSAGE.pack(VERSION, self.steps, self.rank, self.end, self.waits_known, *self[4:])

    @classmethod
    def unpack(cls, data: bytes) -> WindowReport | None:
        """Decode; None for anything that is not such a message."""
        if len(data) != MESSAGE_BYTES or data[0] != VERSION:
            return None
        _, steps, rank, end, known, *rest = _MESSAGE.unpack(data)
        return cls(rank, end, steps, known, *rest)


def window_steps(step_ns: int, period_ns: int) -> int:
    """Length of a window in steps: the least power of two that lasts two exchange periods.

    Ranks exchange at different moments and keep two windows each: shorter ones would be deleted
    before all have arrived. Windows of ranks with different step times nest: all end where the
    longest ends.
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
    """One step of a window."""

    step_ns: int
    work_ns: int
    wait_ns: int | None
    delay_ns: int
    entry_ns: int  # own work between the last collective and the next: the pacer's u_i
    first: FirstCollective | None = None
    queued_ns: int = 0


def summarize(rows: Sequence[StepRow], *, rank: int, end: int, begun: int = 0) -> WindowReport:
    """Summarize a window of at least one step; `end` is the step after its last, which may only
    have `begun`."""
    entries = sorted(row.entry_ns for row in rows)
    waits = [row.wait_ns for row in rows if row.wait_ns is not None]
    last = len(rows) - 1
    alike = len({row.first and row.first[:2] for row in rows}) == 1
    firsts = sorted(row.first for row in rows if row.first) if alike else []
    return WindowReport(
        rank=rank, end=end, steps=len(rows), waits_known=len(waits),
        work_ns=sum(row.work_ns for row in rows) // len(rows),
        entry_low_ns=entries[last // 10], wait_ns=sum(waits) // len(waits) if waits else 0,
        delay_ns=sorted(row.delay_ns for row in rows)[last // 2],
        step_ns=sum(row.step_ns for row in rows) // len(rows),
        first_op=firsts[0].op if firsts else -1, first_bytes=firsts[0].nbytes if firsts else 0,
        first_low_ns=firsts[last // 10].in_flight_ns if firsts else 0,
        first_high_ns=firsts[(9 * last + 9) // 10].in_flight_ns if firsts else 0,
        queued_ns=sum(row.queued_ns for row in rows) // len(rows),
        begun=begun,
    )  # fmt: skip


class Late(NamedTuple):
    """The rank that the others waited for in a window."""

    rank: int
    excess_ns: int  # its work above the median rank's, per step
    share: float  # the same as a share of the step
    waiting_ranks: int  # ranks that waited, or were blocked, at least half as long


def latest_rank(reports: Sequence[WindowReport], *, threshold: float) -> Late | None:
    """The rank that is late by more than `threshold` of a step (see `evenstep.lateness`)."""
    if len(reports) < 2:
        return None
    work, queued = zip(*((report.work_ns, report.queued_ns) for report in reports), strict=True)
    step_ns = max(report.step_ns for report in reports)
    blocked = [report.wait_ns for report in reports]
    if not all(report.waits_known for report in reports):  # an unknown wait is not zero: all
        # without work, transfers included
        blocked = [max(each.step_ns - each.work_ns - each.delay_ns, 0) for each in reports]
    places = lateness.late(work, blocked, step_ns, queued=queued, threshold=threshold)
    if not places:
        return None
    above = lateness.excess(work, queued, step_ns)
    latest = max(places, key=above.__getitem__)
    excess_ns = int(above[latest])
    waiting = sum(each >= excess_ns // 2 for i, each in enumerate(blocked) if i != latest)
    slowest = reports[latest]
    return Late(slowest.rank, excess_ns, excess_ns / slowest.step_ns, waiting)


# -- orders ---------------------------------------------------------------------------------------


class SharedFloor(NamedTuple):
    """The floor of a step's first collective, by the rank that waited least.

    A rank that is never last cannot observe it in a job with one collective a step.
    """

    op: int
    nbytes: int
    lower_ns: int
    margin_ns: int  # a transfer without wait rarely takes longer than lower_ns + margin_ns


class Orders(NamedTuple):
    """Rank 0's latest plan, slowest rank and floor; None where there has been none yet."""

    plan: Plan | None = None
    slowest: Slowest | None = None
    floor: SharedFloor | None = None

    def pack(self) -> bytes:
        """Encode in at most `MOST_BYTES` bytes."""
        known = self.slowest is not None, self.floor is not None
        values = *(self.slowest or (0,) * 3), *(self.floor or (0,) * 4)
        return _ORDERS.pack(ORDERS_VERSION, *known, *values) + (
            self.plan.pack() if self.plan else b""
        )

    @classmethod
    def unpack(cls, data: bytes) -> Orders | None:
        """Decode; None for anything that is not such a message."""
        if len(data) < _ORDERS.size or data[0] != ORDERS_VERSION:
            return None
        _, slowest, floor, *values = _ORDERS.unpack_from(data)
        rest = data[_ORDERS.size :]
        plan = Plan.unpack(rest) if rest else None
        if max(slowest, floor) > 1 or (rest and plan is None):
            return None
        return cls(
            plan,
            Slowest(*values[:3]) if slowest else None,
            SharedFloor(*values[3:]) if floor else None,
        )

    def since(self, before: Orders) -> Orders:
        """These orders without those that are the same in `before`."""
        pairs = zip(self, before, strict=True)
        return Orders._make(None if new == old else new for new, old in pairs)


def slowest_of(reports: Sequence[WindowReport]) -> Slowest | None:
    """The slowest rank's work in a window, as the pacer counts it; None without reports.

    The largest of the ranks' low quantiles: slack derived from it is too small rather than too
    large.
    """
    if not reports:
        return None
    slowest_ns = max(report.entry_low_ns for report in reports)
    return Slowest(reports[0].first, reports[0].end - 1, slowest_ns)


def floor_of(reports: Sequence[WindowReport]) -> SharedFloor | None:
    """The first collective's floor, by the rank that waited least; None where ranks differ in it.

    Where ranks take turns in being last, that rank's times include waits: the margin is then too
    wide rather than too narrow.
    """
    if not reports or len({(report.first_op, report.first_bytes) for report in reports}) > 1:
        return None
    last = min(reports, key=lambda report: report.first_low_ns)
    if last.first_op < 0:
        return None
    margin_ns = last.first_high_ns - last.first_low_ns
    return SharedFloor(last.first_op, last.first_bytes, last.first_low_ns, margin_ns)
