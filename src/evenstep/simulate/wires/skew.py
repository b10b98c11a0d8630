"""What a late rank leaves to the others: rings that share links are through sooner than in step.

Until the last rank enters, the others run ahead, each by at most as many rounds as it is behind the
late one in the ring. With the late one there all go on at one pace, and those that are ahead are
through earlier by their lead; in the last rounds fewer messages share the links. So of the rounds'
length in step, Σ over the last rounds of (hop in step - hop among those still under way) is saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow, Stage
from evenstep.simulate.fabric.network import Network

Array = npt.NDArray[Any]

MOST_MESSAGES = 512  # of a round; larger rings are taken to be in step


class Skew:
    """A flow of rings that share links, prepared to be asked for any entries."""

    def __init__(self, flow: Flow, network: Network) -> None:
        self._usable = _shares(flow)
        if not self._usable:
            return
        stage = flow.stages[0]
        used, link = np.unique(stage.routes.link, return_inverse=True)
        hops = np.diff(stage.routes.start)
        # out of such a ring ranks come at different times anyway; that is no skew
        self._usual_ns = np.zeros(1) if flow.ring is None else flow.ring.leads_ns
        self._order = stage.round.source.reshape(stage.round.ring)
        self._latency_ns = stage.latency_ns
        self._hop_ns = float(stage.hop_ns.max())
        self._factor = (flow.duration_ns - flow.launch_ns) / stage.duration_ns
        self._links = np.full((len(hops), int(hops.max())), len(used))  # the last one is empty
        place = np.arange(len(link)) - np.repeat(stage.routes.start[:-1], hops)
        self._links[stage.routes.message, place] = link
        time_ns = float(stage.round.bytes) / network.capacity[used]  # of one message on each link
        self._time_ns = np.zeros((len(hops), len(used) + 1))
        np.add.at(self._time_ns, (stage.routes.message, link), time_ns[link])

    def saved_ns(self, entry_ns: Array, late: int) -> float:
        """Of the time a collective takes in step, if its ranks enter so and one is late."""
        if not self._usable:
            return 0.0
        lead = self._leads(entry_ns + self._usual_ns, late)
        rounds = np.arange(int(np.ceil(lead.max()))) + 0.5
        if not len(rounds):
            return 0.0
        active = lead[None, :] <= rounds[:, None]
        busy = self._busy(lead, rounds)
        hop = self._latency_ns + busy[:, self._links].max(axis=2)
        pace = np.where(active, hop, 0.0).max(axis=1)
        return float((self._hop_ns - pace).sum()) * self._factor

    def _busy(self, lead: Array, rounds: Array) -> Array:
        """Time of each link in each round, by the messages under way: (rounds, links).

        Sums in one order, whatever the number of threads of a matrix product would be.
        """
        order = np.argsort(lead, kind="stable")
        summed = np.cumsum(self._time_ns[order], axis=0)
        under_way = np.searchsorted(lead[order], rounds, side="right")
        return np.where(under_way[:, None] > 0, summed[np.maximum(under_way, 1) - 1], 0.0)

    def _leads(self, entry_ns: Array, late: int) -> Array:
        """Rounds each message's sender is ahead of the late rank when that enters."""
        ahead = np.maximum(entry_ns[late] - entry_ns, 0.0) / (self._hop_ns * self._factor)
        leads = np.zeros(self._order.shape)
        place = np.arange(self._order.shape[1])
        for order, lead in zip(self._order, leads, strict=True):
            turn = -int(np.argmax(order == late))
            rolled = np.roll(order, turn)
            lead[:] = np.roll(place + np.minimum.accumulate(ahead[rolled] - place), -turn)
        return leads.reshape(-1)


def _shares(flow: Flow) -> bool:
    """Whether it is one round of rings, few enough messages, some of them on one link."""
    if len(flow.stages) != 1 or len(flow.members) > 1:
        return False
    stage: Stage = flow.stages[0]
    rings = stage.round.ring is not None and len(stage.round.source) <= MOST_MESSAGES
    return rings and int(np.bincount(stage.routes.link).max(initial=0)) > 1
