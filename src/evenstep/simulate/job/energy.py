"""Energy and money: power by what a rank is doing, price by the hour, per unit of progress.

A waiting rank that polls draws nearly as much as one that communicates; that is why time lost to
waiting costs energy, not only time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.simulate.formulas.reliability import HOUR_NS


class State(NamedTuple):
    """What ranks do for some of the time, all of them together, and what one draws meanwhile."""

    time_ns: float  # of a rank
    watts: float
    waits: bool = False  # spinning or idle


class Bill(NamedTuple):
    """What a job used, and what each unit of progress did."""

    joules: float
    joules_waiting: float  # of them while spinning or idle
    cost: float  # in the currency of the price
    joules_per_unit: float
    cost_per_unit: float
    mean_watts: float  # per rank, everything included


def bill(
    states: Sequence[State],
    *,
    node_share_watts: float = 0.0,
    pue: float = 1.0,
    progress: float,
    price_per_hour: float = 0.0,
) -> Bill:
    """Energy E = Σ time × power × PUE and cost of `progress` units (samples, tokens, steps).

    `node_share_watts` is a rank's part of processors, memory, fans and network, drawn at all times;
    `pue` multiplies all of it for cooling and supply (power usage effectiveness, ISO/IEC 30134-2).
    `price_per_hour` is that of one accelerator. Work that was lost and done again is in the states
    but not in `progress`.
    """
    used = [state.time_ns * 1e-9 * (state.watts + node_share_watts) * pue for state in states]
    joules = sum(used)
    total_ns = sum(state.time_ns for state in states)
    cost = total_ns / HOUR_NS * price_per_hour
    return Bill(
        joules=joules,
        joules_waiting=sum(each for each, state in zip(used, states, strict=True) if state.waits),
        cost=cost,
        joules_per_unit=joules / progress if progress else math.inf,
        cost_per_unit=cost / progress if progress else math.inf,
        mean_watts=joules / total_ns * 1e9 if total_ns else 0.0,
    )
