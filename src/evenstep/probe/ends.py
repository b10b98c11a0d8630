"""Links or their ends: what explains the slow among the pairs that were measured.

A link is slow in a direction. Where nearly all links that leave a node are slow, it is the node's
adapter that is, and the links are not named; so for those that arrive. What is no adapter's fault
is a link's, as far as it can be told: one quick link at an end clears that end's adapter, and
where none was measured the two look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from statistics import median
from typing import NamedTuple

COMMON = 0.75  # of a node's links: from here on its adapter is slow
LIKENESS = 0.5  # of the logarithm of the factor of a link that stands out: its neighbours are alike

Edge = tuple[int, int]  # from, to


class SlowEnd(NamedTuple):
    """An end at which all links of a team are slow, or may be."""

    team: int
    sending: bool
    edges: tuple[Edge, ...]


def common_ends(slow: Mapping[Edge, float], ratios: Mapping[Edge, float]) -> list[SlowEnd]:
    """Teams of which nearly all links in a direction are slow; at least two of them.

    The most complete come first, and what they explain counts for no other.
    """
    left, found = set(slow), list[SlowEnd]()
    while candidates := [
        side
        for end in (0, 1)
        for team in sorted({edge[end] for edge in ratios})
        if (side := _side(team, end, left, slow, ratios)) is not None
    ]:
        best = max(candidates, key=lambda side: len(side.edges))
        found.append(best)
        left -= set(best.edges)
    return found


def _side(
    team: int, end: int, left: set[Edge], slow: Mapping[Edge, float], ratios: Mapping[Edge, float]
) -> SlowEnd | None:
    """The links at one end of a team, if nearly all are about as slow as those that stand out."""
    mine = [edge for edge in ratios if edge[end] == team]
    out = [edge for edge in mine if edge in left]
    if not out or len(mine) < 2:
        return None
    usual = median(slow[edge] for edge in out)
    alike = tuple(edge for edge in mine if edge in slow or _alike(ratios[edge], usual))
    fresh = sum(edge in left or edge not in slow for edge in alike)
    if fresh < 2 or len(alike) < COMMON * len(mine):
        return None
    return SlowEnd(team, end == 0, alike)


def suspected(edge: Edge, ratios: Mapping[Edge, float]) -> list[SlowEnd]:
    """The ends of a slow link whose adapter no quicker link clears."""
    found = []
    for end in (0, 1):
        mine = tuple(other for other in ratios if other[end] == edge[end])
        if all(_alike(ratios[other], ratios[edge]) for other in mine):
            found.append(SlowEnd(edge[end], end == 0, mine))
    return found


def _alike(ratio: float, slow: float) -> bool:
    """Whether a link is about as slow as one that stands out: noise may hide it, or add to that."""
    return log(max(ratio, 1.0)) >= LIKENESS * log(slow)
