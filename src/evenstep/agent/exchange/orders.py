"""What rank 0 tells all ranks when they pace together: plan, slowest rank and floor.

One message under one key, written anew whenever there is news. A rank that misses one finds the
next; a rank that has no plan for a step holds nothing in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.agent.exchange.windows import WindowReport
from evenstep.pacing import Plan, Slowest

#: version, whether slowest and floor are known, the five values of the one, four of the other
_HEAD = struct.Struct("<BBBqqqqqqqqq")
VERSION = 1
MOST_BYTES = 256


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
        return _HEAD.pack(VERSION, *known, *values) + (self.plan.pack() if self.plan else b"")

    @classmethod
    def unpack(cls, data: bytes) -> Orders | None:
        """The inverse; None for anything that is not such a message."""
        if len(data) < _HEAD.size or data[0] != VERSION:
            return None
        _, slowest, floor, *values = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
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
