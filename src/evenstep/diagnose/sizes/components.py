"""The components of a run's steps, to project them: own work between barriers, and transfer.

A step is cut at its barriers: collectives of the widest groups in which the training thread was
blocked. The time of a rank between two of them, also in narrower groups, is its own. A step takes
the sum over its segments of the longest own time, and a rest.

Transfer grows like α + S/B. All-reduce of S bytes: a ring takes 2(n−1)α + 2S(n−1)/(nB), a tree
2⌈log₂n⌉α + 2S/B. A run shows the transfer at its own size, and by several message sizes how much of
it is latency.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.allreduce import bus_factor, depth
from evenstep.diagnose.graph.peers import Peers, peers
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.levels import FEWEST
from evenstep.diagnose.measure.expected import line_through
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.transfer import transfers
from evenstep.trace.spool.layout import Phase


class Growth(NamedTuple):
    """How the transfer of a run grows with the ranks. `latency_share` None: unknown.

    `elsewhere`: (ranks, transfer over this run's) of runs at other sizes. Their growth beyond that
    of a form is contention, and continues with every rank added.
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
        """Growth by one of the three forms at random: the fabric may be of any of them."""
        low, high = self.bounds(ranks)
        return float(random.choice([low, self.factor(ranks), high]))

    @property
    def contention(self) -> float | None:
        """Growth beyond the expected form for every rank added; None if one size was measured."""
        return self._contention()[1] if self.elsewhere else None

    def _grown(self, ranks: int) -> list[float]:
        more = ranks - self.ranks
        pairs = zip(self._forms(ranks), self._contention(), strict=True)
        return [max(form + rise * more, 0.0) for form, rise in pairs]

    def _contention(self) -> list[float]:
        """Contention beside each form, by least squares through the measured size, at least 0:
        Σ(n − n₀)(f − f₀) / Σ(n − n₀)²."""
        square = sum((size - self.ranks) ** 2 for size, _ in self.elsewhere)
        rises = [0.0, 0.0, 0.0]
        for size, factor in self.elsewhere:
            more = size - self.ranks
            over = [factor - form for form in self._forms(size)]
            rises = [rise + more * each for rise, each in zip(rises, over, strict=True)]
        return [max(rise / square, 0.0) if square else 0.0 for rise in rises]

    def _forms(self, ranks: int) -> tuple[float, float, float]:
        """Growth without any cost of more ranks, with a tree's latency, and with a ring's; of a run
        with an unknown share of latency, the last is a tree's latency alone."""
        if self.ranks < 2:
            return 1.0, 1.0, 1.0
        share = self.latency_share or 0.0
        bandwidth = bus_factor("all_reduce", ranks) / bus_factor("all_reduce", self.ranks)
        tree, ring = depth(ranks) / depth(self.ranks), (ranks - 1) / (self.ranks - 1)
        worst = (1 - share) * bandwidth + share * ring
        expected = (1 - share) * bandwidth + share * tree
        return 1.0, expected, tree if self.latency_share is None else worst


def growth(grid: StepGrid) -> Growth:
    """The growth of a run's transfer, by the line through the floors of its collectives by size."""
    kinds = transfers(grid).kinds
    kinds = kinds.select((kinds["count"] >= FEWEST) & (kinds.floor_ns > 0))
    ranks, size = len(grid.ranks), kinds.size_bytes.astype(float)
    line = line_through(size, kinds.floor_ns, kinds["count"]) if len(kinds) else None
    if line is None:
        return Growth(ranks, None, None, None)
    weight = kinds["count"] / kinds["count"].sum()
    share = line.alpha_ns / float((weight * line.time_ns(size)).sum())
    return Growth(ranks, line.alpha_ns, line.gBps, share)


# -- segments --------------------------------------------------------------------------------------


Array = npt.NDArray[Any]


class Segments(NamedTuple):
    """Own work between barriers, in steady steps."""

    own_ns: Array  # (steps, segments, ranks)
    step_ns: Array  # (steps,) from the last barrier of the previous step to that of this one
    units: float  # ranks that vary independently of each other: narrower groups count as one
    unsteady: Array  # extra time of steps with a checkpoint or evaluation
    barriers: bool  # whether any was seen

    @property
    def rest_ns(self) -> Array:
        """Step time outside of the longest own work. Shape (steps,)."""
        return np.asarray(self.step_ns - self.own_ns.max(axis=2).sum(axis=1))


def segments(grid: StepGrid) -> Segments:
    """Cut the grid's steps at their barriers."""
    unsteady = _unsteady(grid)
    found = _cut(grid.graph) if grid.graph is not None else None
    steps = np.flatnonzero(grid.sampled)
    if found is None:
        seen = np.ones(len(grid.steps), bool)
        own, narrow, carried = grid.work_ns[:, None, :].astype(float), 1, np.zeros(grid.shape)
    else:
        own, narrow, carried, cut = found
        seen = np.zeros(len(grid.steps), bool)
        seen[steps[cut]] = True
    step = np.median(grid.duration_ns, axis=1)
    step[seen] = np.median(grid.duration_ns[seen] + carried, axis=1)
    steady = ~unsteady[seen]
    usual = float(np.median(step[seen][steady]))
    more = np.where(unsteady, step - usual, 0.0)[grid.sampled | seen]
    units = len(grid.ranks) / narrow
    return Segments(own[steady], step[seen][steady], units, more, found is not None)


def _unsteady(grid: StepGrid) -> Array:
    """Steps with a checkpoint or an evaluation, and those right after; none if most have one."""
    writing = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    found = np.asarray((writing > 0).any(axis=1))
    found[1:] |= found[:-1].copy()  # work after the last barrier counts with the next step
    return found if float(found.mean()) <= 0.5 else np.zeros(len(found), bool)


def _cut(graph: Graph) -> tuple[Array, int, Array, Array] | None:
    """Own work (steps, segments, ranks), ranks of a narrower group, work carried over, and which
    steps of the graph these are; None where ranks have programs of their own, or never block.

    Carried over is (steps, ranks): own work after the last barrier of the previous step, less that
    after this step's.
    """
    whole = [part for part in peers(graph) if len(part.lanes) == len(graph.ranks)]
    if not whole or not len(graph.operations):
        return None
    part = max(whole, key=lambda one: len(one.segments))
    own, wide, blocked = _places(graph, part)
    often = (wide & (blocked > 0)).mean(axis=(0, 1)) >= 0.5
    if not often.any():
        return None
    narrow_ns = np.where(wide, 0.0, blocked)  # counts with the work after it
    pending = own + np.concatenate([np.zeros_like(own[:, :, :1]), narrow_ns[:, :, :-1]], axis=2)
    cuts = np.flatnonzero(often)
    parts = [chunk.sum(axis=2) for chunk in np.split(pending, cuts + 1, axis=2)]
    after = parts.pop()
    first = np.concatenate([after[:1], after[:-1]])  # it lies before the next step's barrier
    parts = [parts[0] + first, *parts[1:]]
    table = graph.operations.members
    narrow = max(1, round(len(graph.ranks) / int(table.max())))
    return np.stack(parts, axis=1), narrow, first - after, part.segments


def _places(graph: Graph, part: Peers) -> tuple[Array, Array, Array]:
    """Own work, whether a place waits for a widest group, and its time blocked."""
    wait = graph.rows.wait[part.rows]
    known = (wait >= 0) & part.there
    members = np.where(known, graph.operations.members[np.maximum(wait, 0)], 0)
    over = np.where(known, graph.operations.over_ns[np.maximum(wait, 0)], 0)
    blocked = np.where(known, np.maximum(over - graph.rows.at_ns[part.rows], 0), 0)
    return part.by_place(graph.own_ns), members == int(graph.operations.members.max()), blocked
