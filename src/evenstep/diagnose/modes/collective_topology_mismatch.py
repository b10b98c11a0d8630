"""`collective_topology_mismatch`: rings that leave a node or rack more often than they must.

A ring over k places (nodes or racks) must leave each once. Where a ring in rank order leaves one c
times, c streams share the link of that place, and the bytes take c times as long: a ring's
2 S (n - 1) / (n B) with B / c. Libraries that know their nodes, as NCCL does, order ranks by node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Cost, Link
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.measure import hosts
from evenstep.diagnose.measure.expected import RINGS, Reference, Shape, places_of, reference
from evenstep.diagnose.modes.bound import of_slow_shapes
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.trace.spool.layout import Op

UNSURE = 0.6  # confidence without a reference for the bandwidth of one stream
LISTED = 64  # ranks of a new order that are written out


class CrossingRing(NamedTuple):
    """A shape whose rings leave a node or rack more often than they must."""

    shape: Shape
    group: int
    crossings: int
    fewest: int
    ordered_gBps: float  # noqa: N815 - bus bandwidth of a ring in the best order
    known: Reference | None
    shorter_ns: Array  # one entry per transfer


def find(case: Case) -> list[Finding]:
    """What rank orders that follow the nodes would give back."""
    return of_slow_shapes(case, _crossing, _mismatch)


def _crossing(case: Case, shape: Shape) -> CrossingRing | None:
    """The cost of the rank order of a shape; None where the order is right, or costs nothing."""
    if shape.op not in RINGS or shape.leaving <= 1 or shape.busbw_gBps <= 0:
        return None
    group = shape.groups[0]
    where = places_of(case.trace, group)
    if not all(where) or _orders_itself(case, group):
        return None
    known = reference(case.trace, shape, [s for s in case.shapes if s.leaving <= 1])
    ordered = min(known.gBps, _most(shape)) if known else _most(shape)
    slower = shape.factor * (1 / shape.busbw_gBps - 1 / ordered)
    rows = case.transfers.rows
    limit = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    shorter = np.where(shape.rows, np.minimum(slower * rows.size_bytes, limit), 0.0)
    crossings, fewest = len(hosts.hops(where)), hosts.fewest_crossings(where)
    return CrossingRing(shape, group, crossings, fewest, ordered, known, shorter)


def _most(shape: Shape) -> float:
    """Bandwidth in the best order, where only the shared link slows the ring."""
    return shape.busbw_gBps * shape.leaving


def _orders_itself(case: Case, group: int) -> bool:
    """Whether the library orders ranks by itself: NCCL does by node, whatever the order of ranks,
    but knows no racks."""
    ranks = [rank for rank in case.trace.groups[group].ranks if rank in case.trace.ranks]
    racks = {hosts.rack_of(case.trace, rank) for rank in ranks}
    return "nccl" in case.trace.groups[group].backend.lower() and len(racks) < 2


# -- the finding -----------------------------------------------------------------------------------


def _mismatch(case: Case, crossing: list[CrossingRing], gain: Gain) -> list[Finding]:
    first = crossing[0]
    shape, trace = first.shape, case.trace
    names = dict.fromkeys(trace.groups[g].name for part in crossing for g in part.shape.groups)
    where = places_of(trace, first.group)
    ranks = [rank for rank in trace.groups[first.group].ranks if rank in trace.ranks]
    kind = "racks" if where[0] == hosts.rack_of(trace, ranks[0]) != "" else "nodes"
    order = hosts.grouped(ranks, where)
    layered = _hierarchy_saves(case, first) * case.transfers.rows.size_bytes
    layered_ns = case.gained(np.where(shape.rows, layered, 0.0))
    return finding_of(
        case, "collective_topology_mismatch", gain,
        confidence=min(gain.share.confidence, 1.0 if first.known else UNSURE),
        numbers={
            "name": shape.name,
            "busbw": shape.busbw_gBps,
            "ordered": first.ordered_gBps,
            "by": f" ({first.known.source if first.known else 'if the shared link is all'})",
            "kind": kind,
            "one": kind[:-1],
            "crossings": first.crossings,
            "fewest": first.fewest,
            "streams": shape.leaving,
            "order": ",".join(map(str, order[:LISTED])) + (",…" if len(order) > LISTED else ""),
        },
        where=Where(links=[f"{a}-{b}" for a, b in hosts.links(where)], groups=list(names)),
        options={
            "order": gain.share,
            "hierarchy": case.share(np.minimum(layered_ns, case.grid.step_ns)),
        },
        evidence=[
            Evidence("ring_crossings", first.crossings, first.fewest, "hops"),
            Evidence("streams_per_link", shape.leaving, 1, "streams"),
            Evidence("bus_bandwidth", shape.busbw_gBps, first.ordered_gBps, "GB/s"),
            *_curves(case, first),
        ],
    )  # fmt: skip


def _curves(case: Case, first: CrossingRing) -> list[Evidence]:
    """Time of the largest size beside that of algorithms at the bandwidth of one stream."""
    shape = first.shape
    if shape.op != Op.ALL_REDUCE:
        return []
    size, measured = float(shape.sizes[-1]), float(shape.floors_ns[-1])
    n, gBps = shape.members, first.ordered_gBps  # noqa: N806
    alpha = shape.line.alpha_ns / (2 * (n - 1)) if shape.line is not None else 0.0
    link = Link(gBps, alpha)
    given = {
        "ring_in_this_order": allreduce.ring(size, n, Link(gBps / shape.leaving, alpha)),
        "ring_in_the_best_order": allreduce.ring(size, n, link),
        "tree": allreduce.double_tree(size, n, link),
        "hierarchical": _hierarchical(case, shape, size, link),
    }
    return [
        Evidence(f"time_as_{name}", measured, float(cost.time_ns), "ns")
        for name, cost in given.items()
    ]


def _hierarchical(case: Case, shape: Shape, size: float, stream: Link) -> Cost:
    """Cost of an all-reduce inside the nodes, then between them over one stream of each node."""
    per_node = max(1, shape.members // shape.nodes)
    outer = stream._replace(gBps=stream.gBps / per_node)
    inner = Link(_inside_gBps(case))
    return allreduce.hierarchical(size, shape.nodes, per_node, inner=inner, outer=outer)


def _inside_gBps(case: Case) -> float:  # noqa: N802
    """Bandwidth inside a node, if a group of the run lies in one; else infinite."""
    inside = [one.busbw_gBps for one in case.shapes if one.nodes == 1 and one.busbw_gBps > 0]
    return max(inside, default=float("inf"))


def _hierarchy_saves(case: Case, first: CrossingRing) -> float:
    """Time per byte that a hierarchical algorithm would save, at least 0."""
    shape = first.shape
    whole = shape.factor / shape.busbw_gBps
    layered = _hierarchical(case, shape, 1.0, Link(first.ordered_gBps)).transfer_ns
    return max(0.0, whole - (layered if shape.op == int(Op.ALL_REDUCE) else layered / 2))
