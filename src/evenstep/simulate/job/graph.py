"""A step of a job as a graph of operations: computations, collectives and waits of each rank.

Ranks with the same operations have one `RankProgram`. Each stream of a rank carries out its
operations in order; stream 0 computes, the others carry collectives and messages. An operation may
need others of its rank, of this step or of an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from evenstep.scenario.scenario import AVERAGING, SPARING, UNSYNCHRONISED, Scenario
from evenstep.simulate.fabric.flows import CollectiveLibrary, Flow
from evenstep.simulate.fabric.noise import Disturbance
from evenstep.simulate.wires.interface import COLLECTIVE, COMPUTE, DROP, SLOWED, URGENT, StepPlan
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

MAIN, EXCHANGE, ONWARD, BACKWARD = range(4)  # streams


@dataclass(slots=True)
class Operation:
    """One operation. `needs`: (operation, steps back). One that `begins` a phase has its delays."""

    kind: int
    stream: int
    phase: Phase
    length_ns: float = 0.0
    needs: tuple[tuple[int, int], ...] = ()
    instance: int = -1
    soft: int = -1  # the collective that slows a computation while in flight
    begins: bool = False
    receives: bool = False  # of a message between two ranks: this rank is its target


class RankProgram:
    """The operations of one kind of rank in a step, in the order in which they are added."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        #: By its first operation, a phase as it is recorded, and the operation after its last.
        self.spans: dict[int, tuple[Phase, int]] = {}
        self._phase = Phase.OTHER
        self._begun: set[Phase] = set()

    def compute(self, length_ns: float, *, slowed_by: int = -1) -> int:
        """Work of the phase; slower while the collective `slowed_by` is in flight."""
        kind = COMPUTE if slowed_by < 0 else SLOWED
        begins = self._phase not in self._begun
        self._begun.add(self._phase)
        return self._add(kind, MAIN, self._phase, length_ns, soft=slowed_by, begins=begins)

    def exchange(
        self, instance: int, *needs: int, stream: int = EXCHANGE, yields: bool = False
    ) -> int:
        """A collective after its needs, while the main stream goes on; one that `yields` gives way
        to later ones that do."""
        kind = URGENT if yields else COLLECTIVE
        here = tuple((need, 0) for need in needs)
        return self._add(kind, stream, self._phase, needs=here, instance=instance)

    def block(self, instance: int, *, receives: bool = False) -> int:
        """A collective that the main stream waits for at once."""
        return self._add(COLLECTIVE, MAIN, self._phase, instance=instance, receives=receives)

    def wait(self, *collectives: int, back: int = 0, drops: bool = False) -> int:
        """Wait for collectives of `back` steps ago; with `drops`, discard work since their end."""
        needs = tuple((one, back) for one in collectives)
        return self._add(DROP if drops else COMPUTE, MAIN, Phase.SYNC, needs=needs)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A phase around the operations that are added inside."""
        first, before, self._phase = len(self.operations), self._phase, phase
        yield
        self._phase = before
        self.spans[first] = phase, len(self.operations)

    def _add(self, *values: Any, **named: Any) -> int:
        self.operations.append(Operation(*values, **named))
        return len(self.operations) - 1


@dataclass(eq=False)
class JobGraph:
    """One step of all ranks, and the partitions of the ranks into groups that it uses.

    The instance of an operation is one collective of the step; operations of several ranks with the
    same instance take part in it.
    """

    roles: tuple[RankProgram, ...]
    role: Array  # of each rank
    flows: list[Flow]  # of each instance
    partitions: tuple[tuple[str, Array], ...]  # name, (groups, size)

    @cached_property
    def parts(self) -> list[tuple[int, int, Operation]]:
        """Operations that take part in an instance: role, number in it, and the operation."""
        return [
            (number, index, one)
            for number, role in enumerate(self.roles)
            for index, one in enumerate(role.operations)
            if one.instance >= 0
        ]

    @cached_property
    def uses(self) -> list[tuple[Flow, int]]:
        """Each flow with each of the streams that its ranks send it on."""
        sent = (one for *_, one in self.parts if not one.receives)
        return list(dict.fromkeys((self.flows[one.instance], one.stream) for one in sent))

    @cached_property
    def compute_ns(self) -> float:
        """Compute without noise, of the role with most of it."""
        main = ([one for one in role.operations if one.stream == MAIN] for role in self.roles)
        return max(sum(one.length_ns for one in each) for each in main)

    @cached_property
    def ranks_of(self) -> list[Any]:
        """Index of the ranks of each role."""
        if len(self.roles) == 1:
            return [slice(None)]
        return [np.flatnonzero(self.role == number) for number in range(len(self.roles))]

    @cached_property
    def work(self) -> list[tuple[int, Any, Operation]]:
        """Computations that may take time, with their number and the index of their ranks."""
        return [
            (row, ranks, one)
            for role, ranks in zip(self.roles, self.ranks_of, strict=True)
            for row, one in enumerate(role.operations)
            if one.kind in (COMPUTE, SLOWED) and (one.length_ns or one.begins)
        ]

    @cached_property
    def main_ends(self) -> Array:
        """The first and the last operation of each rank's main stream. (2, ranks)"""
        each = [[i for i, one in enumerate(role.operations) if one.stream == MAIN]
                for role in self.roles]  # fmt: skip
        return np.array([[main[0], main[-1]] for main in each]).T[:, self.role]

    @cached_property
    def place(self) -> Array:
        """(instances, roles): the operation of a role that takes part in an instance, -1: none."""
        found = np.full((len(self.flows), len(self.roles)), -1)
        for number, index, one in self.parts:
            found[one.instance, number] = index
        return found

    @cached_property
    def follows(self) -> Array:
        """(instances,): the instance in flight that each begins after on its rank, -1: none."""
        found = np.full(len(self.flows), -1)
        for number, _, one in (part for part in self.parts if part[2].needs):
            before = self.roles[number].operations[one.needs[0][0]]
            found[one.instance] = -1 if before.stream == MAIN else before.instance
        return found

    def reads(self, operation: Operation) -> bool:
        return operation.instance >= 0 and self.flows[operation.instance].operation == "read"

    def plan(self, numbers: Mapping[Flow, int]) -> StepPlan:
        """The graph for the engine; `numbers`: the engine's number of each flow."""
        operations = [one for role in self.roles for one in role.operations]
        needs = [need for one in operations for need in one.needs]
        sizes = [len(role.operations) for role in self.roles]

        def column(name: str) -> Array:
            return np.array([getattr(one, name) for one in operations], np.int64)

        return StepPlan(
            role=self.role,
            start=np.concatenate([[0], np.cumsum(sizes)]),
            **{name: column(name) for name in ("kind", "stream", "instance", "soft")},
            need_start=np.concatenate([[0], np.cumsum([len(one.needs) for one in operations])]),
            need=np.array([need for need, _ in needs], np.int64),
            back=np.array([back for _, back in needs], np.int64),
            flow=np.array([numbers[flow] for flow in self.flows], np.int64),
        )


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step: `enter` and `end` of every operation, (widest role, ranks); NaN while not known."""

    number: int
    graph: JobGraph
    begin: Array
    enter: Array
    end: Array
    held: Array
    disturbance: Disturbance

    @property
    def over(self) -> Array:
        """End of the step on each rank."""
        return np.asarray(self.end[self.graph.main_ends[1], np.arange(len(self.begin))])

    def main(self, role: int) -> Iterator[tuple[int, Operation, Array, Array]]:
        """Operations of a role's main stream with numbers: when ranks came to each, and its end."""
        mine = self.graph.ranks_of[role]
        reached = self.begin[mine]
        for index, one in enumerate(self.graph.roles[role].operations):
            if one.stream == MAIN:
                end = self.end[index, mine]
                yield index, one, reached, end
                reached = end

    def of(self, times: Array, instance: int) -> Array:
        """Each rank's `enter` or `end` of a collective; NaN for ranks without a part in it."""
        place = self.graph.place[instance]
        if len(place) == 1:
            return np.asarray(times[place[0]])
        row = place[self.graph.role]
        return np.where(row < 0, np.nan, times[row, np.arange(len(row))])

    def last_entries(self, instance: int) -> Array:
        """Entry of the last of each rank's group into a collective that it waits for; NaN outside
        of it. Of one that follows another on its rank, into that: it is entered with its end."""
        flow, before = self.graph.flows[instance], self.graph.follows[instance]
        entered = self.of(self.enter, instance) if before < 0 else self.last_entries(before)
        if flow.apart:
            return entered
        if flow.members.size == flow.members.shape[1] == len(self.begin) and not flow.spared:
            return np.full(entered.shape, np.fmax.reduce(entered))
        first = max(flow.members.shape[1] - flow.spared, 1)  # in order of entry
        ordered = np.sort(entered[flow.members], axis=1) if flow.spared else entered[flow.members]
        awaited = np.fmax.reduce(ordered[:, :first], axis=1, keepdims=True)
        last = np.full_like(entered, np.nan)
        last[flow.members] = awaited
        return last

    def moved(self, number: int, ahead: float) -> FinishedStep:
        """Another step, like this one but `ahead` later."""
        moved = {name: getattr(self, name) + ahead for name in ("begin", "enter", "end")}
        return replace(self, number=number, **moved)


# -- building a graph ------------------------------------------------------------------------------


class GraphDraft:
    """A graph under construction, and the parts that every kind of work has."""

    def __init__(self, scenario: Scenario, library: CollectiveLibrary) -> None:
        self.scenario, self.library = scenario, library
        self.work, self.strategy = scenario.work, scenario.strategy
        self.sent_bytes = self.work.gradient_bytes * self.strategy.compression
        self.exchanges = self.strategy.kind not in AVERAGING  # gradients; else parameters, at times
        self.flows: list[Flow] = []
        self.partitions: list[tuple[str, Array]] = []

    def use(self, flow: Flow) -> int:
        """Add an instance of a collective and return its number; -1 where it moves nothing."""
        if not flow.stages and flow.algorithm != "barrier":
            return -1
        self.flows.append(flow)
        return len(self.flows) - 1

    def partition(self, name: str, members: Array) -> Array:
        """Name the groups of a partition for the trace; return them."""
        if not any(np.array_equal(members, known) for _, known in self.partitions):
            self.partitions.append((name, members))
        return members

    def graph(self, *roles: RankProgram, role: Array | None = None) -> JobGraph:
        of_rank = np.zeros(self.scenario.ranks, np.int64) if role is None else role
        return JobGraph(roles, of_rank, self.flows, tuple(self.partitions))

    # -- parts of every step -----------------------------------------------------------------------

    @property
    def everybody(self) -> Array:
        """All ranks as one group."""
        return self.partition("world", np.arange(self.scenario.ranks)[None, :])

    @property
    def shards(self) -> Array:
        """Ranks that hold the parameters together, of fully sharded work. (shards, size)"""
        ranks = self.scenario.ranks
        return np.arange(ranks).reshape(-1, self.work.shard_ranks or ranks)

    def before(self, role: RankProgram) -> None:
        """Add the delay of pacing and the input phase."""
        if self.strategy.kind == "paced":
            role.compute(0.0)
        work = self.work
        if work.input_ms or work.input_bytes:
            with role.phase(Phase.INPUT):
                if work.input_bytes and self.scenario.cluster.storage_gBps:
                    role.block(self.use(self.library.storage(work.input_bytes)))
                role.compute(work.input_ms * 1e6)

    def after(self, role: RankProgram) -> None:
        """Add the optimizer phase, and where gradients are exchanged what compression takes."""
        optimizer_ms = 0.0 if self.work.kind == "collective" else self.work.optimizer_ms
        length = (optimizer_ms + (self.strategy.encode_ms if self.exchanges else 0.0)) * 1e6
        if length:
            with role.phase(Phase.OPTIMIZER):
                role.compute(length)

    def reduced(self, role: RankProgram, exchanges: list[int]) -> None:
        """Add the wait for exchanges; with backup workers it drops late work."""
        if exchanges:
            role.wait(*exchanges, drops=self.strategy.kind == "backup_workers")

    def gradients(self, members: Array, parts: int = 1) -> int:
        """Add the all-reduce of one of `parts` parts of the gradients among groups."""
        flow = self.library.flow("all_reduce", self.sent_bytes / parts, members)
        return self.use(as_kept(flow, self.scenario))

    def reduce_gradients(self, members: Array, *roles: RankProgram) -> None:
        """Add the all-reduce of all gradients among groups after the backward, and its wait."""
        number = self.gradients(members) if self.exchanges else -1
        for role in roles if number >= 0 else ():
            self.reduced(role, [role.exchange(number, role.compute(0.0))])


def as_kept(flow: Flow, scenario: Scenario) -> Flow:
    """The flow under the strategy: without its latest ranks, or unsynchronised."""
    kind, spared = scenario.strategy.kind, scenario.strategy.backups
    if kind in SPARING and flow.stages:
        return flow.variants.setdefault(f"{spared} spared", replace(flow, spared=spared))
    if kind in UNSYNCHRONISED and flow.stages:
        return flow.variants.setdefault("alone", replace(flow, apart=True))
    return flow


def repeat(flow: Flow, times: int) -> Flow:
    if times == 1:
        return flow
    stages = flow.stages * times
    if len(flow.stages) == 1:
        item = flow.stages[0]
        stages = (replace(item, round=item.round._replace(repeats=item.round.repeats * times)),)
    size, launch_ns = flow.bytes * times, flow.launch_ns * times
    found = replace(flow, stages=stages, bytes=size, launch_ns=launch_ns)
    return flow.variants.setdefault(f"{times} times", found)
