"""Causes between the ranks: fabrics given by formula, with and without the cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.labelled.ordinary import Made, Random, labelled, long_enough, ordinary, step_ns
from evenstep.trace.spool.layout import Op, Phase
from evenstep.trace.trace import Trace
from tests.diagnose.synthetic import Move, World

MB = 1_000_000


@dataclass(kw_only=True)
class Links:
    """Latency and bytes over bandwidth, with noise, and what a disturbance makes of it."""

    alpha_ns: float
    gBps: float  # noqa: N815
    noise: float = 0.01
    seed: int = 0
    factor: Callable[[Move], float] = lambda move: 1.0
    added_ns: Callable[[Move], float] = lambda move: 0.0

    def __post_init__(self) -> None:
        self._draws = np.random.default_rng(self.seed).standard_normal(4096)
        self._step = self._number = 0

    def __call__(self, move: Move) -> float:
        self._number = self._number + 1 if move.step == self._step else 0
        self._step = move.step
        draw = self._draws[(61 * move.step + self._number) % 4096]
        quiet = self.alpha_ns + move.size_bytes / self.gBps
        return float(quiet * self.factor(move) * (1 + self.noise * draw) + self.added_ns(move))


def _exchanging(random: Random, share: float, *, fewest: int = 60) -> tuple[World, Links]:
    """A job that exchanges large buckets for this share of its step, exposed where it blocks."""
    world = long_enough(replace(ordinary(random, 0.02), style="blocking"), fewest)
    world = replace(world, tensor_parallel=1, buckets=int(random.choice([2, 4, 8])))
    world = replace(world, pace=max(world.pace, 0.5))
    per_bucket = share / (1 - share) * step_ns(world) / world.buckets
    gBps = float(np.exp(random.uniform(np.log(1), np.log(50))))  # noqa: N806
    sizes = tuple(int(part * per_bucket * gBps) for part in random.uniform(0.6, 1.4, 2))
    links = Links(
        alpha_ns=0.02 * per_bucket,
        gBps=gBps,
        noise=float(random.uniform(0.002, 0.03)),
        seed=int(random.integers(1 << 30)),
    )
    return replace(world, bucket_bytes=sizes, fabric=links), links


def _against(world: World, links: Links, mode: str, calm: Links, **known: Any) -> Made:
    """The world with these links; what it loses against the calm ones."""
    made = replace(world, fabric=links)
    lost = made.lost_against(replace(world, fabric=calm))
    return labelled(made, mode, lost=lost, **known)


def episodes(random: Random, severity: float) -> Made:
    """For stretches of steps another job takes a part of every link."""
    world, calm = _exchanging(random, 0.12, fewest=80)
    hit = np.zeros(world.steps, bool)
    length = world.steps // 8
    for start in random.choice(world.steps - length, 2, replace=False):
        hit[start : start + length] = True
    more = 1 + severity / 0.12 / hit.mean()
    return _against(
        world,
        replace(calm, factor=lambda move: more if hit[move.step] else 1.0),
        "fabric_contention",
        calm,
    )


def neighbour(random: Random, severity: float) -> Made:
    """Another job exchanges in a rhythm of its own."""
    world, calm = _exchanging(random, 0.15, fewest=120)
    period = float(random.uniform(3.3, 17.7)) * step_ns(world)
    duty = float(random.uniform(0.25, 0.45))
    more = 1 + severity / 0.15 / duty
    return _against(
        world,
        replace(calm, factor=lambda move: more if move.at_ns / period % 1 < duty else 1.0),
        "fabric_contention",
        calm,
    )


def one_group(random: Random, severity: float) -> Made:
    """One data-parallel group of several shares its links with somebody for a while."""
    world = long_enough(ordinary(random, 0.02), 80)
    ranks = int(random.choice([8, 12, 16]))
    world = replace(world, ranks=ranks, style="grid", tensor_parallel=2, buckets=4, clocks={})
    per_bucket = 0.15 * step_ns(world) / world.buckets
    calm = Links(alpha_ns=per_bucket, gBps=1e9, seed=int(random.integers(1 << 30)))
    begins = int(random.integers(10, world.steps // 3))
    ends, hit = begins + world.steps // 3, int(random.integers(2))
    more = 1 + 3 * severity / 0.15 * 2

    def slower(move: Move) -> float:
        mine = len(move.members) == ranks // 2 and move.members[0] == hit
        return more if mine and begins <= move.step < ends else 1.0

    return _against(world, replace(calm, factor=slower), "fabric_contention", calm)


def overflowing(random: Random, severity: float) -> Made:
    """Gathers collapse from a size on: packets are lost and sent again after a timeout."""
    world, calm = _exchanging(random, 0.05)
    sizes = (10_000, 50_000, 200_000, MB)
    world = replace(world, ranks=max(world.ranks, 6))
    world = replace(world, after_backward=tuple((Op.GATHER, size) for size in sizes))
    timeout = severity / (1 - severity) * step_ns(world)

    def lost(move: Move) -> float:
        return timeout if move.op is Op.GATHER and move.size_bytes >= MB else 0.0

    links = replace(calm, added_ns=lost)
    return _against(world, links, "incast", calm, culprits=frozenset({0}))


def all_at_once(random: Random, severity: float) -> Made:
    """All-to-alls collapse in some steps."""
    world, calm = _exchanging(random, 0.05, fewest=80)
    world = replace(world, ranks=max(world.ranks, 6), after_backward=((Op.ALL_TO_ALL, 4 * MB),))
    hit = random.random(world.steps) < 0.35
    timeout = severity / (1 - severity) / hit.mean() * step_ns(world)

    def lost(move: Move) -> float:
        return timeout if move.op is Op.ALL_TO_ALL and hit[move.step] else 0.0

    return _against(world, replace(calm, added_ns=lost), "incast", calm)


def crossed(random: Random, severity: float) -> Made:
    """Ranks are dealt out over the nodes, and every hop of the ring leaves one."""
    world, calm = _exchanging(random, severity)
    nodes = int(random.choice([2, 4]))
    world = replace(world, ranks=4 * nodes, clocks={})
    streams = world.ranks // nodes
    strided = tuple(rank % nodes for rank in range(world.ranks))
    world = replace(world, nodes=strided)
    factor = 2 * (world.ranks - 1) / world.ranks
    ordered = replace(calm, gBps=calm.gBps * streams)
    speed = {"name": "ens1", "pci": "0000:04:00.0", "speed_gbps": 8 * ordered.gBps * factor}

    def trace() -> Trace:
        found = replace(world, fabric=calm).trace()
        for info in found.ranks.values():
            info.facts["locality"] = {"nics": [speed]}
        return found

    return _against(world, calm, "collective_topology_mismatch", ordered, trace=trace)


def short_of_bandwidth(random: Random, severity: float) -> Made:
    """The links carry a fraction of what nccl-tests reached on these nodes."""
    world, slow = _exchanging(random, 0.1 + 1.5 * severity)
    slower = float(random.uniform(2, 5))
    quick = replace(slow, gBps=slow.gBps * slower)
    factor = 2 * (world.ranks - 1) / world.ranks
    floor = {"op": "all_reduce", "bytes": 1 << 30, "busbw_gBps": quick.gBps * factor}

    def trace() -> Trace:
        found = replace(world, fabric=slow).trace()
        found.run["floors"] = [floor]
        return found

    return _against(world, slow, "bandwidth_bound", quick, trace=trace)


def full(random: Random, severity: float) -> Made:
    """More bytes than the links carry beside compute."""
    world, links = _exchanging(random, 0.3 + severity)
    return _against(world, links, "bandwidth_bound", replace(links, gBps=1e9))


def many_small(random: Random, severity: float) -> Made:
    """Many small collectives where one would do."""
    world = long_enough(replace(ordinary(random, 0.02), style="blocking"), 30)
    world = replace(world, steps=min(world.steps, 150), tensor_parallel=1)
    world = replace(world, buckets=int(random.integers(30, 100)))
    sizes = (20_000, 40_000, 160_000)
    alpha = severity / (1 - severity) * 1.5 * step_ns(world) / world.buckets
    links = Links(alpha_ns=alpha, gBps=160_000 / (0.2 * alpha), seed=int(random.integers(1 << 30)))
    world = replace(world, bucket_bytes=sizes, fabric=links)
    whole = sum(sizes[i % 3] for i in range(world.buckets))
    lost = world.lost_against(replace(world, buckets=1, bucket_bytes=(whole,)))
    return labelled(world, "latency_bound", lost=lost)


def badly_placed(random: Random, severity: float) -> Made:
    """One rank's GPU is far from its adapter, or its cores are, and it is slower."""
    world = replace(ordinary(random, severity / 2), ranks=8, ranks_per_node=2, clocks={})
    world = replace(world, tensor_parallel=2 if world.style == "grid" else 1)
    world = replace(world, noise=min(world.noise, severity / 5))
    rank = int(random.integers(world.ranks))
    slow = world.slow(rank, Phase.FORWARD, severity * step_ns(world), computing=True)
    how = ({"level": "SYS"}, {"cores": "8-15"}, {"lanes": 4})[int(random.integers(3))]

    def trace() -> Trace:
        found = slow.trace()
        for number, info in found.ranks.items():
            info.facts["locality"] = _place(**(how if number == rank else {}))
        return found

    return labelled(slow, "locality", frozenset({rank}), trace=trace)


def _place(level: str = "PIX", cores: str = "0-7", lanes: int = 16) -> dict[str, Any]:
    """What an agent says of a node with one GPU for each rank, and an adapter for each."""
    return {
        "cpu": {"allowed": cores},
        "numa": [{"node": 0, "cpus": "0-7"}, {"node": 1, "cpus": "8-15"}],
        "nics": [{"name": "ens1", "pci": "a"}, {"name": "ens2", "pci": "b"}],
        "gpus": [
            {"pci": "g", "numa_node": 0, "name": "H100", "pcie_lanes": lanes, "pcie_lanes_max": 16}
        ],
        "gpu": "g",
        "gpu_nic": {"g": {"ens1": level, "ens2": "SYS"}},
    }


def exposed_and_late(random: Random, severity: float) -> Made:
    """A third of the step is transfer that nothing can hide, and one rank is chronically late."""
    world, links = _exchanging(random, 0.3)
    rank = int(random.integers(world.ranks))
    slow = world.slow(rank, Phase.BACKWARD, 1.6 * severity * step_ns(world))
    return labelled(replace(slow, fabric=links), "straggler", frozenset({rank}))


CAUSES: dict[str, Callable[[Random, float], Made]] = {
    "episodes": episodes,
    "a neighbour": neighbour,
    "one group": one_group,
    "overflowing": overflowing,
    "all at once": all_at_once,
    "crossed": crossed,
    "short of bandwidth": short_of_bandwidth,
    "full links": full,
    "many small": many_small,
    "badly placed": badly_placed,
    "late, much exposed": exposed_and_late,
}
