"""What waiting costs at other sizes, by closed form.

A chronically late rank costs the same share whatever the size. Independent delays do not: with
probability p a step per rank, a step of n ranks has one with 1 − (1 − p)^n. Noise without outliers
grows with the expected maximum of n normal draws (Blom 1958: Φ⁻¹((n − .375)/(n + .25))).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

from evenstep.diagnose.finding import Projection
from evenstep.statistics.interval import Share

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


def by_growth(share: Share, ranks: int, growth: Callable[[int], float]) -> list[Projection]:
    """What takes `growth(factor)` times as long with that many times the ranks."""
    found = []
    for factor in FACTORS:
        more = growth(factor) - 1
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
