"""How a loss recurs: over steps, as a pattern of late cells, and at other sizes, by closed form.

A chronically late rank costs the same share whatever the size. Independent delays do not: with
probability p a step per rank, a step of n ranks has one with 1 − (1 − p)^n. Noise without outliers
grows with the expected maximum of n normal draws (Blom 1958: Φ⁻¹((n − .375)/(n + .25))).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Projection, When
from evenstep.diagnose.levels import DOMINANT, LISTED, MOST, SEVERAL
from evenstep.statistics.interval import Share

Array = npt.NDArray[Any]

FEWEST_STEPS = 5  # steps, below which nothing can be said to recur


def pattern_of(late: Array) -> str | None:
    """Pattern of a (steps, ranks) mask; None where nothing is late, or there are too few steps.

    chronic: the same ranks in most steps; rotating: most steps, but another rank each time;
    bursty: stretches of steps (three in a row, on average); transient: single steps.
    """
    per_rank = late.sum(axis=0)
    any_late = np.asarray(late.any(axis=1))
    if not any_late.any() or len(late) < FEWEST_STEPS:
        return None
    share = float(any_late.mean())
    usual = per_rank >= MOST * len(late)
    at_once = late[:, usual].sum(axis=1)
    in_turns = usual.sum() > 1 and (at_once == 1).sum() >= DOMINANT * (at_once > 0).sum()
    if per_rank[usual].sum() >= DOMINANT * per_rank.sum() and not in_turns:
        return "chronic"
    if share >= MOST and per_rank.max() < DOMINANT * per_rank.sum():
        return "rotating"
    return "bursty" if _mean_run(any_late) >= SEVERAL else "transient"


def _mean_run(flags: Array) -> float:
    """Mean length of the runs of True."""
    starts = np.count_nonzero(flags[1:] & ~flags[:-1]) + bool(flags[0])
    return float(np.count_nonzero(flags)) / starts if starts else 0.0


def when(late: Array, steps: Array) -> When:
    """The steps in which anything is late, as ranges, and the pattern.

    A chronic or rotating state is one range; of single steps at most `LISTED` ranges are listed,
    the longest ones, in order.
    """
    pattern = pattern_of(late)
    concerned = steps[late.any(axis=1)]
    if not len(concerned):
        return When()
    if pattern in ("chronic", "rotating"):
        return When([(int(concerned[0]), int(concerned[-1]))], pattern)
    breaks = np.flatnonzero(np.diff(concerned) > 1)
    first = concerned[np.concatenate([[0], breaks + 1])]
    last = concerned[np.concatenate([breaks, [len(concerned) - 1]])]
    longest = np.sort(np.argsort(first - last, kind="stable")[:LISTED])
    return When([(int(first[i]), int(last[i])) for i in longest], pattern)


def throughout(steps: Array, pattern: str = "chronic") -> When:
    """All steps that were seen."""
    return When([(int(steps[0]), int(steps[-1]))], pattern)


# -- at other sizes --------------------------------------------------------------------------------

FACTORS = (2, 4)


def expected_maximum(ranks: int) -> float:
    """E[max] of `ranks` standard normal draws, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def constant(share: Share, ranks: int) -> list[Projection]:
    """A persistent cause: the same share at any size."""
    return [Projection(ranks * factor, *share) for factor in FACTORS]


def by_chance(share: Share, ranks: int, hits: Share) -> list[Projection]:
    """Independent delays; `hits` is the probability that a step has one now, with its interval."""
    if share.value <= 0 or hits.value <= 0:
        return []
    return [Projection(ranks * factor, *_grown(share, hits, factor)) for factor in FACTORS]


def _grown(share: Share, hits: Share, factor: int) -> Share:
    """Share, low and high when every rank's chance stays and there are `factor` times as many."""
    cost = share.value / (1 - share.value) / hits.value if share.value < 1 else 0.0

    def grown(chance: float) -> float:
        lost = cost * (1 - (1 - min(chance, 0.999999)) ** factor)
        return lost / (1 + lost)

    spread = max(share.high - share.value, share.value - share.low) / share.value
    middle = grown(hits.value)
    low, high = grown(hits.low), grown(hits.high)
    return Share(
        middle,
        max(0.0, min(low, middle * (1 - spread))),
        min(1.0, max(high, middle * (1 + spread))),
    )


def by_growth(share: Share, ranks: int, growth: Callable[[int, int], float]) -> list[Projection]:
    """What takes `growth(ranks, factor)` times as long with that many times the ranks."""
    found = []
    for factor in FACTORS:
        more = growth(ranks, factor) - 1
        grown = (value * (1 + more) / (1 + value * more) for value in share)
        found.append(Projection(ranks * factor, *grown))
    return found


def by_noise(share: Share, ranks: int) -> list[Projection]:
    """Noise that everybody has: grows like the expected maximum."""
    now = expected_maximum(max(ranks, 2))
    found = []
    for factor in FACTORS:
        growth = expected_maximum(ranks * factor) / now
        grown = Share(*(min(1.0, value * growth) for value in share))
        found.append(Projection(ranks * factor, *grown))
    return found
