"""Cost of a run and its waits: rank-hours, money if there is a price, measured energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.measure.attempts import ENERGY, PRICE
from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.trace.trace import Trace
from evenstep.words import is_known

HOURS_A_DAY = 24.0


@dataclass(slots=True, frozen=True)
class WaitingCost:
    """Rank-hours of the diagnosed steps, and the part spent waiting. None is unknown."""

    rank_hours: float | None
    lost_rank_hours: float | None
    price: float | None  # of a rank-hour, in the currency of the user
    energy_joules: float | None  # from the GPUs' energy counters
    ranks: int

    @property
    def lost_share(self) -> float | None:
        """The share of waiting in all rank-hours."""
        if not self.rank_hours or self.lost_rank_hours is None:
            return None
        return self.lost_rank_hours / self.rank_hours

    @property
    def lost_a_day(self) -> float | None:
        """Rank-hours lost per day at the same share of waiting."""
        return None if self.lost_share is None else self.lost_share * self.ranks * HOURS_A_DAY

    def money_a_day(self, share: float) -> float | None:
        """Return the price per day of a share of all rank-hours."""
        return self.money(share * self.ranks * HOURS_A_DAY)

    def money(self, rank_hours: float | None) -> float | None:
        return None if self.price is None or rank_hours is None else self.price * rank_hours


def waiting_cost(diagnosis: Diagnosis, trace: Trace, price: float | None = None) -> WaitingCost:
    """Compute the cost of a run; `price` is that of a rank-hour, default from the run's facts."""
    summary = diagnosis.summary
    mean_ns = (summary.get("step_time") or {}).get("mean_ns")
    price = trace.run.get(PRICE) if price is None else price
    known = is_known(mean_ns) and "scaling" not in summary  # joint diagnoses have no own steps
    hours = mean_ns * summary["steps"] * summary["ranks"] / 3.6e12 if known else None
    return WaitingCost(
        rank_hours=hours,
        lost_rank_hours=summary.get("rank_hours_wasted"),
        price=float(price) if isinstance(price, int | float) else None,
        energy_joules=energy_joules(trace),
        ranks=int(summary["ranks"]),
    )


def energy_joules(trace: Trace) -> float | None:
    """Return the energy between first and last reading of all ranks' counters; None without any."""
    found = metric_samples(trace, ENERGY)
    ranks, place = np.unique(found.rank, return_inverse=True)
    if not len(ranks):
        return None
    low, high = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
    np.minimum.at(low, place, found.value)
    np.maximum.at(high, place, found.value)
    total = float((high - low).sum())
    return total if total > 0 else None
