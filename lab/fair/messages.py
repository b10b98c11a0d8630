"""What a rank and the emulated fabric say to each other: one small message each way."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from evenstep.pacing import Plan, Slowest
from lab.board import BEFORE

READ, EXCHANGE = 1, 2
MOST_BYTES = 256


class Report(NamedTuple):
    """What a rank tells the others of its job about the step it did last."""

    step: int = -1  # there was none
    work_ns: int = 0


class Ask(NamedTuple):
    """A rank wants to read its input, or has entered an exchange."""

    kind: int
    last: bool  # the step's last exchange
    sent_ns: int
    nbytes: float
    report: Report = Report()
    plan: Plan | None = None  # to be told to the job


class Grant(NamedTuple):
    """It is done. The grant of a step's last exchange is the same on all ranks of the job."""

    block: int = BEFORE  # on from the next step
    slowest: Slowest | None = None
    plan: Plan | None = None


pack = msgspec.msgpack.encode
ask_of = msgspec.msgpack.Decoder(Ask).decode
grant_of = msgspec.msgpack.Decoder(Grant).decode
