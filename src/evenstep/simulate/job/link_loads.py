"""What every link carried over a run: in all, and at the most loaded moment.

A link's peak is its rate in the round that loads it most. The link that sets a round's pace is
then full, but for the latency of the messages; the others show how far they are from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow, FlowRound
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.job.neighbours import Other

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LinkLoads:
    """By link, as the network numbers them. `elapsed_ns` is the whole run, warm-up and all."""

    network: Network
    elapsed_ns: float
    own_bytes: Array
    others_bytes: Array  # of neighbours
    peak_gBps: Array  # noqa: N815 - of all together

    @property
    def bytes(self) -> Array:
        """What the job and its neighbours carried."""
        return np.asarray(self.own_bytes + self.others_bytes)

    @property
    def mean(self) -> Array:
        """Share of the capacity that was used over the run; 0 on a link that failed."""
        return self._share(self.bytes / self.elapsed_ns if self.elapsed_ns else self.bytes * 0.0)

    @property
    def peak(self) -> Array:
        """Share of the capacity that was used at most."""
        return np.asarray(np.maximum(np.minimum(self._share(self.peak_gBps), 1.0), self.mean))

    def _share(self, rate: Array) -> Array:
        capacity = self.network.capacity
        share: Array = np.divide(rate, capacity, out=np.zeros_like(capacity), where=capacity > 0)
        return share


def link_loads(
    network: Network,
    carried: Iterable[tuple[Flow, int]],
    others: Iterable[Other],
    peak_gBps: Array,  # noqa: N803
    elapsed_ns: float,
) -> LinkLoads:
    """The loads of collectives that were each carried so many times, and of neighbours.

    `peak_gBps` is what the network saw of messages that it followed.
    """
    nothing = np.zeros(len(network.capacity))
    laid = [(flow, times) for flow, times in carried if flow.operation != "read"]
    own: Array = sum((times * flow.link_bytes for flow, times in laid), nothing)
    peak = _alone([stage for flow, _ in laid for stage in flow.stages], nothing)
    seen = peak_gBps[: len(nothing)]
    peak = np.where(seen > 0, seen, peak)
    foreign: Array = sum((other.link_bytes for other in others), nothing)
    return LinkLoads(network, elapsed_ns, own, foreign, peak)


def _alone(stages: list[FlowRound], nothing: Array) -> Array:
    """The highest rate on each link in rounds that all ranks begin together."""
    peak = nothing
    for stage in {id(stage): stage for stage in stages}.values():
        length = float(stage.hop_ns.max(initial=0.0))
        if length:
            peak = np.maximum(peak, stage.load / length)
    return peak
