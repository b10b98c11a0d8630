"""`incast`: many ranks send to one at once, and its link collapses instead of being merely busy.

Bytes alone make a transfer grow in line with its size. Where queues overflow, lost packets are
sent again, often after a timeout: the time jumps. Ranks that arrive apart avoid it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose import levels
from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.levels import SEVERAL
from evenstep.diagnose.measure.expected import Shape, TransferLine, reference
from evenstep.diagnose.measure.hosts import congestion
from evenstep.diagnose.measure.recurrence import when
from evenstep.diagnose.modes.bound import of_slow_shapes
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.trace.spool.layout import Op

COLLAPSED = 2.0  # times what its bytes take: a busy link alone does not take as long
MANY_TO_ONE = (int(Op.GATHER), int(Op.REDUCE), int(Op.ALL_TO_ALL))


class Collapse(NamedTuple):
    """Transfers of a shape that took far longer than their bytes."""

    shape: Shape
    mask: Array  # of the transfers
    shorter_ns: Array
    basis: str  # of the time of their bytes


def find(case: Case) -> list[Finding]:
    """What the collapsed transfers took beyond their bytes; a single host has no switch."""
    return [] if case.trace.one_host else of_slow_shapes(case, _collapse, _collapsed)


def _collapse(case: Case, shape: Shape) -> Collapse | None:
    """The transfers of a shape that take more than twice the time of their bytes, if any."""
    if shape.op not in MANY_TO_ONE or shape.members <= SEVERAL or not len(shape.sizes):
        return None
    rows = case.transfers.rows
    quiet, basis = _expected(case, shape)
    limit = COLLAPSED * quiet + levels.SIGMAS * np.nan_to_num(case.transfers.of_kind("noise_ns"))
    mask = shape.rows & (rows.transfer_ns > limit)
    if not mask.any() or _everything_slow(case, mask):
        return None
    return Collapse(shape, mask, np.where(mask, rows.transfer_ns - quiet, 0.0), basis)


def _everything_slow(case: Case, mask: Array) -> bool:
    """Whether other operations of the same steps are slow, too: that is contention."""
    rows = case.transfers.rows
    ratio = rows.transfer_ns / np.maximum(case.transfers.of_kind("quiet_ns"), 1)
    beside = np.isin(rows.step, rows.step[mask]) & ~np.isin(rows.op, MANY_TO_ONE)
    return bool(beside.any() and np.median(ratio[beside]) > levels.CHANGED)


def _expected(case: Case, shape: Shape) -> tuple[Array, str]:
    """Time of each transfer without collapse, and its basis: smaller sizes, references, or its own
    quiet level."""
    sizes = case.transfers.rows.size_bytes
    below = _below_the_knee(shape)
    if below is not None:
        return np.asarray(below.time_ns(sizes)), "its smaller sizes"
    others = [s for s in case.shapes if s.op not in MANY_TO_ONE and s.nodes == shape.nodes]
    known = reference(case.trace, shape, others)
    if known is not None:
        time = shape.longest_latency_ns + shape.factor / known.gBps * sizes
        if shape.floors_ns[-1] > COLLAPSED * time[shape.rows].max():
            return np.asarray(time), known.source
    return case.transfers.of_kind("quiet_ns"), "their own best"


def _below_the_knee(shape: Shape) -> TransferLine | None:
    """The line through the smaller sizes, where larger ones take far longer than their bytes."""
    sizes, times = shape.sizes[shape.sizes > 0], shape.floors_ns[shape.sizes > 0]
    per_byte = times / sizes
    for knee in range(len(sizes) - 1, 1, -1):
        steepest = float(per_byte[knee - 1])  # of all below; latency included, so an upper bound
        if times[knee] > COLLAPSED * max(steepest * sizes[knee], float(times[knee - 1])):
            slope = max(_slope(sizes[:knee], times[:knee]), 1e-6)
            return TransferLine(float(np.median(times[:knee] - slope * sizes[:knee])), 1 / slope)
    return None


def _slope(sizes: Array, times: Array) -> float:
    """Median slope between neighbours (Theil 1950), at most the time per byte of the largest."""
    slopes = np.diff(times) / np.diff(sizes)
    return float(np.clip(np.median(slopes), 0, times[-1] / sizes[-1]))


# -- the finding -----------------------------------------------------------------------------------


def _collapsed(case: Case, parts: list[Collapse], gain: Gain) -> list[Finding]:
    case.claims.moves = np.any([part.mask for part in parts], axis=0)
    first = max(parts, key=lambda part: float(part.shorter_ns.sum()))
    rows, receivers = case.transfers.rows, _receivers(case, parts)
    took = float(np.median(rows.transfer_ns[first.mask]))
    usual = took - float(np.median(first.shorter_ns[first.mask]))
    groups = case.groups_named(group for part in parts for group in part.shape.groups)
    late, senders = case.steps_of(first.mask), first.shape.members - 1
    return finding_of(
        case, "incast", gain,
        numbers={
            "name": first.shape.name,
            "took": took,
            "usual": usual,
            "basis": first.basis,
            "senders": senders,
            "whom": f"to {words.ranks(receivers)}" if receivers else "to every rank at once",
        },
        where=replace(case.where(receivers), groups=groups),
        at=when(late[:, None], case.grid.steps), options=["fewer", "lossless"],
        evidence=[
            Evidence("transfer_collapsed", took, usual, "ns"),
            Evidence("fan_in", senders, None, "senders"),
            Evidence("collapsed", int(first.mask.sum()), 0, "collectives"),
            *congestion(case.trace, case.grid, late),
        ],
    )  # fmt: skip


def _receivers(case: Case, parts: list[Collapse]) -> list[int]:
    """Roots of the collapsed transfers, the costliest first; an all-to-all has none."""
    rooted = [part.shorter_ns for part in parts if part.shape.op != Op.ALL_TO_ALL]
    shorter = np.sum(rooted, axis=0) if rooted else np.zeros(len(case.transfers.rows))
    roots, place = np.unique(case.transfers.rows.root[shorter > 0], return_inverse=True)
    cost = np.bincount(place, shorter[shorter > 0], len(roots))
    ranks = roots[np.argsort(-cost, kind="stable")].tolist()
    return [rank for rank in ranks if rank in case.trace.ranks]
