"""`World` without a compiler: the same results, some hundred times as slow.

Data flow and network are those of `world.c`, but every collective that is not closed is followed
message by message, and all rates are computed anew at every event.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from evenstep.simulate.fabric.network import LEAST_SHARE
from evenstep.simulate.wires.interface import (
    COLLECTIVE,
    DROP,
    PAUSED,
    SLOWED,
    STREAMS,
    STUCK,
    URGENT,
    Carriage,
    StepPlan,
)
from evenstep.trace.columns import Array

SAME_NS, SAME_SHARE = 1e-6, 1e-15  # moments closer than this are one


@dataclass
class _Step:
    """A step of a job under way."""

    plan: StepPlan
    value: Array
    scale: Array
    enter: Array
    end: Array
    open: int  # operations that are not over
    instances: dict[int, _Instance] = field(default_factory=dict)


@dataclass
class _Job:
    first: int
    ranks: int
    lag: int = field(init=False)
    slowdown: float = field(init=False)
    final: bool = False
    steps: list[_Step | None] = field(default_factory=list)
    taken: int = 0
    soonest: float = math.inf  # when a rank needs a step, or its durations in it
    free: float = 0.0  # end of the last urgent collective; infinite: it is under way
    ready: dict[int, _Instance] = field(default_factory=dict)  # urgent ones, by number


@dataclass
class _Instance:
    """One collective of one step."""

    flow: Carriage  # a stage for each round
    job: _Job
    step: _Step
    scale: float
    number: int  # in its step
    is_urgent: bool
    waits: bool  # for its turn
    operation: dict[int, int] = field(default_factory=dict)  # of each rank that has entered
    entry: dict[int, float] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)  # round of each participant
    over: dict[int, float] = field(default_factory=dict)  # end of each rank
    need: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(eq=False)
class _Flight:
    """A message under way."""

    of: _Instance
    round: int
    message: int
    links: Array
    left: float
    rate: float = 0.0

    @property
    def pace(self) -> float:
        """Decrease of `left` in a ns."""
        return 1.0 if self.of.flow.lasting else self.rate


class PythonWorld:
    """The engine in Python; see `CompiledWorld` for its methods."""

    def __init__(self, capacity: Array, ranks: tuple[int, ...], goodput: float = 1.0) -> None:
        self._capacity, self._goodput = np.asarray(capacity, float), goodput
        firsts = (np.cumsum(ranks) - ranks).tolist()
        self._jobs = [_Job(first, size) for first, size in zip(firsts, ranks, strict=True)]
        self._flows: list[Carriage] = []
        self._plans: list[StepPlan] = []
        self._streams: dict[int, tuple[_Job, list[Iterator[float]]]] = {}  # of each rank
        self._queue: dict[int, None] = {}  # ranks that may go on
        self._timed: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()  # of what is timed: of one moment, the first comes first
        self._flying: list[_Flight] = []
        self._changed = False
        self._now = 0.0
        self._sent = self.rated = 0
        self._bytes = 0.0  # of the first job's messages, on their way or over
        self._peak = np.zeros(len(capacity))

    # -- building ----------------------------------------------------------------------------------

    def flow(self, carriage: Carriage) -> int:
        """Add a collective; return its number."""
        assert np.isin(np.flatnonzero(carriage.group >= 0), carriage.rank).all()
        rounds = [one._replace(repeats=1) for one in carriage.stages for _ in range(one.repeats)]
        self._flows.append(carriage._replace(stages=tuple(rounds)))
        return len(self._flows) - 1

    def graph(self, plan: StepPlan) -> int:
        """Add the graph of a step; return its number."""
        self._plans.append(plan)
        return len(self._plans) - 1

    def job(self, number: int, begin_ns: Array, *, lag: int = 0, slowdown: float = 0.0) -> None:
        """Set how a job runs."""
        job = self._jobs[number]
        job.lag, job.slowdown = lag, slowdown
        for local, begin in enumerate(begin_ns.tolist()):
            streams = [self._stream(job, local, stream, begin) for stream in range(STREAMS)]
            self._streams[job.first + local] = job, streams
        self._ask_again(job)

    def feed(self, job: int, graph: int, value: Array, scale: Array) -> None:
        """Feed the next step."""
        plan, which = self._plans[graph], self._jobs[job]
        size = int(np.diff(plan.start)[plan.role].sum())
        enter, end = np.full((2, *value.shape), np.nan)
        which.steps.append(_Step(plan, value.copy(), scale, enter, end, size))
        self._ask_again(which)

    def reveal(self, job: int, step: int, ranks: Array, value: Array) -> None:
        """Durations of some ranks in a step under way; 0 is the oldest."""
        self._under_way(job, step).value[:, ranks] = value[:, ranks]
        self._ask_again(self._jobs[job])

    def under_way(self, job: int, step: int) -> tuple[Array, Array]:
        """(entry, end) of a step's operations; NaN for those that are not over."""
        found = self._under_way(job, step)
        return found.enter, found.end

    def _under_way(self, job: int, step: int) -> _Step:
        found = self._jobs[job].steps[self._jobs[job].taken + step]
        assert found is not None
        return found

    def _ask_again(self, job: _Job) -> None:
        job.soonest = math.inf
        self._queue.update(dict.fromkeys(range(job.first, job.first + job.ranks)))

    def final(self, job: int) -> None:
        """Mark the last fed step of a job as its last."""
        self._jobs[job].final = True
        self._ask_again(self._jobs[job])

    def take(self, job: int) -> tuple[Array, Array] | None:
        """(entry, end) of the oldest step, once it is over."""
        which = self._jobs[job]
        step = which.steps[which.taken] if which.taken < len(which.steps) else None
        if step is None or step.open:
            return None
        if which.taken >= which.lag:
            which.steps[which.taken - which.lag] = None
        which.taken += 1
        return step.enter, step.end

    def messages(self, graph: int, *, shared: bool) -> int:  # noqa: ARG002
        """Messages of a step's collectives that are not closed: here each gets its rate anew."""
        used = [self._flows[flow] for flow in self._plans[graph].flow.tolist()]
        return sum(len(s.gate) * s.repeats for one in used if not one.closed for s in one.stages)

    def progress(self, graph: int) -> float:
        """How much of a step of the first job is sent: a share of the bytes, from 0 to 1."""
        used = [self._flows[flow] for flow in self._plans[graph].flow.tolist()]
        sizes = [s.bytes.sum() * s.repeats for one in used if not one.closed for s in one.stages]
        left = sum(one.left for one in self._flying if one.of.job is self._jobs[0])
        return min((self._bytes - left) / sum(sizes), 1.0) if sum(sizes) else 0.0

    @property
    def followed(self) -> int:
        """All messages: there are no trains here."""
        return self._sent

    @property
    def peak_gBps(self) -> Array:  # noqa: N802
        """The highest rate on each link."""
        return self._peak.copy()

    # -- running -----------------------------------------------------------------------------------

    def run(self, most: int) -> int:
        """Run until a job needs a step, `most` messages are sent and rates solved, or the end."""
        last = self._sent + self.rated + most
        while True:
            self._flow_on()
            self._share()
            ends = (self._now + one.left / one.pace for one in self._flying)
            soonest = min([*(moment for moment, _, _ in self._timed[:1]), *ends, math.inf])
            asks, number = min((job.soonest, number) for number, job in enumerate(self._jobs))
            if asks <= soonest + self._same and asks < math.inf:
                return number
            if math.isinf(soonest) or self._all_over():
                return STUCK
            if self._sent + self.rated >= last:
                return PAUSED
            self._pass(soonest)

    @property
    def _same(self) -> float:
        return SAME_NS + SAME_SHARE * self._now

    def _all_over(self) -> bool:
        left = [step for job in self._jobs if job.final for step in job.steps[job.taken :]]
        return self._jobs[0].final and not any(step is not None and step.open for step in left)

    def _pass(self, now: float) -> None:
        """Let time pass, and all happen that is due then."""
        ahead, self._now = max(now - self._now, 0.0), max(now, self._now)
        for one in self._flying:
            one.left -= one.pace * ahead
        for one in [one for one in self._flying if one.left <= one.pace * self._same]:
            self._flying.remove(one)
            self._changed = True
            self._deliver_later(one.of, one.round, one.message)
        while self._timed and self._timed[0][0] <= self._now + self._same:
            _, _, happen = heapq.heappop(self._timed)
            happen()
            self._flow_on()

    def _at_time(self, moment: float, happens: Callable[[], object]) -> None:
        heapq.heappush(self._timed, (moment, next(self._numbers), happens))

    # -- the network -------------------------------------------------------------------------------

    def _share(self) -> None:
        """Max-min fair rates of all, by progressive filling (Bertsekas & Gallager 1992, 6.5.2)."""
        if not self._changed:
            return
        self._changed = False
        left, carried = self._available()
        rising = [one for one in self._flying if not one.of.flow.steady]
        self.rated += len(rising)
        while rising:
            users = np.zeros(len(left))
            for one in rising:
                np.add.at(users, one.links, one.of.flow.weight)
            level = np.divide(left, users, out=np.full(len(left), np.inf), where=users > 0)
            lowest = max(float(level.min()), 0.0)
            full = level <= lowest * (1 + 1e-12)
            for one in [one for one in rising if full[one.links].any()]:
                one.rate = lowest * one.of.flow.weight
                left[one.links] -= one.rate
                np.add.at(carried, one.links, one.rate)
                rising.remove(one)
        np.maximum(self._peak, carried, out=self._peak)

    def _available(self) -> tuple[Array, Array]:
        """Of each link: capacity to be shared fairly, and the rate of steady messages."""
        capacity, steady = self._capacity.copy(), np.zeros(len(self._capacity))
        if self._goodput < 1:
            present = {id(job): np.zeros(len(capacity), bool) for job in self._jobs}
            for one in self._flying:
                present[id(one.of.job)][one.links] |= not one.of.flow.lasting
            capacity *= self._goodput ** np.maximum(sum(present.values()) - 1, 0)
        for one in self._flying:
            if one.of.flow.steady:
                one.rate = one.of.flow.steady
                np.add.at(steady, one.links, one.rate)
        least = np.maximum(capacity - steady, LEAST_SHARE * capacity)
        return np.where(steady > 0, least, capacity), steady

    def _send(self, of: _Instance, number: int, message: int) -> None:
        stage = of.flow.stages[number]
        self._sent += 1
        size = float(stage.bytes[message]) * of.scale
        self._bytes += size if of.job is self._jobs[0] else 0.0
        links = stage.link[int(stage.route[message]) : int(stage.route[message + 1])]
        if size <= 0 or not len(links):
            self._deliver_later(of, number, message)
        else:
            self._flying.append(_Flight(of, number, message, links, size))
            self._changed = True

    def _deliver_later(self, of: _Instance, number: int, message: int) -> None:
        latency = float(of.flow.stages[number].latency_ns[message])
        self._at_time(self._now + latency, partial(self._deliver, of, number, message))

    def _deliver(self, of: _Instance, number: int, message: int) -> None:
        stage = of.flow.stages[number]
        ends = [end for end in (int(stage.gate[message]), int(stage.other[message])) if end >= 0]
        for end in ends:
            of.need[number, end] = self._needed(of, number, end) - 1
        for end in dict.fromkeys(ends):
            if not of.need[number, end] and of.at.get(end, -1) == number:
                self._begin_round(of, end, number + 1)

    def _needed(self, of: _Instance, number: int, end: int) -> int:
        """Messages of a round that a participant has yet to send or get delivered."""
        stage = of.flow.stages[number]
        count = int((stage.gate == end).sum() + (stage.other == end).sum())
        return of.need.setdefault((number, end), count)

    def _enter(self, of: _Instance, rank: int) -> None:
        of.entry[rank] = self._now
        if of.waits:
            if len(of.entry) == (of.flow.group >= 0).sum():
                of.job.ready[of.number] = of
                self._next_urgent(of.job)
            return
        entered = [rank]
        if of.flow.joined or of.flow.spared:
            if rank in of.over:
                self._through(of, rank, of.over[rank])
            entered = _members(of.flow, int(of.flow.group[rank]))
            if sum(one in of.entry for one in entered) != max(len(entered) - of.flow.spared, 1):
                return
        inside = np.searchsorted(of.flow.rank, entered).tolist()
        of.at.update(dict.fromkeys(inside, -1))
        for end in inside:
            self._begin_round(of, end, 0)

    def _begin_round(self, of: _Instance, end: int, number: int) -> None:
        """Send what a round has for a participant, and go on if it waits for nothing."""
        for place, stage in enumerate(of.flow.stages[number:], number):
            of.at[end] = place
            for message in np.flatnonzero((stage.gate == end) | (stage.other == end)).tolist():
                gate, other = int(stage.gate[message]), int(stage.other[message])
                if stage.posted and other >= 0:
                    leaves = of.at.get(gate, -1) == of.at.get(other, -1) == place
                else:
                    leaves = gate == end
                if leaves:
                    self._send(of, place, message)
            if self._needed(of, place, end):
                return
        of.at[end] = len(of.flow.stages)
        self._through(of, int(of.flow.rank[end]), self._now)

    def _through(self, of: _Instance, rank: int, end: float) -> None:
        of.over[rank] = end
        if of.is_urgent and not of.flow.closed and len(of.over) == (of.flow.group >= 0).sum():
            self._at_time(self._now, partial(self._next_urgent, of.job, over=True))
        if rank in of.entry:
            self._finish(of.job, of.step, of.operation[rank], rank - of.job.first, end)

    # -- collectives that share nothing ------------------------------------------------------------

    def _close(self, of: _Instance, members: list[int]) -> float:
        """Compute the ends of a closed group from its entries; return the last."""
        flow = of.flow
        entries = sorted(of.entry[rank] for rank in members)
        latest = entries[max(len(entries) - 1 - flow.spared, 0)]
        inside = np.searchsorted(flow.rank, members)
        times = np.empty(len(flow.rank))
        at_once = flow.spared or flow.joined
        times[inside] = [latest if at_once else of.entry[rank] for rank in members]
        for stage in flow.stages:
            mine = np.isin(stage.gate, inside)
            gate, other = stage.gate[mine], stage.other[mine]
            hop = stage.latency_ns + (stage.hop_ns - stage.latency_ns) * of.scale
            begin = times[gate]
            if stage.posted:
                begin = np.maximum(begin, np.where(other >= 0, times[other], -np.inf))
            over = begin + hop[mine]
            np.maximum.at(times, gate, over)
            np.maximum.at(times, other[other >= 0], over[other >= 0])
        for rank, end in zip(members, times[inside].tolist(), strict=True):
            self._through(of, rank, end if flow.stages else latest)
        return float(times[inside].max())

    def _next_urgent(self, job: _Job, *, over: bool = False) -> None:
        """Begin an urgent collective, if none is under way: of those ready on all ranks, the last;
        `over`: the one before has ended."""
        job.free = self._now if over else job.free
        if not job.ready or math.isinf(job.free):
            return
        of = job.ready.pop(max(job.ready))
        begin = max(self._now, job.free + of.flow.launch_ns)
        ranks, job.free, of.waits = list(of.entry), math.inf, False
        of.entry = dict.fromkeys(ranks, begin) if of.flow.closed else {}
        if of.flow.closed:
            groups = range(int(of.flow.group.max()) + 1)
            end = max(self._close(of, _members(of.flow, group)) for group in groups)
            self._at_time(end, partial(self._next_urgent, job, over=True))
        for rank in ranks if not of.flow.closed else ():
            self._enter_at(of, rank, begin)

    # -- the data flow -----------------------------------------------------------------------------

    def _flow_on(self) -> None:
        """Let ranks go on as far as they can."""
        while self._queue:
            rank = next(iter(self._queue))
            del self._queue[rank]
            job, streams = self._streams[rank]
            asks, *_ = [next(stream) for stream in streams]
            job.soonest = min(job.soonest, asks)

    def _stream(self, job: _Job, local: int, stream: int, until: float) -> Iterator[float]:
        """Carry out the operations of a rank's stream, step after step; yield where it has to wait:
        since when for a step or durations in it, or infinity where it waits for something else."""
        begun = until
        for number in count():
            while number == len(job.steps):
                yield math.inf if job.final else until
            if (step := job.steps[number]) is None:
                continue
            plan, value = step.plan, step.value[:, local]
            first, last = plan.start[plan.role[local] :][:2].tolist()
            mine = np.flatnonzero(plan.stream[first:last] == stream).tolist()
            while stream == 0 and mine and math.isnan(value[mine[0]]):
                yield until
            begun = until
            for place in mine:
                kind = int(plan.kind[first + place])
                while math.isnan(ready := self._ready(job, step, first + place, number, local)):
                    yield math.inf
                begin = max(ready, until)
                if kind in (COLLECTIVE, URGENT):
                    step.enter[place, local] = begin if math.isinf(ready) else ready
                    self._issue(job, step, first + place, place, local, begin)
                    while kind == COLLECTIVE and math.isnan(step.end[place, local]):
                        yield math.inf
                    until = until if kind == URGENT else float(step.end[place, local])
                    continue
                end = begin + float(value[place])
                if kind == DROP:
                    end = max(min(ready, begin), begun)
                elif kind == SLOWED:
                    flight = step.end[plan.soft[first + place]]
                    end = yield from self._slowed(job, local, begin, float(value[place]), flight)
                step.enter[place, local], until = begin, end
                self._finish(job, step, place, local, end)

    def _finish(self, job: _Job, step: _Step, place: int, local: int, end: float) -> None:
        """An operation of a rank is over; what needs it may go on."""
        step.end[place, local] = end
        step.open -= 1
        self._queue[job.first + local] = None

    def _ready(self, job: _Job, step: _Step, o: int, number: int, local: int) -> float:
        """When all needs of an operation are over; NaN where that is not known yet."""
        plan = step.plan
        needs = slice(int(plan.need_start[o]), int(plan.need_start[o + 1]))
        ready = -math.inf
        for need, back in zip(plan.need[needs].tolist(), plan.back[needs].tolist(), strict=True):
            past = job.steps[number - back] if back <= number else None
            end = -math.inf if past is None else float(past.end[need, local])
            if math.isnan(end):
                return end
            ready = max(ready, end)
        return ready

    def _slowed(
        self, job: _Job, local: int, begin: float, value: float, flight: Array
    ) -> Generator[float, None, float]:
        """End of a computation that is slower while a collective, which ends on each rank at these
        times, is in flight."""
        whole = begin + value * (1 + job.slowdown)
        if math.isnan(flight[local]):
            self._at_time(whole, partial(self._queue.setdefault, job.first + local))
        while math.isnan(busy := float(flight[local])):
            if self._now >= whole - SAME_NS:
                return whole
            yield math.inf
        under = min(value * (1 + job.slowdown), max(busy - begin, 0.0))
        return begin + under + value - under / (1 + job.slowdown)

    def _issue(self, job: _Job, step: _Step, o: int, place: int, local: int, begin: float) -> None:
        """Let a rank enter a collective; one that is closed is over once all have."""
        rank, plan = job.first + local, step.plan
        flow = self._flows[int(plan.flow[plan.instance[o]])]
        group = int(flow.group[rank])
        if group < 0:
            self._finish(job, step, place, local, begin)
            return
        number = int(plan.instance[o])
        is_urgent = int(plan.kind[o]) == URGENT
        made = _Instance(flow, job, step, float(step.scale[number]), number, is_urgent, is_urgent)
        of = step.instances.setdefault(number, made)
        of.operation[rank] = place
        begin += float(step.value[place, local]) + flow.launch_ns
        if is_urgent or not flow.closed:
            self._enter_at(of, rank, begin)
            return
        of.entry[rank] = begin
        members = _members(flow, group)
        if all(member in of.entry for member in members):
            self._close(of, members)

    def _enter_at(self, of: _Instance, rank: int, begin: float) -> None:
        if begin <= self._now + self._same:
            self._enter(of, rank)
        else:
            self._at_time(begin, partial(self._enter, of, rank))


def _members(flow: Carriage, group: int) -> list[int]:
    return np.flatnonzero(flow.group == group).tolist()
