"""Energy and cost of a job: power by state of a rank, price by the hour, per unit of progress.

A rank that polls while waiting draws nearly as much as one that communicates, so waiting costs
energy, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.simulate.formulas.reliability import HOUR_NS


class State(NamedTuple):
    """A state of ranks: time spent in it by all ranks together, and power of one in it."""

    time_ns: float
    watts: float
    waits: bool = False  # spinning or idle


class Bill(NamedTuple):
    """Energy and cost of a job, in total and for each unit of progress."""

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
