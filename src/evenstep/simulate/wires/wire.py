"""The job's collectives on the wire: when each ends, from when its ranks enter it.

The fast model of `evenstep.simulate`. One job's collectives follow each other, as on one
communication stream; beside neighbours their length is what the timeline says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.wires.groups import Groups
from evenstep.simulate.wires.neighbours import Timeline
from evenstep.simulate.wires.skew import Skew

Array = npt.NDArray[Any]


LATEST = 3  # ranks whose chains decide when others are through a ring


class Carried(NamedTuple):
    """Collectives in order of issue, all (collectives, ranks)."""

    enter_ns: Array  # when each rank was ready for it
    last_ns: Array  # when the last it waits for was ready
    end_ns: Array


class Wire(Protocol):
    """What carries collectives."""

    @property
    def synchronizing(self) -> bool:
        """Whether ranks wait for one another in it."""

    def carry(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """Collectives issued in this order; `ready_ns` is (collectives, ranks)."""

    def carry_urgent(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """The same, of which later ones go first where they can."""


class FastWire:
    """Every collective as one coflow. It does not wait for the `spared` last ranks of a group."""

    synchronizing = True

    def __init__(
        self, network: Network, ranks: int, timeline: Timeline | None, *, spared: int = 0
    ) -> None:
        self._network = network
        self._groups: dict[int, Groups] = {}
        self._skews: dict[int, Skew] = {}
        self._timeline = timeline
        self._spared = spared
        self.free = np.zeros(ranks)  # end of the last collective of each rank

    def carry(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """Ends of collectives: max over the group of (entry + longest way from there)."""
        if all(len(flow.members) == 1 for flow in flows) and _everyone(flows, ready_ns.shape[1]):
            return self._together(flows, ready_ns)
        last = np.empty_like(ready_ns)
        end = np.empty_like(ready_ns)
        for index, flow in enumerate(flows):
            last[index], end[index] = self._in_groups(flow, ready_ns[index])
        return Carried(ready_ns, last, end)

    def _together(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """One group of all ranks: everything but the order of the ends is one reduction."""
        entries = ready_ns.copy()
        behind = self.free + flows[0].following_ns - flows[0].duration_ns
        entries[0] = np.maximum(entries[0], behind)
        last, begins = self._arrivals(flows, entries)
        ends: list[float] = []
        opened = 0  # the last collective that did not follow another at once
        for index, (flow, begin) in enumerate(zip(flows, begins.tolist(), strict=True)):
            queued = ends[-1] + flow.following_ns - flow.duration_ns if ends else begin
            opened = index if begin >= queued else opened
            ends.append(self._end(flow, max(begin, queued)))
        if self._timeline is None and not self._spared:
            ends[-1] -= self._saved(flows[-1], entries[opened])
        end_ns = np.array(ends)[:, None]
        profile = None if self._spared else flows[-1].ring
        if profile is None or any(flow is not flows[-1] for flow in flows[opened:]):
            self.free[:] = ends[-1]
            return Carried(ready_ns, last[:, None], end_ns)
        end_ns = np.repeat(end_ns, len(self.free), axis=1)
        end_ns[-1] = self._spread(flows, entries[opened], len(flows) - opened, ends[-1])
        self.free = end_ns[-1].copy()
        return Carried(ready_ns, last[:, None], end_ns)

    def carry_urgent(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """One at a time; of those that all ranks are ready for, the last first."""
        last, begins = self._arrivals(flows, ready_ns)
        waiting = set(range(len(flows)))
        ends = np.zeros((len(flows), 1))
        free = float(self.free.max())
        while waiting:
            now = max(free, min(begins[index] for index in waiting))
            index = max(index for index in waiting if begins[index] <= now)
            flow = flows[index]
            queued = free + flow.following_ns - flow.duration_ns
            free = self._end(flow, max(float(begins[index]), queued))
            ends[index] = free
            waiting.remove(index)
        self.free[:] = free
        return Carried(ready_ns, last[:, None], ends)

    def _arrivals(self, flows: Sequence[Flow], entries: Array) -> tuple[Array, Array]:
        """When the last awaited rank enters each collective, and when it begins by that."""
        if self._spared:
            keep = entries.shape[1] - self._spared - 1
            last = np.partition(entries, keep, axis=1)[:, keep]
            return last, last
        if all(flow is flows[0] for flow in flows):
            begins = (entries + (flows[0].tail_ns - flows[0].duration_ns)).max(axis=1)
        else:
            ahead = [flow.tail_ns - flow.duration_ns for flow in flows]
            begins = np.array([(e + a).max() for e, a in zip(entries, ahead, strict=True)])
        return entries.max(axis=1), begins

    def _end(self, flow: Flow, begin: float) -> float:
        if self._timeline is None:
            return begin + flow.duration_ns
        return self._timeline.transfer(flow, begin)

    def _saved(self, flow: Flow, entry: Array) -> float:
        """What the last of collectives in a row is sooner through, as its ranks are out of step."""
        if id(flow) not in self._skews:
            self._skews[id(flow)] = Skew(flow, self._network)
        late = int(np.argmax(entry + flow.tail_ns))
        return self._skews[id(flow)].saved_ns(entry, late)

    def _spread(self, flows: Sequence[Flow], entry: Array, times: int, end: float) -> Array:
        """Ends of the last collective on each rank, around the end of the last of them."""
        profile = flows[-1].ring
        assert profile is not None
        expected = entry + flows[-1].tail_ns
        number = min(LATEST, len(entry))
        latest = np.argpartition(expected, len(entry) - number)[-number:]
        found = profile.ends(entry, latest, times)
        return np.asarray(found + (end - found.max()))

    def _in_groups(self, flow: Flow, ready: Array) -> tuple[Array, Array]:
        members = flow.members
        behind = self.free + flow.following_ns - flow.tail_ns
        ends = (np.maximum(ready, behind) + flow.tail_ns)[members]
        waited = ready[members]
        keep = members.shape[1] - 1 - min(self._spared, members.shape[1] - 1)
        if self._spared:
            finish = np.partition(ends, keep, axis=1)[:, keep]
            late = np.partition(waited, keep, axis=1)[:, keep]
        else:
            finish, late = ends.max(axis=1), waited.max(axis=1)
        if self._timeline is not None:
            begin = float(finish.min()) - flow.duration_ns
            finish = finish + self._timeline.transfer(flow, begin) - begin - flow.duration_ns
        else:
            if id(flow) not in self._groups:
                self._groups[id(flow)] = Groups(flow, self._network)
            starts = finish - flow.tail_ns[members].max(axis=1)
            apart = self._groups[id(flow)].ends(starts)
            finish = finish if apart is None else apart
        end, last = ready.copy(), ready.copy()
        end[members] = finish[:, None]
        last[members] = late[:, None]
        self.free = np.maximum(self.free, end)
        return last, end


class LooseWire:
    """Every rank exchanges with the servers when it is ready; nobody waits for anybody.

    An exchange takes as long as it does when all exchange at once: the servers' links are what
    limits it.
    """

    synchronizing = False

    def __init__(self, ranks: int) -> None:
        self._free = np.zeros(ranks)

    def carry_urgent(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """In order: nobody else is waited for."""
        return self.carry(flows, ready_ns)

    def carry(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """Each rank's exchanges follow each other."""
        ends = []
        for flow, ready in zip(flows, ready_ns, strict=True):
            self._free = np.maximum(self._free, ready) + flow.tail_ns
            ends.append(self._free)
        return Carried(ready_ns, ready_ns, np.array(ends))


def _everyone(flows: Sequence[Flow], ranks: int) -> bool:
    return all(flow.members.shape[1] == ranks for flow in flows)
