"""What ranks of an MPI job tell each other once a step: numbers whose maximum is the message.

Rank 0 alone fills in the block and the plan; the others leave them at minus infinity. All numbers
are exact in a float64 up to 2^53: 104 days in ns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.agent.exchange.messages import Orders
from evenstep.pacing import Plan, Slowest

_SILENT = -np.inf
_MOST_BYTES = 64  # of a packed plan: one number each, and one for how many there are


class News(NamedTuple):
    """One rank's part. Work is that of the step before."""

    block: int | None  # on from the next step; rank 0 says
    step: int  # -1: there was none
    work_ns: int
    plan: Plan | None

    def pack(self) -> npt.NDArray[np.float64]:
        """As numbers."""
        block = _SILENT if self.block is None else float(self.block)
        return np.array([block, self.step, self.work_ns, *_plan_numbers(self.plan)], np.float64)


class Heard(NamedTuple):
    """What all ranks are told."""

    block: int
    orders: Orders

    @classmethod
    def of(cls, numbers: npt.NDArray[np.float64]) -> Heard:
        """From the maxima."""
        block, step, work = (int(value) for value in numbers[:3])
        slowest = Slowest(step, step, work) if step >= 0 else None
        return cls(block, Orders(_plan(numbers[3:]), slowest))


def _plan_numbers(plan: Plan | None) -> list[float]:
    if plan is None:
        return [_SILENT] * (1 + _MOST_BYTES)
    packed = plan.pack()
    return [len(packed), *packed.ljust(_MOST_BYTES, b"\0")]


def _plan(numbers: npt.NDArray[np.float64]) -> Plan | None:
    if numbers[0] == _SILENT:
        return None
    return Plan.unpack(bytes(int(value) for value in numbers[1 : 1 + int(numbers[0])]))
