"""Who is late: the one rule for whoever says so while a job runs, its log and `evenstep watch`.

A rank is late when the others wait for it: its own work is longer than theirs by more than a share
of the step, and it is not blocked longer than they are. Work that is long because it holds somebody
else's wait makes no culprit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LATE = 0.03  # of a step
FEWEST = 3  # measurements that an interval is told from
SURE = 5.0  # standard errors
_NORMAL = 1.4826  # of normal noise, its deviation over the median distance from its median


def excess(work: Sequence[float]) -> list[float]:
    """How far each rank's work is above the median rank's (of two, the lesser)."""
    usual = sorted(work)[(len(work) - 1) // 2] if len(work) else 0.0
    return [each - usual for each in work]


def late(
    work: Sequence[float], blocked: Sequence[float], step: float, *, threshold: float = LATE
) -> list[int]:
    """Places of the ranks the others wait for, none where it is half of them or not clear.

    `work` and `blocked` are those of each rank per step, in the unit of `step`. Who is late by less
    than half of what the latest is, is not named beside it.
    """
    if len(work) < 2 or step <= 0:
        return []
    above, ordered = excess(work), sorted(blocked)
    calm = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    least = max(max(above) / 2, threshold * step)
    found = [i for i, by in enumerate(above) if by >= least and blocked[i] <= calm]
    return found if above and max(above) > threshold * step and len(found) <= len(work) / 2 else []


def interval(shares: Sequence[float], latest: int) -> tuple[float, float]:
    """Between which the mean of the `latest` of some measurements lies: `FEWEST` at least.

    It reaches `SURE` standard errors to either side. How far they scatter is told by those before
    them, too, each around what was usual then: a change is no scatter, nor is a long step.
    """
    measured, before = shares[-latest:], shares[:-latest]
    mean = sum(measured) / latest
    squares, freedom = sum((share - mean) ** 2 for share in measured), latest - 1
    if len(before) >= FEWEST:
        usual = _middle(before)
        scatter = _NORMAL * _middle([abs(share - usual) for share in before])
        squares, freedom = squares + len(before) * scatter**2, freedom + len(before)
    margin = SURE * math.sqrt(squares / freedom / latest)
    return mean - margin, mean + margin


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
