"""One step of the work: what ranks compute, and which collectives they enter where.

All ranks run the same program. Lengths are before noise; a collective is a `Flow` already laid on
the network, over all groups of its partition at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import Flow, Library
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Compute:
    """A phase without communication."""

    phase: Phase
    length_ns: float


@dataclass(frozen=True, slots=True)
class Burst:
    """A phase in chunks; behind each a collective is issued, and compute goes on.

    `flows` has one for each chunk, or None. With `urgent`, nobody waits for them at the end of the
    step: the later ones go first, and the next `Layers` waits for each where it needs it.
    """

    phase: Phase
    chunk_ns: Array
    flows: tuple[Flow | None, ...]
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """A phase in layers, each of which needs a collective of the last urgent `Burst`, the last one
    first (Peng et al. 2019)."""

    phase: Phase
    chunk_ns: Array


@dataclass(frozen=True, slots=True)
class Blocking:
    """A phase in chunks; behind each (or before, with `ahead`) all wait for a collective."""

    phase: Phase
    chunk_ns: Array
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """A phase in layers: a layer needs its gather, the next one's is issued when it begins.

    `scatters` are issued behind the layers, as in a sharded backward; empty in a forward.
    """

    phase: Phase
    chunk_ns: Array
    gathers: tuple[Flow, ...]
    scatters: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True)
class Piped:
    """Forward and backward of all micro-batches through the stages, one forward one backward.

    `stages` is (pipelines, stages): ranks. Lengths are of one micro-batch; `hop_ns` is what an
    activation takes from each rank to the next stage, and its gradient back. Ranks of a row of
    `tensor` share their layers: they spend `tensor_ns` each way exchanging activations, and are as
    fast as the slowest of them.
    """

    stages: Array
    micro_batches: int
    forward_ns: float
    backward_ns: float
    hop_ns: Array
    interleaved: int = 1
    tensor: Array | None = None
    tensor_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait for all collectives in flight."""


Item = Compute | Burst | Blocking | Gathered | Piped | Layers | Drain


@dataclass(frozen=True, slots=True)
class Program:
    """Items in order, and the partitions of the ranks into groups that its collectives use.

    With `together`, all ranks begin the next step when the last is through, as benchmarks do.
    """

    items: tuple[Item, ...]
    partitions: tuple[tuple[str, Array], ...]  # name, (groups, size)
    together: bool = False

    @property
    def flows(self) -> list[Flow]:
        """All collectives of a step, in order of issue."""
        found: list[Flow] = []
        for item in self.items:
            if isinstance(item, (Burst, Blocking)):
                found += [flow for flow in item.flows if flow is not None]
            elif isinstance(item, Gathered):
                found += [*item.gathers, *item.scatters]
        return found

    @property
    def compute_ns(self) -> float:
        """What a rank computes in a step without noise."""
        return sum(_compute_ns(item) for item in self.items)


def _compute_ns(item: Item) -> float:
    match item:
        case Compute(length_ns=length):
            return length
        case Piped():
            return item.micro_batches * (item.forward_ns + item.backward_ns)
        case Drain():
            return 0.0
        case _:
            return float(item.chunk_ns.sum())


Build = Callable[[Scenario, Library], Program]


def build(scenario: Scenario, library: Library) -> Program:
    """The program of a scenario's work."""
    return PROGRAMS[scenario.work.kind](scenario, library)


def without_exchange(program: Program) -> Program:
    """The same step with its gradients kept: what local SGD does between exchanges."""
    items = tuple(
        replace(item, flows=(None,) * len(item.flows)) if isinstance(item, Burst) else item
        for item in program.items
    )
    return replace(program, items=items)


def _everybody(scenario: Scenario) -> Array:
    return np.arange(scenario.ranks)[None, :]


def _before(scenario: Scenario) -> list[Item]:
    input_ns = scenario.work.input_ms * 1e6
    return [Compute(Phase.INPUT, input_ns)] if input_ns or scenario.work.input_bytes else []


def _after(scenario: Scenario) -> list[Item]:
    work = scenario.work
    length = (work.optimizer_ms + scenario.strategy.encode_ms) * 1e6
    return [Compute(Phase.OPTIMIZER, length)] if length else []


def _sent_bytes(scenario: Scenario) -> float:
    """Gradients as they are sent."""
    return scenario.work.gradient_bytes * scenario.strategy.compression


def _reduced(scenario: Scenario, library: Library, members: Array, total: float) -> list[Item]:
    """Backward with the all-reduces of its buckets, behind it or after it, and the wait."""
    work = scenario.work
    backward = work.backward_ms * 1e6
    flow = library.flow("all_reduce", total / work.buckets, members)
    flows = (flow if flow.stages else None,) * work.buckets
    if work.overlap:
        return [
            Burst(Phase.BACKWARD, np.full(work.buckets, backward / work.buckets), flows),
            Drain(),
        ]
    chunks = np.zeros(work.buckets)
    chunks[0] = backward
    return [Burst(Phase.BACKWARD, chunks, flows), Drain()]


def _ddp(scenario: Scenario, library: Library) -> Program:
    """Data parallel: gradients in buckets, all-reduced behind backward."""
    members = _everybody(scenario)
    if scenario.strategy.kind == "priority":
        return _urgent(scenario, library, members)
    items = [
        *_before(scenario),
        Compute(Phase.FORWARD, scenario.work.forward_ms * 1e6),
        *_reduced(scenario, library, members, _sent_bytes(scenario)),
        *_after(scenario),
    ]
    return Program(tuple(items), (("world", members),))


def _urgent(scenario: Scenario, library: Library, members: Array) -> Program:
    """Data parallel: what the next forward needs first is sent first, and awaited only there."""
    work = scenario.work
    flow = library.flow("all_reduce", _sent_bytes(scenario) / work.buckets, members)
    flows = (flow if flow.stages else None,) * work.buckets

    def chunks(length_ms: float) -> Array:
        return np.full(work.buckets, length_ms * 1e6 / work.buckets)

    items = [
        *_before(scenario),
        Layers(Phase.FORWARD, chunks(work.forward_ms)),
        Burst(Phase.BACKWARD, chunks(work.backward_ms), flows, urgent=True),
        *_after(scenario),
    ]
    return Program(tuple(items), (("world", members),))


def _collective(scenario: Scenario, library: Library) -> Program:
    """One collective a step, as a benchmark does; `forward_ms` before it."""
    members, work = _everybody(scenario), scenario.work
    flow = library.flow(work.operation, _sent_bytes(scenario), members)
    flows = (flow,) * work.buckets if flow.stages else ()
    chunks = np.full(len(flows), work.forward_ms * 1e6 / max(len(flows), 1))
    items = (Blocking(Phase.FORWARD, chunks, flows),)
    return Program(items, (("world", members),), together=True)


def _fsdp(scenario: Scenario, library: Library) -> Program:
    """Sharded data parallel: gather layers ahead of use, twice, and scatter their gradients."""
    members, work = _everybody(scenario), scenario.work
    layer = work.gradient_bytes / work.buckets
    gathers = (library.flow("all_gather", layer, members),) * work.buckets
    sent = layer * scenario.strategy.compression
    scatters = (library.flow("reduce_scatter", sent, members),) * work.buckets

    def chunks(length_ms: float) -> Array:
        return np.full(work.buckets, length_ms * 1e6 / work.buckets)

    items = [
        *_before(scenario),
        Gathered(Phase.FORWARD, chunks(work.forward_ms), gathers),
        Gathered(Phase.BACKWARD, chunks(work.backward_ms), gathers, scatters),
        Drain(),
        *_after(scenario),
    ]
    return Program(tuple(items), (("world", members),))


def _grid(scenario: Scenario) -> Array:
    """(data parallel, stages, tensor parallel): tensor parallel ranks are neighbours."""
    work = scenario.work
    return np.arange(scenario.ranks).reshape(-1, work.pipeline_parallel, work.tensor_parallel)


def _replicas(scenario: Scenario) -> Array:
    """Ranks that hold the same parameters: (groups, size)."""
    return _grid(scenario).transpose(1, 2, 0).reshape(-1, _grid(scenario).shape[0])


def _tensor(scenario: Scenario, library: Library) -> Program:
    """Tensor parallel layers: two all-reduces in forward and in backward of each."""
    return _layered(scenario, library, "all_reduce")


def _experts(scenario: Scenario, library: Library) -> Program:
    """Experts spread over `tensor_parallel` ranks: two all-to-alls each way in every layer."""
    return _layered(scenario, library, "all_to_all")


def _layered(scenario: Scenario, library: Library, operation: str) -> Program:
    work = scenario.work
    inner, outer = _grid(scenario).reshape(-1, work.tensor_parallel), _replicas(scenario)
    flow = library.flow(operation, work.message_bytes, inner)
    number = 2 * work.buckets if flow.stages else 1

    def phase(which: Phase, length_ms: float) -> Item:
        if not flow.stages:
            return Compute(which, length_ms * 1e6)
        return Blocking(which, np.full(number, length_ms * 1e6 / number), (flow,) * number)

    reduced = library.flow("all_reduce", _sent_bytes(scenario), outer)
    exchange = Burst(Phase.OTHER, np.zeros(1), (reduced if reduced.stages else None,))
    items = [
        *_before(scenario),
        phase(Phase.FORWARD, work.forward_ms),
        phase(Phase.BACKWARD, work.backward_ms),
        exchange,
        Drain(),
        *_after(scenario),
    ]
    return Program(tuple(items), (("tensor", inner), ("data", outer)))


def _pipeline(scenario: Scenario, library: Library) -> Program:
    """Stages that pass micro-batches on, then an all-reduce among the replicas of a stage."""
    work = scenario.work
    stages = _grid(scenario).transpose(0, 2, 1).reshape(-1, work.pipeline_parallel)
    outer = _replicas(scenario)
    network, gpu = library.network, library.placement.gpu
    following = np.roll(stages, -1, axis=1)
    routes = network.routes(gpu[stages.reshape(-1)], gpu[following.reshape(-1)])
    hop = routes.total(network.latency_ns) + routes.worst(work.message_bytes / network.capacity)
    micro = work.micro_batches
    inner = _grid(scenario).reshape(-1, work.tensor_parallel)
    shared = library.flow("all_reduce", work.message_bytes, inner)
    layers = work.layers / work.pipeline_parallel if shared.stages else 0.0
    reduced = library.flow("all_reduce", _sent_bytes(scenario), outer)
    items = [
        *_before(scenario),
        Piped(
            stages,
            micro,
            work.forward_ms * 1e6 / micro,
            work.backward_ms * 1e6 / micro,
            hop.reshape(stages.shape),
            work.interleaved,
            inner if layers else None,
            2 * layers * shared.duration_ns,
        ),
        Burst(Phase.OTHER, np.zeros(1), (reduced if reduced.stages else None,)),
        Drain(),
        *_after(scenario),
    ]
    return Program(tuple(items), (("data", outer),))


PROGRAMS: dict[str, Build] = {
    "ddp": _ddp,
    "fsdp": _fsdp,
    "collective": _collective,
    "tensor": _tensor,
    "experts": _experts,
    "pipeline": _pipeline,
}
