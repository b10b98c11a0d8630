"""How loosely ranks are coupled: steps per round, and how stale an update is when it is made.

Local SGD synchronizes every K steps: a round. A parameter server never does: a rank's update is
staler by one for every step that another rank finishes while it works on its own, which is n − 1
where all are equally fast. What a script logs as `staleness` goes before what is counted here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.samples import marked
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

STALENESS = "staleness"
ALONG = 0.05  # of the steps of a run without barriers may still have one (setting up, saving)
IN_STEP = 1.0  # of a step: ranks that end the same step closer together are in step after all


class Staleness(NamedTuple):
    """One row per update, in order of time."""

    rank: Array
    step: Array
    value: Array
    logged: bool  # by the script; else counted from the steps


class Rounds(NamedTuple):
    """Steps between two synchronizations of all ranks."""

    steps: float  # per round, median
    regular: bool  # every round has as many


def rounds(grid: StepGrid) -> Rounds | None:
    """The rounds of a run that synchronizes more rarely than every step; None for any other."""
    synced = np.asarray((grid.collectives > 0).all(axis=1))
    if not len(synced) or synced.mean() > 0.5 or np.count_nonzero(synced) < 3:
        return None
    lengths = np.diff(np.flatnonzero(synced))
    return Rounds(float(np.median(lengths)), bool((lengths == lengths[0]).all()))


def staleness(trace: Trace, grid: StepGrid) -> Staleness | None:
    """Staleness of every update: logged, or counted where ranks never wait for all others."""
    logged = _logged(trace)
    if logged is not None:
        return logged
    if len(trace.ranks) < 2 or not _uncoupled(trace, grid):
        return None
    return _counted(trace, grid)


def _logged(trace: Trace) -> Staleness | None:
    found = marked(trace, STALENESS)
    good = np.isfinite(found.value) & (found.value >= 0)
    if not good.any():
        return None
    order = np.flatnonzero(good)[np.argsort(found.step[good], kind="stable")]
    return Staleness(found.rank[order], found.step[order], found.value[order], logged=True)


def _uncoupled(trace: Trace, grid: StepGrid) -> bool:
    """Whether ranks pass messages but practically never meet in a collective."""
    if len(grid.steps):
        rare = float((grid.collectives > 0).any(axis=1).mean()) <= ALONG
    else:
        rare = not len(trace.of_kind(Kind.COLLECTIVE))
    return rare and bool(len(trace.of_kind(Kind.POINT_TO_POINT)))


def _counted(trace: Trace, grid: StepGrid) -> Staleness | None:
    """Steps that others finished during each step; None where clocks or steps forbid it."""
    if grid.clocks.unplaced:
        return None
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(steps.exit_ns > 0)
    start, end = _common(steps, grid)
    if len(steps) < 2 or _in_step(steps, end):
        return None
    ends = np.sort(end)
    within = np.searchsorted(ends, end, "left") - np.searchsorted(ends, start, "right")
    own = np.maximum(within, 0).astype(float)  # ends strictly within: one's own is not
    order = np.argsort(end, kind="stable")
    return Staleness(
        steps["rank"][order], steps.step.astype(np.int64)[order], own[order], logged=False
    )


def _common(steps: Columns, grid: StepGrid) -> tuple[Array, Array]:
    start, end = steps.enter_ns.astype(np.int64).copy(), steps.exit_ns.astype(np.int64).copy()
    for rank, offset in grid.clocks.by_rank.items():
        if offset is not None and offset.offset_ns.any():
            mine = steps["rank"] == rank
            start[mine], end[mine] = offset.shift(start[mine]), offset.shift(end[mine])
    return start, end


def _in_step(steps: Columns, end: Array) -> bool:
    """Whether ranks finish the steps that all have done at the same time, as in a pipeline."""
    order = np.argsort(steps.step, kind="stable")
    first = np.flatnonzero(np.diff(steps.step[order].astype(np.int64), prepend=-1))
    members = np.diff(np.append(first, len(order)))
    latest = np.maximum.reduceat(end[order], first)
    spread = (latest - np.minimum.reduceat(end[order], first))[members == members.max()]
    length = float(np.median(steps.exit_ns - steps.enter_ns))
    return bool(np.median(spread) <= IN_STEP * length)
