"""NCCL's choice of algorithm and protocol, by size, GPUs of a machine and number of machines.

NCCL compares latency + S/bandwidth of every pair and takes the least. The tables are its own
(NVIDIA/nccl 2.28, src/graph/tuning.cc, topo.h and search.cc), none is fitted here. Rings go over
the links round by round. Trees and reductions in the switch are pipelined: their bytes are put on
the links in one round, those between GPUs of a machine and those over each GPU's card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evenstep.allreduce import bus_factor
from evenstep.scenario.hardware import Cluster
from evenstep.simulate.fabric import collectives
from evenstep.simulate.fabric.collectives import Pattern, Request, Round
from evenstep.trace.columns import Array

LL, LL128, SIMPLE = PROTOCOLS = ("LL", "LL128", "Simple")
#: µs, by protocol: of a launch, of a step between GPUs of a machine, and between machines.
BASE_US = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
INSIDE_US = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
ACROSS_US = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
NVLS_US, NVLS_TREE_US = 25.0, 20.9  # of the switch; of a step of its tree between machines
POSTS = 3  # network posts of a step of Simple; the other protocols make one
PLATEAU = 1.4  # of the latency of Simple rings across machines
#: Share of the bandwidth by protocol, of rings and of trees.
RING_SHARE = {LL: 0.5, LL128: 0.92, SIMPLE: 1.0}
TREE_SHARE, TREE_LL, TREE_LL128_INSIDE, TREE_LL128_ACROSS = 0.92, 1 / 3.8, 7 / 9, 120 / 128
#: Trees of middling sizes: of 64 B, 128 B, 256 B …
TREE_CORRECTION = {
    LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1),
    LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1),
    SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8,
             .9, .9, 1),
}  # fmt: skip
NET_SHARE = 12 / 12.5  # of a card, counted as payload
NVLS_SHARE = 0.85
NVLS_TREE_GBPS = {2: 57.7, 3: 45.5}  # of a channel at most: two machines, more
#: In-switch reduction: channels, and (times a full round, bytes of a chunk below that).
NVLS_CHANNELS, NVLS_CHUNK = 16, 131072
NVLS_CHUNKS = ((64, 65536), (8, 32768), (2, 16384))
NVLS_TREE_CHUNKS = ((4, 65536), (1, 32768))


class Generation(NamedTuple):
    """Constants of a generation of GPUs, and of the CPUs of machines with them."""

    link_share: float  # of an NVLink's speed, counted as payload
    ll_gBps: tuple[float, float, float]  # noqa: N815 - of LL at most: one, two, more machines
    ll128_gBps: float  # noqa: N815 - of a channel of LL128 at most
    post_us: float  # to the network
    speeds: tuple[float, ...]  # GB/s tried for a channel within a machine
    net_speeds: tuple[float, ...]  # and between machines


AMPERE = Generation(
    20.0 / 25, (87.7, 22.5, 19.0), 20.0, 2.0, (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip
HOPPER = Generation(  # the first whose switches reduce
    20.6 / 25, (141.0, 39.0, 20.4), 36.7, 1.0, (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip


class Team(NamedTuple):
    """The ranks of a group and the speeds of their links. GB/s of payload."""

    ranks: int
    machines: int
    even: bool  # equal numbers on each machine, as neighbours
    link: float  # of a GPU to the others of its machine
    cards: float  # of a machine, for each of its GPUs
    net: float  # of a GPU's part of these
    network_us: float  # between two machines
    made: Generation
    reduces: bool  # the switch of a machine does

    @property
    def each(self) -> float:
        """Ranks of a machine."""
        return self.ranks / self.machines

    def speed(self, limit: float) -> float:
        """Speed of a channel: the highest of those tried within the limit."""
        tried = self.made.speeds if self.machines == 1 else self.made.net_speeds
        return next((speed for speed in tried if speed <= limit), tried[-1])

    @property
    def most(self) -> int:
        """Column of tables by machines: one, two, more."""
        return min(self.machines, 3) - 1


class Way(NamedTuple):
    """An algorithm and protocol for a collective. `inside`, `across`: ns for each byte of it on a
    GPU's links within its machine and over its card; `gBps`: NCCL's own estimate."""

    algorithm: str
    protocol: str
    latency_us: float
    gBps: float  # noqa: N815
    share: float = 1.0  # of the links' payload
    inside: float = 0.0
    across: float = 0.0

    def ns(self, size_bytes: float) -> float:
        """NCCL's estimate of its duration."""
        return self.latency_us * 1e3 + size_bytes / self.gBps

    @property
    def name(self) -> str:
        """Its name in NCCL's log."""
        return f"{self.algorithm}/{self.protocol}"


def team_of(request: Request, cluster: Cluster, network_us: float) -> Team:
    """The team of the first group, which stands for all."""
    machines = len(np.unique(request.node[request.members[0]]))
    even = machines * collectives.per_node(request) == request.size
    made = HOPPER if cluster.gpu_link_reduces else AMPERE
    cards = min(cluster.nics_per_node / cluster.gpus_per_node, 1.0)
    return Team(
        request.size, machines, even, cluster.gpu_link_gBps * made.link_share, cards,
        cluster.nic_gBps * cards * NET_SHARE, network_us, made, cluster.gpu_link_reduces,
    )  # fmt: skip


def ways(team: Team, operation: str, size_bytes: float) -> Iterator[Way]:
    """Every algorithm and protocol that NCCL compares."""
    for number, protocol in enumerate(PROTOCOLS):
        yield _ring(team, operation, number, protocol)
        if operation == "all_reduce" and team.even:
            yield _tree(team, size_bytes, number, protocol)
    if operation == "all_reduce" and team.even and team.reduces and team.each >= 2:
        yield _nvls(team, size_bytes)


def _across_us(team: Team, table_us: float) -> float:
    """Latency of a step between machines: the table's (InfiniBand), or a slower network's."""
    return max(table_us, team.network_us)


def _ring(team: Team, operation: str, number: int, protocol: str) -> Way:
    n, machines = team.ranks, team.machines
    steps = {"all_reduce": 2 * (n - 1), "broadcast": n}.get(operation, n - 1)
    halves = 2 if operation == "all_reduce" else 1
    hops = 0 if machines == 1 else 2 * machines if halves == 2 else machines - 1
    inside = INSIDE_US["ring"][number]
    slower = 1.0
    if machines > 1:
        inside = max(inside, team.made.post_us * (POSTS if protocol == SIMPLE else 1))
        slower = PLATEAU if protocol == SIMPLE and halves == 2 else 1.0
    hops = min(hops, steps)
    latency = (steps - hops) * inside + hops * _across_us(team, ACROSS_US["ring"][number])
    # over a machine's border all of a ring goes through one card in each channel
    bus = _slowest((team.link, team.each > 1), (team.net * team.each, machines > 1))
    share = RING_SHARE[protocol]
    if protocol == LL:
        share = min(share, team.made.ll_gBps[team.most] / bus)
    elif protocol == LL128 and machines > 1:  # within one, there are more channels than it takes
        channels = team.net * team.each / team.speed(team.net / team.cards)
        share = min(share, team.made.ll128_gBps * channels / bus)
    return Way("ring", protocol, slower * (BASE_US["ring"][number] + latency),
               bus * share / bus_factor(operation, n), share)  # fmt: skip


def _tree(team: Team, size_bytes: float, number: int, protocol: str) -> Way:
    """A chain in each machine, up and down; its channels begin at every GPU in turn, and none is
    planned for more than the fastest speed tried. Between more than two machines a node of the
    double tree has a parent and two children."""
    depth = math.floor(math.log2(team.machines))
    latency = (team.each - 1) * INSIDE_US["tree"][number]
    latency += depth * _across_us(team, ACROSS_US["tree"][number])
    correction = TREE_CORRECTION[protocol]
    place = max(int(math.log2(max(size_bytes, 64) / 64)), 0)
    share = TREE_SHARE * (correction[place] if place < len(correction) else 1.0)
    inside, across = bus_factor("all_reduce", team.each), _crossing(team)
    planned = team.each * team.cards * team.made.net_speeds[0]  # a channel for each card
    bus = _slowest((team.link, inside), (team.net, across), (planned, 2 * (across > 0)))
    if protocol == LL:
        share = min(share * TREE_LL, team.made.ll_gBps[team.most] / (2 * bus))
    elif protocol == LL128:
        share *= TREE_LL128_INSIDE if team.machines == 1 else TREE_LL128_ACROSS
    return Way("tree", protocol, BASE_US["tree"][number] + 2 * latency, bus * share, share,
               max(inside / team.link, 2 * (across > 0) / planned), across / team.net)  # fmt: skip


def _slowest(*parts: tuple[float, float]) -> float:
    """Speed of the slowest of (speed, bytes carried for each byte); unused parts are left out."""
    return min(speed / amount for speed, amount in parts if amount > 0)


def _crossing(team: Team) -> float:
    """Bytes over each GPU's card for one of a tree's: up, and down to all but one."""
    return 0.0 if team.machines == 1 else min(team.machines - 1, 2) / team.each


def _nvls(team: Team, size_bytes: float) -> Way:
    """The switch reduces; between machines in a tree. Chunks that follow each other are put there,
    reduced and fetched at the same time, but for the first and the last; what a tree adds is in its
    latency."""
    depth = math.floor(math.log2(team.machines))
    speed = team.speed(team.link / (team.each + 1))
    channel = speed * NVLS_SHARE * bus_factor("all_reduce", team.each)
    latency = NVLS_US
    if team.machines > 1:
        channel = min(channel, NVLS_TREE_GBPS[team.most + 1])
        latency += 2 * depth * _across_us(team, NVLS_TREE_US)
    bandwidth = channel * team.each / bus_factor("all_reduce", team.ranks)
    across = _crossing(team)
    share = 1 / (1 + 2 / _chunks(team, size_bytes))
    name = "nvls" if team.machines == 1 else "nvls_tree"
    found = _slowest((bandwidth, 1.0), (team.net, across))
    return Way(name, SIMPLE, latency, found, share, 1 / bandwidth, across / team.net)


def _chunks(team: Team, size_bytes: float) -> float:
    """How many follow each other in a channel."""
    most: int = NVLS_CHUNK
    table: tuple[tuple[int, int], ...] = NVLS_CHUNKS
    if team.machines > 1:
        most, table = NVLS_CHUNK if team.machines < 4 else NVLS_CHUNK // 2, NVLS_TREE_CHUNKS
    together = NVLS_CHANNELS * team.each
    for rounds, chunk in table:
        if size_bytes < rounds * together * most:
            most = min(most, chunk)
    return max(size_bytes / (together * most), 1.0)


def choose(team: Team, operation: str, size_bytes: float, *, only: str = "") -> Way:
    """The way with NCCL's least estimate; of algorithm `only` where possible (NCCL_ALGO)."""
    found = list(ways(team, operation, size_bytes))
    asked = [way for way in found if way.algorithm == only]
    return min(asked or found, key=lambda way: way.ns(size_bytes))


def lay_out(way: Way, team: Team, request: Request) -> Pattern:
    """The rounds of a collective; messages grow by the overhead of links and protocol."""
    if way.algorithm == "ring":
        rounds = collectives.ring(request)
        repeats = sum(one.repeats for one in rounds)
        return tuple(
            one._replace(
                bytes=one.bytes / way.share * _overhead(team, request, one),
                latency_ns=way.latency_us * 1e3 / repeats,
            )
            for one in rounds
        )
    return (_at_once(way, team, request),)


def _overhead(team: Team, request: Request, item: Round) -> Array:
    """Bytes of a link for one of payload, of each message."""
    near = request.node[item.source] == request.node[item.target]
    return np.where(near, 1 / team.made.link_share, 1 / NET_SHARE)


def _at_once(way: Way, team: Team, request: Request) -> Round:
    """Each GPU to the switch and back, and to the same GPU of the next machine: of the edges of a
    tree in order of the machines, most lead there. The only GPU of a machine sends nothing to the
    switch: where its card is faster than what is planned for its channels, the end comes later."""
    blocks = request.members.reshape(len(request.members), team.machines, -1)
    near = request.members.reshape(-1)
    far = np.roll(blocks, -1, axis=1).reshape(-1)
    own, latency_ns = request.bytes / way.share, way.latency_us * 1e3
    parts = []
    if team.each > 1:
        parts.append((near, near, own * way.inside * team.link / team.made.link_share))
    else:
        latency_ns += own * max(way.inside - way.across, 0.0)
    if way.across:
        parts.append((near, far, own * way.across * team.net / NET_SHARE))
    source, target = (np.concatenate([part[end] for part in parts]) for end in (0, 1))
    size = np.repeat([size for _, _, size in parts], [len(near) for near, _, _ in parts])
    return Round(source, target, size, latency_ns=latency_ns, joined=True)
