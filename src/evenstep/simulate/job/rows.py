"""Records of a step: phases, collectives and messages, in the order of a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.job.engine import FinishedStep
from evenstep.simulate.job.graph import MAIN, Operation, RankProgram
from evenstep.simulate.job.recording import Extra, RecordRow, collective_row, message_row, phase_row
from evenstep.simulate.wires.interface import COMPUTE, SLOWED
from evenstep.trace.spool.layout import Kind, Phase

Array = npt.NDArray[Any]

_HIDDEN = ("read", "barrier")  # operations that are not recorded


class StepRows:
    """Turns the steps of one role of a job into rows of records."""

    def __init__(
        self, number: int, ranks: Array, partitions: tuple[tuple[str, Array], ...], samples: int
    ) -> None:
        self._number, self._ranks, self._samples = number, ranks, samples
        self._groups = {
            members.tobytes(): index for index, (_, members) in enumerate(partitions, 1)
        }
        self._partitions = partitions
        self._known: dict[int, int] = {}

    def rows(self, done: FinishedStep, work: Array, held: Array) -> list[RecordRow]:
        """Rows of the step itself, then of everything in it."""
        mine = self._ranks
        role = done.graph.roles[self._number]
        begin, over = done.begin[mine], done.over[mine]
        found = [
            RecordRow(
                Kind.STEP, 0, begin, over, group_seq=np.rint(np.maximum(work[mine], 0.0)),
                held_ns=held[mine], payload=self._samples,
            )
        ]  # fmt: skip
        before = self._before(done, role, begin)
        first = {span.first: span for span in role.spans}
        for index, one in enumerate(role.operations):
            if index in first:
                span = first[index]
                found.append(self._phase(done, role, span.phase, index, span.last, before))
            if one.instance >= 0:
                found += self._exchanged(done, one, index)
            elif one.waits:
                end = done.end[index, mine]
                found.append(phase_row(Phase.SYNC, before[index], end, end - before[index]))
        return found

    def _before(self, done: FinishedStep, role: RankProgram, begin: Array) -> dict[int, Array]:
        """When the main stream reached each operation."""
        found, now = {}, begin
        for index, one in enumerate(role.operations):
            found[index] = now
            if one.stream == MAIN:
                now = done.end[index, self._ranks]
        return found

    def _phase(
        self,
        done: FinishedStep,
        role: RankProgram,
        phase: Phase,
        first: int,
        last: int,
        before: dict[int, Array],
    ) -> RecordRow:
        """The row of a phase, with the part of it that was work."""
        mine, leaf, end = self._ranks, np.zeros(len(self._ranks)), before[first]
        for index in range(first, last):
            one = role.operations[index]
            if one.stream != MAIN:
                continue
            end = done.end[index, mine]
            works = one.kind in (COMPUTE, SLOWED) and one.phase is phase
            if works or done.graph.reads(one):
                leaf = leaf + end - before[index]
        return phase_row(phase, before[first], end, leaf)

    def _exchanged(self, done: FinishedStep, one: Operation, index: int) -> list[RecordRow]:
        flow, mine = done.graph.flows[one.instance], self._ranks
        if flow.operation in _HIDDEN or not flow.stages:
            return []
        enter = done.enter[index, mine]
        end = np.maximum(done.end[index, mine], enter)
        if flow.operation == "send":
            return [self._message(done, one, flow, enter, end)]
        return [
            collective_row(
                flow.operation, flow.bytes, flow.members.shape[1], self._group(flow), enter, end,
                waits=one.stream == MAIN, synchronizing=not flow.apart,
            )
        ]  # fmt: skip

    def _message(
        self, done: FinishedStep, one: Operation, flow: Flow, enter: Array, end: Array
    ) -> RecordRow:
        ends = flow.members[:, ::-1] if one.receives else flow.members
        peer = np.full(len(done.begin), -1)
        peer[ends[:, 0]] = ends[:, 1]
        return message_row(
            flow.bytes, peer[self._ranks], self._of_name("pipeline"), enter, end,
            receives=one.receives,
        )  # fmt: skip

    def _of_name(self, name: str) -> int:
        return next(n for n, (found, _) in enumerate(self._partitions, 1) if found == name)

    def _group(self, flow: Flow) -> int:
        """Number of the flow's partition, in whatever order its ring has the members."""
        if id(flow) not in self._known:
            found = self._groups.get(flow.members.tobytes())
            if found is None:
                found = self._groups.get(np.sort(flow.members, axis=1).tobytes(), 1)
            self._known[id(flow)] = found
        return self._known[id(flow)]


def pauses(done: FinishedStep) -> list[Extra]:
    """Records of garbage collections."""
    pause = done.disturbance.pause_ns
    if pause is None:
        return []
    found = []
    for rank in np.flatnonzero(pause):
        start = float(done.begin[rank] + done.held[rank])
        found.append(
            Extra(int(rank), Kind.PAUSE, 2, start, start + float(pause[rank]), done.number)
        )
    return found
