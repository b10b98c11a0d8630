"""Which ranks are late: the rule of a live job's log and of `evenstep watch`.

A rank is late when the others wait for it: its own work is longer than theirs by more than a share
of the step, and it is not blocked longer than they are. A rank whose work is long because it holds
a wait for another rank is no culprit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LATE = 0.03  # of a step
STOPPED = 0.05  # of the time: more is told of checkpoints and evaluations, in which all stand still
QUEUED = 0.1  # of a step: a shorter wait for a loader's workers is that of a batch that is ready
FEWEST = 3  # measurements of an interval
SURE = 4.5  # standard deviations of a normal variable: wrong to either side once in 147,000
INNER, _NORMAL = 0.8, 1.2816  # share of normal noise that is within so many deviations


def in_words(time_ns: float) -> str:
    """A time in a job's log: "81.6 ms", from one second on "1.2 s"."""
    return f"{time_ns / 1e6:.3g} ms" if time_ns < 999.5e6 else f"{time_ns / 1e9:.3g} s"


def measures(work: Sequence[float], queued: Sequence[float], step: float) -> list[Sequence[float]]:
    """What a rank's work is compared in; it is late by the least of its excesses.

    `queued`: how much of its work each rank waits for workers of its loader. Where all do, for
    `QUEUED` of the step or more, each has the pace of its own workers, who do not wait for it: who
    gets its batch first gains nothing. There work counts without these waits, too.
    """
    if min(queued, default=0) < QUEUED * step or step <= 0:
        return [work]
    return [work, [each - wait for each, wait in zip(work, queued, strict=True)]]


def excess(work: Sequence[float], queued: Sequence[float] = (), step: float = 0) -> list[float]:
    """Each rank's work above the median rank's (of an even number, the lower middle), by the least
    of its `measures`."""
    compared = measures(work, queued, step)
    usual = [sorted(each)[(len(work) - 1) // 2] for each in compared if len(work)]
    both = zip(*compared, strict=True)
    return [min(one - by for one, by in zip(each, usual, strict=True)) for each in both]


def late(
    work: Sequence[float], blocked: Sequence[float], step: float, *,
    queued: Sequence[float] = (), threshold: float = LATE,
) -> list[int]:  # fmt: skip
    """Indices of the late ranks; none where they would be more than half of all.

    `work`, `queued` (see `measures`) and `blocked` are per rank and step, in the unit of `step`.
    Beside the latest rank only those count that are late by half as much or more.
    """
    if len(work) < 2 or step <= 0:
        return []
    above, ordered = excess(work, queued, step), sorted(blocked)
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
