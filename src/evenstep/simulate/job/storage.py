"""Input from storage that all ranks share: those who read at the same time share it equally."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def read_together(begin_ns: Array, alone_ns: float) -> Array:
    """When each rank has its input, if all read as much and one alone would take `alone_ns`.

    Processor sharing of equal jobs ends them in the order they begin, so one pass is enough: the
    k-th to begin ends when the service each one present has had reaches `alone_ns` past its own.
    """
    order = np.argsort(begin_ns, kind="stable")
    arrivals = begin_ns[order]
    ends = np.empty_like(arrivals)
    now, served, first = 0.0, 0.0, 0  # served: work each one present has had since the start
    entered = np.empty_like(arrivals)  # `served` when each began
    for index in range(len(arrivals) + 1):
        arrival = arrivals[index] if index < len(arrivals) else np.inf
        while first < index:
            present = index - first
            needed = (entered[first] + alone_ns - served) * present
            if now + needed > arrival:
                break
            now += needed
            served = entered[first] + alone_ns
            ends[first] = now
            first += 1
        if index < len(arrivals):
            if first < index:
                served += (arrival - now) / (index - first)
            now = arrival
            entered[index] = served
    found = np.empty_like(ends)
    found[order] = ends
    return found
