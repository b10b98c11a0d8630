"""What this fabric should give: measured shapes of collectives, and references to hold them to.

A reference comes from a companion (nccl-tests or a probe on these nodes), from the speed of the
network adapters, or from the run's own best; in this order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep import allreduce
from evenstep.diagnose.levels import FEWEST
from evenstep.diagnose.measure.places import busiest, node_of, rack_of
from evenstep.diagnose.measure.transfer import Transfers
from evenstep.trace.spool.layout import Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

SPREAD = 4.0  # largest over smallest size, from which a slope says something
ROUNDS = 8  # of the reweighted fit


class TransferLine(NamedTuple):
    """t = alpha_ns + size / gBps (Hockney 1994), 10^9 bytes/s being bytes per nanosecond."""

    alpha_ns: float
    gBps: float  # noqa: N815

    def time_ns(self, size_bytes: Any) -> Any:
        """What it gives for a size, or for an array of them."""
        return self.alpha_ns + np.asarray(size_bytes) / self.gBps


def line_through(
    size_bytes: Array, time_ns: Array, weight: Array | None = None
) -> TransferLine | None:
    """The line of least relative deviations; None where sizes are too much alike to have one.

    Neither latency nor time per byte is negative: a fit that wants one of them so does without it.
    """
    sizes, times = np.asarray(size_bytes, float), np.asarray(time_ns, float)
    usable = (times > 0) & (sizes > 0)
    sizes, times = sizes[usable], times[usable]
    if len(np.unique(sizes)) < 2 or sizes.max() < SPREAD * sizes.min():
        return None
    from scipy.optimize import nnls  # when first asked: .1 s

    given = np.ones(len(sizes)) if weight is None else np.asarray(weight, float)[usable]
    scale = np.sqrt(given) / times
    for _ in range(ROUNDS):  # least absolute deviations by reweighting: one odd size does not tilt
        alpha, per_byte = nnls(np.stack([scale, scale * sizes], axis=1), scale * times)[0]
        off = np.abs(alpha + per_byte * sizes - times) / times
        scale = np.sqrt(given / np.maximum(off, 1e-3)) / times
    return TransferLine(float(alpha), float(1 / per_byte)) if per_byte > 0 else None


RINGS = (int(Op.ALL_REDUCE), int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER))
SLOWEST_GBPS = 0.125  # 1 Gb/s in 10^9 bytes/s: no fabric in use is slower per rank
USUAL_GBPS = 1.25  # 10 Gb/s, where nothing tells and it hardly matters
LONGEST_HOP_NS = 30_000.0  # of TCP: no fabric in use needs longer for a message of nothing
USUAL_HOP_NS = 10_000.0  # between RDMA's 2 µs and the 30 µs of TCP
GOOD = 0.8  # of the reference: a tuned fabric reaches it


class Shape(NamedTuple):
    """Collectives of one operation over groups that lie on the nodes in the same way."""

    op: int
    members: int
    nodes: int  # places its ring visits: racks where known, else hosts; 1 is inside one
    leaving: int  # hops of a ring in rank order that leave the busiest place
    groups: tuple[int, ...]
    rows: Array  # mask of the transfers
    sizes: Array  # bytes, ascending, of the kinds with enough collectives
    floors_ns: Array  # of those
    line: TransferLine | None  # through them; None where the sizes are too much alike

    @property
    def lies(self) -> tuple[int, ...]:
        """What groups that should be equally fast have in common."""
        return self.op, self.members, self.nodes, self.leaving

    @property
    def name(self) -> str:
        """ "all_reduce of 8 ranks"."""
        return f"{Op(self.op).name.lower()} of {self.members} ranks"

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return allreduce.bus_factor(Op(self.op).name.lower(), self.members)

    @property
    def busbw_gBps(self) -> float:  # noqa: N802
        """Best bus bandwidth reached at any size; the line's, where there is one."""
        best = self.factor * float(np.max(self.sizes / np.maximum(self.floors_ns, 1), initial=0))
        return max(best, self.factor * self.line.gBps) if self.line is not None else best

    @property
    def longest_latency_ns(self) -> float:
        """More than this of a transfer cannot be latency, whatever the algorithm."""
        return 2 * (self.members - 1) * LONGEST_HOP_NS

    @property
    def usual_latency_ns(self) -> float:
        """What of a transfer is latency where nothing tells: that of a ring."""
        return 2 * (self.members - 1) * USUAL_HOP_NS


class Reference(NamedTuple):
    """Bus bandwidth to expect of a shape, and who says so."""

    gBps: float  # noqa: N815
    source: str
    firm: bool  # measured or built so; not only what other operations of the run reach


def places_of(trace: Trace, group: int) -> list[str]:
    """Where the members of a group are, in the group's order: racks where all are known."""
    ranks = [rank for rank in trace.groups[group].ranks if rank in trace.ranks]
    racks = [rack_of(trace, rank) for rank in ranks]
    if all(racks) and len(set(racks)) > 1:
        return racks
    return [node_of(trace, rank) for rank in ranks]


def shapes(trace: Trace, measured: Transfers) -> list[Shape]:
    """The shapes of a run, those that moved longest first."""
    keys: dict[tuple[int, int, int, int], list[int]] = {}
    pairs = np.stack([measured.kinds.group.astype(int), measured.kinds.op.astype(int)])
    for group, op in np.unique(pairs, axis=1).T.tolist():
        where = places_of(trace, group)
        key = (op, len(where), len(set(where)), busiest(where))
        keys.setdefault(key, []).append(group)
    found = [
        _shape(measured, key, alike)
        for key, groups in keys.items()
        for alike in _by_speed(measured, key[0], groups)
    ]
    moved = measured.rows.transfer_ns
    return sorted(found, key=lambda shape: -float(moved[shape.rows].sum()))


def _by_speed(measured: Transfers, op: int, groups: list[int]) -> list[list[int]]:
    """Groups that should be equally fast; those much slower than the faster half are a shape of
    their own: links are slower than they could be, never faster."""
    kinds = measured.kinds
    mine = (kinds.op == op) & np.isin(kinds.group, groups) & (kinds["count"] >= FEWEST)
    if len(groups) < 2 or not mine.any():
        return [groups]
    group, size, floor = kinds.group[mine], kinds.size_bytes[mine], kinds.floor_ns[mine]
    usual = {one: _faster_half(floor[size == one]) for one in np.unique(size)}
    ratio = floor / np.maximum([usual[one] for one in size], 1.0)
    slow = [one for one in groups if _middle(ratio[group == one]) > 1 / GOOD]
    if not slow or len(slow) > len(groups) / 2:
        return [groups]
    return [[one for one in groups if one not in slow], slow]


def _faster_half(floors_ns: Array) -> float:
    return float(np.quantile(floors_ns, 0.5, method="lower"))


def _middle(values: Array) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _shape(measured: Transfers, key: tuple[int, int, int, int], groups: list[int]) -> Shape:
    op, members, nodes, leaving = key
    mask = (measured.rows.op == op) & np.isin(measured.rows.group, groups)
    kinds = measured.kinds
    mine = (kinds.op == op) & np.isin(kinds.group, groups) & (kinds["count"] >= FEWEST)
    sizes, at = np.unique(kinds.size_bytes[mine], return_inverse=True)
    weight = kinds["count"][mine].astype(float)
    whole = np.maximum(np.bincount(at, weight), 1)
    floors = np.bincount(at, weight * kinds.floor_ns[mine]) / whole
    line = line_through(sizes, floors, np.sqrt(whole)) if len(sizes) else None
    return Shape(op, members, nodes, leaving, tuple(groups), mask, sizes, floors, line)


# -- references ------------------------------------------------------------------------------------


def reference(trace: Trace, shape: Shape, others: list[Shape]) -> Reference | None:
    """What a shape should reach, by the first there is of these.

    nccl-tests, its adapters, groups that lie alike, the run's own best.
    """
    floors = [
        (float(floor["busbw_gBps"]), str(floor.get("by") or "nccl-tests"))
        for floor in companion(trace, shape.op)
        if floor.get("busbw_gBps") and floor.get("ranks") in (None, shape.members)
    ]
    if floors:
        best, by = max(floors)
        return Reference(best, f"{by} on these nodes", True)
    adapters = adapter_gBps(trace, shape)
    if adapters is not None:
        return Reference(adapters, "the speed of the network adapters", True)
    same = [other.busbw_gBps for other in others if other.lies == shape.lies]
    if max(same, default=0.0) > shape.busbw_gBps:
        return Reference(max(same), "other groups that lie alike", True)
    alike = [
        other.busbw_gBps
        for other in others
        if other is not shape
        and other.op in RINGS
        and other.nodes == shape.nodes
        and other.leaving <= shape.leaving
    ]
    best = max(alike, default=0.0)
    return Reference(best, "the run's own best", False) if best > shape.busbw_gBps else None


def companion(trace: Trace, op: int) -> list[dict[str, Any]]:
    """Rows of nccl-tests for an operation, where a log of it was given beside the trace."""
    wanted = Op(op).name.lower().replace("_", "")
    return [
        floor
        for floor in trace.run.get("floors") or []
        if str(floor.get("op", "")).lower().replace("_", "").replace("perf", "") == wanted
    ]


def adapter_gBps(trace: Trace, shape: Shape) -> float | None:  # noqa: N802
    """Bandwidth at which a ring can leave a node of this shape; None where it is not known.

    NCCL spreads rings over all adapters of a node; other backends use one. Groups that share a
    node at the same time share its adapters.
    """
    if shape.nodes < 2:
        return None
    group = trace.groups[shape.groups[0]]
    ranks = [rank for rank in group.ranks if rank in trace.ranks]
    per_node = [_node_gbps(trace, rank, spread="nccl" in group.backend.lower()) for rank in ranks]
    if any(speed is None for speed in per_node):
        return None
    first = node_of(trace, ranks[0])
    together = sum(
        any(node_of(trace, rank) == first for rank in trace.groups[other].ranks)
        for other in shape.groups
    )
    slowest = min(speed for speed in per_node if speed is not None)
    return slowest / 8 / max(together, 1)


def _node_gbps(trace: Trace, rank: int, *, spread: bool) -> float | None:
    """Speed of a node's fastest kind of adapter, or of all of that kind."""
    facts = trace.ranks[rank].facts.get("locality") or {}
    speeds = [port.get("rate_gbps") for port in facts.get("ib_ports") or []]
    speeds = [speed for speed in speeds if speed]
    if not speeds:
        nics = facts.get("nics") or []  # a virtual one has no PCI address, and a made-up speed
        speeds = [
            nic["speed_gbps"] for nic in nics if nic.get("speed_gbps") and nic.get("pci", True)
        ]
    if not speeds:
        return None
    best = float(max(speeds))
    return best * speeds.count(max(speeds)) if spread else best
