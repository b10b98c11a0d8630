"""A step of a job as a graph of operations: what each rank computes, exchanges and waits for.

Ranks with the same operations have one `RankProgram`. A rank has streams, each of which does its
operations in order; stream 0 computes, the others carry collectives and messages behind it. An
operation may need others of its rank, in this step or in one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import CollectiveLibrary, Flow
from evenstep.simulate.wires.told import COLLECTIVE, COMPUTE, DROP, SLOWED, URGENT, StepPlan
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

MAIN, EXCHANGE, ONWARD, BACKWARD = range(4)  # streams


@dataclass(slots=True)
class Operation:
    """`needs` are (operation, steps before). `begins` a phase, whose delays fall on it."""

    kind: int
    stream: int
    phase: Phase
    length_ns: float = 0.0
    needs: tuple[tuple[int, int], ...] = ()
    instance: int = -1
    soft: int = -1  # of what is slowed: the collective in flight
    begins: bool = False
    waits: tuple[int, ...] = ()  # collectives that it is blocked on
    receives: bool = False  # of a message between two ranks: the one it is for


@dataclass(slots=True)
class PhaseSpan:
    """A phase as it is recorded: operations of the main stream from `first` to before `last`."""

    phase: Phase
    first: int
    last: int = 0


class RankProgram:
    """What ranks of one kind do in a step, in the order in which it is written down."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.spans: list[PhaseSpan] = []
        self._phase = Phase.OTHER
        self._begun: set[Phase] = set()

    def compute(self, length_ns: float, *needs: int, slowed_by: int = -1) -> int:
        """Work of the phase; slower while a collective is in flight, where one is named."""
        kind = COMPUTE if slowed_by < 0 else SLOWED
        begins = self._phase not in self._begun
        self._begun.add(self._phase)
        return self._add(
            Operation(
                kind, MAIN, self._phase, length_ns, _here(needs), soft=slowed_by, begins=begins
            )
        )

    def exchange(self, instance: int, *needs: int, stream: int = EXCHANGE) -> int:
        """A collective behind what it needs, while the main stream goes on."""
        return self._add(
            Operation(COLLECTIVE, stream, self._phase, needs=_here(needs), instance=instance)
        )

    def urgent(self, instance: int, *needs: int) -> int:
        """A collective of which later ones go first."""
        return self._add(
            Operation(URGENT, EXCHANGE, self._phase, needs=_here(needs), instance=instance)
        )

    def block(self, instance: int, *, receives: bool = False) -> int:
        """A collective that the main stream waits for at once."""
        return self._add(
            Operation(COLLECTIVE, MAIN, self._phase, instance=instance, receives=receives)
        )

    def wait(self, *collectives: int, back: int = 0, drops: bool = False) -> int:
        """Until these are over, of this step or one before. One that `drops` goes back to then."""
        needs = tuple((one, back) for one in collectives)
        kind = DROP if drops else COMPUTE
        waits = () if back else tuple(collectives)
        return self._add(Operation(kind, MAIN, Phase.SYNC, needs=needs, waits=waits))

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What is written down inside belongs to a phase."""
        span = PhaseSpan(phase, len(self.operations))
        before, self._phase = self._phase, phase
        yield
        self._phase = before
        span.last = len(self.operations)
        if phase is not Phase.OTHER:
            self.spans.append(span)

    def _add(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1


def _here(needs: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((need, 0) for need in needs)


@dataclass
class JobGraph:
    """One step of all ranks, and the partitions of the ranks into groups that it uses.

    With `together`, ranks begin a step when the last is through the one before. An operation's
    instance is one collective of the step; ranks that name the same one take part in it together.
    """

    roles: tuple[RankProgram, ...]
    role: Array  # of each rank
    flows: list[Flow]  # of each instance
    partitions: tuple[tuple[str, Array], ...]  # name, (groups, size)
    streams: dict[int, int] = field(default_factory=dict)  # of each instance

    def __post_init__(self) -> None:
        for role in self.roles:
            for one in role.operations:
                if one.instance >= 0:
                    self.streams[one.instance] = one.stream

    @cached_property
    def compute_ns(self) -> float:
        """What a rank computes without noise; of the role with most of it."""
        return max(
            sum(one.length_ns for one in role.operations if one.stream == MAIN)
            for role in self.roles
        )

    @cached_property
    def last_main(self) -> Array:
        """The last operation of each rank's main stream. (ranks,)"""
        return np.array([
            max(i for i, one in enumerate(role.operations) if one.stream == MAIN)
            for role in self.roles
        ])[self.role]  # fmt: skip

    @cached_property
    def place(self) -> Array:
        """(instances, roles): which operation of a role takes part in an instance, -1: none."""
        found = np.full((len(self.flows), len(self.roles)), -1)
        for number, role in enumerate(self.roles):
            for index, one in enumerate(role.operations):
                if one.instance >= 0:
                    found[one.instance, number] = index
        return found

    def reads(self, operation: Operation) -> bool:
        """Whether an operation reads from storage."""
        return operation.instance >= 0 and self.flows[operation.instance].operation == "read"

    def plan(self, numbers: dict[int, int]) -> StepPlan:
        """As the engine takes it; `numbers` says what it calls each flow, by identity."""
        operations = [one for role in self.roles for one in role.operations]
        needs = [need for one in operations for need in one.needs]
        sizes = [len(role.operations) for role in self.roles]

        def column(name: str) -> Array:
            return np.array([getattr(one, name) for one in operations], np.int64)

        return StepPlan(
            role=self.role,
            start=np.concatenate([[0], np.cumsum(sizes)]),
            kind=column("kind"),
            stream=column("stream"),
            instance=column("instance"),
            soft=column("soft"),
            need_start=np.concatenate([[0], np.cumsum([len(one.needs) for one in operations])]),
            need=np.array([need for need, _ in needs], np.int64),
            back=np.array([back for _, back in needs], np.int64),
            flow=np.array([numbers[id(flow)] for flow in self.flows], np.int64),
        )


# -- writing one down -----------------------------------------------------------------------------

AVERAGING = ("local_sgd", "diloco")  # strategies that exchange parameters, every so many steps


class GraphDraft:
    """A graph being written: its instances so far, and what every kind of work needs."""

    def __init__(self, scenario: Scenario, library: CollectiveLibrary) -> None:
        self.scenario, self.library = scenario, library
        self.work, self.strategy = scenario.work, scenario.strategy
        self.flows: list[Flow] = []
        self.partitions: list[tuple[str, Array]] = []

    def use(self, flow: Flow) -> int:
        """One more instance of a collective; -1 where it moves nothing."""
        if not flow.stages and flow.algorithm != "barrier":
            return -1
        self.flows.append(flow)
        return len(self.flows) - 1

    def partition(self, name: str, members: Array) -> Array:
        """Groups that the trace knows by a name."""
        if not any(np.array_equal(members, known) for _, known in self.partitions):
            self.partitions.append((name, members))
        return members

    def graph(self, *roles: RankProgram, role: Array | None = None) -> JobGraph:
        """What was written."""
        of_rank = np.zeros(self.scenario.ranks, np.int64) if role is None else role
        return JobGraph(roles, of_rank, self.flows, tuple(self.partitions))

    # -- what all steps have -----------------------------------------------------------------------

    @property
    def everybody(self) -> Array:
        """All ranks as one group."""
        return self.partition("world", np.arange(self.scenario.ranks)[None, :])

    @property
    def sent_bytes(self) -> float:
        """Gradients as they are sent."""
        return self.work.gradient_bytes * self.strategy.compression

    @property
    def exchanges(self) -> bool:
        """Whether gradients are exchanged; else parameters are, now and then."""
        return self.strategy.kind not in AVERAGING

    def before(self, role: RankProgram) -> None:
        """Being held by pacing, and the input."""
        if self.strategy.kind == "paced":
            role.compute(0.0)
        work = self.work
        if work.input_ms or work.input_bytes:
            with role.phase(Phase.INPUT):
                if work.input_bytes and self.scenario.cluster.storage_gBps:
                    role.block(self.use(self.library.storage(work.input_bytes)))
                role.compute(work.input_ms * 1e6)

    def after(self, role: RankProgram) -> None:
        """The optimizer."""
        length = (self.work.optimizer_ms + self.strategy.encode_ms) * 1e6
        if length:
            with role.phase(Phase.OPTIMIZER):
                role.compute(length)

    def reduced(self, role: RankProgram, exchanges: list[int]) -> None:
        """Wait for what was issued; who is spared does not."""
        if exchanges:
            role.wait(*exchanges, drops=self.strategy.kind == "backup_workers")

    def gradients(self, members: Array, parts: int = 1) -> int:
        """One of so many parts of the gradients, all-reduced among groups."""
        flow = self.library.flow("all_reduce", self.sent_bytes / parts, members)
        return self.use(as_kept(flow, self.scenario))


def as_kept(flow: Flow, scenario: Scenario) -> Flow:
    """The flow as a strategy exchanges it: without the latest ranks, or each rank by itself."""
    strategy = scenario.strategy
    if strategy.kind in ("backup_workers", "partial_reduce") and flow.stages:
        return _known(flow, "spared", lambda: replace(flow, spared=strategy.backups))
    if strategy.kind in ("asynchronous", "stale_synchronous") and flow.stages:
        return _known(flow, "alone", lambda: replace(flow, apart=True))
    return flow


def _known(flow: Flow, name: str, make: Callable[[], Flow]) -> Flow:
    """A variant of a flow, made once."""
    if name not in flow.variants:
        flow.variants[name] = make()
    return flow.variants[name]


def repeated(flow: Flow, times: int) -> Flow:
    """A collective so many times in a row, as one."""

    def make() -> Flow:
        stages = flow.stages * times
        if len(flow.stages) == 1:
            item = flow.stages[0]
            stages = (replace(item, round=item.round._replace(repeats=item.round.repeats * times)),)
        return replace(
            flow, stages=stages, bytes=flow.bytes * times, launch_ns=flow.launch_ns * times
        )

    return flow if times == 1 else _known(flow, f"{times} times", make)
