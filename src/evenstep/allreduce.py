"""Time of an all-reduce, by algorithm: latency × rounds + bytes ÷ bandwidth.

The only home of these formulas, as `tests/test_house.py` checks. Standard library only.

Symbols: n ranks, S bytes per rank, α latency of one message, B bandwidth of one rank's link in each
direction. A bandwidth of x GB/s is x bytes per nanosecond, so S/B is in nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from evenstep.errors import ConfigError


class Cost(NamedTuple):
    """Time of one collective in ns, in its two parts."""

    latency_ns: float
    transfer_ns: float
    rounds: int  # messages that follow one another

    @property
    def time_ns(self) -> float:
        """Latency and transfer together."""
        return self.latency_ns + self.transfer_ns

    def grown(self, factor: Any) -> Any:
        """Time in ns of `factor` times the bytes, a number or an array: every form is linear."""
        return self.latency_ns + self.transfer_ns * factor


class Link(NamedTuple):
    """The link of one rank. Bandwidth is per direction."""

    gBps: float  # noqa: N815 - 10^9 bytes per second
    latency_ns: float = 0.0


class Formula(NamedTuple):
    """An algorithm's formula, its source, and the function that evaluates it."""

    text: str
    source: str
    cost: Callable[[float, int, Link], Cost]


def ring(size_bytes: float, n: int, link: Link) -> Cost:
    """2(n−1)α + 2S(n−1)/(nB): n−1 rounds of reduce-scatter, n−1 of all-gather."""
    rounds = 2 * (n - 1)
    return _cost(link, rounds, 2 * size_bytes * (n - 1) / n)


def double_tree(size_bytes: float, n: int, link: Link) -> Cost:
    """2⌈log₂n⌉α + 2S/B: two trees, each rank inner in one of them; long messages in pieces.

    Levels are whole: of 6 ranks, the last is three messages from the root, not log₂ 6 = 2.58.
    """
    rounds = 2 * depth(n)
    return _cost(link, rounds, 2 * size_bytes if n > 1 else 0.0)


def binomial(size_bytes: float, n: int, link: Link) -> Cost:
    """2⌈log₂n⌉(α + S/B): a reduction to one rank and a broadcast, whole messages at every hop."""
    rounds = 2 * depth(n)
    return _cost(link, rounds, rounds * size_bytes)


def halving_doubling(size_bytes: float, n: int, link: Link) -> Cost:
    """2⌈log₂n⌉α + 2S(n−1)/(nB): exchanges with ranks at distance n/2, n/4, … and back."""
    rounds = 2 * depth(n)
    return _cost(link, rounds, 2 * size_bytes * (n - 1) / n)


def direct(size_bytes: float, n: int, link: Link) -> Cost:
    """2α + 2S(n−1)/(nB): every rank sends all others their shares at once, twice."""
    return _cost(link, 2 if n > 1 else 0, 2 * size_bytes * (n - 1) / n)


def in_switch(size_bytes: float, n: int, link: Link) -> Cost:
    """2α + S(n+1)/(nB): the switch reduces and copies, so that data leaves a rank once (NVLS).

    Reading the reduced data moves S out of each rank, writing it back S/n more.
    """
    return _cost(link, 2 if n > 1 else 0, size_bytes * (n + 1) / n if n > 1 else 0.0)


def hierarchical(size_bytes: float, nodes: int, per_node: int, *, inner: Link, outer: Link) -> Cost:
    """2S(g−1)/(gB_i) + 2(N−1)α + 2S(N−1)/(NgB_e): inside N nodes of g ranks, then between them.

    `outer` is one rank's share of its node's network; the g rings between nodes run side by side.
    The inner rounds add 2(g−1)α_i where the inner latency is given.
    """
    inside = ring(size_bytes, per_node, inner)
    between = ring(size_bytes / per_node, nodes, outer)
    return Cost(
        inside.latency_ns + between.latency_ns,
        inside.transfer_ns + between.transfer_ns,
        inside.rounds + between.rounds,
    )


def torus(size_bytes: float, sides: tuple[int, ...], link: Link) -> Cost:
    """2Σ(k_d−1)α + 2S(n−1)/(n·2dB): d dimensions, both directions of each carry a part at once.

    B is one link in one direction; the message is cut in 2d parts which visit the dimensions in
    rotated order, so that all 2d links of a rank work all the time (Sack and Gropp 2015).
    """
    n = math.prod(sides)
    rounds = 2 * sum(side - 1 for side in sides)
    ways = 2 * sum(side > 1 for side in sides)
    return _cost(link, rounds, 2 * size_bytes * (n - 1) / n / max(ways, 1))


#: The algorithms between equal ranks on one kind of link.
ALGORITHMS: dict[str, Formula] = {
    "ring": Formula(
        "T = 2(n−1)α + 2S(n−1)/(nB)", "Patarasuk and Yuan 2009, section 3", ring
    ),
    "tree": Formula(
        "T = 2⌈log₂n⌉α + 2S/B", "Sanders, Speck and Träff 2009: pipelined double tree, as NCCL's",
        double_tree,
    ),
    "binomial": Formula(
        "T = 2⌈log₂n⌉(α + S/B)", "Thakur, Rabenseifner and Gropp 2005, section 4", binomial
    ),
    "halving-doubling": Formula(
        "T = 2⌈log₂n⌉α + 2S(n−1)/(nB)", "Thakur, Rabenseifner and Gropp 2005, section 4.5",
        halving_doubling,
    ),
    "direct": Formula(
        "T = 2α + 2S(n−1)/(nB)", "Bruck et al. 1997: all messages at once", direct
    ),
    "in-switch": Formula(
        "T = 2α + S(n+1)/(nB)", "traffic of a multicast load-reduce and store (NVLS)", in_switch
    ),
}  # fmt: skip


def limit_ns(size_bytes: float, gBps: float) -> float:  # noqa: N803
    """2S/B: the limit of a ring's transfer with many ranks."""
    return 2 * size_bytes / gBps


#: Passes of a ring of n ranks, each of which moves (n−1)/n of the bytes over every link.
RING_PASSES = {
    "all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "gather": 1,
    "scatter": 1,
}  # fmt: skip


def bus_factor(operation: str, n: float) -> float:
    """Bus bandwidth ÷ algorithm bandwidth of an operation, 1 from or to a root (nccl-tests,
    doc/PERFORMANCE.md)."""
    return RING_PASSES[operation] * (n - 1) / n if operation in RING_PASSES else 1.0


def bus_gBps(size_bytes: float, n: int, time_ns: float) -> float:  # noqa: N802
    """Bus bandwidth of an all-reduce: S/t × 2(n−1)/n, comparable with the link's speed."""
    return bus_factor("all_reduce", n) * size_bytes / time_ns


def depth(n: int) -> int:
    """⌈log₂ n⌉."""
    return (n - 1).bit_length()


def _cost(link: Link, rounds: int, wire_bytes: float) -> Cost:
    if link.gBps <= 0:
        raise ConfigError(f"bandwidth must be above 0 GB/s, found {link.gBps:g}")
    if link.latency_ns < 0 or wire_bytes < 0:
        raise ConfigError("bytes and latency must not be negative")
    return Cost(rounds * link.latency_ns, wire_bytes / link.gBps, rounds)
