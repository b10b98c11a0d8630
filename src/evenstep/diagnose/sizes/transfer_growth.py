"""How the time of collectives grows with ranks: α + S/B, in ring and tree form.

All-reduce of S bytes: a ring takes 2(n−1)α + 2S(n−1)/(nB), a tree 2⌈log₂n⌉α + 2S/B. What one run
shows is the transfer at its own size; how much of it is latency, several message sizes tell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.allreduce import bus_factor, depth
from evenstep.diagnose.measure.expected import line_through
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
        return self._grown(ranks)[1]

    def bounds(self, ranks: int) -> tuple[float, float]:
        """Between a fabric that adds nothing and the ring's latency (tree's, if share unknown)."""
        ends = self._grown(ranks)
        return min(ends), max(ends)

    def drawn(self, ranks: int, random: np.random.Generator) -> float:
        """One of the three: nothing known of the fabric makes any of them likelier."""
        low, high = self.bounds(ranks)
        return float(random.choice([low, self.factor(ranks), high]))

    @property
    def contention(self) -> float | None:
        """Growth for every rank added, beyond the expected form; None: one size was measured."""
        return self._contention()[1] if self.elsewhere else None

    def _grown(self, ranks: int) -> list[float]:
        more = ranks - self.ranks
        pairs = zip(self._forms(ranks), self._contention(), strict=True)
        return [max(form + rise * more, 0.0) for form, rise in pairs]

    def _contention(self) -> list[float]:
        """Of each form, by least squares through the measured size, at least 0:
        Σ(n − n₀)(f − f₀) / Σ(n − n₀)²."""
        square = sum((size - self.ranks) ** 2 for size, _ in self.elsewhere)
        rises = [0.0, 0.0, 0.0]
        for size, factor in self.elsewhere:
            more = size - self.ranks
            over = [factor - form for form in self._forms(size)]
            rises = [rise + more * each for rise, each in zip(rises, over, strict=True)]
        return [max(rise / square, 0.0) if square else 0.0 for rise in rises]

    def _forms(self, ranks: int) -> tuple[float, float, float]:
        """Growth with nothing added, with a tree's latency, and with a ring's (of which nothing is
        known: with a tree's alone)."""
        if self.ranks < 2:
            return 1.0, 1.0, 1.0
        share = self.latency_share or 0.0
        bandwidth = bus_factor("all_reduce", ranks) / bus_factor("all_reduce", self.ranks)
        tree, ring = depth(ranks) / depth(self.ranks), (ranks - 1) / (self.ranks - 1)
        worst = (1 - share) * bandwidth + share * ring
        expected = (1 - share) * bandwidth + share * tree
        return 1.0, expected, tree if self.latency_share is None else worst


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
