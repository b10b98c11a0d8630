"""When a device has done what its host asked of it: the host runs ahead, often by whole steps.

A moment of the host's program has come on the device once everything launched before it is done,
and not before the host is there itself. Communication counts where the device waited for it. Steps
and phases are told in that time: so a batch fetched behind the device's back costs nothing, a late
launch does, and a kernel belongs to the phase that launched it, whenever it runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.importers.merging import without
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Completion(NamedTuple):
    """Kernels in order of their launch, without communication that compute hides."""

    launched_ns: Array
    done_ns: Array  # when all launched until then were done

    def at(self, times_ns: Array) -> Array:
        """When these moments of the host had come on its devices too. Their order stays."""
        before = np.searchsorted(self.launched_ns, times_ns, side="left")
        return np.asarray(np.maximum(times_ns, np.append(_FIRST, self.done_ns)[before]))

    def entered(self, issued_ns: Array, began_ns: Array) -> Array:
        """When the devices had come to calls: all before them done, or they had begun at last."""
        return np.asarray(np.minimum(self.at(issued_ns), began_ns))


def completion(kernels: Columns, moving: Array) -> Completion:
    """Of kernels (launched_ns, start_ns, end_ns), of which some move data between ranks.

    Where none computes, every moment of the host stays as it is.
    """
    counts = ~moving if moving.all() else ~moving | _awaited(kernels, moving)
    kernels = kernels.select(counts).sorted_by("launched_ns")
    return Completion(kernels.launched_ns, np.maximum.accumulate(kernels.end_ns))


def _awaited(kernels: Columns, moving: Array) -> Array:
    """Communication that ended before any compute began that was launched after it."""
    compute = kernels.select(~moving).sorted_by("launched_ns")
    first = np.minimum.accumulate(compute.start_ns[::-1])[::-1]
    after = np.searchsorted(compute.launched_ns, kernels.launched_ns, side="right")
    return np.asarray(moving & (kernels.end_ns <= np.append(first, _LAST)[after]))


def exposed(kernels: Columns, moving: Array) -> tuple[Array, Array]:
    """When a device communicated and none computed; nothing where none is seen to compute."""
    busy, moved = kernels.select(~moving), kernels.select(moving)
    if not len(busy):
        return busy.start_ns, busy.end_ns
    return without(moved.start_ns, moved.end_ns, busy.start_ns, busy.end_ns)
