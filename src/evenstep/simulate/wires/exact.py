"""The exact engine's wire: every message of every round, one after the other.

Rings in which no two messages share a link are recurrences over ranks: x of round k + 1 is
max(x + hop of the rank, x + hop of the one before), worked out for all ranks at once. Anything
else is an event simulation with max-min fair rates. It is the oracle of the fast engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.rings import around
from evenstep.simulate.wires.messages import Fluid
from evenstep.simulate.wires.neighbours import Other, Timeline
from evenstep.simulate.wires.parties import Party, program_of
from evenstep.simulate.wires.rehearsal import is_unshared
from evenstep.simulate.wires.wire import Carried

Array = npt.NDArray[Any]


class ExactWire:
    """Carries collectives message by message. Collectives issued together may overlap in time on
    different ranks; those of another call begin on a network that is empty of ours."""

    synchronizing = True

    def __init__(self, network: Network, ranks: int, others: Timeline | None) -> None:
        self._network = network
        self.free = np.zeros(ranks)  # end of the last collective of each rank
        self._alone: dict[int, tuple[Flow, bool]] = {}
        self._fluid = Fluid(
            network.capacity, network.fabric.incast_goodput, peaks=others is not None
        )
        self._timeline = others
        self._others = [
            _Rival(other, self._fluid, network)
            for other in (others.others if others is not None else [])
        ]

    def carry_urgent(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """In order: messages have no priority here."""
        return self.carry(flows, ready_ns)

    def carry(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """Ends of collectives on every rank."""
        last = np.array([_last(flow, ready) for flow, ready in zip(flows, ready_ns, strict=True)])
        if not self._others and all(self._unshared(flow) for flow in flows):
            ends = self._recurred(flows, ready_ns)
        else:
            ends = self._simulated(flows, ready_ns)
        return Carried(ready_ns, last, ends)

    def _unshared(self, flow: Flow) -> bool:
        if id(flow) not in self._alone:
            self._alone[id(flow)] = (flow, is_unshared(flow))
        return self._alone[id(flow)][1]

    def _recurred(self, flows: Sequence[Flow], ready_ns: Array) -> Array:
        ends = []
        for flow, ready in zip(flows, ready_ns, strict=True):
            item = flow.stages[0].round
            begin = np.maximum(ready, self.free) + flow.launch_ns
            finish = begin.copy()
            rounds = around(
                begin[item.source].reshape(item.ring),
                flow.stages[0].hop_ns.reshape(item.ring),
                item.repeats,
            )
            finish[item.source] = rounds.reshape(-1)
            self.free = np.where(_member(flow, len(ready)), finish, self.free)
            ends.append(np.where(_member(flow, len(ready)), finish, ready))
        return np.array(ends)

    def _simulated(self, flows: Sequence[Flow], ready_ns: Array) -> Array:
        ready = np.array(
            [
                np.maximum(one, self.free) + flow.launch_ns
                for flow, one in zip(flows, ready_ns, strict=True)
            ]
        )
        # alone, the clock starts anew: what is simultaneous is so at any time of the job
        zero = 0.0 if self._others else float(ready[0].min())
        party = Party(program_of(flows), ready - zero, ranks=ready.shape[1])
        if not self._others:
            self._fluid.now = 0.0
        self._fluid.start(party)
        self._fluid.run(lambda: party.left == 0)
        self._fluid.forget(party)
        if self._timeline is not None:
            self._timeline.saw(self._fluid.peak_gBps)
        ends = party.ends + zero
        self.free = ends[-1]
        return ends


def _member(flow: Flow, ranks: int) -> Array:
    mask = np.zeros(ranks, bool)
    mask[flow.members.reshape(-1)] = True
    return mask


def _last(flow: Flow, ready: Array) -> Array:
    """When the last member of each rank's group was ready."""
    last = ready.copy()
    last[flow.members] = ready[flow.members].max(axis=1)[:, None]
    return last


class _Rival:
    """A neighbour as a party: its ranks exchange, compute, and begin together again."""

    def __init__(self, other: Other, fluid: Fluid, network: Network) -> None:
        self._other, self._fluid = other, fluid
        self._ranks = int(other.stage.round.source.max()) + 1
        self._steady = min(other.steady, network.cluster.nic_gBps)
        self._begin()

    def _begin(self) -> None:
        moment = self._other.until_ns
        self._other.begin()
        size = self._other.left
        program = [(self._other.stage, 0)] * self._other.stage.round.repeats
        party = Party(
            program, np.full((1, self._ranks), moment), ranks=self._ranks, scale=size,
            steady=self._steady,
        )  # fmt: skip
        party.then = lambda: self._again(party, size)
        self._fluid.start(party)

    def _again(self, party: Party, size: float) -> None:
        self._fluid.forget(party)
        self._other.moved += size
        self._other.end(self._fluid.now)
        self._begin()
