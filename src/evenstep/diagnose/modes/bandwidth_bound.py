"""`bandwidth_bound`: steps wait for bytes to move, and the links do what they can, or should."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from evenstep.allreduce import bus_factor
from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.levels import MINOR, MOST, NAMED, ROUND_STEPS, SMALLEST_SHARE
from evenstep.diagnose.measure.expected import GOOD, Reference, Shape, reference
from evenstep.diagnose.measure.patterns import throughout
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found, say
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import DType
from evenstep.trace.trace import RankInfo

SMALLEST = 0.25  # of the step: a job that hides the rest of its transfer is not bound by it
HIDES = 0.33  # of a rank's own work, half of a backward: bytes that take less fill no link
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


def find(case: Case) -> list[Finding]:
    """The exposed transfer that the bytes take, where it is a large part of the step.

    Of links that give less than they should, only what is missing is to be recovered. Where
    contention, incast, or the order of ranks has been found, what is left is what the data
    costs on such a fabric: it stands in the shares. So it does where links give what they should
    and late ranks have been found, which are a fault.
    """
    if not case.transfers_known or case.share(case.claims.slow_ns).value >= NAMED:
        return []
    heavy = [part for shape in case.shapes if (part := _heavy(case, shape)) is not None]
    if not heavy:
        return []
    missing = np.sum([part.missing_ns for part in heavy], axis=0)
    short = bool(missing.any())
    wanted = missing if short else np.sum([part.bytes_ns for part in heavy], axis=0)
    lost = case.gained(wanted)
    share = case.share(lost)
    if share.low < (SMALLEST_SHARE if short else SMALLEST):
        return []
    if not short and (_hideable(case, heavy) or _late(case)):
        return []
    case.claims.slow_ns += lost
    return [_finding(case, heavy, share, case.transferred(wanted))]


def _hideable(case: Case, heavy: list[Heavy]) -> bool:
    """Whether a rank's bytes take no longer than what they could travel behind."""
    each = sum(float(part.bytes_ns.sum()) / len(part.shape.groups) for part in heavy)
    steps = np.count_nonzero(case.grid.sampled)
    return bool(each < HIDES * steps * float(np.median(case.grid.work_ns)))


def _late(case: Case) -> bool:
    return case.share(case.loss(case.claims.taken)).value >= NAMED


def _heavy(case: Case, shape: Shape) -> Heavy | None:
    rows = case.transfers.rows
    if not len(shape.sizes) or not rows.size_bytes[shape.rows].any():
        return None
    known = reference(case.trace, shape, case.shapes)
    quiet = np.minimum(rows.transfer_ns, case.transfers.of_kind("quiet_ns"))
    whole = float(rows.transfer_ns[shape.rows].sum())
    if shape.line is not None:
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


# -- the finding -----------------------------------------------------------------------------------


def _finding(case: Case, heavy: list[Heavy], share: Share, change: Change) -> Finding:
    first = max(heavy, key=lambda part: (part.missing_ns.any(), float(part.bytes_ns.sum())))
    shape, known = first.shape, first.known
    short = known is not None and _less(shape, known)
    whole = np.sum([part.bytes_ns for part in heavy], axis=0)
    exposed, moved = _gain(case, whole), _bytes_per_step(case, shape)
    given = round(known.gBps, 4) if known else None
    return found(
        "bandwidth_bound",
        share,
        numbers={
            "exposed": exposed.value,
            "megabytes": moved / 1e6,
            "name": shape.name,
            "busbw": shape.busbw_gBps,
            "expected": f" of {known.gBps:.3g} GB/s expected ({known.source})" if known else "",
            "verdict": say(f"bandwidth_bound.{'short' if short else 'busy'}"),
            "round": ROUND_STEPS,
        },
        where=Where(nodes=_nodes(case, heavy), groups=_groups(case, heavy)),
        when=throughout(case.grid.steps),
        projected=projection.by_growth(share, len(case.grid.ranks), partial(_grown, shape)),
        options={
            "tune": _gain(case, np.sum([part.missing_ns for part in heavy], axis=0)),
            "overlap": None,  # how much compute is left to hide behind, no replay of this run tells
            **({"halve": _gain(case, whole / 2)} if _wide(case) else {}),
            "rarely": _gain(case, whole * (1 - 1 / ROUND_STEPS)),
        },
        evidence=[
            Evidence("bus_bandwidth", round(shape.busbw_gBps, 4), given, "GB/s"),
            Evidence("exposed_transfer_of_bytes", round(exposed.value, 4), 0.0, "share"),
            Evidence("bytes_per_step", round(moved), None, "bytes"),
        ],
        change=change,
    )


def _gain(case: Case, shorter_ns: Array) -> Share:
    return case.share(np.minimum(case.gained(shorter_ns), case.grid.step_ns))


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


def _grown(shape: Shape, factor: int) -> float:
    """What a ring sends over a link grows like (n - 1) / n."""
    ring = partial(bus_factor, "all_reduce")
    return ring(shape.members * factor) / ring(shape.members)


def _less(shape: Shape, known: Reference) -> bool:
    """Whether the links give less than expected, and not because a ring crosses them repeatedly."""
    return known.firm and shape.busbw_gBps * max(shape.leaving, 1) < GOOD * known.gBps
