"""Every message by itself: an event-driven fluid network with max-min fair rates.

A party is a set of ranks that go through one list of rounds. A rank sends what a round has for it,
and goes on when all it sends and receives in that round is delivered. Between two events all rates
are constant; events at the same moment are taken together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.collectives import Round
from evenstep.simulate.fabric.flows import Stage
from evenstep.simulate.wires.parties import Party
from evenstep.simulate.wires.sharing import LEAST_SHARE, flow_rates

Array = npt.NDArray[Any]

SAME_NS, SAME_SHARE = 1e-6, 1e-15  # events closer than this, and that share of the time, are one
MOST_KNOWN = 64  # sets of messages whose rates are remembered


class Fluid:
    """The network with everything that is on it at one moment. With `peaks` it notes how much each
    link carried at most."""

    def __init__(
        self, capacity: Array, incast_goodput: float = 1.0, *, peaks: bool = False
    ) -> None:
        self._peaks = peaks
        self._capacity = capacity
        self._incast_goodput = incast_goodput  # of a link, for each further party on it
        self.now = 0.0
        self._events: list[tuple[float, int, Any]] = []
        self._numbers, self._party_numbers = count(), count()
        self._stages: dict[int, tuple[Stage, int]] = {}  # by identity: with its first row
        self._table = np.zeros((0, 1), np.int64)  # links of every message known, -1 none
        self._rows = np.zeros(0, np.int64)  # messages under way
        self._latency, self._bytes_left = np.zeros(0), np.zeros(0)
        self._parties: dict[int, Party] = {}
        self._party, self._round = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._rates, self._known = np.zeros(0), dict[bytes, Array]()
        self.peak_gBps = np.zeros(len(capacity))  # on each link so far

    # -- parties -----------------------------------------------------------------------------------

    def start(self, party: Party) -> None:
        """Let a party's ranks begin as they become ready."""
        party.number = next(self._party_numbers)
        self._parties[party.number] = party
        self._enter(party.number, np.arange(len(party.at)), 0)

    def forget(self, party: Party) -> None:
        """A party that is through leaves no trace."""
        del self._parties[party.number]

    def run(self, done: Callable[[], bool]) -> None:
        """Go from event to event until `done` says so."""
        while not done():
            until = self._next()
            if not np.isfinite(until):
                return
            self._pass(until)

    def _enter(self, number: int, ranks: Array, collective: int) -> None:
        """Ranks wait until they are ready for a collective."""
        times = np.maximum(self._parties[number].ready[collective, ranks], self.now)
        for moment in np.unique(times):
            self._at(float(moment), ("begin", number, ranks[times == moment]))

    @property
    def _same_ns(self) -> float:
        return SAME_NS + SAME_SHARE * self.now

    def _at(self, moment: float, event: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    # -- time --------------------------------------------------------------------------------------

    def _next(self) -> float:
        soonest = self._events[0][0] if self._events else np.inf
        if len(self._rows):
            soonest = min(soonest, self.now + float((self._bytes_left / self._rates).min()))
        return soonest

    def _pass(self, until: float) -> None:
        """Move on, and carry out all that happens at that moment."""
        ahead = until - self.now
        self.now = until
        changed = False
        if len(self._rows):
            self._bytes_left -= self._rates * ahead
            over = self._bytes_left <= self._rates * self._same_ns
            if over.any():
                self._sent(over)
                changed = True
        while self._events and self._events[0][0] <= until + self._same_ns:
            _, _, event = heapq.heappop(self._events)
            changed |= self._carry_out(event)
        if changed:
            self._rates = self._fair()

    def _sent(self, over: Array) -> None:
        """The last byte has left: delivery follows after the route's latency."""
        rows, party, number = self._rows[over], self._party[over], self._round[over]
        latency = self._latency[rows]
        for delay in sorted(set(latency.tolist())):
            mine = latency == delay
            self._at(self.now + float(delay), ("deliver", rows[mine], party[mine], number[mine]))
        keep = ~over
        self._rows, self._bytes_left = self._rows[keep], self._bytes_left[keep]
        self._party, self._round = self._party[keep], self._round[keep]

    def _carry_out(self, event: Any) -> bool:
        if event[0] == "begin":
            self._resume(event[1], event[2])
            return True
        _, rows, parties, rounds = event
        for party, number in sorted(set(zip(parties.tolist(), rounds.tolist(), strict=True))):
            self._deliver(party, number, rows[(parties == party) & (rounds == number)])
        return True

    def _deliver(self, number: int, index: int, rows: Array) -> None:
        party = self._parties[number]
        stage, _ = party.program[index]
        message = rows - self._stages[id(stage)][1]
        ends = np.concatenate([stage.round.source[message], stage.round.target[message]])
        needs = party.needs(index)
        served = np.bincount(ends, minlength=len(needs))
        needs -= served
        through = np.flatnonzero((served > 0) & (needs == 0) & (party.at == index))
        self._begin(number, index + 1, self._passed(number, index, through))

    # -- ranks -------------------------------------------------------------------------------------

    def _resume(self, number: int, ranks: Array) -> None:
        """Ranks that were not ready for their next collective begin it."""
        at = self._parties[number].at
        at[ranks] += 1
        for index in np.unique(at[ranks]):
            self._begin(number, int(index), ranks[at[ranks] == index])

    def _passed(self, number: int, index: int, ranks: Array) -> Array:
        """Ranks are through a round; returns those that begin the next one now."""
        party = self._parties[number]
        if not len(ranks):
            return ranks
        collective = party.program[index][1]
        last = index + 1 == len(party.program)
        if last or party.program[index + 1][1] != collective:
            party.ends[collective, ranks] = self.now
            if last:
                party.left -= len(ranks)
                if not party.left and party.then is not None:
                    party.then()
                return ranks[:0]
            late = party.ready[collective + 1, ranks] > self.now + self._same_ns
            if late.any():
                self._enter(number, ranks[late], collective + 1)
                ranks = ranks[~late]
        party.at[ranks] += 1
        return ranks

    def _begin(self, number: int, index: int, ranks: Array) -> None:
        """Send what a round has for these ranks; those it has nothing for are through it."""
        while len(ranks):  # a party that is through may be gone
            party = self._parties[number]
            self._send(party, number, index, ranks)
            ranks = self._passed(number, index, ranks[party.needs(index)[ranks] == 0])
            index += 1

    def _send(self, party: Party, number: int, index: int, ranks: Array) -> None:
        stage = party.program[index][0]
        first = self._laid(stage)
        begins = np.zeros(len(party.at), bool)
        begins[ranks] = True
        message = np.flatnonzero(_leaving(stage.round, begins, party.at == index))
        sizes = np.broadcast_to(stage.round.bytes, stage.round.source.shape)[message]
        self._rows = np.concatenate([self._rows, first + message])
        self._bytes_left = np.concatenate([self._bytes_left, sizes * party.scale])
        self._party = np.concatenate([self._party, np.full(len(message), number)])
        self._round = np.concatenate([self._round, np.full(len(message), index)])

    def _laid(self, stage: Stage) -> int:
        """First row of a stage's messages in the table of routes."""
        if id(stage) not in self._stages:
            hops = np.diff(stage.routes.start)
            width = max(int(hops.max(initial=1)), self._table.shape[1])
            rows = np.full((len(hops), width), -1)
            place = np.arange(len(stage.routes.link)) - np.repeat(stage.routes.start[:-1], hops)
            rows[stage.routes.message, place] = stage.routes.link
            known = np.pad(
                self._table, ((0, 0), (0, width - self._table.shape[1])), constant_values=-1
            )
            self._stages[id(stage)] = (stage, len(known))
            self._table = np.concatenate([known, rows])
            self._latency = np.concatenate([self._latency, stage.latency_ns])
        return self._stages[id(stage)][1]

    def _fair(self) -> Array:
        """Rates of all messages under way."""
        key = self._rows.tobytes()
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._shared()
            if self._peaks:
                self._see(self._known[key])
        return self._known[key]

    def _shared(self) -> Array:
        """Max-min fair rates of what is left by those that take a steady rate."""
        links = self._table[self._rows]
        used = links >= 0
        flow, link = np.repeat(np.arange(len(links)), used.sum(axis=1)), links[used]
        capacity = self._with_incast(self._party[flow], link)
        present = {int(number) for number in np.unique(self._party)}
        if not any(self._parties[number].steady for number in present):
            return flow_rates(flow, link, capacity, len(links))
        steady = np.array([self._parties[int(number)].steady for number in self._party])
        taken = np.bincount(link, weights=steady[flow], minlength=len(capacity))
        left = np.where(taken > 0, np.maximum(capacity - taken, LEAST_SHARE * capacity), capacity)
        fair = (steady == 0)[flow]
        rates = flow_rates(flow[fair], link[fair], left, len(links))
        return np.where(steady > 0, steady, rates)

    def _see(self, rates: Array) -> None:
        links = self._table[self._rows]
        each = np.repeat(rates, (links >= 0).sum(axis=1))
        carried = np.bincount(links[links >= 0], each, len(self._capacity))
        np.maximum(self.peak_gBps, carried, out=self.peak_gBps)

    def _with_incast(self, party: Array, link: Array) -> Array:
        """What links carry with so many parties on each."""
        if self._incast_goodput == 1:
            return self._capacity
        pairs = np.unique(np.stack([party, link]), axis=1)
        present = np.bincount(pairs[1], minlength=len(self._capacity))
        return np.asarray(self._capacity * self._incast_goodput ** np.maximum(present - 1, 0))


def _leaving(item: Round, begins: Array, present: Array) -> Array:
    """Which messages of a round leave now that some ranks begin it."""
    if not item.posted:
        return np.asarray(begins[item.source])
    both = present[item.source] & present[item.target]
    return np.asarray(both & (begins[item.source] | begins[item.target]))
