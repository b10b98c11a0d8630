"""What of the lateness has a name already, so that each late cell is named once.

Modes with evidence of their own (a recorded pause, an input phase, a placement) are asked before
those that only see lateness. What each is worth beside the others is for
`evenstep.diagnose.attribution` to say: no order has a part in that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Claims:
    """Late cells (steps × ranks) that have been named; what slow transfers are known to have cost,
    and what waiting without a culprit has not been explained, per step."""

    def __init__(self, shape: tuple[int, int], rest_ns: Array) -> None:
        self._taken = np.zeros(shape, bool)
        self.rest_ns: Array = rest_ns.astype(float)  # of single steps it may be negative
        self.slow_ns: Array = np.zeros(shape[0])
        self.moves: Array | None = None  # transfers (boolean) whose slowness has a name

    @property
    def taken(self) -> Array:
        """Late cells that have been claimed. (steps, ranks), boolean."""
        taken: Array = self._taken.copy()
        return taken

    def free(self, cells: Array) -> Array:
        """Of these cells (steps × ranks, boolean), those nobody has claimed."""
        return np.asarray(cells & ~self._taken)

    def cells(self, cells: Array) -> Array:
        """Claim late cells: those of them that were free."""
        mine = self.free(cells)
        self._taken |= mine
        return mine

    def rest(self, explained_ns: Array) -> None:
        """Waiting without a culprit that has been explained."""
        self.rest_ns = self.rest_ns - np.minimum(explained_ns, self.rest_ns)
