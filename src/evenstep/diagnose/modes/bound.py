"""Modes of the cost of moving data, without late ranks or contention.

`latency_bound`: many small collectives, whose time hardly grows with their size. `bandwidth_bound`:
steps wait for bytes to move, at the bandwidth of the links or below it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import bus_factor
from evenstep.diagnose import levels
from evenstep.diagnose.finding import Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.transfers import (
    GOOD,
    LONGEST_HOP_NS,
    SLOWEST_GBPS,
    USUAL_GBPS,
    USUAL_HOP_NS,
    Reference,
    Shape,
    message_kinds,
    reference,
)
from evenstep.diagnose.modes.intervention import Gain, by_growth, constant, finding_of, gain_of
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import Share
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import DType, Op


def of_slow_shapes(
    case: Case,
    judge: Callable[[Case, Shape], Any],
    finding: Callable[[Case, list[Any], Gain], list[Finding]],
) -> list[Finding]:
    """The finding of all shapes judged slow, where they cost enough; the cost is claimed. `judge`
    gives what is slow, with `shorter_ns`, by how much each transfer of the run could be shorter, 0
    for those of other shapes; None where nothing is."""
    shapes = case.shapes if case.transfers_known else ()
    slow = [one for shape in shapes if (one := judge(case, shape)) is not None]
    if not slow:
        return []
    gain = gain_of(case, case.transferred(np.sum([one.shorter_ns for one in slow], axis=0)))
    case.claims.slow_ns += gain.saved_ns
    return finding(case, slow, gain)


# -- latency ---------------------------------------------------------------------------------------

MANY = 12  # collectives of a shape in a step: fewer have no bucket to be merged into
BUCKET_BYTES = 25_000_000  # DDP's default, and large against latency on any fabric


class SmallCollectives(NamedTuple):
    """Collectives of a shape that are bound by latency: they could be merged into buckets, or each
    is needed for the work that follows it (`in_turn`), as in tensor parallelism."""

    shape: Shape
    rows: Array  # mask of the transfers
    alpha_ns: float
    basis: str
    per_step: float
    merged_per_step: float
    latency_ns: Array  # of each transfer; 0 for others
    in_turn: bool

    @property
    def shorter_ns(self) -> Array:
        """By how much each transfer would be shorter with one latency for each bucket, or, where
        none can be merged, without latency."""
        rest = 0.0 if self.in_turn else self.merged_per_step / self.per_step
        return self.latency_ns * (1 - rest)


def latency_bound(case: Case) -> list[Finding]:
    """What merging small collectives into buckets would give back, or links without latency."""
    return of_slow_shapes(case, _small, _of_latency)


def _small(case: Case, shape: Shape) -> SmallCollectives | None:
    """The small collectives of a shape; None where they are not many."""
    unsized = shape.op != Op.BARRIER and not shape.sizes.any()  # size not recorded
    latency = _latency(case, shape) if len(shape.sizes) and not unsized else None
    if latency is None:
        return None
    alpha, basis = latency
    rows = case.transfers.rows
    usual = np.maximum(case.transfers.of_kind("floor_ns"), 1)
    small = shape.rows & (alpha >= levels.MOST * usual)
    steps, groups = len(np.unique(rows.step[small])), len(shape.groups)
    per_step = np.count_nonzero(small) / max(steps, 1) / groups
    if per_step < MANY:
        return None
    together = float(rows.size_bytes[small].sum()) / steps / groups
    merged = max(1.0, float(np.ceil(together / BUCKET_BYTES)))
    quiet, noise = (case.transfers.of_kind(name) for name in ("quiet_ns", "noise_ns"))
    slowed = rows.transfer_ns > quiet + levels.SIGMAS * noise  # what is beyond is no latency
    took = np.where(slowed, quiet, rows.transfer_ns)
    latency_ns = np.where(small, took * np.minimum(alpha / usual, 1), 0.0)
    in_turn = _in_turn(case, small, per_step)
    return SmallCollectives(shape, small, alpha, basis, per_step, merged, latency_ns, in_turn)


def _in_turn(case: Case, small: Array, per_step: float) -> bool:
    """Whether these transfers are spread over a step from its beginning: work waits for each.
    Gradients, which could be merged, come after a forward without any."""
    graph, rows = case.costs.graph, case.costs.graph.rows
    mine = np.zeros(len(graph.operations) + 1, bool)
    mine[case.transfers.rows.operation[small]] = True
    cell = rows["index"] * len(graph.ranks) + rows.lane
    order = np.argsort(cell, kind="stable")
    cell, entered = cell[order], np.cumsum(mine[rows.enter[order]])
    opens = np.diff(cell, prepend=-1) != 0
    since = entered - mine[rows.enter[order]]  # before each row
    begun = since > since[opens][np.cumsum(opens) - 1]
    own = graph.own_ns[order]
    before, whole = np.bincount(cell, own * ~begun), np.bincount(cell, own)
    return bool(np.median(before[whole > 0] / whole[whole > 0]) < levels.SEVERAL / per_step)


def _latency(case: Case, shape: Shape) -> tuple[float, str] | None:
    """Latency of one collective in ns and its basis: the line through times by size, a reference,
    or the slowest fabrics in use; None where bytes may explain the time."""
    if shape.line is not None:
        return shape.line.alpha_ns, "the line through its times by size"
    size, time = float(shape.sizes[0]), float(shape.floors_ns[0])
    known = reference(case.trace, shape, case.shapes)
    if known is not None:
        bytes_ns = shape.factor * size / known.gBps
        alpha = time - bytes_ns
        # which is unusual, latency or bandwidth, one size leaves open: what usually takes longer
        if alpha <= 0 or bytes_ns > shape.usual_latency_ns:
            return None
        return alpha, f"its time less that of its bytes by {known.source}"
    slowest = SLOWEST_GBPS if shape.nodes > 1 else USUAL_GBPS  # no host is slower within
    if shape.factor * size / slowest > (1 - levels.MOST) * time:
        return None
    alpha = time - shape.factor * size / USUAL_GBPS
    slower = "; 1 Gb/s would not explain it either" * (shape.nodes > 1)
    return alpha, f"its time less that of its bytes at 10 Gb/s{slower}"


def _of_latency(case: Case, small: list[SmallCollectives], gain: Gain) -> list[Finding]:
    first = small[0]
    rows = case.transfers.rows.select(first.rows)
    size, moved = float(np.median(rows.size_bytes)), rows.transfer_ns
    groups = [group for part in small for group in part.shape.groups]
    return finding_of(
        case, f"latency_bound{'.in_turn' * first.in_turn}", gain,
        numbers={
            "per_step": first.per_step, "name": first.shape.name, "kilobytes": size / 1e3,
            "took": float(np.median(moved)), "alpha": first.alpha_ns, "basis": first.basis,
            "megabytes": BUCKET_BYTES // 1_000_000, "merged": first.merged_per_step,
            "size": size, "bucket": BUCKET_BYTES,
        },
        where=Where(groups=case.groups_named(groups)),
        # a ring's latency, 2(n - 1) alpha
        projected=partial(by_growth, growth=lambda n, times: (n * times - 1) / max(n - 1, 1)),
        options={"larger" if first.in_turn else "buckets": gain.share, **_fewer_hops(case, small)},
    )  # fmt: skip


def _fewer_hops(case: Case, small: list[SmallCollectives]) -> dict[str, Share | None]:
    """The gain of a tree instead of a ring, where it has far fewer hops."""
    ranks = small[0].shape.members
    if ranks < 8:
        return {}
    saved = 1 - allreduce.depth(ranks) / (ranks - 1)
    fewer = saved * np.sum([part.latency_ns for part in small], axis=0)
    return {"tree": case.share(np.minimum(case.saved(case.transferred(fewer)), case.grid.step_ns))}


# -- bandwidth -------------------------------------------------------------------------------------

REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.REDUCE)  # of gradients: one for each round


class HeavyTransfers(NamedTuple):
    """A shape whose transfers mostly take the time of their bytes."""

    shape: Shape
    bytes_ns: Array  # time of each transfer's bytes; 0 for others
    missing_ns: Array  # of that, beyond the bandwidth to expect of the links, where it is firm
    known: Reference | None


def bandwidth_bound(case: Case) -> list[Finding]:
    """Collectives, and messages, whose bytes keep ranks from working; none where slow transfers
    were found to cost much."""
    if case.share(case.claims.slow_ns).value >= levels.NAMED:
        return []
    return [*_of_collectives(case), *_of_messages(case)]


def _of_collectives(case: Case) -> list[Finding]:
    """The exposed transfer that the bytes take; or what links below their bandwidth add to it.

    No finding where links reach their bandwidth and late ranks were found, or where compute that
    hides transfers was not recorded: what is left is the cost of the data on such a fabric, and
    stands in the summary's shares. The transfer of the last bucket is never hidden.
    """
    if not case.transfers_known:
        return []
    heavy = [part for shape in case.shapes if (part := _heavy(case, shape)) is not None]
    if not heavy:
        return []
    rows, whole = case.transfers.rows, np.sum([part.bytes_ns for part in heavy], axis=0)
    missing = np.sum([part.missing_ns for part in heavy], axis=0)
    between = rows.step % levels.ROUND_STEPS != levels.ROUND_STEPS // 2
    size = rows.size_bytes * (whole > 0)
    wide = size[rows.dtype == int(DType.FLOAT32)].sum() >= levels.MOST * size.sum()
    shorter = {
        **({"tune": missing} if missing.any() else {}),
        "overlap": whole,
        **({"halve": whole / 2} if wide else {}),
        "rarely": whole * (between & np.isin(rows.op, REDUCTIONS)),
    }
    changes = [case.transferred(each) for each in shorter.values()]  # the intervention first
    saved = dict(zip(shorter, case.all_saved(changes), strict=True))
    lost, exposed, short = next(iter(saved.values())), saved["overlap"], "tune" in saved
    gain = Gain(case.share(lost), changes[0])
    least = levels.SMALLEST_SHARE if short else 1 - 1 / levels.CHANGED
    if gain.share.value < least or (not short and _told_else(case)):
        return []
    # no overlap hides more than the work beside which nothing is transferred yet
    room = np.median(np.maximum(case.grid.work_ns - case.grid.hidden_ns, 0), axis=1)
    saved["overlap"] = np.minimum(exposed, room)
    rarely = saved.pop("rarely")  # costs convergence: behind all others
    saved |= {"rarely": rarely} if short else {"faster": exposed, "rarely": rarely}
    hides = saved["overlap"].sum() > levels.MOST * lost.sum()
    name = "short" if short else "exposed" if hides else "busy"
    gains = {remedy: case.share(gained) for remedy, gained in saved.items()}
    return _of_bandwidth(case, heavy, f"bandwidth_bound.{name}", gain, gains, case.share(exposed))


def _told_else(case: Case) -> bool:
    told = case.share(case.loss(case.claims.claimed)).value >= levels.NAMED
    return told or not case.trace.hiding_known


def _of_messages(case: Case) -> list[Finding]:
    """What messages take beyond the time of their bytes in collectives whose members lie alike, on
    one node or one on each, where those move them more than twice as fast; or, where that is little
    or unknown, what they take beyond a minor part of the step: micro-batches could hide most."""
    comparable = case.waits_known and case.trace.elapsed_known and not case.stuck
    if not comparable:
        return []
    rows, best = case.transfers.rows, 0.0
    took, size = rows.transfer_ns, rows.size_bytes
    bytes_ns, missing = np.zeros((2, len(took)))
    for (each, within), channels in message_kinds(case.trace, rows).items():
        moved = np.concatenate(channels)
        usual = float(np.quantile(took[moved], levels.UNDISTURBED))
        if usual < LONGEST_HOP_NS / (1 - levels.MOST):  # which may be latency
            continue
        bytes_ns[moved] = np.maximum(took[moved] - USUAL_HOP_NS, 0)
        alike = [one.busbw_gBps for one in case.shapes if one.nodes == (within or one.members)]
        if each / usual < levels.MOST * max(alike, default=0.0):
            best = max(alike)
            missing[moved] = np.maximum(bytes_ns[moved] - each / best, 0)
    less, name, gain = missing, "slow_messages", gain_of(case, case.transferred(missing))
    if gain.share.value < levels.NAMED:  # then all of them
        less, name, gain = bytes_ns, "messages", gain_of(case, case.transferred(bytes_ns))
        if gain.share.value < levels.MINOR or _told_else(case):
            return []
    hit = np.flatnonzero(less)
    reached = float(size[hit].sum() / bytes_ns[hit].sum())
    amount = float(size[hit].sum()) / len(case.costs.graph.steps)
    ends = np.unique([rows.source[hit], rows.target[hit]], axis=1).T.tolist()
    pairs = {tuple(sorted(case.trace.ranks[rank].node for rank in pair)) for pair in ends}
    links = [f"{one}-{other}" for one, other in pairs if one != other]
    return finding_of(
        case, f"bandwidth_bound.{name}", gain,
        numbers={
            "exposed": gain.share.value, "megabytes": amount / 1e6, "reached": reached,
            "expected": best, "bytes": amount,
        },
        where=Where(links=links if len(pairs) == 1 else []),
        options=["links", "smaller"], projected=constant,
    )  # fmt: skip


def _heavy(case: Case, shape: Shape) -> HeavyTransfers | None:
    rows = case.transfers.rows
    if not len(shape.sizes) or not rows.size_bytes[shape.rows].any():
        return None
    known = reference(case.trace, shape, case.shapes)
    quiet = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    whole = float(rows.transfer_ns[shape.rows].sum())
    moved = shape.factor * rows.size_bytes
    usual = moved / known.gBps if known is not None else np.zeros(len(rows))
    if shape.line is not None:
        part = np.minimum(rows.size_bytes / shape.line.gBps, rows.transfer_ns)
        sure = part
    else:
        part = np.maximum(quiet - shape.usual_latency_ns, 0)
        sure = np.maximum(np.maximum(quiet - shape.longest_latency_ns, 0), usual)
    if float(np.minimum(sure, rows.transfer_ns)[shape.rows].sum()) < levels.MOST * whole:
        return None
    part = np.where(shape.rows, part, 0.0)
    # rings that cross the links repeatedly may still fill them
    reached = max(shape.leaving, 1) * moved[shape.rows].sum() / max(part.sum(), 1.0)
    short = known is not None and known.firm and reached < GOOD * known.gBps
    return HeavyTransfers(shape, part, np.maximum(part - usual, 0) * short, known)


def _of_bandwidth(
    case: Case,
    heavy: list[HeavyTransfers],
    name: str,
    gain: Gain,
    gains: dict[str, Share],
    exposed: Share,
) -> list[Finding]:
    first = max(heavy, key=lambda part: (part.missing_ns.any(), float(part.bytes_ns.sum())))
    shape, known, rows = first.shape, first.known, case.transfers.rows.select(first.shape.rows)
    moved = float(rows.size_bytes.sum()) / len(np.unique(rows.step)) / len(shape.groups)
    kind, groups = "tokens" if shape.op == Op.ALL_TO_ALL else "gradients", _groups(case, heavy)
    untold = shape.nodes > 1 and not (known and known.firm)
    of = ", no less than the" if known and known.gBps < shape.busbw_gBps else " of"

    def ring(times: int) -> float:  # of the bytes over a link, with that many times the members
        return bus_factor("all_reduce", shape.members * times)

    return finding_of(
        case, name, gain,
        numbers={
            "exposed": exposed.value, "megabytes": moved / 1e6, "name": shape.name,
            "busbw": shape.busbw_gBps, "reference": known and known.gBps, "bytes": moved,
            "expected": f"{of} {known.gBps:.3g} GB/s expected ({known.source})" if known else "",
            "among": f", in {groups[0]}" if len(groups) == 1 else "",
            "untold": say("bandwidth_bound.untold") if untold else "",
            "round": levels.ROUND_STEPS, "how": say(f"bandwidth_bound.{kind}_hide"),
            "what": say(f"bandwidth_bound.{kind}_narrow"),
        },
        where=Where(groups=groups),
        projected=partial(by_growth, growth=lambda _, times: ring(times) / ring(1)), options=gains,
    )  # fmt: skip


def _groups(case: Case, heavy: list[HeavyTransfers]) -> list[str]:
    """Groups below their bandwidth, or those that move most of the bytes; none where it is all."""
    heavy = [part for part in heavy if part.missing_ns.any()] or heavy
    whole = sum(float(part.bytes_ns.sum()) for part in heavy)
    named = [part for part in heavy if float(part.bytes_ns.sum()) >= levels.MINOR * whole]
    return case.groups_named(group for part in named for group in part.shape.groups)
