"""A job in the world: feed its steps, read their operations back, add them up.

The world returns entry and end of each operation. The shares of a step, the signals of pacing, the
records of the trace and the sums of a run follow from these and the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from evenstep.simulate.fabric.noise import Disturbance, NoiseSources
from evenstep.simulate.job.graph import FinishedStep, JobGraph, Operation, RankProgram
from evenstep.simulate.job.strategies import Pace, Paced, StepSignals
from evenstep.simulate.wires.carriage import alone_ns
from evenstep.simulate.wires.interface import COLLECTIVE, COMPUTE, SLOWED
from evenstep.simulate.wires.world import World
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

SHARES = ("input", "work", "blocked", "waited", "held")  # of a rank's time in a step, ns


class JobEngine:
    """The simulated job: number 0 of the world. Durations that depend on pacing or on when a rank
    begins a step (daemons) are worked out as it begins."""

    def __init__(
        self, world: World, graphs: Callable[[int], JobGraph], numbers: Mapping[JobGraph, int],
        noise_sources: NoiseSources, pace: Pace, begin_ns: Array,
    ) -> None:  # fmt: skip
        self._world, self._graphs, self._numbers = world, graphs, numbers
        self._noise_sources, self._pace = noise_sources, pace
        self._waits = isinstance(pace, Paced) or noise_sources.reads_clock
        self._begin = begin_ns  # of the oldest step under way
        self._last: FinishedStep | None = None  # before that
        self._under_way: list[FinishedStep] = []  # NaN: not over, or not begun
        self._value: Array = np.empty((0, 0))  # of the step that is fed
        self.fed = self.over = 0

    def serve(self, steps: int) -> None:
        """Give the world what it asked for: durations, the next step, or that there is none."""
        if sum(self._reveal(place) for place in range(len(self._under_way))):
            return
        if self.fed >= steps:
            self._world.final(0)
        else:
            self._feed()

    def _feed(self) -> None:
        graph, number = self._graphs(self.fed), len(self._under_way)
        disturbance = self._noise_sources.at(self.fed)
        value = self._values(graph, disturbance)
        if self._waits:
            value[graph.main_ends[0], np.arange(len(self._begin))] = np.nan
        self._world.feed(0, self._numbers[graph], value, np.ones(len(graph.flows)))
        begin, held = np.full(len(self._begin), np.nan), np.zeros(len(self._begin))
        times = self._world.under_way(0, number)
        self._under_way.append(FinishedStep(self.fed, graph, begin, *times, held, disturbance))
        self.fed += 1

    def _reveal(self, place: int) -> bool:
        """Work out durations of ranks that have come to a step; return whether there are any."""
        if not self._waits:
            return False
        step, last = self._under_way[place], self._under_way[place - 1] if place else self._last
        begin = self._begin if last is None else last.over
        ranks = np.flatnonzero(np.isnan(step.begin) & ~np.isnan(begin))
        if not len(ranks):
            return False
        step.begin[ranks] = begin[ranks]
        if isinstance(self._pace, Paced):
            if last is not None:
                self.learn(last, ranks)
            step.held[ranks] = self._pace.before(step.number, ranks)
        since = np.zeros(len(begin)) if last is None else last.begin
        noise = self._noise_sources.with_daemons(step.number, step.disturbance, since, step.begin)
        value = self._values(step.graph, noise)
        value[step.graph.main_ends[0], np.arange(len(begin))] += step.held
        self._world.reveal(0, place, ranks, value)
        return True

    def _values(self, graph: JobGraph, disturbance: Disturbance) -> Array:
        shape = max(len(role.operations) for role in graph.roles), len(graph.role)
        if self._value.shape != shape:
            self._value = np.empty(shape)
        value = self._value
        value.fill(0.0)
        for row, mine, one in graph.work:
            factor = disturbance.factor.get(one.phase)
            value[row, mine] = one.length_ns * (1.0 if factor is None else factor[mine])
            if one.begins and one.phase in disturbance.delay_ns:
                value[row, mine] += disturbance.delay_ns[one.phase][mine]
        return value

    def take(self) -> FinishedStep | None:
        """The next finished step."""
        if self._world.take(0) is None:
            return None
        done = self._last = self._under_way.pop(0)
        done.begin[:] = self._begin
        self.over += 1
        self._begin = done.over
        return done

    def learn(self, done: FinishedStep, ranks: Array) -> None:
        """Give pacing the signals of ranks that finished a step."""
        if type(self._pace) is not Pace:
            self._pace.after(done, pacing_signals(done), ranks)


def pacing_signals(done: FinishedStep) -> StepSignals | None:
    """The signals that pacing has of a step: its first collective and the end of its last."""
    numbers = [
        one.instance for one in done.graph.roles[0].operations if one.instance >= 0
        and done.graph.flows[one.instance].stages
        and done.graph.flows[one.instance].operation not in ("read", "send")
    ]  # fmt: skip
    if not numbers:
        return None
    first, last = numbers[0], numbers[-1]
    return StepSignals(
        done.of(done.enter, first), done.last_entries(first), done.of(done.end, first),
        alone_ns(done.graph.flows[first]), done.of(done.end, last),
    )  # fmt: skip


def step_shares(done: FinishedStep, before: FinishedStep | None = None) -> dict[str, Array]:
    """`SHARES` of a step after another, (ranks,): `work` includes `input`, `blocked` `waited`."""
    found = {name: np.zeros(len(done.begin)) for name in SHARES}
    for number, role in enumerate(done.graph.roles):
        mine = done.graph.ranks_of[number]
        for _, one, now, end in done.main(number):
            if done.graph.reads(one) or one.phase is Phase.INPUT:
                found["input"][mine] += np.maximum(end - now, 0.0)
            elif one.kind not in (COMPUTE, SLOWED) or one.phase is Phase.SYNC:
                length = np.maximum(end - now, 0.0)
                found["blocked"][mine] += length
                waited = _last_entry(done, before, role, one)[mine] - now
                found["waited"][mine] += np.fmin(np.fmax(waited, 0.0), length)
    work = done.over - done.begin - found["blocked"] - done.held
    return {**found, "work": work, "held": done.held}


def _last_entry(
    done: FinishedStep, before: FinishedStep | None, role: RankProgram, one: Operation
) -> Array:
    """When the last rank enters what is awaited; inf: when the wait ends; NaN: no part in it."""
    if one.kind == COLLECTIVE:
        return done.last_entries(one.instance)
    awaited = [role.operations[row].instance for row, _ in one.needs]
    if any(back for _, back in one.needs):  # of an earlier step, where a barrier is but a wait
        if before is None or done.graph.flows[awaited[0]].bytes == 0:
            return np.full(len(done.begin), np.inf)
        done = before
    return np.asarray(np.fmax.reduce([done.last_entries(each) for each in awaited]))


# -- sums over steps -------------------------------------------------------------------------------


class StepSums:
    """Begin and end of each step, and each rank's `SHARES` after the warm-up."""

    def __init__(self, steps: int, ranks: int, warm_up: int) -> None:
        self.warm_up = warm_up
        self.done = 0
        self.begin_ns = np.zeros(steps)  # of the rank that begins last
        self.end_ns = np.zeros(steps)  # of the rank that ends last
        self.totals = {name: np.zeros(ranks) for name in SHARES}

    def add(self, done: FinishedStep, shares: Mapping[str, Array]) -> None:
        index = self.done
        self.begin_ns[index], self.end_ns[index] = done.begin.max(), done.over.max()
        self.done += 1
        if index >= self.warm_up:
            for name, total in self.totals.items():
                total += shares[name]

    @property
    def counted(self) -> slice:
        """The finished steps after the warm-up."""
        return slice(min(self.warm_up, self.done), self.done)

    @property
    def step_ns(self) -> Array:
        """Duration of each finished step, between the ends of two steps on their last ranks. They
        add up to the time of the run."""
        end = self.end_ns[: self.done]
        return np.diff(end, prepend=self.begin_ns[0]) if self.done else end

    def steps_per_s(self, *, together: bool) -> float:
        """Steps per second: of the job, where ranks keep `together`; else averaged over the ranks,
        so that slow ones do not count more than fast ones."""
        spent = self.totals["work"] + self.totals["blocked"] + self.totals["held"]
        if together:
            spent = self.step_ns[self.counted].sum()
        counted = self.counted.stop - self.counted.start
        return float(np.mean(counted * 1e9 / spent)) if counted and np.all(spent) else 0.0
