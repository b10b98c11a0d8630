"""Energy and money: power by what a rank is doing, price by the hour, per unit of progress.

A waiting rank that polls draws nearly as much as one that communicates; that is why time lost to
waiting costs energy, not only time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from evenstep.errors import ConfigError
from evenstep.simulate.formulas.reliability import HOUR_NS


@dataclass(slots=True, frozen=True, kw_only=True)
class PowerDraw:
    """Watts one accelerator draws, by state, and what is drawn beside it.

    `node_share_watts` is its part of processors, memory, fans and network; `pue` multiplies all of
    it for cooling and supply (power usage effectiveness, ISO/IEC 30134-2).
    """

    compute_watts: float
    communicate_watts: float
    spin_wait_watts: float
    idle_watts: float
    node_share_watts: float = 0.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        for name in ("compute", "communicate", "spin_wait", "idle", "node_share"):
            value = getattr(self, f"{name}_watts")
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name}_watts must not be negative, found {value:g}")
        if not 1 <= self.pue < math.inf:
            raise ConfigError(f"pue must be at least 1, found {self.pue:g}")


@dataclass(slots=True, frozen=True, kw_only=True)
class StateTimes:
    """Rank-nanoseconds by state, summed over all ranks."""

    compute_ns: float = 0.0
    communicate_ns: float = 0.0
    spin_wait_ns: float = 0.0
    idle_ns: float = 0.0

    def __post_init__(self) -> None:
        for name in ("compute_ns", "communicate_ns", "spin_wait_ns", "idle_ns"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must not be negative, found {getattr(self, name):g}")

    @property
    def total_ns(self) -> float:
        """All of it: ranks × elapsed time."""
        return self.compute_ns + self.communicate_ns + self.spin_wait_ns + self.idle_ns


class Bill(NamedTuple):
    """What a job used, and what each unit of progress did."""

    joules: float
    joules_waiting: float  # of them while spinning or idle
    cost: float  # in the currency of the price
    joules_per_unit: float
    cost_per_unit: float
    mean_watts: float  # per rank, everything included


def bill(
    times: StateTimes, power: PowerDraw, *, progress: float, price_per_hour: float = 0.0
) -> Bill:
    """Energy E = Σ time × power × PUE and cost of `progress` units (samples, tokens, steps).

    `price_per_hour` is that of one accelerator. Work that was lost and done again is in `times` but
    not in `progress`.
    """
    if progress < 0 or price_per_hour < 0:
        raise ConfigError("progress and price_per_hour must not be negative")
    waiting = _joules(times.spin_wait_ns, power.spin_wait_watts, power)
    waiting += _joules(times.idle_ns, power.idle_watts, power)
    joules = waiting + _joules(times.compute_ns, power.compute_watts, power)
    joules += _joules(times.communicate_ns, power.communicate_watts, power)
    cost = times.total_ns / HOUR_NS * price_per_hour
    return Bill(
        joules=joules,
        joules_waiting=waiting,
        cost=cost,
        joules_per_unit=joules / progress if progress else math.inf,
        cost_per_unit=cost / progress if progress else math.inf,
        mean_watts=joules / times.total_ns * 1e9 if times.total_ns else 0.0,
    )


def _joules(time_ns: float, watts: float, power: PowerDraw) -> float:
    return time_ns * 1e-9 * (watts + power.node_share_watts) * power.pue
