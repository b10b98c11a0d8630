"""The load of every link over a run, and a map of it that is small enough to draw.

A link's peak is its rate in the round that loads it most. The link that sets a round's pace is
then full, but for the latency of the messages; the others show how far they are from that. On the
map, machines and switches are places, in tiers. Links between the same two places are one bundle.
Of a large fabric, neighbouring machines or switches share a place, and their links a bundle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.machines import Tier
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.job.neighbours import NeighbourJob
from evenstep.trace.columns import Array, Columns, largest_of, rows_by_key
from evenstep.trace.ranks import format_ranks


@dataclass(frozen=True)
class LinkLoads:
    """By link, as the network numbers them. `elapsed_ns` is the whole run, warm-up and all."""

    network: Network
    elapsed_ns: float
    own_bytes: Array
    others_bytes: Array  # of neighbours
    peak_gBps: Array  # noqa: N815 - of all together

    @property
    def bytes(self) -> Array:
        """Bytes of the job and its neighbours."""
        return np.asarray(self.own_bytes + self.others_bytes)

    @property
    def mean(self) -> Array:
        """Share of the capacity that was used over the run; 0 on a link that failed."""
        return self._share(self.bytes / self.elapsed_ns if self.elapsed_ns else self.bytes * 0.0)

    @property
    def peak(self) -> Array:
        """Share of the capacity that was used at most."""
        return np.asarray(np.maximum(np.minimum(self._share(self.peak_gBps), 1.0), self.mean))

    def _share(self, rate: Array) -> Array:
        capacity = self.network.capacity
        share: Array = np.divide(rate, capacity, out=np.zeros_like(capacity), where=capacity > 0)
        return share


def link_loads(
    network: Network,
    carried: Iterable[tuple[Flow, int]],
    others: Sequence[NeighbourJob],
    peak_gBps: Array,  # noqa: N803
    elapsed_ns: float,
) -> LinkLoads:
    """The loads of collectives, each with its number of runs, and of neighbours.

    `peak_gBps`: highest rates of messages that the engine followed; 0 on other links.
    """
    nothing = np.zeros(len(network.capacity))
    laid = [(flow, times) for flow, times in carried if flow.operation != "read"]
    own: Array = sum((times * flow.link_bytes for flow, times in laid), nothing)
    flows = [flow for flow, _ in laid] + [other.flow for other in others]
    peak, seen = nothing, peak_gBps[: len(nothing)]
    for stage in {id(stage): stage for flow in flows for stage in flow.stages}.values():
        if length := float(stage.hop_ns.max(initial=0.0)):  # of a round that all begin together
            peak = np.maximum(peak, stage.load / length)
    peak = np.where(seen > 0, seen, peak)
    foreign: Array = sum((other.link_bytes for other in others), nothing)
    return LinkLoads(network, elapsed_ns, own, foreign, peak)


# -- loads -----------------------------------------------------------------------------------------


MOST_PLACES = {"spine": 32, "core": 32}  # of a tier …
MOST_PLACES_ELSE = 64  # … of every other …
MOST_CELLS = 1024  # … and of a torus


@dataclass(frozen=True)
class FabricMap:
    """`bundles` has a row for the links of one kind between two places.

    Columns: kind (index into `kinds`), source and target (into `places`), links, failed (of them),
    capacity_gBps and bytes of all, others_bytes of neighbours, mean (share of the capacity that
    was used), busiest (mean share of the busiest link), peak (share of the fullest moment).
    """

    fabric: str
    shape: tuple[int, ...]  # of a torus, in places
    elapsed_ns: float
    kinds: tuple[str, ...]  # patterns of their links' names
    tiers: tuple[dict[str, Any], ...]  # name, plural, size, places, and how many belong together
    places: tuple[dict[str, Any], ...]  # tier, name, ranks of the job there, others: nodes of them
    bundles: Columns

    def summary(self) -> list[dict[str, Any]]:
        """Totals of the links of each kind, as plain values."""
        return [
            _in_short(kind, self.bundles.select(self.bundles.kind == number), self.elapsed_ns)
            for number, kind in enumerate(self.kinds)
        ]

    def facts(self) -> dict[str, Any]:
        """Everything but the bundles, as plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)[:-1]}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _in_short(kind: str, rows: Columns, elapsed_ns: float) -> dict[str, Any]:
    able = float(rows.capacity_gBps.sum(dtype=float)) * elapsed_ns
    carried = float(rows.bytes.sum())
    return {
        "links": kind,
        "count": int(rows.links.sum()),
        "failed": int(rows.failed.sum()),
        "bytes": carried,
        "others_bytes": float(rows.others_bytes.sum()),
        "mean": carried / able if able else 0.0,
        "busiest": float(rows.busiest.max(initial=0.0)),
        "peak": float(rows.peak.max(initial=0.0)),
    }


@dataclass(frozen=True)
class _Places:
    """The places of one tier: `of` is the place of each of its machines or switches."""

    tier: Tier
    of: Array
    first: int  # number of its first place among those of all tiers
    names: tuple[str, ...]


def fabric_map(network: Network, placement: Placement, loads: LinkLoads) -> FabricMap:
    nodes = tuple(int(length) for length in network.fabric.shape)
    shape, cells = _grid(nodes) if network.fabric.kind == "torus" else ((), None)
    tiers: dict[str, _Places] = {}
    first = 0
    for tier in network.core.tiers:
        of = np.arange(tier.size) // _width(tier) if cells is None else cells
        tiers[tier.name] = _places(tier, first, of)
        first += len(tiers[tier.name].names)
    parts = [_bundles(network, loads, block, tiers) for block in range(len(network.blocks))]
    kinds = tuple(dict.fromkeys(kind for kind, _ in parts))
    bundles = [
        rows.with_column("kind", np.full(len(rows), kinds.index(kind), np.uint8))
        for kind, rows in parts
    ]
    return FabricMap(
        network.fabric.kind, shape, loads.elapsed_ns, kinds, tuple(map(_sizes, tiers.values())),
        tuple(_describe(tiers, placement)), Columns.concatenate(bundles),
    )  # fmt: skip


# -- places ----------------------------------------------------------------------------------------


def _grid(nodes: tuple[int, ...]) -> tuple[tuple[int, ...], Array]:
    """Places of a torus in each dimension, and the place of each node."""
    width = [1] * len(nodes)

    def sides() -> tuple[int, ...]:
        return tuple(-(-length // each) for length, each in zip(nodes, width, strict=True))

    while math.prod(sides()) > MOST_CELLS:
        width[sides().index(max(sides()))] *= 2
    at = np.unravel_index(np.arange(math.prod(nodes)), nodes)
    inside = tuple(each // one for each, one in zip(at, width, strict=True))
    return sides(), np.asarray(np.ravel_multi_index(inside, sides()))


def _places(tier: Tier, first: int, of: Array) -> _Places:
    names = (
        f"{tier.plural if len(each) > 1 else tier.name} {format_ranks(each.tolist())}"
        for each in rows_by_key(of)
    )
    return _Places(tier, of, first, tuple(names))


def _width(tier: Tier) -> int:
    """Number of machines or switches in a place: whole groups where there are too many."""
    most = MOST_PLACES.get(tier.name, MOST_PLACES_ELSE)
    if tier.size <= most:
        return 1
    groups = -(-tier.size // tier.together)
    return tier.together * -(-groups // most)


def _sizes(places: _Places) -> dict[str, Any]:
    tier, drawn = places.tier, len(places.names)
    together = tier.together if drawn == tier.size else 1
    return {**tier._asdict(), "places": drawn, "together": together}


def _describe(tiers: dict[str, _Places], placement: Placement) -> list[dict[str, Any]]:
    """Every place with its ranks and neighbours' nodes."""
    others = np.unique(np.concatenate([np.zeros(0, np.int64), *placement.neighbours]))
    found = []
    for tier in tiers.values():
        machines = tier.tier.name == "node"
        rank_at = tier.of[placement.node] if machines else np.zeros(0, np.int64)
        other_at = tier.of[others.astype(np.int64)] if machines else np.zeros(0, np.int64)
        for at, name in enumerate(tier.names):
            ranks = format_ranks(np.flatnonzero(rank_at == at).tolist())
            count = int(np.count_nonzero(other_at == at))
            found.append({"tier": tier.tier.name, "name": name, "ranks": ranks, "others": count})
    return found


# -- bundles ---------------------------------------------------------------------------------------


def _bundles(
    network: Network, loads: LinkLoads, number: int, tiers: dict[str, _Places]
) -> tuple[str, Columns]:
    """The kind of a block's links, and its bundles: sums and maxima between two places."""
    block = network.blocks[number]
    numbers = np.arange(block.links)
    one, other = tiers[block.source.tier], tiers[block.target.tier]
    ends = np.asarray(block.source.of(numbers)), np.asarray(block.target.of(numbers))
    there = np.ones(len(numbers), bool)
    if number >= network.inside:  # a switch has no link to itself
        there = (ends[0] != ends[1]) | (one is not other)
    source, target = one.first + one.of[ends[0][there]], other.first + other.of[ends[1][there]]
    pairs, inverse = np.unique(np.stack([source, target]), axis=1, return_inverse=True)
    link = int(network.first[number]) + numbers[there]
    return block.pattern, _sum(pairs, inverse.reshape(-1), link, loads)


def _sum(pairs: Array, bundle: Array, link: Array, loads: LinkLoads) -> Columns:
    count = pairs.shape[1]
    capacity = loads.network.capacity[link]

    def total(values: Array) -> Array:
        return np.bincount(bundle, weights=values, minlength=count)

    def most(values: Array) -> Array:
        return largest_of(values, bundle, count, least=0.0).astype(np.float32)

    able, carried = total(capacity), total(loads.bytes[link])
    whole = able * loads.elapsed_ns
    mean = np.divide(carried, whole, out=np.zeros(count), where=whole > 0)
    return Columns(
        {
            "source": pairs[0].astype(np.uint16),
            "target": pairs[1].astype(np.uint16),
            "links": np.bincount(bundle, minlength=count).astype(np.uint32),
            "failed": total(capacity == 0).astype(np.uint32),
            "capacity_gBps": able.astype(np.float32),
            "bytes": carried,
            "others_bytes": total(loads.others_bytes[link]),
            "mean": mean.astype(np.float32),
            "busiest": most(loads.mean[link]),
            "peak": most(loads.peak[link]),
        }
    )
