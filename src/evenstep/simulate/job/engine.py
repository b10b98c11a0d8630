"""Runs a program step after step, all ranks at once.

The state is when each rank begins its next step, and what the wire has in flight. Everything else
of a step is worked out from that, its program and its disturbance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.noise import Weather
from evenstep.simulate.job.account import Account, StepShares
from evenstep.simulate.job.pipeline import run_pipeline
from evenstep.simulate.job.program import (
    Blocking,
    Burst,
    Compute,
    Drain,
    Gathered,
    Item,
    Layers,
    Piped,
    Program,
)
from evenstep.simulate.job.recording import (
    Extra,
    Recorder,
    Row,
    collective_row,
    phase_row,
)
from evenstep.simulate.job.step import Step
from evenstep.simulate.job.storage import read_together
from evenstep.simulate.job.strategies import Pace
from evenstep.simulate.wires.wire import Carried, Wire
from evenstep.trace.spool.layout import Kind, Phase

Array = npt.NDArray[Any]

SETTLED = 1e-10  # of a step: ranks that begin it so much sooner or later do so as before


class Engine:
    """Steps of one job. `wire` decides when collectives end."""

    def __init__(
        self,
        programs: Callable[[int], Program],
        weather: Weather,
        wire: Wire,
        *,
        ranks: int,
        pace: Pace,
        partitions: tuple[tuple[str, Array], ...],
        storage_ns: float = 0.0,
        samples: int = 0,
        overlap_slowdown: float = 0.0,
        dropping: bool = False,
        begin_ns: Array | None = None,
        together: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._programs = programs
        self._weather = weather
        self._wire = wire
        self._pace = pace
        self._recorder = recorder
        self._groups = {
            members.tobytes(): number for number, (_, members) in enumerate(partitions, 1)
        }
        self._storage_ns = storage_ns
        self._samples = samples
        self._slowdown = overlap_slowdown
        self._dropping = dropping  # who is late for a spared collective drops its work
        self._together = together  # ranks begin a step when the last is through the one before
        self._begin = np.zeros(ranks) if begin_ns is None else begin_ns
        self._urgent: Carried | None = None  # collectives of the last step that `Layers` waits for
        self.flow_steps: dict[int, tuple[Flow, int]] = {}  # how often each collective was carried

    def run(self, steps: int, account: Account) -> Iterator[int]:
        """Yields the number of every finished step."""
        for number in range(steps):
            account.add(self._step(number))
            yield number

    def settle(self, most: int) -> Array | None:
        """How far apart ranks begin a step once every step is like the one before; None where they
        are still not after so many."""
        apart: Array = self._begin
        for number in range(most):
            before, start = apart, float(self._begin.max())
            self._step(number)
            apart = self._begin - self._begin.min()
            if float(np.abs(apart - before).max()) <= SETTLED * (self._begin.max() - start):
                return apart
        return None

    def _step(self, number: int) -> StepShares:
        begin = self._begin
        program = self._programs(number)
        step = Step(begin, self._weather.at(number, begin), recording=self._recorder is not None)
        held = self._pace.before(number)
        if held is not None:
            step.now = step.now + held
        for item in program.items:
            self._run_item(step, item)
        if step.pending:
            self._drain(step)
        end = self._pace.barrier(number, step.now)
        if program.together or self._together:
            end = np.full_like(end, end.max())
        if end is not step.now:
            step.block(end, end - step.now)
        self._begin = step.now
        length = step.now - begin
        held_ns = np.zeros(len(begin)) if held is None else held
        self._pace.after(number, step.seen, begin, step.now, held_ns)
        if self._recorder is not None:
            self._record(self._recorder, number, step, held_ns)
        work = length - step.blocked - held_ns
        return StepShares(begin, step.now, step.input, work, step.blocked, step.waited, held_ns)

    def _record(self, recorder: Recorder, number: int, step: Step, held: Array) -> None:
        work = np.maximum(step.now - step.start - step.blocked - held, 0.0)
        whole = Row(
            Kind.STEP,
            0,
            step.start,
            step.now,
            group_seq=np.rint(work),
            held_ns=held,
            payload=self._samples,
        )
        pause = step.disturbance.pause_ns
        if pause is not None:
            for rank in np.flatnonzero(pause):
                start = float(step.start[rank] + held[rank])
                recorder.extras.append(
                    Extra(int(rank), Kind.PAUSE, 2, start, start + float(pause[rank]), number)
                )
        recorder.extras += self._pace.records(number, step.start)
        recorder.step(number, [whole, *(step.rows or [])])

    # -- items -------------------------------------------------------------------------------------

    def _run_item(self, step: Step, item: Item) -> None:
        match item:
            case Compute():
                self._compute(step, item)
            case Burst():
                self._burst(step, item)
            case Blocking():
                self._blocking(step, item)
            case Gathered():
                self._gathered(step, item)
            case Piped():
                self._piped(step, item)
            case Layers():
                self._layers(step, item)
            case Drain():
                self._drain(step)

    def _compute(self, step: Step, item: Compute) -> None:
        enter = step.now
        factor, delay = step.noise_of(item.phase)
        if item.phase is Phase.INPUT and self._storage_ns:
            step.now = read_together(step.now, self._storage_ns)
        step.now = step.now + (item.length_ns * factor + delay)
        if item.phase is Phase.INPUT:
            step.input = step.input + (step.now - enter)
        if step.rows is not None:
            step.rows.append(phase_row(item.phase, enter, step.now, step.now - enter))

    def _burst(self, step: Step, item: Burst) -> None:
        """All chunks, then all that was issued behind them: nothing waits in between."""
        enter = step.now
        factor, delay = step.noise_of(item.phase)
        flows = [flow for flow in item.flows if flow is not None]
        if self._slowdown and flows:
            self._slowed_burst(step, item, factor, delay)
            return
        done = np.cumsum(item.chunk_ns)
        shifted = step.now + delay
        step.now = shifted + factor * done[-1]
        rows_at = self._place(step)
        if flows:
            where = np.array([i for i, flow in enumerate(item.flows) if flow is not None])
            ready = shifted[None, :] + np.multiply.outer(done[where], factor * np.ones(1))
            carried = self._carry(step, flows, ready, waits=False, urgent=item.urgent)
            if item.urgent:
                self._urgent = carried
            else:
                step.pending.append((flows, carried))
        self._insert(step, rows_at, item.phase, enter, step.now - enter)

    def _layers(self, step: Step, item: Layers) -> None:
        """Layer by layer, each when its gradients have come."""
        enter, blocked = step.now, step.blocked
        factor, delay = step.noise_of(item.phase)
        step.now = step.now + delay
        for back, chunk in enumerate(item.chunk_ns, 1):
            if self._urgent is not None:
                late = self._urgent.last_ns[-back] - step.now
                step.block(np.broadcast_to(self._urgent.end_ns[-back], step.now.shape), late)
            step.now = step.now + chunk * factor
        leaf = step.now - enter - (step.blocked - blocked)
        self._insert(step, self._place(step), item.phase, enter, leaf)

    def _slowed_burst(
        self, step: Step, item: Burst, factor: Array | float, delay: Array | float
    ) -> None:
        """Chunk by chunk, slower while something is in flight."""
        enter = step.now
        rows_at = self._place(step)
        step.now = step.now + delay
        busy = np.zeros_like(step.now)
        for chunk, flow in zip(item.chunk_ns, item.flows, strict=True):
            length = chunk * factor
            under = np.maximum(busy - step.now, 0.0)
            slowed = np.minimum(length * (1 + self._slowdown), under)
            step.now = step.now + slowed + length - slowed / (1 + self._slowdown)
            if flow is not None:
                carried = self._carry(step, [flow], step.now[None, :], waits=False)
                step.pending.append(([flow], carried))
                busy = np.maximum(busy, carried.end_ns[0])
        self._insert(step, rows_at, item.phase, enter, step.now - enter)

    def _blocking(self, step: Step, item: Blocking) -> None:
        """Chunk, collective, chunk, collective …"""
        enter, blocked = step.now, step.blocked
        factor, delay = step.noise_of(item.phase)
        step.now = step.now + delay
        rows_at = self._place(step)
        for chunk, flow in zip(item.chunk_ns, item.flows, strict=True):
            step.now = step.now + chunk * factor
            carried = self._carry(step, [flow], step.now[None, :], waits=True)
            step.block(carried.end_ns[0], carried.last_ns[0] - step.now)
        leaf = step.now - enter - (step.blocked - blocked)
        self._insert(step, rows_at, item.phase, enter, leaf)

    def _gathered(self, step: Step, item: Gathered) -> None:
        """The next layer's gather is in flight while a layer computes."""
        enter, blocked = step.now, step.blocked
        factor, delay = step.noise_of(item.phase)
        step.now = step.now + delay
        rows_at = self._place(step)
        coming = self._issue(step, item.gathers, 0)
        for layer, chunk in enumerate(item.chunk_ns):
            if coming is not None:
                self._sync(step, coming.end_ns[0], coming.last_ns[0] - step.now)
            coming = self._issue(step, item.gathers, layer + 1)
            step.now = step.now + chunk * factor
            if item.scatters and item.scatters[layer].stages:
                flows = [item.scatters[layer]]
                carried = self._carry(step, flows, step.now[None, :], waits=False)
                step.pending.append((flows, carried))
        leaf = step.now - enter - (step.blocked - blocked)
        self._insert(step, rows_at, item.phase, enter, leaf)

    def _issue(self, step: Step, flows: Sequence[Flow], layer: int) -> Carried | None:
        if layer >= len(flows) or not flows[layer].stages:
            return None
        return self._carry(step, [flows[layer]], step.now[None, :], waits=False)

    def _piped(self, step: Step, item: Piped) -> None:
        enter = step.now
        factors = []
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            factor, delay = step.noise_of(phase)
            step.now = step.now + delay
            factors.append(_of_slowest(factor * np.ones(len(enter)), item.tensor))
        delay = step.now - enter
        forward = item.forward_ns * factors[0] + item.tensor_ns
        backward = item.backward_ns * factors[1] + item.tensor_ns
        end = run_pipeline(
            step.now[item.stages], forward[item.stages], backward[item.stages], item.hop_ns,
            item.micro_batches, interleaved=item.interleaved,
        )  # fmt: skip
        work = [delay + item.micro_batches * forward, item.micro_batches * backward]
        step.now = step.now.copy()
        step.now[item.stages] = end
        bubble = np.maximum(step.now - enter - work[0] - work[1], 0.0)
        exchanging = 2 * item.micro_batches * item.tensor_ns
        step.blocked, step.waited = step.blocked + bubble + exchanging, step.waited + bubble
        if step.rows is not None:
            middle, late = enter + work[0], enter + work[0] + bubble
            step.rows.append(phase_row(Phase.FORWARD, enter, middle, work[0]))
            step.rows.append(phase_row(Phase.SYNC, middle, late, bubble))
            step.rows.append(phase_row(Phase.BACKWARD, late, step.now, work[1]))

    def _drain(self, step: Step) -> None:
        """Wait for everything issued; what is over before the last entry is waiting for others."""
        if not step.pending:
            return
        over = step.over(carried.end_ns for _, carried in step.pending)
        if self._dropping:  # a rank that is later than the collective's end gives up its work
            step.now = np.maximum(np.minimum(step.now, over), step.start)
        enter = step.now
        waited = np.zeros_like(enter)
        reached = enter
        for _, carried in step.pending:
            latest = float(carried.last_ns.max())
            if latest > float(reached.min()):
                for last, end in zip(carried.last_ns, carried.end_ns, strict=True):
                    waited = waited + np.maximum(last - reached, 0.0)
                    reached = np.maximum(reached, end)
            else:
                reached = np.maximum(reached, carried.end_ns[-1])
        step.pending = []
        self._sync(step, reached, waited)

    def _sync(self, step: Step, until: Array, waiting: Array) -> None:
        """Block on something asynchronous, as a phase of its own."""
        enter = step.now
        step.block(until, waiting)
        if step.rows is not None:
            step.rows.append(phase_row(Phase.SYNC, enter, step.now, step.now - enter))

    # -- collectives and rows ----------------------------------------------------------------------

    def _carry(
        self, step: Step, flows: list[Flow], ready: Array, *, waits: bool, urgent: bool = False
    ) -> Carried:
        carry = self._wire.carry_urgent if urgent else self._wire.carry
        carried = carry(flows, ready)
        step.see(flows, carried)
        for flow in flows:
            known, times = self.flow_steps.get(id(flow), (flow, 0))
            self.flow_steps[id(flow)] = (known, times + 1)
        if step.rows is not None:
            size = step.now.shape
            for index, flow in enumerate(flows):
                step.rows.append(
                    collective_row(
                        flow.operation,
                        flow.bytes,
                        flow.members.shape[1],
                        self._group(flow),
                        ready[index],
                        np.maximum(np.broadcast_to(carried.end_ns[index], size), ready[index]),
                        waits=waits,
                        synchronizing=self._wire.synchronizing,
                    )
                )
        return carried

    def _group(self, flow: Flow) -> int:
        """Number of the partition; a ring's own order of the members does not matter."""
        found = self._groups.get(flow.members.tobytes())
        if found is None:
            found = self._groups.get(np.sort(flow.members, axis=1).tobytes(), 1)
        return found

    @staticmethod
    def _place(step: Step) -> int:
        return len(step.rows) if step.rows is not None else 0

    @staticmethod
    def _insert(step: Step, place: int, phase: Phase, enter: Array, leaf: Array) -> None:
        """The phase's own row stands before what was issued in it."""
        if step.rows is not None and phase is not Phase.OTHER:
            step.rows.insert(place, phase_row(phase, enter, step.now, leaf))


def _of_slowest(factor: Array, groups: Array | None) -> Array:
    """What a rank is slower by where its group keeps together at every layer."""
    if groups is None:
        return factor
    found = factor.copy()
    found[groups] = factor[groups].max(axis=1)[:, None]
    return found
