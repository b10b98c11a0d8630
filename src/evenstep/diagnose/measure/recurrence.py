"""Recurrence of a loss: over steps, as a pattern of late cells; at other sizes, by closed form.

A chronically late rank costs the same share at any size. Independent delays with probability p per
rank and step hit a step of n ranks with probability 1 − (1 − p)^n. Noise without outliers grows
with the expected maximum of n normal draws (Blom 1958: Φ⁻¹((n − .375)/(n + .25))).
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

FEWEST_STEPS = 5  # with fewer, nothing has a pattern


def pattern_of(late: Array) -> str | None:
    """Pattern of late cells (steps, ranks); None without any, or with too few steps.

    chronic: the same ranks in most steps; rotating: most steps, another rank each time; bursty:
    runs of steps (`SEVERAL` on average); transient: single steps.
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
    """The steps with late cells, as ranges, and their pattern.

    A chronic or rotating pattern is one range; of others the `LISTED` longest ranges are listed, in
    order.
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
    """All of these steps."""
    return When([(int(steps[0]), int(steps[-1]))], pattern)


# -- at other sizes --------------------------------------------------------------------------------

FACTORS = (2, 4)


def expected_maximum(ranks: int) -> float:
    """E[max] of `ranks` standard normal draws, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _projected(share: Share, ranks: int, grown: Callable[[float, int], float]) -> list[Projection]:
    """The share at other sizes; `grown` gives it for a multiple of the ranks."""
    return [
        Projection(ranks * factor, *(min(max(grown(value, factor), 0.0), 1.0) for value in share))
        for factor in FACTORS
    ]


def constant(share: Share, ranks: int) -> list[Projection]:
    """A persistent cause: the same share at any size."""
    return _projected(share, ranks, lambda value, _: value)


def by_growth(share: Share, ranks: int, growth: Callable[[int, int], float]) -> list[Projection]:
    """A cause that takes `growth(ranks, factor)` times as long with `factor` times the ranks."""

    def grown(value: float, factor: int) -> float:
        times = growth(ranks, factor)
        return value * times / (1 + value * (times - 1))

    return _projected(share, ranks, grown)


def by_noise(share: Share, ranks: int) -> list[Projection]:
    """Noise of all ranks: it grows like the expected maximum."""
    now = expected_maximum(max(ranks, 2))
    return _projected(share, ranks, lambda value, f: value * expected_maximum(ranks * f) / now)


def by_chance(share: Share, ranks: int, hits: Share) -> list[Projection]:
    """Independent delays; `hits` is the probability, with its interval, that a step has one now.
    Each rank keeps its probability."""
    if share.value <= 0 or hits.value <= 0:
        return []
    cost = share.value / (1 - share.value) / hits.value if share.value < 1 else 0.0
    spread = max(share.high - share.value, share.value - share.low) / share.value

    def grown(chance: float, factor: int) -> float:
        lost = cost * (1 - (1 - min(chance, 0.999999)) ** factor)
        return lost / (1 + lost)

    found = []
    for factor in FACTORS:
        middle, low, high = (grown(chance, factor) for chance in hits)
        ends = min(low, middle * (1 - spread)), max(high, middle * (1 + spread))
        found.append(Projection(ranks * factor, middle, max(0.0, ends[0]), min(1.0, ends[1])))
    return found
