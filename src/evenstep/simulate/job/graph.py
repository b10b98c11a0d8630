"""A step of a job as a graph of operations: what each rank computes, exchanges and waits for.

Ranks with the same operations have one `RankProgram`. A rank has streams, each of which does its
operations in order; stream 0 computes, the others carry collectives and messages behind it. An
operation may need others of its rank, in this step or in one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
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
