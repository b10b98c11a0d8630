"""What ranks tell each other: each of them about a window of steps, rank 0 to all where they pace.

One message of fixed size per rank and window. It carries durations only, each measured on one
clock, so that no clocks need to agree; who is late is told from those of all. What rank 0 has to
say, plan, slowest rank and floor, is one message under one key, written anew whenever there is
news. A rank that misses one finds the next; a rank that has no plan for a step holds nothing in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from evenstep import lateness
from evenstep.pacing import Plan, Slowest

_MESSAGE = struct.Struct("<BxHIIIqqqqqqqqqqq")
VERSION = 4
MESSAGE_BYTES = _MESSAGE.size  # invariant: <= 256
#: version, whether slowest and floor are known, the five values of the one, four of the other
_ORDERS = struct.Struct("<BBBqqqqqqqqq")
ORDERS_VERSION = 1
MOST_BYTES = 256  # of orders


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
    step_ns: int  # median
    first_op: int  # of each step's first collective, where that is always the same; else -1
    first_bytes: int
    first_low_ns: int  # quantiles of how long it was in flight: 10 and 90 %
    first_high_ns: int
    begun: int = 0  # 1: its last step has only begun: up to its first collective, and as much of
    #                    the step before it left out

    @property
    def window(self) -> int:
        """The number of its window, by when that ends."""
        return 2 * self.end - self.begun

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


def summarize(rows: Sequence[StepRow], *, rank: int, end: int, begun: int = 0) -> WindowReport:
    """The message of a window of at least one step; `end` is the step after its last, which may
    only have `begun`."""
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
        step_ns=steps[last // 2],
        first_op=firsts[0].op if firsts else -1,
        first_bytes=firsts[0].nbytes if firsts else 0,
        first_low_ns=firsts[last // 10].in_flight_ns if firsts else 0,
        first_high_ns=firsts[(9 * last + 9) // 10].in_flight_ns if firsts else 0,
        begun=begun,
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


# -- what rank 0 tells ----------------------------------------------------------------------------


class SharedFloor(NamedTuple):
    """How long a step's first collective takes the rank that need not wait for anybody.

    A rank that is never last cannot see it in a job with one collective a step.
    """

    op: int
    nbytes: int
    lower_ns: int
    margin_ns: int  # a transfer without wait rarely exceeds lower_ns + margin_ns


class Orders(NamedTuple):
    """The latest of each; None where there has been none yet."""

    plan: Plan | None = None
    slowest: Slowest | None = None
    floor: SharedFloor | None = None

    def pack(self) -> bytes:
        """The message, at most `MOST_BYTES` long."""
        known = self.slowest is not None, self.floor is not None
        values = *(self.slowest or (0,) * 5), *(self.floor or (0,) * 4)
        return _ORDERS.pack(ORDERS_VERSION, *known, *values) + (
            self.plan.pack() if self.plan else b""
        )

    @classmethod
    def unpack(cls, data: bytes) -> Orders | None:
        """The inverse; None for anything that is not such a message."""
        if len(data) < _ORDERS.size or data[0] != ORDERS_VERSION:
            return None
        _, slowest, floor, *values = _ORDERS.unpack_from(data)
        rest = data[_ORDERS.size :]
        plan = Plan.unpack(rest) if rest else None
        if max(slowest, floor) > 1 or (rest and plan is None):
            return None
        return cls(
            plan,
            Slowest(*values[:5]) if slowest else None,
            SharedFloor(*values[5:]) if floor else None,
        )

    def since(self, before: Orders) -> Orders:
        """What is new in these."""
        return Orders(
            None if self.plan == before.plan else self.plan,
            None if self.slowest == before.slowest else self.slowest,
            None if self.floor == before.floor else self.floor,
        )


def slowest_of(reports: Sequence[WindowReport]) -> Slowest | None:
    """The slowest rank's work in a window, as the pacer counts it; None where nobody reported.

    Of each rank a level it rarely falls below, of these the largest: slack that is read from it is
    rather too small than too large.
    """
    if not reports:
        return None
    return Slowest(
        reports[0].first,
        reports[0].end - 1,
        max(report.entry_low_ns for report in reports),
        max(report.entry_low_ns + report.delay_ns for report in reports),
        max(report.delay_high_ns for report in reports),
    )


def floor_of(reports: Sequence[WindowReport]) -> SharedFloor | None:
    """The first collective's floor, by the rank that waited least; None unless it is one for all.

    Where ranks take turns in being last, that rank's spread holds waits: the margin is then rather
    too wide than too narrow.
    """
    if not reports or len({(report.first_op, report.first_bytes) for report in reports}) > 1:
        return None
    last = min(reports, key=lambda report: report.first_low_ns)
    if last.first_op < 0:
        return None
    margin_ns = last.first_high_ns - last.first_low_ns
    return SharedFloor(last.first_op, last.first_bytes, last.first_low_ns, margin_ns)
