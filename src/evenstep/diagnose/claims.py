"""What of the lost time is already explained, so that each nanosecond is attributed once.

Modes are asked in a fixed order, the most specific first. Each takes what it explains out of two
pools: the late cells (their loss comes from `delays`) and the exposed transfer of each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Claims:
    """The two pools. `transfer_ns` (steps,): exposed transfer of each step, waits taken out."""

    def __init__(self, shape: tuple[int, int], transfer_ns: Array) -> None:
        self._taken = np.zeros(shape, bool)
        self._left_ns: Array = np.maximum(transfer_ns.astype(float), 0.0)

    @property
    def left_ns(self) -> Array:
        """Exposed transfer nobody has claimed, per step."""
        left: Array = self._left_ns.copy()
        return left

    def free(self, cells: Array) -> Array:
        """Of these cells (steps × ranks, boolean), those nobody has claimed."""
        return np.asarray(cells & ~self._taken)

    def cells(self, cells: Array) -> Array:
        """Claim late cells: those of them that were free."""
        mine = self.free(cells)
        self._taken |= mine
        return mine

    def transfer(self, wanted_ns: Array) -> Array:
        """Claim exposed transfer, per step: at most what is left of it."""
        mine = np.clip(wanted_ns, 0.0, self._left_ns)
        self._left_ns -= mine
        return np.asarray(mine)
