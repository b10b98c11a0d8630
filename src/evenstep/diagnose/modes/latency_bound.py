"""`latency_bound`: many small collectives, whose time hardly grows with their size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.levels import MOST, SMALLEST_SHARE
from evenstep.diagnose.measure.expected import SLOWEST_GBPS, USUAL_GBPS, Shape, reference
from evenstep.diagnose.measure.patterns import throughout
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Op

MANY = 12  # collectives of a shape in a step: fewer have no bucket to be merged into
BUCKET_BYTES = 25_000_000  # DDP's default, and large against latency on any fabric
LARGE = 10.0  # times the size at which half of the time is latency


class Small(NamedTuple):
    """A shape bound by latency: what each of its collectives would save when merged."""

    shape: Shape
    alpha_ns: float
    basis: str
    per_step: float
    merged_per_step: float
    bucket_bytes: float
    shorter_ns: Array  # one entry per transfer


def find(case: Case) -> list[Finding]:
    """What merging small collectives into buckets would give back."""
    if not case.transfers_known:
        return []
    small = [part for shape in case.shapes if (part := _small(case, shape)) is not None]
    if not small:
        return []
    lost = case.gained(np.sum([part.shorter_ns for part in small], axis=0))
    share = case.share(lost)
    if share.low < SMALLEST_SHARE:
        return []
    case.claims.slow_ns += lost
    return [_finding(case, small, share)]


def _small(case: Case, shape: Shape) -> Small | None:
    """What merging a shape's collectives would save; None where they are not many small ones."""
    rows = case.transfers.rows
    steps = len(np.unique(rows.step[shape.rows]))
    per_step = np.count_nonzero(shape.rows) / max(steps, 1) / len(shape.groups)
    unsized = shape.op != Op.BARRIER and not shape.sizes.any()  # size not recorded
    if per_step < MANY or not len(shape.sizes) or unsized:
        return None
    latency = _latency(case, shape)
    moved = rows.transfer_ns[shape.rows]
    if latency is None or np.minimum(latency[0], moved).sum() < MOST * moved.sum():
        return None
    alpha, basis = latency
    together = float(rows.size_bytes[shape.rows].sum()) / steps / len(shape.groups)
    bucket = float(max(BUCKET_BYTES, LARGE * shape.line.half_bytes if shape.line else 0))
    merged = max(1.0, float(np.ceil(together / bucket)))
    saved = np.where(shape.rows, np.minimum(alpha, rows.transfer_ns), 0.0)
    return Small(shape, alpha, basis, per_step, merged, bucket, saved * (1 - merged / per_step))


def _latency(case: Case, shape: Shape) -> tuple[float, str] | None:
    """Latency of one collective and how it is known: by the curve, a reference, or at least so."""
    if shape.line is not None:
        return shape.line.alpha_ns, "the line through its times by size"
    size, time = float(shape.sizes[0]), float(shape.floors_ns[0])
    known = reference(case.trace, shape, case.shapes)
    if known is not None:
        alpha = time - shape.factor * size / known.gBps
        return (alpha, f"its time less that of its bytes by {known.source}") if alpha > 0 else None
    if shape.factor * size / SLOWEST_GBPS > (1 - MOST) * time:  # its bytes may explain it
        return None
    alpha = time - shape.factor * size / USUAL_GBPS
    return alpha, "its time less that of its bytes at 10 Gb/s; 1 Gb/s would not explain it either"


# -- the finding -----------------------------------------------------------------------------------


def _finding(case: Case, small: list[Small], share: Share) -> Finding:
    first, ranks = small[0], len(case.grid.ranks)
    rows = case.transfers.rows.select(first.shape.rows)
    size, moved = float(np.median(rows.size_bytes)), rows.transfer_ns
    latency = float(np.minimum(first.alpha_ns, moved).sum() / max(float(moved.sum()), 1))
    groups = [group for part in small for group in part.shape.groups]
    return found(
        "latency_bound",
        share,
        numbers={
            "per_step": first.per_step,
            "name": first.shape.name,
            "kilobytes": size / 1e3,
            "took": float(np.median(moved)),
            "alpha": first.alpha_ns,
            "basis": first.basis,
            "megabytes": int(first.bucket_bytes / 1e6),
            "merged": first.merged_per_step,
        },
        where=Where(groups=case.groups_named(groups)),
        when=throughout(case.grid.steps),
        projected=projection.by_growth(  # a ring's hops: 2(n - 1) alpha
            share, ranks, lambda factor: (ranks * factor - 1) / max(ranks - 1, 1)
        ),
        options={"buckets": share, **_fewer_hops(case, small)},
        evidence=[
            Evidence("collectives_per_step", round(first.per_step, 2), first.merged_per_step, "1"),
            Evidence("latency_of_one", round(first.alpha_ns), None, "ns"),
            Evidence("latency_share_of_transfer", round(latency, 4), 0.5, "1"),
            Evidence("median_size", round(size), BUCKET_BYTES, "bytes"),
        ],
        change=case.transferred(np.sum([part.shorter_ns for part in small], axis=0)),
    )


def _fewer_hops(case: Case, small: list[Small]) -> dict[str, Share | None]:
    """A tree instead of a ring, where that has far fewer."""
    ranks, took = small[0].shape.members, case.transfers.rows.transfer_ns
    if ranks < 8:
        return {}
    alpha = np.sum([np.where(p.shape.rows, np.minimum(p.alpha_ns, took), 0) for p in small], axis=0)
    fewer = alpha * (1 - allreduce.depth(ranks) / (ranks - 1))
    return {"tree": case.share(np.minimum(case.gained(fewer), case.grid.step_ns))}
