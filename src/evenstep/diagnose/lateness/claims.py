"""What of the lost time is already explained, so that each nanosecond is attributed once.

Modes are asked in a fixed order, the most specific first. Each takes what it explains out of three
pools: the late cells (their loss comes from `delays`), the exposed transfer of each step, and what
ranks wait for one another without anyone being late by much.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Claims:
    """The pools. `transfer_ns`, `rest_ns` and `waited_ns` are (steps,): exposed transfer with waits
    taken out; what ranks not arriving together cost, nobody's in particular; and what a rank waits
    for others on average, late cells taken out. `asking` is the mode that claims now."""

    def __init__(
        self,
        shape: tuple[int, int],
        transfer_ns: Array,
        rest_ns: Array | None = None,
        waited_ns: Array | None = None,
    ) -> None:
        self._taken = np.zeros(shape, bool)
        self._left_ns: Array = np.maximum(transfer_ns.astype(float), 0.0)
        rest = np.zeros(shape[0]) if rest_ns is None else rest_ns
        self._rest_ns: Array = rest.astype(float)  # of single steps it may be negative
        self._waited_ns: Array = np.zeros(shape[0]) if waited_ns is None else waited_ns
        self.asking = ""
        self.slow_ns: Array = np.zeros(shape[0])  # what slow transfers are known to have cost
        self.by_mode: dict[str, Array] = {}  # late cells of each mode that claimed any

    @property
    def left_ns(self) -> Array:
        """Exposed transfer nobody has claimed, per step."""
        left: Array = self._left_ns.copy()
        return left

    @property
    def rest_ns(self) -> Array:
        """Waiting without a culprit that nobody has claimed, per step."""
        rest: Array = self._rest_ns.copy()
        return rest

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
        if mine.any():
            before = self.by_mode.get(self.asking)
            self.by_mode[self.asking] = mine if before is None else before | mine
        return mine

    def transfer(self, wanted_ns: Array) -> Array:
        """Claim exposed transfer, per step: at most what is left of it."""
        mine = np.clip(wanted_ns, 0.0, self._left_ns)
        self._left_ns -= mine
        return np.asarray(mine)

    def rest(self, wanted_ns: Array) -> Array:
        """Claim waiting without a culprit, per step: at most what is left of it."""
        mine = np.minimum(wanted_ns, self._rest_ns)
        self._rest_ns -= mine
        return np.asarray(mine)

    def available(self, wanted_ns: Array) -> Array:
        """What `slower` would claim, without claiming it."""
        return np.asarray(np.clip(wanted_ns, 0.0, self._left_ns + self._waits_ns))

    def slower(self, wanted_ns: Array) -> Array:
        """Claim what slow transfers cost: exposed, and what others waited for those in them."""
        mine = self.transfer(wanted_ns)
        waited = np.clip(wanted_ns - mine, 0.0, self._waits_ns)
        self._rest_ns -= np.minimum(waited, np.maximum(self._rest_ns, 0.0))
        self._waited_ns = self._waited_ns - np.minimum(waited, self._waited_ns)
        self.slow_ns += mine + waited
        return np.asarray(mine + waited)

    @property
    def _waits_ns(self) -> Array:
        """Waiting that slow transfers may have caused: other groups wait for the slow one's."""
        return np.maximum(np.maximum(self._rest_ns, 0.0), self._waited_ns)
