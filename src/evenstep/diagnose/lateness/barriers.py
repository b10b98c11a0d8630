"""What ranks do between the moments at which all of them wait for one another.

A step is cut at its barriers: collectives of the widest groups in which the training thread was
blocked. What a rank spends between two of them, in narrower groups too, is its own; the step then
takes the sum over the segments of the longest own time, and a rest that is nobody's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.peers import Alike, alike
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


class Segments(NamedTuple):
    """Own work between barriers, in steady steps."""

    own_ns: Array  # (steps, segments, ranks)
    step_ns: Array  # (steps,) from the last barrier of the step before to that of this one
    units: float  # ranks that vary independently of each other: narrower groups count as one
    unsteady: Array  # what steps with a checkpoint or evaluation took more than a steady one
    barriers: bool  # whether any was seen

    @property
    def rest_ns(self) -> Array:
        """Step time that is nobody's own work. Shape (steps,)."""
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
    step = np.median(grid.duration_ns[seen] + carried, axis=1)
    steady = ~unsteady[seen]
    usual = float(np.median(step[steady]))
    more = np.where(unsteady[seen], step - usual, 0.0)
    units = len(grid.ranks) / narrow
    return Segments(own[steady], step[steady], units, more, found is not None)


def _unsteady(grid: StepGrid) -> Array:
    """Steps with a checkpoint or an evaluation, and those right after; none if most have one."""
    writing = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    found = np.asarray((writing > 0).any(axis=1))
    found[1:] |= found[:-1].copy()  # what follows a barrier counts with the next step
    return found if float(found.mean()) <= 0.5 else np.zeros(len(found), bool)


def _cut(graph: Graph) -> tuple[Array, int, Array, Array] | None:
    """(steps, segments, ranks) of own work, how many ranks a narrower group has, work carried over,
    and which steps of the graph these are.

    What is carried is (steps, ranks): what lies after the last barrier of the step before, less
    what lies after this step's. None where ranks have programs of their own, or nobody was blocked.
    """
    whole = [part for part in alike(graph) if len(part.lanes) == len(graph.ranks)]
    if not whole or not len(graph.operations):
        return None
    part = max(whole, key=lambda one: len(one.segments))
    own, wide, blocked = _places(graph, part)
    often = (wide & (blocked > 0)).mean(axis=(0, 1)) >= 0.5
    if not often.any():
        return None
    pending = own + _before(np.where(wide, 0.0, blocked))
    cuts = np.flatnonzero(often)
    parts = [chunk.sum(axis=2) for chunk in np.split(pending, cuts + 1, axis=2)]
    after = parts.pop()
    first = np.concatenate([after[:1], after[:-1]])  # it lies before the next step's barrier
    parts = [parts[0] + first, *parts[1:]]
    table = graph.operations.members
    narrow = max(1, round(len(graph.ranks) / int(table.max())))
    return np.stack(parts, axis=1), narrow, first - after, part.segments


def _places(graph: Graph, part: Alike) -> tuple[Array, Array, Array]:
    """Own work, whether a place waits for a widest group, and time blocked in narrower ones."""
    wait = graph.rows.wait[part.rows]
    known = wait >= 0
    members = np.where(known, graph.operations.members[np.maximum(wait, 0)], 0)
    over = np.where(known, graph.operations.over_ns[np.maximum(wait, 0)], 0)
    blocked = np.where(known, np.maximum(over - graph.rows.at_ns[part.rows], 0), 0)
    return graph.own_ns[part.rows], members == int(graph.operations.members.max()), blocked


def _before(blocked: Array) -> Array:
    """Time blocked after each place, counted with the next one."""
    return np.concatenate([np.zeros_like(blocked[:, :, :1]), blocked[:, :, :-1]], axis=2)
