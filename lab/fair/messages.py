"""What a rank and the emulated fabric say to each other: one small message each way."""

from __future__ import annotations

import struct
from typing import NamedTuple

from evenstep.pacing import Plan, Slowest
from lab.board import BEFORE

_ASK = struct.Struct("<BBqdqqq")
_GRANT = struct.Struct("<qB5q")
READ, EXCHANGE = 1, 2
MOST_BYTES = 256


class Report(NamedTuple):
    """What a rank tells the others of its job about the step it did last."""

    step: int = -1  # there was none
    work_ns: int = 0
    held_ns: int = 0


class Ask(NamedTuple):
    """A rank wants to read its input, or has entered an exchange."""

    kind: int
    last: bool  # the step's last exchange
    sent_ns: int
    nbytes: float
    report: Report = Report()
    plan: bytes = b""  # to be told to the job, packed; b"": none

    def pack(self) -> bytes:
        """The message."""
        head = _ASK.pack(self.kind, self.last, self.sent_ns, self.nbytes, *self.report)
        return head + self.plan

    @classmethod
    def unpack(cls, data: bytes) -> Ask:
        """The inverse."""
        kind, last, sent_ns, nbytes, *report = _ASK.unpack_from(data)
        return cls(kind, bool(last), sent_ns, nbytes, Report(*report), data[_ASK.size :])


class Grant(NamedTuple):
    """It is done. The grant of a step's last exchange is the same on all ranks of the job."""

    block: int = BEFORE  # on from the next step
    slowest: Slowest | None = None
    plan: Plan | None = None

    def pack(self) -> bytes:
        """The message."""
        shared = self.slowest or (0,) * 5
        head = _GRANT.pack(self.block, self.slowest is not None, *shared)
        return head + (self.plan.pack() if self.plan else b"")

    @classmethod
    def unpack(cls, data: bytes) -> Grant:
        """The inverse."""
        block, known, *shared = _GRANT.unpack_from(data)
        return cls(block, Slowest(*shared) if known else None, Plan.unpack(data[_GRANT.size :]))
