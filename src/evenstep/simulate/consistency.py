"""What a scenario says that contradicts itself, found before anything is built."""

from __future__ import annotations

from evenstep.errors import ConfigError
from evenstep.simulate import schema
from evenstep.simulate.hardware import Cluster
from evenstep.simulate.scenario import Scenario, nodes_in


def check(scenario: Scenario) -> None:
    """Raise `ConfigError` naming the field, what it clashes with and how to mend it."""
    _check_cluster(scenario.cluster)
    _check_fabric(scenario)
    _check_job(scenario)
    _check_work(scenario)
    _check_noise(scenario)
    _check_neighbours(scenario)
    _check_parts(scenario)


def _check_cluster(cluster: Cluster) -> None:
    given = cluster.gpu_nics
    if given and len(given) != cluster.gpus_per_node:
        raise ConfigError(
            f"cluster.gpu_nics has {len(given)} entries for {cluster.gpus_per_node} GPUs of a "
            "node; give one card for each GPU"
        )
    if any(not 0 <= card < cluster.nics_per_node or card != int(card) for card in given):
        raise schema.refused(
            "cluster.gpu_nics", f"cards from 0 to {cluster.nics_per_node - 1}", list(given)
        )
    _within(cluster.slow_nodes, cluster.nodes, "cluster.slow_nodes", "nodes")


def _within(ranges: str, limit: int, place: str, what: str) -> tuple[int, ...]:
    found = nodes_in(ranges, place)
    if found and max(found) >= limit:
        raise ConfigError(f"{place} names {max(found)}, but {what} are 0 to {limit - 1}")
    return found


def _check_fabric(scenario: Scenario) -> None:
    fabric, nodes = scenario.fabric, scenario.cluster.nodes
    if fabric.kind == "torus":
        product = 1
        for length in fabric.shape:
            product *= int(length)
        if len(fabric.shape) not in (2, 3) or product != nodes:
            raise ConfigError(
                f"fabric.shape must be two or three lengths whose product is cluster.nodes "
                f"({nodes}), found {list(fabric.shape)}"
            )


def _check_job(scenario: Scenario) -> None:
    cluster, job = scenario.cluster, scenario.job
    gpus = cluster.nodes * cluster.gpus_per_node
    if scenario.ranks > gpus:
        raise ConfigError(
            f"job.ranks is {scenario.ranks}, but the cluster has {gpus} GPUs "
            f"({cluster.nodes} nodes × {cluster.gpus_per_node}); ask for fewer or add nodes"
        )
    if scenario.ranks < 1:
        raise ConfigError("job.ranks: neighbours have all the nodes; add nodes to the cluster")
    given = _within(job.nodes, cluster.nodes, "job.nodes", "nodes")
    if job.placement == "given" and len(given) * cluster.gpus_per_node < scenario.ranks:
        raise ConfigError(
            f"job.nodes gives {len(given) * cluster.gpus_per_node} GPUs for {scenario.ranks} ranks"
        )


def _check_work(scenario: Scenario) -> None:
    work = scenario.work
    split = work.tensor_parallel * work.pipeline_parallel
    if scenario.ranks % split:
        raise ConfigError(
            f"work.tensor_parallel × work.pipeline_parallel is {split}, which does not divide "
            f"{scenario.ranks} ranks"
        )
    if work.interleaved > 1 and work.micro_batches % work.pipeline_parallel:
        raise ConfigError(
            f"work.interleaved is {work.interleaved}, which needs work.micro_batches to be a "
            f"multiple of the {work.pipeline_parallel} stages, found {work.micro_batches}"
        )
    if scenario.strategy.backups >= scenario.ranks:
        raise ConfigError(
            f"strategy.backups is {scenario.strategy.backups}; it must be below the "
            f"{scenario.ranks} ranks"
        )
    if scenario.run.warm_up >= scenario.run.steps:
        raise ConfigError(
            f"run.warm_up is {scenario.run.warm_up}; it must be below run.steps, "
            f"{scenario.run.steps}"
        )


def _check_noise(scenario: Scenario) -> None:
    for index, noise in enumerate(scenario.noise):
        place = f"noise[{index}]"
        _within(noise.ranks, scenario.ranks, f"{place}.ranks", "ranks")
        if noise.kind == "recorded" and (not noise.values or min(noise.values) <= 0):
            raise ConfigError(f"{place}.values must be factors above 0, for kind recorded")


def _check_neighbours(scenario: Scenario) -> None:
    for index, other in enumerate(scenario.neighbours):
        place = f"neighbours[{index}]"
        nodes = _within(other.nodes, scenario.cluster.nodes, f"{place}.nodes", "nodes")
        if len(nodes) < 2 and other.node_count < 2:
            raise ConfigError(
                f"{place} needs nodes or node_count: at least two nodes that exchange data"
            )
        if not other.message_bytes:
            raise ConfigError(f"{place}.message_bytes must be above 0: it would never be over")


def _check_parts(scenario: Scenario) -> None:
    names = [part.name for part in scenario.reliability.parts]
    for index, name in enumerate(names):
        if name == "node" or (name and name in names[:index]):
            raise ConfigError(
                f"reliability.parts[{index}].name {name!r} is taken; give every part its own name"
            )
