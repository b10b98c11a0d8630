"""Modes of what moving data costs, with nobody late and nothing in the way.

`latency_bound`: many small collectives, whose time hardly grows with their size. `bandwidth_bound`:
steps wait for bytes to move, and the links do what they can, or should.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import bus_factor
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.levels import CHANGED, MINOR, MOST, NAMED, ROUND_STEPS, SMALLEST_SHARE
from evenstep.diagnose.measure.expected import (
    GOOD,
    SLOWEST_GBPS,
    USUAL_GBPS,
    Reference,
    Shape,
    reference,
)
from evenstep.diagnose.measure.recurrence import by_growth
from evenstep.diagnose.modes.intervention import found
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import DType, Op
from evenstep.trace.trace import RankInfo


class SlowShape(Protocol):
    """What the transfers of a shape have too much."""

    @property
    def shorter_ns(self) -> Array:
        """By how much each transfer of the run would be shorter; 0 for those of other shapes."""


Slow = TypeVar("Slow", bound=SlowShape)


def slow_shapes(
    case: Case, part: Callable[[Case, Shape], Slow | None]
) -> tuple[list[Slow], Share, Change] | None:
    """The shapes that have such a part, what the run gains without it, and the change to that; None
    where it is not worth telling. What it has cost is claimed."""
    shapes = case.shapes if case.transfers_known else ()
    parts = [one for shape in shapes if (one := part(case, shape)) is not None]
    if not parts:
        return None
    change = case.transferred(np.sum([one.shorter_ns for one in parts], axis=0))
    lost = case.saved(change)
    share = case.share(lost)
    if share.value < SMALLEST_SHARE:
        return None
    case.claims.slow_ns += lost
    return parts, share, change


# -- latency ---------------------------------------------------------------------------------------

MANY = 12  # collectives of a shape in a step: fewer have no bucket to be merged into
BUCKET_BYTES = 25_000_000  # DDP's default, and large against latency on any fabric


class Small(NamedTuple):
    """Collectives of a shape bound by latency: what each would save when merged."""

    shape: Shape
    rows: Array  # of the transfers (boolean)
    alpha_ns: float
    basis: str
    per_step: float
    merged_per_step: float
    latency_ns: Array  # what of each transfer is latency; zero for others

    @property
    def shorter_ns(self) -> Array:
        """By how much each transfer would be shorter, had each bucket one latency."""
        return self.latency_ns * (1 - self.merged_per_step / self.per_step)


def latency_bound(case: Case) -> list[Finding]:
    """What merging small collectives into buckets would give back."""
    slow = slow_shapes(case, _small)
    return _of_latency(case, *slow) if slow else []


def _small(case: Case, shape: Shape) -> Small | None:
    """What merging a shape's small collectives would save; None where they are not many."""
    unsized = shape.op != Op.BARRIER and not shape.sizes.any()  # size not recorded
    latency = _latency(case, shape) if len(shape.sizes) and not unsized else None
    if latency is None:
        return None
    alpha, basis = latency
    rows = case.transfers.rows
    usual = np.maximum(case.transfers.of_kind("floor_ns"), 1)
    small = shape.rows & (alpha >= MOST * usual)
    steps, groups = len(np.unique(rows.step[small])), len(shape.groups)
    per_step = np.count_nonzero(small) / max(steps, 1) / groups
    if per_step < MANY:
        return None
    together = float(rows.size_bytes[small].sum()) / steps / groups
    merged = max(1.0, float(np.ceil(together / BUCKET_BYTES)))
    latency_ns = np.where(small, rows.transfer_ns * np.minimum(alpha / usual, 1), 0.0)
    return Small(shape, small, alpha, basis, per_step, merged, latency_ns)


def _latency(case: Case, shape: Shape) -> tuple[float, str] | None:
    """Latency of one collective and how it is known: by the curve, a reference, or at least so."""
    if shape.line is not None:
        return shape.line.alpha_ns, "the line through its times by size"
    size = float(shape.sizes[0])
    alike = [one for one in case.shapes if one.lies == shape.lies and size in one.sizes[:1]]
    time = min(float(one.floors_ns[0]) for one in alike)  # what links slow down is no latency
    known = reference(case.trace, shape, case.shapes)
    if known is not None:
        alpha = time - shape.factor * size / known.gBps
        return (alpha, f"its time less that of its bytes by {known.source}") if alpha > 0 else None
    if shape.factor * size / SLOWEST_GBPS > (1 - MOST) * time:  # its bytes may explain it
        return None
    alpha = time - shape.factor * size / USUAL_GBPS
    return alpha, "its time less that of its bytes at 10 Gb/s; 1 Gb/s would not explain it either"


def _of_latency(case: Case, small: list[Small], share: Share, change: Change) -> list[Finding]:
    first = small[0]
    rows = case.transfers.rows.select(first.rows)
    size, moved = float(np.median(rows.size_bytes)), rows.transfer_ns
    latency = float(first.latency_ns.sum() / max(float(moved.sum()), 1))
    groups = [group for part in small for group in part.shape.groups]
    return found(
        case,
        "latency_bound",
        share,
        numbers={
            "per_step": first.per_step,
            "name": first.shape.name,
            "kilobytes": size / 1e3,
            "took": float(np.median(moved)),
            "alpha": first.alpha_ns,
            "basis": first.basis,
            "megabytes": BUCKET_BYTES // 1_000_000,
            "merged": first.merged_per_step,
        },
        where=Where(groups=case.groups_named(groups)),
        projected=partial(by_growth, growth=_hops),
        options={"buckets": share, **_fewer_hops(case, small)},
        evidence=[
            Evidence("collectives_per_step", first.per_step, first.merged_per_step, "1"),
            Evidence("latency_of_one", first.alpha_ns, None, "ns"),
            Evidence("latency_share_of_transfer", latency, 0.5, "1"),
            Evidence("median_size", size, BUCKET_BYTES, "bytes"),
        ],
        change=change,
    )


def _hops(ranks: int, factor: int) -> float:
    """Of a ring: 2(n - 1) alpha."""
    return (ranks * factor - 1) / max(ranks - 1, 1)


def _fewer_hops(case: Case, small: list[Small]) -> dict[str, Share | None]:
    """A tree instead of a ring, where that has far fewer."""
    ranks = small[0].shape.members
    if ranks < 8:
        return {}
    fewer = np.sum([part.latency_ns for part in small], axis=0) * (
        1 - allreduce.depth(ranks) / (ranks - 1)
    )
    return {"tree": case.share(np.minimum(case.gained(fewer), case.grid.step_ns))}


# -- bandwidth -------------------------------------------------------------------------------------

REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.REDUCE)  # gradients, which a round adds up
TCP_GBPS = 6.0  # more than the kernel moves for one connection, in 10^9 bytes/s


class Heavy(NamedTuple):
    """A shape whose time is in its bytes."""

    shape: Shape
    bytes_ns: Array  # of each transfer (zero for others): the part that its bytes take
    known: Reference | None

    @property
    def missing_ns(self) -> Array:
        """What of that would go if the links gave what is expected of them."""
        if self.known is None or not _less(self.shape, self.known):
            return np.zeros(len(self.bytes_ns))
        return np.asarray(self.bytes_ns * (1 - self.shape.busbw_gBps / self.known.gBps))


def bandwidth_bound(case: Case) -> list[Finding]:
    """The exposed transfer that the bytes take; of links that give less than they should, what is
    missing. What a remedy gives back, hidden, halved or sent less often, may be less.

    Some is never hidden: that of the last bucket. Where contention, incast, or the order of ranks
    has been found, what is left is what the data costs on such a fabric: it stands in the shares.
    So it does where links give what they should and late ranks have been found, a fault.
    """
    if not case.transfers_known or case.share(case.claims.slow_ns).value >= NAMED:
        return []
    heavy = [part for shape in case.shapes if (part := _heavy(case, shape)) is not None]
    if not heavy:
        return []
    remedies = _remedies(case, heavy)
    saved = dict(zip(remedies, case.all_saved(list(remedies.values())), strict=True))
    short = "tune" in remedies
    whole = "tune" if short else "overlap"
    lost = saved[whole]
    least = SMALLEST_SHARE if short else 1 - 1 / CHANGED
    late = not short and case.share(case.loss(case.claims.taken)).value >= NAMED
    if late or case.share(lost).value < least:
        return []
    case.claims.slow_ns += lost
    saved["overlap"] = np.minimum(saved["overlap"], _room_ns(case))
    hides = saved["overlap"].sum() > MOST * lost.sum()
    name = "short" if short else "exposed" if hides else "busy"
    gains = {remedy: case.share(gained) for remedy, gained in saved.items()}
    return _of_bandwidth(case, heavy, case.share(lost), gains, name, remedies[whole])


def _remedies(case: Case, heavy: list[Heavy]) -> dict[str, Change]:
    """The run as each remedy would have it; of one that hides transfer, as if all could be."""
    rows = case.transfers.rows
    whole = np.sum([part.bytes_ns for part in heavy], axis=0)
    missing = np.sum([part.missing_ns for part in heavy], axis=0)
    between = rows.step % ROUND_STEPS != ROUND_STEPS // 2
    shorter = {
        **({"tune": missing} if missing.any() else {}),
        "overlap": whole,
        **({"halve": whole / 2} if _wide(case) else {}),
        "rarely": whole * (between & np.isin(rows.op, REDUCTIONS)),
    }
    return {name: case.transferred(shorter_ns) for name, shorter_ns in shorter.items()}


def _room_ns(case: Case) -> Array:
    """Work of each step beside which nothing travels yet: no overlap hides more."""
    return np.asarray(np.median(np.maximum(case.grid.work_ns - case.grid.hidden_ns, 0), axis=1))


def _heavy(case: Case, shape: Shape) -> Heavy | None:
    rows = case.transfers.rows
    if not len(shape.sizes) or not rows.size_bytes[shape.rows].any():
        return None
    known = reference(case.trace, shape, case.shapes)
    quiet = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    whole = float(rows.transfer_ns[shape.rows].sum())
    if _slower_than_alike(case, shape):  # of as many hops: what it takes beyond is no latency
        part = sure = quiet
    elif shape.line is not None:
        part = np.minimum(rows.size_bytes / shape.line.gBps, rows.transfer_ns)
        sure = part
    else:
        part = np.maximum(quiet - shape.usual_latency_ns, 0)
        sure = np.maximum(quiet - shape.longest_latency_ns, 0)
        # what would be faster than TCP has not TCP's latency
        fast = shape.factor * rows.size_bytes > TCP_GBPS * sure
        sure = np.where(fast, part, sure)
        if known is not None:  # at that bandwidth, at least, they are bytes
            sure = np.maximum(sure, shape.factor * rows.size_bytes / known.gBps)
    if float(np.minimum(sure, rows.transfer_ns)[shape.rows].sum()) < MOST * whole:
        return None
    return Heavy(shape, np.where(shape.rows, part, 0.0), known)


def _slower_than_alike(case: Case, shape: Shape) -> bool:
    """Whether groups that lie alike are so much faster that its links give less than they could."""
    alike = [one for one in case.shapes if one is not shape and one.lies == shape.lies]
    return any(shape.busbw_gBps < GOOD * one.busbw_gBps for one in alike)


def _of_bandwidth(
    case: Case,
    heavy: list[Heavy],
    lost: Share,
    gains: dict[str, Share],
    name: str,
    change: Change,
) -> list[Finding]:
    first = max(heavy, key=lambda part: (part.missing_ns.any(), float(part.bytes_ns.sum())))
    shape, known = first.shape, first.known
    whole = np.sum([part.bytes_ns for part in heavy], axis=0)
    exposed, moved = case.share(case.gained(whole)), _bytes_per_step(case, shape)
    return found(
        case,
        f"bandwidth_bound.{name}",
        lost,
        numbers={
            "exposed": exposed.value,
            "megabytes": moved / 1e6,
            "name": shape.name,
            "busbw": shape.busbw_gBps,
            "expected": f" of {known.gBps:.3g} GB/s expected ({known.source})" if known else "",
            "round": ROUND_STEPS,
        },
        where=Where(nodes=_nodes(case, heavy), groups=_groups(case, heavy)),
        projected=partial(by_growth, growth=partial(_grown, shape)),
        options=gains,
        evidence=[
            Evidence("bus_bandwidth", shape.busbw_gBps, known and known.gBps, "GB/s"),
            Evidence("exposed_transfer_of_bytes", exposed.value, 0.0, "share"),
            Evidence("bytes_per_step", moved, None, "bytes"),
        ],
        change=change,
    )


def _wide(case: Case) -> bool:
    """Whether gradients travel in four-byte floats."""
    rows = case.transfers.rows
    wide = float(rows.size_bytes[rows.dtype == int(DType.FLOAT32)].sum())
    return wide >= MOST * float(rows.size_bytes.sum())


def _groups(case: Case, heavy: list[Heavy]) -> list[str]:
    """Groups that give less than they should, or move most of it; none where these are all."""
    heavy = [part for part in heavy if part.missing_ns.any()] or heavy
    whole = sum(float(part.bytes_ns.sum()) for part in heavy)
    named = [part for part in heavy if float(part.bytes_ns.sum()) >= MINOR * whole]
    return case.groups_named(group for part in named for group in part.shape.groups)


def _nodes(case: Case, heavy: list[Heavy]) -> list[str]:
    """Nodes of groups that are slower than others alike, where these are on other nodes."""
    short = [part.shape for part in heavy if part.missing_ns.any()]
    slow = {group for shape in short for group in shape.groups}
    alike = [shape for shape in case.shapes if shape.lies in {one.lies for one in short}]
    others = {group for shape in alike for group in shape.groups} - slow
    on = [
        {info.node for group in groups for info in _members(case, group)}
        for groups in (slow, others)
    ]
    return sorted(filter(None, on[0] - on[1])) if others else []


def _members(case: Case, group: int) -> list[RankInfo]:
    """What is known of a group's ranks."""
    ranks = case.trace.ranks
    return [ranks[rank] for rank in case.trace.groups[group].ranks if rank in ranks]


def _bytes_per_step(case: Case, shape: Shape) -> float:
    rows = case.transfers.rows
    moved = float(rows.size_bytes[shape.rows].sum())
    return moved / len(np.unique(rows.step[shape.rows])) / len(shape.groups)


def _grown(shape: Shape, ranks: int, factor: int) -> float:
    """What a ring sends over a link grows like (n - 1) / n."""
    del ranks  # of the job
    ring = partial(bus_factor, "all_reduce")
    return ring(shape.members * factor) / ring(shape.members)


def _less(shape: Shape, known: Reference) -> bool:
    """Whether the links give less than expected, and not because a ring crosses them repeatedly."""
    return known.firm and shape.busbw_gBps * max(shape.leaving, 1) < GOOD * known.gBps
