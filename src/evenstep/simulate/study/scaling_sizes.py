"""The same scenario at another number of ranks.

The cluster grows with the job, and so do neighbours given by their number of nodes; it shrinks
with it unless the scenario names nodes or links. Weak scaling keeps the batch of a rank. Strong
scaling divides the batch: compute of forward and backward, input, exchanged activations, and in a
pipeline the number of micro-batches instead of their size. The optimizer and the gradients stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from evenstep.errors import ConfigError
from evenstep.scenario.parts import Neighbour, Noise, Work
from evenstep.scenario.scenario import Scenario, nodes_in
from evenstep.trace.ranks import format_ranks

SMALLER, LARGER = 5, 2  # doublings around the scenario's own size, unless sizes are given


def default_sizes(scenario: Scenario) -> tuple[int, ...]:
    """Sizes around the scenario's ranks: halved as far as its layout allows, and doubled."""
    ranks, least = scenario.ranks, scenario.replica_ranks
    found = [ranks << k for k in range(LARGER + 1)]
    while len(found) < SMALLER + LARGER + 1 and ranks % 2 == 0 and (ranks // 2) % least == 0:
        ranks //= 2
        if ranks < 2:
            break
        found.insert(0, ranks)
    return tuple(found)


def resize(scenario: Scenario, ranks: int, *, strong: bool) -> Scenario:
    """The scenario with this number of ranks. Raises `ConfigError` where it does not fit."""
    if scenario.job.placement == "given":
        raise ConfigError("job.placement given fits one size; take packed, scattered or random")
    now, dimensions, nodes = scenario.ranks, len(scenario.fabric.shape), _nodes(scenario, ranks)
    slow = _below(scenario.cluster.slow_nodes, nodes, "cluster.slow_nodes")
    try:
        return replace(
            scenario,
            cluster=replace(scenario.cluster, nodes=nodes, slow_nodes=slow),
            fabric=replace(scenario.fabric, shape=torus_shape(_need(scenario, ranks), dimensions)),
            job=replace(scenario.job, ranks=ranks),
            work=_share_work(scenario.work, now, ranks) if strong else scenario.work,
            noise=_noises(scenario.noise, ranks),
            neighbours=_neighbours(scenario, ranks),
        )
    except ConfigError as error:
        raise ConfigError(f"at {ranks:,} ranks: {error}") from error


def _need(scenario: Scenario, ranks: int) -> int:
    return math.ceil(ranks / scenario.cluster.gpus_per_node)


def _growth(scenario: Scenario, ranks: int) -> float:
    return _need(scenario, ranks) / _need(scenario, scenario.ranks)


def _nodes(scenario: Scenario, ranks: int) -> int:
    """Nodes of the cluster: grown like the job, and enough for its neighbours."""
    if scenario.fabric.kind == "torus":
        return _need(scenario, ranks)
    others = sum(
        other.node_count if not other.nodes else len(nodes_in(other.nodes, "neighbours.nodes"))
        for other in _neighbours(scenario, ranks)
    )
    cluster, growth = scenario.cluster, _growth(scenario, ranks)
    named = cluster.kinds or cluster.slow_nodes or scenario.fabric.changes
    if named or any(one.nodes for one in scenario.neighbours):
        growth = max(growth, 1.0)
    return max(_need(scenario, ranks) + others, math.ceil(cluster.nodes * growth))


def _neighbours(scenario: Scenario, ranks: int) -> tuple[Neighbour, ...]:
    growth = _growth(scenario, ranks)
    return tuple(
        replace(other, node_count=max(2, round(other.node_count * growth)))
        if other.node_count
        else other
        for other in scenario.neighbours
    )


def torus_shape(nodes: int, dimensions: int) -> tuple[int, ...]:
    """Lengths whose product is `nodes`, as equal as they can be."""
    if dimensions < 2:
        return (nodes,) * dimensions
    ideal = round(nodes ** (1 / dimensions), 9)
    side = max(length for length in range(1, int(ideal) + 1) if nodes % length == 0)
    return (side, *torus_shape(nodes // side, dimensions - 1))


def _share_work(work: Work, now: int, ranks: int) -> Work:
    """The work of a rank where the same batch is divided among another number of ranks."""
    share = now / ranks
    micro_batches, message_bytes = work.micro_batches, work.message_bytes
    if work.kind == "pipeline":
        micro_batches = round(work.micro_batches * share)
        if micro_batches * ranks != work.micro_batches * now or not micro_batches:
            raise ConfigError(
                f"{work.micro_batches} micro-batches of {now} ranks cannot be divided; take sizes "
                "whose replicas share them out evenly"
            )
    else:
        message_bytes = round(work.message_bytes * share)
    return replace(
        work,
        input_ms=work.input_ms * share,
        input_bytes=round(work.input_bytes * share),
        forward_ms=work.forward_ms * share,
        backward_ms=work.backward_ms * share,
        micro_batches=micro_batches,
        message_bytes=message_bytes,
        samples_per_rank=share_samples(work.samples_per_rank, now, ranks),
        teraflop=work.teraflop * share,
    )


def share_samples(samples: int, now: int, ranks: int) -> int:
    """Samples of a rank, whole ones, where the same batch is divided; 0 where that is not known."""
    return max(1, round(samples * now / ranks)) if samples else 0


def _noises(noises: Sequence[Noise], ranks: int) -> tuple[Noise, ...]:
    """Noise of the remaining ranks."""
    kept = ((n, replace(n, ranks=_below(n.ranks, ranks, "noise.ranks"))) for n in noises)
    return tuple(after for before, after in kept if after.ranks or not before.ranks)


def _below(ranges: str, limit: int, place: str) -> str:
    return format_ranks([number for number in nodes_in(ranges, place) if number < limit])
