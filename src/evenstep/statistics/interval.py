"""How sure a share of the step time is: block bootstrap over the steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

RESAMPLES = 200
BLOCK_STEPS = 8  # neighbouring steps are not independent (Künsch 1989, moving blocks)
SEED = 20_400  # any: the same trace must give the same interval


class Share(NamedTuple):
    """A share of the total step time with its 95 % interval."""

    value: float
    low: float
    high: float

    def rounded(self) -> tuple[float, float, float]:
        """The three numbers as they are reported."""
        return round(self.value, 4), round(self.low, 4), round(self.high, 4)

    @property
    def confidence(self) -> float:
        """How far the value stands above the chance of being nothing, 0 to .99."""
        half = max(self.high - self.value, self.value - self.low, 1e-12 * self.value, 1e-12)
        return float(min(0.99, max(0.0, 1.0 - np.exp(-1.5 * self.value / half))))


def share_of(lost_ns: Array, step_ns: Array) -> Share:
    """Sum of `lost_ns` over the sum of `step_ns`, both per step, with its interval; at most 1."""
    total = float(step_ns.sum())
    if not len(step_ns) or total <= 0:
        return Share(0.0, 0.0, 0.0)
    value = min(1.0, float(lost_ns.sum()) / total)
    if len(step_ns) < 2 * BLOCK_STEPS:
        half = _of_few(lost_ns, step_ns, value)
        return Share(value, max(0.0, value - half), min(1.0, value + half))
    random = np.random.default_rng(SEED)
    blocks = -(-len(step_ns) // BLOCK_STEPS)
    starts = random.integers(0, len(step_ns) - BLOCK_STEPS + 1, (RESAMPLES, blocks))
    lost, steps = _blocks(lost_ns)[starts].sum(axis=1), _blocks(step_ns)[starts].sum(axis=1)
    low, high = np.quantile(lost / np.maximum(steps, 1), [0.025, 0.975])
    return Share(value, float(min(low, value)), float(min(1.0, max(high, value))))


def _of_few(lost_ns: Array, step_ns: Array, value: float) -> float:
    """Half the interval of a share of few steps: neighbours that agree may all be one exception."""
    scatter = float(np.sqrt(((lost_ns - value * step_ns) ** 2).sum())) / float(step_ns.sum())
    return max(1.96 * scatter, value) * float(np.sqrt(BLOCK_STEPS / len(step_ns)))


def _blocks(values: Array) -> Array:
    """Sum of every block of neighbouring steps, by its first."""
    summed = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
    return np.asarray(summed[BLOCK_STEPS:] - summed[:-BLOCK_STEPS])
