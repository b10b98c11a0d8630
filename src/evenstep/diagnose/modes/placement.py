"""Ranks that lie unfavourably: `locality` within a node, `collective_topology_mismatch` between.

Locality: a rank whose GPU, adapter, memory and cores lie worse than its peers'. Placement alone is
no finding: these ranks must be late, or their groups must move data slower than groups of the same
shape without such a rank.

Mismatch: rings that leave a node or rack more often than they must. A ring over k places (nodes or
racks) must leave each once. Where a ring in rank order leaves one c times, c streams share the link
of that place, and the bytes take c times as long: a ring's 2 S (n - 1) / (n B) with B / c.
Libraries that know their nodes, as NCCL does, order ranks by node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Cost, Link
from evenstep.diagnose.finding import Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import SMALLEST_SHARE
from evenstep.diagnose.measure.hosts import group_by_place, hops, layouts, rack_of, usual
from evenstep.diagnose.measure.transfers import RINGS, Reference, Shape, places_of, reference
from evenstep.diagnose.modes.bound import of_slow_shapes
from evenstep.diagnose.modes.intervention import Gain, constant, finding_of, when
from evenstep.diagnose.sentences import say
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Op

UNSURE = 0.6  # confidence without a reference for the bandwidth of one stream
LISTED = 64  # ranks of a new order that are written out


def locality(case: Case) -> list[Finding]:
    """Ranks with a worse placement than their peers that are late, or whose groups are slow."""
    places = layouts(case.trace)
    peers = usual(places)
    worse = {
        rank: defects for rank, place in places.items() if (defects := place.defects(peers[rank]))
    }
    if not worse:
        return []
    columns = np.isin(case.grid.ranks, list(worse)) & case.delays.chronic
    cells = case.claims.unclaimed(case.delays.cells(Cause.WORK)) & columns[None, :]
    flows, groups = case.flows if case.transfers_known else (), case.trace.groups
    flows = [one for one in flows if one.lost_ns and worse.keys() & set(groups[one.group].ranks)]
    slow, excess = sorted({one.group for one in flows}), case.beyond_alike(flows)
    moving = case.saved(case.transferred(excess)) if slow else np.zeros(len(case.grid.steps))
    share = case.share(case.loss(cells) + moving)
    if share.low < SMALLEST_SHARE:
        return []
    case.claims.claim(cells)
    case.claims.slow_ns += moving
    ranks = case.culprits(cells)
    members = {rank for group in slow for rank in groups[group].ranks}
    late = list(ranks)
    ranks += [rank for rank in sorted(worse) if rank in members and rank not in ranks]
    parts = [case.relieved(cells), *([case.transferred(excess)] if slow else [])]
    where, first = case.where(ranks), ranks[0]
    all_defects = " ".join(defect for rank in ranks for defect in worse[rank])
    names = ", ".join([groups[group].name for group in slow][:4])
    seen = [say("locality.late", those=late, more=case.mean_excess_ns(cells))] * bool(late)
    seen += [say("locality.slow", groups=names)] * bool(slow)
    return finding_of(
        case, "locality", Gain(share, case.costs.combined(parts)),
        numbers={
            "seen": "; ".join(seen), "who": case.ranks_in_words(ranks),
            "defects": "; ".join(worse[first]), "nodes": ", ".join(where.nodes) or "the node",
            **(case.waits(cells) if late else {}),
        },
        where=where, at=when((cells.any(axis=1) | (moving > 0))[:, None], case.grid),
        projected=constant,
        options=[*(one for one in ("cores", "adapter") if one in all_defects), "replace"],
    )  # fmt: skip


# -- rings -----------------------------------------------------------------------------------------


class _CrossingRing(NamedTuple):
    """A shape whose rings leave a node or rack more often than they must."""

    shape: Shape
    ordered_gBps: float  # noqa: N815 - bus bandwidth of a ring in the best order
    known: Reference | None
    shorter_ns: Array  # one entry per transfer


def collective_topology_mismatch(case: Case) -> list[Finding]:
    """What rank orders that follow the nodes would give back."""
    return of_slow_shapes(case, _crossing, _mismatch)


def _crossing(case: Case, shape: Shape) -> _CrossingRing | None:
    """The cost of the rank order of a shape; None where the order is right, or costs nothing."""
    if shape.op not in RINGS or shape.leaving <= 1 or shape.busbw_gBps <= 0:
        return None
    group = shape.groups[0]
    where = places_of(case.trace, group)
    members = set(case.trace.groups[group].ranks) & case.trace.ranks.keys()
    racks = {rack_of(case.trace, rank) for rank in members}
    # NCCL orders ranks by node, whatever their order, but knows no racks
    by_node = "nccl" in case.trace.groups[group].backend.lower() and len(racks) < 2
    if not all(where) or by_node:
        return None
    known = reference(case.trace, shape, [s for s in case.shapes if s.leaving <= 1])
    ordered = shape.busbw_gBps * shape.leaving  # at most: only the shared link slows the ring
    ordered = min(known.gBps, ordered) if known else ordered
    slower = shape.factor * (1 / shape.busbw_gBps - 1 / ordered)
    rows = case.transfers.rows
    limit = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    shorter = np.where(shape.rows, np.minimum(slower * rows.size_bytes, limit), 0.0)
    return _CrossingRing(shape, ordered, known, shorter)


# -- rings: the finding ----------------------------------------------------------------------------


def _mismatch(case: Case, crossing: list[_CrossingRing], gain: Gain) -> list[Finding]:
    first = crossing[0]
    shape, trace = first.shape, case.trace
    names = dict.fromkeys(trace.groups[g].name for part in crossing for g in part.shape.groups)
    where = places_of(trace, shape.groups[0])
    ranks = [rank for rank in trace.groups[shape.groups[0]].ranks if rank in trace.ranks]
    kind = "racks" if where[0] == rack_of(trace, ranks[0]) != "" else "nodes"
    order = group_by_place(ranks, where)
    paths = ["-".join(sorted(pair)) for pair in hops(where)]
    layered = hierarchical(case, shape, 1.0, Link(first.ordered_gBps)).transfer_ns  # per byte
    layered = layered if shape.op == int(Op.ALL_REDUCE) else layered / 2
    saved = max(0.0, shape.factor / shape.busbw_gBps - layered) * case.transfers.rows.size_bytes
    layered_ns = case.saved(case.transferred(np.where(shape.rows, saved, 0.0)))
    return finding_of(
        case, "collective_topology_mismatch", gain,
        confidence=min(gain.share.confidence, 1.0 if first.known else UNSURE),
        numbers={
            "name": shape.name, "busbw": shape.busbw_gBps, "ordered": first.ordered_gBps,
            "by": f" ({first.known.source if first.known else 'if the shared link is all'})",
            "kind": kind, "one": kind[:-1], "crossings": len(hops(where)), "fewest": shape.nodes,
            "streams": shape.leaving,
            "order": ",".join(map(str, order[:LISTED])) + (",…" if len(order) > LISTED else ""),
        },
        where=Where(links=list(dict.fromkeys(paths)), groups=list(names)),
        options={
            "order": gain.share,
            "hierarchy": case.share(np.minimum(layered_ns, case.grid.step_ns)),
        },
    )  # fmt: skip


def hierarchical(case: Case, shape: Shape, size: float, stream: Link) -> Cost:
    """Cost of an all-reduce inside the nodes, then between them over one stream of each node:
    inside at the bandwidth of the run's groups that lie in one, at an infinite one without any."""
    per_node = max(1, shape.members // shape.nodes)
    outer = stream._replace(gBps=stream.gBps / per_node)
    inside = [one.busbw_gBps for one in case.shapes if one.nodes == 1 and one.busbw_gBps > 0]
    inner = Link(max(inside, default=float("inf")))
    return allreduce.hierarchical(size, shape.nodes, per_node, inner=inner, outer=outer)
