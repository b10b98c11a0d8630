"""How old gradients are when they are applied, and what that does to stability; never accuracy.

A rank reads the parameters, works, and its gradient is applied. The gradient is as stale as the
number of updates that others have applied in between.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.simulate.formulas.strategies import stable_step_share

Array = npt.NDArray[Any]

MOST_UPDATES = 4_000_000  # kept, the latest; 64 MB
MOST_BINS = 32
SOURCE = "delayed gradient descent on a quadratic, sin(π/(4τ+2)) (Levin and May 1976)"
NOTE = "an indicator of stability, not of accuracy"


class StalenessDistribution(NamedTuple):
    """Distribution over updates of how many others came between reading and applying."""

    mean: float
    p50: float
    p99: float
    most: float
    bins: tuple[tuple[int, int, float], ...]  # first and last staleness, share of the updates

    def to_json(self) -> dict[str, Any]:
        """With the step sizes that stay stable at the mean and at the oldest gradients."""
        return {
            "mean": self.mean,
            "p50": self.p50,
            "p99": self.p99,
            "max": self.most,
            "distribution": [
                {"first": first, "last": last, "share": share} for first, last, share in self.bins
            ],
        }


class Updates:
    """When each rank read the parameters and when its update was applied, step by step."""

    def __init__(self, ranks: int) -> None:
        kept = max(8, MOST_UPDATES // ranks)
        self._read: deque[Array] = deque(maxlen=kept)
        self._applied: deque[Array] = deque(maxlen=kept)

    def add(self, read_ns: Array, applied_ns: Array) -> None:
        """One step of every rank."""
        self._read.append(read_ns)
        self._applied.append(applied_ns)

    def staleness(self) -> StalenessDistribution | None:
        """Over the time for which every rank's updates are known; None where there is none."""
        if not self._applied:
            return None
        read, applied = np.array(self._read), np.array(self._applied)
        inside = (read >= applied[0].max()) & (applied <= applied[-1].min())
        if not inside.any():
            return None
        order = np.sort(applied, axis=None)
        done = np.searchsorted(order, applied[inside], side="right")
        found = done - np.searchsorted(order, read[inside], side="right") - 1
        return summed_up(np.maximum(found, 0))


def summed_up(found: Array) -> StalenessDistribution:
    """The distribution of whole numbers, in at most `MOST_BINS` bins of one width."""
    width = -(-(int(found.max()) + 1) // MOST_BINS)
    counts = np.bincount(found // width) / len(found)
    bins = tuple(
        (index * width, index * width + width - 1, float(share))
        for index, share in enumerate(counts)
        if share
    )
    p50, p99 = (float(np.quantile(found, q)) for q in (0.5, 0.99))
    return StalenessDistribution(float(found.mean()), p50, p99, float(found.max()), bins)


def convergence(
    staleness: StalenessDistribution | None, *, local_steps: int = 1, discarded: float = 0.0
) -> dict[str, Any] | None:
    """What a strategy does to the optimisation; None where it computes what waiting for all would.

    `local_steps` are taken between two exchanges; `discarded` is the share of gradients thrown
    away.
    """
    if staleness is None and local_steps == 1 and not discarded:
        return None
    return {
        "staleness": None if staleness is None else staleness.to_json(),
        "stable_step_share": None if staleness is None else stable_step_share(staleness.mean),
        "stable_step_share_p99": None if staleness is None else stable_step_share(staleness.p99),
        "local_steps": local_steps,
        "discarded_share": discarded,
        "source": SOURCE,
        "note": NOTE,
    }
