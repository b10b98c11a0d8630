"""`World` without a compiler: the same results, some hundred times as slow.

Data flow and network are those of `world.c`, but every collective that is not closed is followed
message by message, and all rates are computed anew at every event.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.simulate.fabric.network import LEAST_SHARE
from evenstep.simulate.wires.interface import (
    COLLECTIVE,
    COMPUTE,
    DROP,
    PAUSED,
    SLOWED,
    STREAMS,
    STUCK,
    URGENT,
    Carriage,
    MessageVolley,
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
    open: int
    instances: dict[int, _Instance] = field(default_factory=dict)
    urgent: int = 0  # groups of urgent instances that are complete


@dataclass
class _Instance:
    """One collective of one step."""

    number: int  # of its flow
    flow: Carriage
    job: int
    step: _Step
    scale: float
    operation: dict[int, int] = field(default_factory=dict)  # of each rank that has entered
    entry: dict[int, float] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)  # round of each participant
    need: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class _Job:
    first: int
    ranks: int
    lag: int = 0
    slowdown: float = 0.0
    final: bool = False
    steps: list[_Step | None] = field(default_factory=list)
    taken: int = 0
    soonest: float = math.inf  # when a rank needs a step, or its durations in it
    free: float = 0.0  # end of the last urgent collective


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
        firsts = np.concatenate([[0], np.cumsum(ranks)]).tolist()
        self._jobs = [_Job(first, size) for first, size in zip(firsts, ranks, strict=False)]
        self._job_of = np.repeat(np.arange(len(ranks)), ranks)
        self._flows: list[Carriage] = []
        self._members: list[list[Array]] = []  # ranks of each group, by flow
        self._rounds: list[list[MessageVolley]] = []
        self._plans: list[StepPlan] = []
        self._at = np.zeros((firsts[-1], STREAMS), np.int64)
        self._at_step = np.zeros_like(self._at)
        self._until = np.zeros((firsts[-1], STREAMS))
        self._begun = np.zeros(firsts[-1])
        self._queue: dict[int, None] = {}
        self._timed: list[tuple[float, int, Any]] = []
        self._flying: list[_Flight] = []
        self._changed = False
        self._numbered = 0
        self._now = 0.0
        self._sent = 0
        self._peak = np.zeros(len(capacity))

    # -- building ----------------------------------------------------------------------------------

    def flow(self, carriage: Carriage) -> int:
        """Add a collective; return its number."""
        self._flows.append(carriage)
        groups = int(carriage.group.max(initial=-1)) + 1
        self._members.append([np.flatnonzero(carriage.group == g) for g in range(groups)])
        self._rounds.append([s for s in carriage.stages for _ in range(s.repeats)])
        return len(self._flows) - 1

    def graph(self, plan: StepPlan) -> int:
        """Add the graph of a step; return its number."""
        self._plans.append(plan)
        return len(self._plans) - 1

    def job(self, number: int, begin_ns: Array, *, lag: int = 0, slowdown: float = 0.0) -> None:
        """Set how a job runs."""
        job = self._jobs[number]
        job.lag, job.slowdown = lag, slowdown
        mine = slice(job.first, job.first + job.ranks)
        self._until[mine] = begin_ns[:, None]
        self._queue.update(dict.fromkeys(range(mine.start, mine.stop)))

    def feed(self, job: int, graph: int, value: Array, scale: Array) -> None:
        """Feed the next step."""
        plan, which = self._plans[graph], self._jobs[job]
        sizes = np.diff(plan.start)[plan.role]
        nothing = np.full(value.shape, np.nan)
        which.steps.append(
            _Step(plan, value.copy(), scale, nothing, nothing.copy(), int(sizes.sum()))
        )
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
        """Run until a job needs a step, `most` messages are sent, or the end."""
        last = self._sent + most
        while True:
            self._flow_on()
            self._share()
            soonest = self._upcoming()
            if (wants := self._wants(soonest + self._same)) is not None:
                return wants
            if math.isinf(soonest) or self._all_over():
                return STUCK
            if self._sent >= last:
                return PAUSED
            self._pass(soonest)

    def _wants(self, limit: float) -> int | None:
        """The job that needs something by `limit`, and first."""
        soonest, number = min((job.soonest, number) for number, job in enumerate(self._jobs))
        return number if soonest <= limit and soonest < math.inf else None

    @property
    def _same(self) -> float:
        return SAME_NS + SAME_SHARE * self._now

    def _all_over(self) -> bool:
        left = [step for job in self._jobs if job.final for step in job.steps[job.taken :]]
        return self._jobs[0].final and not any(step is not None and step.open for step in left)

    def _upcoming(self) -> float:
        ends = [self._now + one.left / one.pace for one in self._flying]
        timed = self._timed[0][0] if self._timed else math.inf
        return float(min([timed, *ends]))

    def _pass(self, now: float) -> None:
        ahead, self._now = max(now - self._now, 0.0), max(now, self._now)
        for one in self._flying:
            one.left -= one.pace * ahead
        over = [one for one in self._flying if one.left <= one.pace * self._same]
        for one in over:
            self._flying.remove(one)
            self._changed = True
            self._deliver_later(one.of, one.round, one.message)
        while self._timed and self._timed[0][0] <= self._now + self._same:
            _, _, (of, what, message) = heapq.heappop(self._timed)
            if of is None:
                self._queue[what] = None
            elif message is None:
                self._enter(of, what)
            else:
                self._deliver(of, what, message)
            self._flow_on()

    def _at_time(self, moment: float, event: tuple[Any, int, int | None]) -> None:
        self._numbered += 1
        heapq.heappush(self._timed, (moment, self._numbered, event))

    # -- the network -------------------------------------------------------------------------------

    def _share(self) -> None:
        """Max-min fair rates of all, by progressive filling (Bertsekas & Gallager 1992, 6.5.2)."""
        if not self._changed:
            return
        self._changed = False
        left, steady = self._available()
        rising = [one for one in self._flying if not one.of.flow.steady]
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
                rising.remove(one)
        carried = steady
        for one in self._flying:
            if not one.of.flow.steady:
                np.add.at(carried, one.links, one.rate)
        np.maximum(self._peak, carried, out=self._peak)

    def _available(self) -> tuple[Array, Array]:
        """Of each link: capacity to be shared fairly, and the rate of steady messages."""
        capacity, steady = self._capacity.copy(), np.zeros(len(self._capacity))
        if self._goodput < 1:
            present = np.zeros((len(self._jobs), len(capacity)), bool)
            for one in self._flying:
                present[one.of.job, one.links] |= not one.of.flow.lasting
            capacity *= self._goodput ** np.maximum(present.sum(axis=0) - 1, 0)
        for one in self._flying:
            if one.of.flow.steady:
                one.rate = one.of.flow.steady
                np.add.at(steady, one.links, one.rate)
        least = np.maximum(capacity - steady, LEAST_SHARE * capacity)
        return np.where(steady > 0, least, capacity), steady

    def _send(self, of: _Instance, number: int, message: int) -> None:
        stage = self._stage(of, number)
        self._sent += 1
        size = float(stage.bytes[message]) * of.scale
        mine = slice(int(stage.route[message]), int(stage.route[message + 1]))
        links = stage.link[mine]
        if size <= 0 or not len(links):
            self._deliver_later(of, number, message)
            return
        self._flying.append(_Flight(of, number, message, links, size))
        self._changed = True

    def _stage(self, of: _Instance, number: int) -> MessageVolley:
        return self._rounds[of.number][number]

    def _deliver_later(self, of: _Instance, number: int, message: int) -> None:
        latency = float(self._stage(of, number).latency_ns[message])
        self._at_time(self._now + latency, (of, number, message))

    def _deliver(self, of: _Instance, number: int, message: int) -> None:
        stage = self._stage(of, number)
        ends = [int(stage.gate[message]), int(stage.other[message])]
        for end in [end for end in ends if end >= 0]:
            of.need[number, end] = self._needed(of, number, end) - 1
        for end in dict.fromkeys(end for end in ends if end >= 0):
            if not of.need[number, end] and of.at.get(end, -1) == number:
                self._begin_round(of, end, number + 1)

    def _needed(self, of: _Instance, number: int, end: int) -> int:
        if (number, end) not in of.need:
            stage = self._stage(of, number)
            of.need[number, end] = int((stage.gate == end).sum() + (stage.other == end).sum())
        return of.need[number, end]

    def _enter(self, of: _Instance, rank: int) -> None:
        inside = np.flatnonzero(of.flow.rank == rank).tolist()
        for end in inside:
            of.at[end] = -1
        for end in inside:
            self._begin_round(of, end, 0)
        if not inside:
            self._through(of, rank, self._now)

    def _begin_round(self, of: _Instance, end: int, number: int) -> None:
        rounds = sum(stage.repeats for stage in of.flow.stages)
        while number < rounds:
            stage = self._stage(of, number)
            of.at[end] = number
            for message in np.flatnonzero((stage.gate == end) | (stage.other == end)).tolist():
                gate, other = int(stage.gate[message]), int(stage.other[message])
                if stage.posted and other >= 0:
                    leaves = of.at.get(gate, -1) == of.at.get(other, -1) == number
                else:
                    leaves = gate == end
                if leaves:
                    self._send(of, number, message)
            if self._needed(of, number, end):
                return
            number += 1
        of.at[end] = rounds
        rank = int(of.flow.rank[end])
        if all(of.at[one] == rounds for one in np.flatnonzero(of.flow.rank == rank).tolist()):
            self._through(of, rank, self._now)

    def _through(self, of: _Instance, rank: int, end: float) -> None:
        of.step.end[of.operation[rank], rank - self._jobs[of.job].first] = end
        of.step.open -= 1
        self._queue[rank] = None

    # -- collectives that share nothing ------------------------------------------------------------

    def _close(self, of: _Instance, members: Array) -> float:
        """Compute the ends of a closed group from its entries; return the last."""
        flow = of.flow
        entries = sorted(of.entry[int(rank)] for rank in members)
        latest = entries[max(len(entries) - 1 - flow.spared, 0)]
        inside = np.flatnonzero(np.isin(flow.rank, members))
        times = np.full(len(flow.rank), -np.inf)
        binds = flow.spared or flow.joined
        times[inside] = [latest if binds else of.entry[int(flow.rank[p])] for p in inside]
        for stage in flow.stages:
            mine = np.isin(stage.gate, inside)
            gate, other = stage.gate[mine], stage.other[mine]
            hop = stage.latency_ns + (stage.hop_ns - stage.latency_ns) * of.scale
            for _ in range(stage.repeats):
                begin = times[gate]
                if stage.posted:
                    begin = np.maximum(begin, np.where(other >= 0, times[other], -np.inf))
                after = times.copy()
                np.maximum.at(after, gate, begin + hop[mine])
                np.maximum.at(after, other[other >= 0], (begin + hop[mine])[other >= 0])
                times = after
        for rank in members.tolist():
            end = float(times[flow.rank == rank].max()) if flow.stages else latest
            self._through(of, rank, end)
        return float(times[inside].max(initial=-np.inf))

    def _urgent(self, job: _Job, step: _Step) -> None:
        """Run urgent collectives one at a time; of those ready on all ranks, the last first."""
        waiting = {n: max(of.entry.values()) for n, of in step.instances.items() if of.entry}
        while waiting:
            now = max(min(waiting.values()), job.free)
            number = max(n for n, begin in waiting.items() if begin <= now)
            of = step.instances[number]
            start = max(waiting.pop(number), job.free + of.flow.launch_ns)
            of.entry = dict.fromkeys(of.entry, start)
            for members in self._members[int(step.plan.flow[number])]:
                job.free = max(job.free, self._close(of, members))

    # -- the data flow -----------------------------------------------------------------------------

    def _flow_on(self) -> None:
        while self._queue:
            rank = next(iter(self._queue))
            del self._queue[rank]
            moved = True
            while moved:
                moved = sum(self._proceed(rank, stream) for stream in range(STREAMS)) > 0
            job = self._jobs[self._job_of[rank]]
            if job.final and self._at_step[rank, 0] >= len(job.steps):
                continue
            if self._at_step[rank, 0] >= len(job.steps) or self._is_unknown(job, rank):
                job.soonest = min(job.soonest, float(self._until[rank, 0]))

    def _is_unknown(self, job: _Job, rank: int) -> bool:
        """Whether a rank is at the first operation of a step, whose duration is not known."""
        step = job.steps[int(self._at_step[rank, 0])]
        if self._at[rank, 0] or step is None:
            return False
        mine = self._stream(step.plan, rank - job.first, 0)
        return len(mine) > 0 and bool(np.isnan(step.value[mine[0], rank - job.first]))

    def _stream(self, plan: StepPlan, local: int, stream: int) -> Array:
        role = int(plan.role[local])
        return np.flatnonzero(plan.stream[plan.start[role] : plan.start[role + 1]] == stream)

    def _proceed(self, rank: int, stream: int) -> bool:
        """Carry out the next operation of a stream; return False where it has to wait."""
        job = self._jobs[self._job_of[rank]]
        number, lane = int(self._at_step[rank, stream]), (rank, stream)
        step = job.steps[number] if number < len(job.steps) else None
        if step is None:
            return False
        plan, local = step.plan, rank - job.first
        role = int(plan.role[local])
        mine = self._stream(plan, local, stream)
        if self._at[lane] == len(mine):
            self._at_step[lane], self._at[lane] = number + 1, 0
            return True
        place = int(mine[self._at[lane]])
        o = int(plan.start[role]) + place
        if stream == 0 and self._at[lane] == 0:
            if math.isnan(step.value[place, local]):
                return False
            self._begun[rank] = self._until[lane]
        kind = int(plan.kind[o])
        if kind == COLLECTIVE and not math.isnan(step.enter[place, local]):
            if math.isnan(step.end[place, local]):
                return False
            self._until[lane] = step.end[place, local]
            self._at[lane] += 1
            return True
        ready = self._ready(job, plan, o, number, local)
        if math.isnan(ready):
            return False
        begin = max(ready, float(self._until[lane]))
        if kind in (COLLECTIVE, URGENT):
            step.enter[place, local] = begin if math.isinf(ready) else ready
            self._at[lane] += kind == URGENT
            self._issue(rank, step, place, o, begin)
            return True
        end = self._ended(job, step, o, place, local, begin, ready)
        if math.isnan(end):
            return False
        step.enter[place, local], step.end[place, local] = begin, end
        step.open -= 1
        self._until[lane] = end
        self._at[lane] += 1
        return True

    def _ready(self, job: _Job, plan: StepPlan, o: int, number: int, local: int) -> float:
        """When all needs of an operation are over; NaN where that is not known yet."""
        ready = -math.inf
        for k in range(int(plan.need_start[o]), int(plan.need_start[o + 1])):
            of = number - int(plan.back[k])
            past = job.steps[of] if of >= 0 else None
            if past is None:
                continue
            end = float(past.end[plan.need[k], local])
            if math.isnan(end):
                return end
            ready = max(ready, end)
        return ready

    def _ended(
        self, job: _Job, step: _Step, o: int, place: int, local: int, begin: float, ready: float
    ) -> float:
        """End of an operation other than a collective; NaN where one in flight decides it."""
        value, kind = float(step.value[place, local]), int(step.plan.kind[o])
        rank = job.first + local
        if kind == DROP:
            return max(min(ready, begin), float(self._begun[rank]))
        if kind == SLOWED:
            whole = begin + value * (1 + job.slowdown)
            busy = float(step.end[step.plan.soft[o], local])
            if math.isnan(busy):
                if self._now >= whole - SAME_NS:
                    return whole
                self._at_time(whole, (None, rank, None))
                return math.nan
            under = min(value * (1 + job.slowdown), max(busy - begin, 0.0))
            return begin + under + value - under / (1 + job.slowdown)
        assert kind == COMPUTE
        return begin + value

    def _issue(self, rank: int, step: _Step, place: int, o: int, begin: float) -> None:
        number, job = int(step.plan.instance[o]), int(self._job_of[rank])
        flow_number = int(step.plan.flow[number])
        flow, local = self._flows[flow_number], rank - self._jobs[job].first
        if flow.group[rank] < 0:
            step.end[place, local] = begin
            step.open -= 1
            return
        of = step.instances.setdefault(
            number, _Instance(flow_number, flow, job, step, float(step.scale[number]))
        )
        of.operation[rank] = place
        begin += float(step.value[place, local]) + flow.launch_ns
        if not flow.closed and not flow.joined:
            self._enter_at(of, rank, begin)
            return
        of.entry[rank] = begin
        members = self._members[flow_number][int(flow.group[rank])]
        if not all(int(member) in of.entry for member in members):
            return
        if not flow.closed:
            begin = max(of.entry[int(member)] for member in members)
            for member in members.tolist():
                self._enter_at(of, member, begin)
        elif int(step.plan.kind[o]) != URGENT:
            self._close(of, members)
        else:
            urgent = np.unique(step.plan.instance[step.plan.kind == URGENT])
            step.urgent += flow.group[rank] == len(self._members[flow_number]) - 1
            if step.urgent == len(urgent):
                self._urgent(self._jobs[job], step)

    def _enter_at(self, of: _Instance, rank: int, begin: float) -> None:
        if begin <= self._now + self._same:
            self._enter(of, rank)
        else:
            self._at_time(begin, (of, rank, None))
