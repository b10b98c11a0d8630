"""Work made even: what a step would be if ranks did not vary against one another.

What one rank does more than the mean, another does less, so that nothing but waiting for one
another goes. Where a rank has always more to do, or less, that is no chance: it stays. So does
what is usual where ranks are in different collectives, as the stages of a pipeline are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.replay import Program, Removed, by_layer
from evenstep.diagnose.lateness.thresholds import CHRONIC_ERRORS

Array = npt.NDArray[Any]


def unlike(work: Array) -> Array:
    """Ranks that always have more to do than others, or less: by more than chance. (ranks,)."""
    above = _above_mean(work)
    noise = above.std(axis=0)  # of few steps it may be small by chance: the median rank's, at least
    error = np.maximum(noise, np.median(noise)) / np.sqrt(max(len(above), 1))
    return np.asarray(np.abs(above.mean(axis=0)) > CHRONIC_ERRORS * error)


def levelled(plan: Program, removed: Removed, lasting: Array) -> Removed:
    """What to take out of each rank's work, or add to it, beside what was `removed` of it.

    `lasting`: ranks whose usual work is left as it is (boolean).
    """
    own = plan.rows.own_ns - removed.rows_ns
    rows, alike = removed.rows_ns.copy(), True
    for part, left in by_layer(plan, removed.tail_ns.shape, own):
        alike = alike and not np.isnan(left).any() and bool(plan.rows.deciding[part].all())
        above = _above_mean(left) if alike else _above_members(plan, part, left)
        varying = _varying(above, lasting | (not alike))
        rows[part] += varying.reshape(-1)[plan.rows.cell[part]]
    tail = _above_mean(plan.tail_ns - removed.tail_ns)
    return Removed(rows, removed.tail_ns + _varying(tail, lasting | (not alike)))


def _above_mean(own: Array) -> Array:
    """Own work above the mean of all ranks, step by step."""
    return np.asarray(own - own.mean(axis=1, keepdims=True))


def _above_members(plan: Program, part: slice, own: Array) -> Array:
    """Own work above the mean of those whom others wait for in the same collective.

    Ranks in other collectives do other things: the stages of a pipeline, say.
    """
    cell, deciding = plan.rows.cell[part], plan.rows.deciding[part]
    member = np.cumsum(np.diff(plan.rows.instance[part], prepend=-1) != 0) - 1
    mine = own.reshape(-1)[cell]
    count = np.bincount(member, deciding)
    mean = np.bincount(member, np.where(deciding, mine, 0.0)) / np.maximum(count, 1)
    above = np.zeros(own.size)
    above[cell] = np.where(deciding, mine - mean[member], 0.0)
    return above.reshape(own.shape)


def _varying(above: Array, lasting: Array) -> Array:
    """Without what is usual for these ranks."""
    return np.asarray(above - np.where(lasting, above.mean(axis=0), 0.0))
