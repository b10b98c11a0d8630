"""Which ranks are late: the rule of a live job's log and of `evenstep watch`.

A rank is late when the others wait for it: its own work is longer than theirs by more than a share
of the step, and it is not blocked longer than they are. A rank whose work is long because it holds
a wait for another rank is no culprit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LATE = 0.03  # of a step
FEWEST = 3  # measurements of an interval
SURE = 4.5  # standard deviations of a normal variable: wrong to either side once in 147,000
INNER, _NORMAL = 0.8, 1.2816  # share of normal noise that is within so many deviations


def excess(work: Sequence[float]) -> list[float]:
    """Each rank's work above the median rank's (of an even number, the lower middle)."""
    usual = sorted(work)[(len(work) - 1) // 2] if len(work) else 0.0
    return [each - usual for each in work]


def late(
    work: Sequence[float], blocked: Sequence[float], step: float, *, threshold: float = LATE
) -> list[int]:
    """Indices of the late ranks; none where they would be more than half of all.

    `work` and `blocked` are per rank and step, in the unit of `step`. Beside the latest rank only
    those count that are late by half as much or more.
    """
    if len(work) < 2 or step <= 0:
        return []
    above, ordered = excess(work), sorted(blocked)
    calm = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    least = max(max(above) / 2, threshold * step)
    found = [i for i, by in enumerate(above) if by >= least and blocked[i] <= calm]
    return found if above and max(above) > threshold * step and len(found) <= len(work) / 2 else []


def interval(shares: Sequence[float], latest: int) -> tuple[float, float]:
    """The interval of the mean of the last `latest` measurements, of which there are `FEWEST`.

    It is Student's, at the level of `SURE`: few measurements hardly tell their scatter. Earlier
    ones count for it, too, around their own median and by the `INNER` of them: neither a change nor
    a single long step is scatter.
    """
    measured, before = shares[-latest:], shares[:-latest]
    mean = sum(measured) / latest
    squares, freedom = sum((share - mean) ** 2 for share in measured), latest - 1
    if len(before) >= FEWEST:
        usual = sorted(before)[len(before) // 2]
        away = sorted(abs(share - usual) for share in before)
        scatter = away[int(INNER * (len(away) - 1))] / _NORMAL
        squares, freedom = squares + len(before) * scatter**2, freedom + len(before)
    margin = student(freedom) * math.sqrt(squares / freedom / latest)
    return mean - margin, mean + margin


def student(freedom: int) -> float:
    """The quantile of Student's t at the level of `SURE` (its normal equivalent, Wallace 1959)."""
    normal = SURE * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(normal * normal / freedom))
