"""How the time of collectives grows with ranks: α + S/B, in ring and tree form.

All-reduce of S bytes: a ring takes 2(n−1)α + 2S(n−1)/(nB), a tree 2·log2(n)·α + 2S/B. What one run
shows is the transfer at its own size; how much of it is latency, several message sizes tell.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.measure.curve import line_through
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.transfer import transfers

FEWEST = 5  # transfers of a size


class Growth(NamedTuple):
    """What the transfer of a run is made of. `latency_share` is None where it cannot be told.

    `elsewhere`: (ranks, growth from this run's) of runs at other sizes. What their growth is beyond
    a form's is contention, and goes on with every rank added.
    """

    ranks: int
    latency_ns: float | None  # α part of one collective, at the measured size
    bytes_per_ns: float | None  # equals GB/s
    latency_share: float | None
    elsewhere: tuple[tuple[int, float], ...] = ()

    def factor(self, ranks: int) -> float:
        """Growth from the measured size: bandwidth in ring form, latency in tree form."""
        return self._grown(self._expected, ranks)

    def bounds(self, ranks: int) -> tuple[float, float]:
        """Between a fabric that adds nothing and the ring's latency (tree's, if share unknown)."""
        worst = self._tree if self.latency_share is None else self._slowest
        ends = [self._grown(form, ranks) for form in (self._flat, self._expected, worst)]
        return min(ends), max(ends)

    @property
    def contention(self) -> float | None:
        """Growth for every rank added, beyond the expected form; None: one size was measured."""
        return self._contention(self._expected) if self.elsewhere else None

    def _grown(self, form: Callable[[int], float], ranks: int) -> float:
        return max(form(ranks) + self._contention(form) * (ranks - self.ranks), 0.0)

    def _contention(self, form: Callable[[int], float]) -> float:
        """Least squares through the measured size, at least 0: Σ(n − n₀)(f − f₀) / Σ(n − n₀)²."""
        more = [size - self.ranks for size, _ in self.elsewhere]
        over = [factor - form(size) for size, factor in self.elsewhere]
        square = sum(step * step for step in more)
        rise = sum(step * each for step, each in zip(more, over, strict=True))
        return max(rise / square, 0.0) if square else 0.0

    def _flat(self, ranks: int) -> float:
        del ranks
        return 1.0

    def _expected(self, ranks: int) -> float:
        share = self.latency_share or 0.0
        return (1 - share) * self._bandwidth(ranks) + share * self._tree(ranks)

    def _slowest(self, ranks: int) -> float:
        share = self.latency_share or 0.0
        return (1 - share) * self._bandwidth(ranks) + share * self._ring(ranks)

    def drawn(self, ranks: int, random: np.random.Generator) -> float:
        """One of the three: nothing known of the fabric makes any of them likelier."""
        low, high = self.bounds(ranks)
        return float(random.choice([low, self.factor(ranks), high]))

    def _bandwidth(self, ranks: int) -> float:
        return ((ranks - 1) / ranks) / ((self.ranks - 1) / self.ranks) if self._alone else 1.0

    def _tree(self, ranks: int) -> float:
        return log2(max(ranks, 1)) / log2(self.ranks) if self._alone else 1.0

    def _ring(self, ranks: int) -> float:
        return (ranks - 1) / (self.ranks - 1) if self._alone else 1.0

    @property
    def _alone(self) -> bool:
        return self.ranks > 1


def growth(grid: StepGrid) -> Growth:
    """The line through the floors of the run's collectives by size."""
    kinds = transfers(grid).kinds
    kinds = kinds.select((kinds["count"] >= FEWEST) & (kinds.floor_ns > 0))
    ranks, size = len(grid.ranks), kinds.size_bytes.astype(float)
    line = line_through(size, kinds.floor_ns, kinds["count"]) if len(kinds) else None
    if line is None:
        return Growth(ranks, None, None, None)
    weight = kinds["count"] / kinds["count"].sum()
    share = line.alpha_ns / float((weight * line.time_ns(size)).sum())
    return Growth(ranks, line.alpha_ns, line.gBps, share)
