"""Time of a collective by its size: a line through what was measured (Hockney 1994: α + S/B)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SPREAD = 4.0  # largest over smallest size, from which a slope says something
ROUNDS = 8  # of the reweighted fit


class TransferLine(NamedTuple):
    """t = alpha_ns + size / gBps, with 10^9 bytes/s being bytes per nanosecond."""

    alpha_ns: float
    gBps: float  # noqa: N815

    def time_ns(self, size_bytes: Any) -> Any:
        """What it gives for a size, or for an array of them."""
        return self.alpha_ns + np.asarray(size_bytes) / self.gBps

    @property
    def half_bytes(self) -> float:
        """Size at which half of the time is latency (Hockney's n_1/2)."""
        return self.alpha_ns * self.gBps


def line_through(
    size_bytes: Array, time_ns: Array, weight: Array | None = None
) -> TransferLine | None:
    """The line of least relative deviations; None where sizes are too much alike to have one.

    Neither latency nor time per byte is negative: a fit that wants one of them so does without it.
    """
    sizes, times = np.asarray(size_bytes, float), np.asarray(time_ns, float)
    usable = (times > 0) & (sizes > 0)
    sizes, times = sizes[usable], times[usable]
    if len(np.unique(sizes)) < 2 or sizes.max() < SPREAD * sizes.min():
        return None
    given = np.ones(len(sizes)) if weight is None else np.asarray(weight, float)[usable]
    scale = np.sqrt(given) / times
    for _ in range(ROUNDS):  # least absolute deviations by reweighting: one odd size does not tilt
        alpha, per_byte = _solved(sizes, scale, times)
        off = np.abs(alpha + per_byte * sizes - times) / times
        scale = np.sqrt(given / np.maximum(off, 1e-3)) / times
    return TransferLine(alpha, 1 / per_byte) if per_byte > 0 else None


def _solved(sizes: Array, scale: Array, times: Array) -> tuple[float, float]:
    """Weighted least squares of both terms, or of the one that stays positive."""
    target = scale * times
    both = np.stack([scale, scale * sizes], axis=1)
    alpha, per_byte = np.linalg.lstsq(both, target, rcond=None)[0]
    if alpha < 0:
        alpha, per_byte = 0.0, float(both[:, 1] @ target / (both[:, 1] @ both[:, 1]))
    if per_byte < 0:
        alpha, per_byte = float(both[:, 0] @ target / (both[:, 0] @ both[:, 0])), 0.0
    return float(alpha), float(per_byte)
