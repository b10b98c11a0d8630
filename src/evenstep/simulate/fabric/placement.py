"""The GPU of each rank and the nodes of each neighbour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.errors import ConfigError
from evenstep.scenario.scenario import Scenario, nodes_in
from evenstep.simulate.fabric.network import Network
from evenstep.trace.columns import Array, positions_by_key

_NEIGHBOURS, _JOB = 101, 102  # streams of the placement's own random numbers


@dataclass(frozen=True, slots=True)
class Placement:
    """`gpu` of each rank (node × GPUs + GPU), `node` and `rack` beside it."""

    gpu: Array
    node: Array
    rack: Array
    neighbours: tuple[Array, ...]  # nodes of each neighbour


def place(scenario: Scenario, network: Network) -> Placement:
    """Place neighbours and ranks on nodes."""
    neighbours = _neighbours(scenario)
    taken = np.concatenate([np.zeros(0, np.int64), *neighbours]).astype(np.int64)
    need = -(-scenario.ranks // scenario.cluster.gpus_per_node)
    return seat(network, _nodes(scenario, network, taken, need), scenario.ranks, neighbours)


def seat(
    network: Network, nodes: Array, ranks: int | None = None, neighbours: tuple[Array, ...] = ()
) -> Placement:
    """A rank on each GPU of some nodes, in their order; at most `ranks`."""
    size = network.cluster.gpus_per_node
    gpu = (nodes[:, None] * size + np.arange(size)).reshape(-1)[:ranks]
    rack = network.core.place(gpu // size * network.cluster.nics_per_node)
    return Placement(gpu, gpu // size, rack, neighbours)


def _nodes(scenario: Scenario, network: Network, taken: Array, need: int) -> Array:
    """The job's nodes in order of its ranks: free ones, or all where too few are free."""
    job, everything = scenario.job, np.arange(scenario.cluster.nodes)
    if job.placement == "given":
        return np.array(nodes_in(job.nodes, "job.nodes"), np.int64)[:need]
    free = everything[~np.isin(everything, taken)]
    usable = free if len(free) >= need else everything
    if job.placement == "random":
        usable = np.random.Generator(np.random.Philox(key=(scenario.run.seed, _JOB))).permutation(
            usable
        )
    elif job.placement == "scattered":
        leaf = network.core.place(usable * scenario.cluster.nics_per_node)
        usable = usable[np.lexsort([leaf, positions_by_key(leaf)])]  # one of each leaf in turn
    return usable[:need]


def _neighbours(scenario: Scenario) -> tuple[Array, ...]:
    """Nodes of every neighbour: as given, or drawn from free nodes."""
    given = [
        np.array(nodes_in(other.nodes, "neighbours.nodes"), np.int64)
        for other in scenario.neighbours
    ]
    free = np.arange(scenario.cluster.nodes)
    for nodes in given:
        free = free[~np.isin(free, nodes)]
    random = np.random.Generator(np.random.Philox(key=(scenario.run.seed, _NEIGHBOURS)))
    found = []
    for index, (other, nodes) in enumerate(zip(scenario.neighbours, given, strict=True)):
        if not len(nodes):
            if other.node_count > len(free):
                raise ConfigError(
                    f"neighbours[{index}].node_count is {other.node_count}, but only {len(free)} "
                    "nodes are free; add nodes to the cluster or give fewer"
                )
            nodes = np.sort(random.permutation(free)[: other.node_count])
            free = free[~np.isin(free, nodes)]
        found.append(nodes)
    return tuple(found)
