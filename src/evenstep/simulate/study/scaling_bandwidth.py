"""A prediction of the step from compute, bytes and link speeds alone, and the parts it leaves out.

A collective takes its bytes over the speed of the cards, and compute overlaps with it as in the
work's graph. Latencies, shared links and late ranks are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.allreduce import bus_factor
from evenstep.scenario import schema
from evenstep.scenario.hardware import Cluster
from evenstep.scenario.parts import Work
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.simulation import Setup, step_ns
from evenstep.simulate.wires.carriage import alone_ns

Array = npt.NDArray[Any]

_DISTURBING = ("noise", "neighbours", "strategy")


class Parts(NamedTuple):
    """A step's communication in ns, overlapped or not, and the step that bandwidth predicts."""

    bytes_ns: float  # at the speed of the cards
    latency_ns: float  # of all rounds and launches
    shared_ns: float  # added where messages of a collective share links
    fixed_ns: float  # work that does not depend on a rank's batch
    bubble_ns: float  # of a pipeline
    bandwidth_only_step_ns: float


def parts(setup: Setup) -> Parts:
    """The parts of one step of a scenario that is set up."""
    flows = [flow for flow in setup.graph.flows if flow.stages]
    moved = sum(wire_ns(flow, setup) for flow in flows)
    latency = sum(_latency_ns(flow) for flow in flows)
    alone = sum(alone_ns(flow) for flow in flows)
    work, strategy = setup.scenario.work, setup.scenario.strategy
    return Parts(
        moved, latency, max(alone - moved - latency, 0.0),
        (work.optimizer_ms + strategy.encode_ms) * 1e6, bubble_ns(work), _bandwidth_only_ns(setup),
    )  # fmt: skip


def bubble_ns(work: Work) -> float:
    """(p - 1)/v micro-batches (Narayanan et al. 2021); of zero bubble only their forwards (Qi et
    al. 2023)."""
    if work.kind != "pipeline":
        return 0.0
    each = work.forward_ms + (0.0 if work.schedule == "zero_bubble" else work.backward_ms)
    return (work.pipeline_parallel - 1) / work.interleaved * each / work.micro_batches * 1e6


def _bandwidth_only_ns(setup: Setup) -> float:
    """The step if a collective took its bytes over the speed of the cards."""
    known: dict[int, Flow] = {}

    def bare(flow: Flow) -> Flow:
        if id(flow) not in known:
            known[id(flow)] = setup.library.barrier(flow.members, wire_ns(flow, setup))
        return known[id(flow)]

    graph = replace(setup.graph, flows=[bare(flow) for flow in setup.graph.flows])
    calm = schema.read(
        Scenario, {k: v for k, v in schema.plain(setup.scenario).items() if k not in _DISTURBING}
    )
    return step_ns(replace(setup, scenario=calm, graph=graph, between=graph))


def wire_ns(flow: Flow, setup: Setup) -> float:
    """A ring's bytes over the joint sending speed of a group's ranks on a node."""
    size = int(flow.members.shape[1])
    if size < 2:
        return 0.0
    sent = bus_factor(flow.operation, size) * flow.bytes
    return sent / _speed(setup.scenario.cluster, setup.placement.node[flow.members])


def _speed(cluster: Cluster, node: Array) -> float:
    """GB/s; `node`: of each member of the groups, of which the first stands for all."""
    _, counts = np.unique(node[0], return_counts=True)
    if len(counts) == 1:
        return cluster.gpu_link_gBps
    cards = cluster.nic_gBps * cluster.nics_per_node
    mine = cards * float(counts.max()) / cluster.gpus_per_node
    return min(mine, cluster.gpu_link_gBps) if counts.max() > 1 else mine


def _latency_ns(flow: Flow) -> float:
    rounds = (float(s.latency_ns.max(initial=0.0)) * s.round.repeats for s in flow.stages)
    return flow.launch_ns + sum(rounds)
