"""`collective_topology_mismatch`: rings that leave a node or rack more often than they must.

A ring in rank order over k places must leave each once. Where it leaves one c times, c streams
share that place's link, and the bytes take c times as long (reference: a ring's 2 S (n - 1) / (n B)
with B / c). Libraries that know their nodes, as NCCL does, order ranks inside them by themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Cost, Link
from evenstep.diagnose.finding import Evidence, Finding, Option, When, Where
from evenstep.diagnose.lateness.case import Array, Case, found
from evenstep.diagnose.measure import places
from evenstep.diagnose.measure.expected import RINGS, Reference, Shape, places_of, reference
from evenstep.diagnose.modes.mode import Mode
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Op

SMALLEST = 0.02  # of the step
SMALLEST_UNSURE = 0.10  # … where nothing but the placement says what an ordered ring would give
SHORT = 1.25  # times the bandwidth of an ordered ring are missing at least
UNSURE = 0.6  # confidence in that
LISTED = 64  # ranks of a new order that are written out


class Crossed(NamedTuple):
    """A shape whose rings cross more often than they must."""

    shape: Shape
    group: int
    crossings: int
    fewest: int
    ordered_gBps: float  # noqa: N815 - bus bandwidth of a ring in the best order
    known: Reference | None
    shorter_ns: Array  # one entry per transfer


def find(case: Case) -> list[Finding]:
    """What rank orders that follow the nodes would give back."""
    if not case.transfers_known:
        return []
    crossed = [part for shape in case.shapes if (part := _crossed(case, shape)) is not None]
    if not crossed:
        return []
    lost = case.gained(np.sum([part.shorter_ns for part in crossed], axis=0))
    share = case.share(lost)
    least = SMALLEST if crossed[0].known else SMALLEST_UNSURE
    if share.value < least or share.low <= 0:
        return []
    case.claims.slow_ns += lost
    return [_finding(case, crossed, share)]


def _crossed(case: Case, shape: Shape) -> Crossed | None:
    """What its ranks' order costs a shape; None where the order is right, or costs nothing."""
    if shape.op not in RINGS or shape.leaving <= 1 or shape.busbw_gBps <= 0:
        return None
    group = shape.groups[0]
    where = places_of(case.trace, group)
    if not all(where) or _orders_itself(case, group):
        return None
    known = reference(case.trace, shape, [s for s in case.shapes if s.leaving <= 1])
    ordered = min(known.gBps, _most(shape)) if known else _most(shape)
    if ordered < SHORT * shape.busbw_gBps:
        return None
    slower = shape.factor * (1 / shape.busbw_gBps - 1 / ordered)
    rows = case.transfers.rows
    limit = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    shorter = np.where(shape.rows, np.minimum(slower * rows.size_bytes, limit), 0.0)
    crossings, fewest = places.crossings(where), places.fewest_crossings(where)
    return Crossed(shape, group, crossings, fewest, ordered, known, shorter)


def _most(shape: Shape) -> float:
    """Bandwidth if nothing but the shared link slows the ring: not more than the order explains."""
    return shape.busbw_gBps * shape.leaving


def _orders_itself(case: Case, group: int) -> bool:
    """NCCL rings follow the nodes, whatever the order of ranks; racks it does not know."""
    ranks = [rank for rank in case.trace.groups[group].ranks if rank in case.trace.ranks]
    racks = {places.rack_of(case.trace, rank) for rank in ranks}
    return "nccl" in case.trace.groups[group].backend.lower() and len(racks) < 2


# -- the finding -----------------------------------------------------------------------------------


def _finding(case: Case, crossed: list[Crossed], share: Share) -> Finding:
    first = crossed[0]
    shape, trace = first.shape, case.trace
    kind = "racks" if _by_rack(case, first.group) else "nodes"
    steps = case.grid.steps
    expected = f" ({first.known.source})" if first.known else " (if the shared link is all)"
    names = dict.fromkeys(trace.groups[g].name for part in crossed for g in part.shape.groups)
    where = places_of(trace, first.group)
    return found(
        "collective_topology_mismatch",
        "fabric",
        share,
        confidence=min(share.confidence, 1.0 if first.known else UNSURE),
        observation=(
            f"{shape.name} reaches {shape.busbw_gBps:.3g} GB/s of bus bandwidth, "
            f"{first.ordered_gBps:.3g} GB/s are to be had in another order{expected}"
        ),
        cause=(
            f"ranks are ordered across {kind}: their ring crosses between {kind} "
            f"{first.crossings} times where {first.fewest} would do, so that {shape.leaving} "
            f"streams share the link of one"
        ),
        where=Where(
            links=[f"{a}-{b}" for a, b in places.links(where)],
            groups=list(names),
        ),
        when=When([(int(steps[0]), int(steps[-1]))], "chronic"),
        options=_options(case, first, share, kind),
        evidence=[
            Evidence("ring_crossings", first.crossings, first.fewest, "hops"),
            Evidence("streams_per_link", shape.leaving, 1, "streams"),
            Evidence(
                "bus_bandwidth", round(shape.busbw_gBps, 4), round(first.ordered_gBps, 4), "GB/s"
            ),
            *_curves(case, first),
        ],
        change=case.transferred(np.sum([part.shorter_ns for part in crossed], axis=0)),
    )


def _by_rack(case: Case, group: int) -> bool:
    first = case.trace.groups[group].ranks[0]
    return places_of(case.trace, group)[0] == places.rack_of(case.trace, first) != ""


def _curves(case: Case, first: Crossed) -> list[Evidence]:
    """The largest size's time beside what algorithms would give at the bandwidth of one stream."""
    shape = first.shape
    if shape.op != Op.ALL_REDUCE:
        return []
    size, measured = float(shape.sizes[-1]), round(float(shape.floors_ns[-1]))
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
        Evidence(f"time_as_{name}", measured, round(float(cost.time_ns)), "ns")
        for name, cost in given.items()
    ]


def _hierarchical(case: Case, shape: Shape, size: float, stream: Link) -> Cost:
    """All-reduce inside the nodes, then between them over one stream of each."""
    per_node = max(1, shape.members // shape.nodes)
    outer = stream._replace(gBps=stream.gBps / per_node)
    inner = Link(_inside_gBps(case))
    return allreduce.hierarchical(size, shape.nodes, per_node, inner=inner, outer=outer)


def _inside_gBps(case: Case) -> float:  # noqa: N802
    """Bandwidth inside a node, where a group of the run lies in one; else it costs nothing."""
    inside = [shape.busbw_gBps for shape in case.shapes if shape.nodes == 1]
    return max(inside, default=float("inf"))


def _options(case: Case, first: Crossed, share: Share, kind: str) -> list[Option]:
    ranks = [rank for rank in case.trace.groups[first.group].ranks if rank in case.trace.ranks]
    order = places.grouped(ranks, places_of(case.trace, first.group))
    listed = ",".join(map(str, order[:LISTED])) + (",…" if len(order) > LISTED else "")
    gain = share.rounded()
    size = case.transfers.rows.size_bytes
    less = np.where(first.shape.rows, _hierarchy_saves(case, first) * size, 0.0)
    layered = case.share(np.minimum(case.gained(less), case.grid.step_ns))
    return [
        Option(
            f"order ranks by {kind[:-1]}: {listed} (srun --distribution=block, or a rank file with "
            "these present ranks in this order)",
            *gain,
            "a restart with another rank order; other groups must not be torn apart by it",
            f"a ring that leaves each of the {kind} once, at the bandwidth of one stream",
        ),
        Option(
            "hierarchical collectives: reduce inside nodes, then one rank per node between them "
            "(HSDP, NCCL with its own topology detection)",
            *layered.rounded(),
            "a change of the process groups, or of the backend",
            "2 S (N - 1) / N per node's link between nodes, by whatever ranks",
        ),
    ]


def _hierarchy_saves(case: Case, first: Crossed) -> float:
    """Time per byte that a hierarchical algorithm would save; never less than none."""
    shape = first.shape
    whole = shape.factor / shape.busbw_gBps
    layered = _hierarchical(case, shape, 1.0, Link(first.ordered_gBps)).transfer_ns
    return max(0.0, whole - (layered if shape.op == int(Op.ALL_REDUCE) else layered / 2))


MODE = Mode(
    name="collective_topology_mismatch",
    layer="fabric",
    symptom="Collectives reach a fraction of the links' bandwidth although the fabric is idle.",
    look_at=(
        "the order of ranks over nodes and racks: how often a ring in this order leaves them",
        "time by size beside what ring, tree and hierarchical algorithms would give",
        "bus bandwidth beside nccl-tests on the same nodes in the right order",
    ),
    remedy=(
        "ranks in topology order: those of a node next to each other, those of a rack too",
        "hierarchical collectives",
        "a topology file for the library (NCCL_TOPO_FILE) where it cannot see the nodes",
    ),
    confirm="Run nccl-tests with the ranks in both orders: bandwidth differs by the crossings.",
    find=find,
)
