"""Collectives as rounds of messages: sources, targets, bytes and repeats.

A function of `ALGORITHMS` lays out one collective of several equal groups at once. `members` is
(groups, size): the ranks of each group in the order of a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array

CHUNK_BYTES = 128 * 1024  # of a chain at least, as NCCL: pieces that follow each other
TREE_CHUNK_BYTES = 32 * 1024  # of a tree's channel, as its LL128 cuts them where these are few
CHAIN_CHUNK_BYTES = 512 * 1024  # of a chain's channel at most, as NCCL: an eighth of its buffer
CHAIN_CHUNKS = 128  # of a chain, where they are smaller


class Round(NamedTuple):
    """Messages that are under way together, `repeats` times in a row.

    `bytes`: size of one message (a number, or one for each). With `rails` a message between nodes
    takes the card of the GPU that receives it on both. A `posted` message leaves when its target,
    too, is in the round: large messages wait for their receive buffer.

    Messages with a `depth` go up to a root and down in `pieces`: the deepest receives its last one
    later by the latency of each hop, and the time of a piece, of all others. The slowest of a
    group, of which there are `groups` in equal parts, holds up its others.
    """

    source: Array
    target: Array
    bytes: Array
    repeats: int = 1
    rails: bool = False
    ring: tuple[int, int] | None = None  # rows × length, where it is rings in that layout
    posted: bool = False
    depth: Array | None = None  # of each; 1: to the root or from it
    pieces: float = 1.0
    groups: int = 1
    latency_ns: float | None = None  # of each message; None: that of its route
    joined: bool = False  # no rank sends before the last of its group has entered


@dataclass(frozen=True, slots=True)
class Request:
    """One collective of several equal groups at once."""

    operation: str
    members: Array  # (groups, size) ranks
    node: Array  # of every rank of the job
    bytes: float  # of all_gather and reduce_scatter: of the whole
    channels: int = 1
    servers: int = 1
    imbalance: float = 0.0  # of all_to_all: additional share of the first rank of a group
    switch_reduces: bool = False  # the one between the GPUs of a node

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return int(self.members.shape[1])

    @property
    def in_switch(self) -> bool:
        """Whether it is a reduction that the switch of a node can carry out, in every group."""
        node = self.node[self.members]
        inside = bool((node == node[:, :1]).all())
        return self.operation == "all_reduce" and self.switch_reduces and inside


Pattern = tuple[Round, ...]
Algorithm = Callable[[Request], Pattern]


def ring(request: Request) -> Pattern:
    """Each rank sends to the next: 2(n-1) rounds of S/n for an all-reduce, n-1 for a half of it."""
    n = request.size
    rounds = {"all_reduce": 2 * (n - 1), "reduce_scatter": n - 1, "all_gather": n - 1}
    if request.operation == "broadcast":
        most = max(CHAIN_CHUNKS, int(request.bytes / request.channels / CHAIN_CHUNK_BYTES))
        pieces = int(np.clip(request.bytes / CHUNK_BYTES, 1, most))
        return (_ring(request, request.bytes / pieces, pieces + n - 2),)
    if request.operation == "all_to_all":
        return direct(request)
    return (_ring(request, request.bytes / n, rounds[request.operation]),)


def _ring(request: Request, message_bytes: float, repeats: int) -> Round:
    """Parallel rings, each leaving a node by a GPU and a card of its own; a rank begins a round
    once it has finished the round before in all rings."""
    order, channels = _channel_orders(request)
    following = np.roll(order, -1, axis=1)
    return Round(
        order.reshape(-1), following.reshape(-1), np.asarray(message_bytes / channels), repeats,
        channels > 1, (len(order), request.size),
    )  # fmt: skip


def _channel_orders(request: Request) -> tuple[Array, int]:
    """(groups × channels, size): the members, rotated within nodes for each channel."""
    width = node_blocks(request)
    channels = min(request.channels, int(width.min())) if len(width) > 1 else 1
    each = np.repeat(width, width)
    start = np.repeat(np.cumsum(width) - width, width)
    place = np.arange(request.size) - start
    turn = -(-np.arange(channels)[:, None] * each // channels)  # the first GPU of each card
    return request.members[:, start + (place + turn) % each].reshape(-1, request.size), channels


def node_blocks(request: Request) -> Array:
    """Members on each node in turn, where they are neighbours, in all groups alike; else ones."""
    node = request.node[request.members]
    begins = np.diff(node, axis=1, prepend=-1) != 0
    first = np.flatnonzero(begins[0])
    repeated = (np.diff(np.sort(node[:, first], axis=1), axis=1) == 0).any()
    if repeated or (begins != begins[0]).any():
        return np.ones(request.size, np.int64)
    return np.diff(first, append=request.size)


def per_node(request: Request) -> int:
    """Members on each node, where the number is equal and they are neighbours; else 1."""
    blocks = node_blocks(request)
    return int(blocks[0]) if (blocks == blocks[0]).all() else 1


def halving_doubling(request: Request) -> Pattern:
    """Recursive halving, then doubling: 2 log2(n) rounds (Thakur et al. 2005).

    Ranks beyond a power of two send their data to a partner before and get the result after; the
    partner receives nothing else meanwhile.
    """
    if request.operation not in ("all_reduce", "reduce_scatter", "all_gather"):
        return ring(request)
    n = request.size
    power = 1 << (n.bit_length() - 1)
    distances = [power >> k for k in range(1, power.bit_length())]
    halving = [_exchange(request, power, d, request.bytes * d / power) for d in distances]
    extra = n - power
    before, after = [], []
    if extra:
        fold = (request.members[:, power:], request.members[:, :extra])
        before = [_messages(*fold, request.bytes)]
        after = [_messages(*fold[::-1], request.bytes)]
    if request.operation == "reduce_scatter":
        return tuple(before + halving)
    if request.operation == "all_gather":
        return tuple(halving[::-1] + after)
    return tuple(before + halving + halving[::-1] + after)


def _exchange(request: Request, power: int, distance: int, message_bytes: float) -> Round:
    index = np.arange(power)
    partners = _messages(
        request.members[:, index], request.members[:, index ^ distance], message_bytes
    )
    return partners._replace(posted=request.size > power)


def _messages(source: Array, target: Array, message_bytes: float) -> Round:
    return Round(source.reshape(-1), target.reshape(-1), np.asarray(float(message_bytes)))


def tree(request: Request) -> Pattern:
    """Two binary trees over nodes for each card of one, chains within nodes, each tree for an equal
    part of the data, in pieces that go up and down at the same time, one after the other.

    A node is an inner node of one tree and a leaf of the other (Sanders et al. 2009), as in NCCL.
    """
    if request.operation != "all_reduce":
        return ring(request)
    each = per_node(request)
    count = 2 * min(request.channels, each)
    edges = [_tree_edges(request, each, k * each // count, bool(k % 2)) for k in range(count)]
    child, parent, depth = (np.concatenate(part) for part in zip(*edges, strict=True))
    source, target = np.concatenate([child, parent]), np.concatenate([parent, child])
    part = request.bytes / count
    item = _messages(request.members[:, source], request.members[:, target], part)
    groups, pieces = len(request.members), max(part / TREE_CHUNK_BYTES, 1.0)
    depth = np.tile(depth, 2 * groups)
    return (item._replace(depth=depth, pieces=pieces, groups=groups, joined=True),)


def _tree_edges(
    request: Request, each: int, offset: int, mirrored: bool
) -> tuple[Array, Array, Array]:
    """(child, parent, depth of the child) as positions in a group."""
    nodes = request.size // each
    heap = np.arange(nodes)
    place = nodes - 1 - heap if mirrored else heap  # of the heap's entries among the nodes
    height = np.floor(np.log2(heap + 1)).astype(np.int64)
    heads = place * each + offset
    child, parent, depth = [heads[1:]], [heads[(heap[1:] - 1) // 2]], [height[1:]]
    for hop in range(1, each):
        child.append(place * each + (offset + hop) % each)
        parent.append(place * each + (offset + hop - 1) % each)
        depth.append(height + hop)
    return np.concatenate(child), np.concatenate(parent), np.concatenate(depth)


def hierarchical(request: Request) -> Pattern:
    """Reduce-scatter within nodes, rings between GPUs of the same place, all-gather within."""
    local = per_node(request)
    nodes = request.size // local
    if request.operation != "all_reduce" or local == 1 or nodes == 1:
        return ring(request)
    blocks = request.members.reshape(len(request.members), nodes, local)
    inner, node, size = blocks.reshape(-1, local), request.node, request.bytes
    outer = blocks.transpose(0, 2, 1).reshape(-1, nodes)
    return (
        *ring(Request("reduce_scatter", inner, node, size)),
        *ring(Request("all_reduce", outer, node, size / local)),
        *ring(Request("all_gather", inner, node, size)),
    )


def direct(request: Request) -> Pattern:
    """Every rank to every other in one round, as NCCL posts it; in two for an all-reduce."""
    if request.operation == "broadcast":
        return ring(request)
    n = request.size
    source, target = (place.reshape(-1) for place in np.divmod(np.arange(n * n), n))
    other = source != target
    source, target = source[other], target[other]
    size = np.where(target == 0, 1 + request.imbalance, 1.0) * request.bytes / n
    item = _messages(request.members[:, source], request.members[:, target], 0.0)
    item = item._replace(bytes=np.tile(size, len(request.members)))
    return (item, item) if request.operation == "all_reduce" else (item,)


def server(request: Request) -> Pattern:
    """Push to the parameter servers and pull from them; each holds an equal part of the data."""
    if request.operation != "all_reduce":
        return direct(request)
    holders = holders_of(request.servers, request.size)
    worker, holder = (grid.reshape(-1) for grid in np.meshgrid(np.arange(request.size), holders))
    other = worker != holder
    pair = (request.members[:, worker[other]], request.members[:, holder[other]])
    part = request.bytes / len(holders)
    return (_messages(*pair, part), _messages(*pair[::-1], part))


def holders_of(servers: int, members: int) -> Array:
    """The members, by their number, that are parameter servers."""
    count = min(servers, members)
    return np.arange(count) * members // count


def nvls(request: Request) -> Pattern:
    """The switch between the GPUs of a node reduces: each GPU sends and receives S once."""
    if not request.in_switch:
        return ring(request)
    return (_messages(request.members, request.members, request.bytes)._replace(joined=True),)


ALGORITHMS: dict[str, Algorithm] = {
    one.__name__: one for one in (ring, tree, halving_doubling, hierarchical, direct, server, nvls)
}


def candidates(request: Request) -> tuple[str, ...]:
    """Algorithms that a library chooses from, as NCCL: rings, trees, and the switch in a node."""
    if request.operation == "all_to_all":
        return ("direct",)
    if request.operation != "all_reduce":
        return ("ring",)
    return ("ring", "tree", *(("nvls",) if request.in_switch else ()))


def lay_out(algorithm: str, request: Request) -> Pattern:
    """The rounds of a collective; none for a group of one."""
    if request.size < 2 or request.bytes <= 0:
        return ()
    return ALGORITHMS[algorithm](request)
