"""`locality`: a rank whose GPU, adapter, memory and cores lie worse than its peers', and its cost.

Placement alone is no finding: what counts is that the ranks so placed are late, or that the groups
they are in move data slower than groups of the same shape without them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import FEWEST, SMALLEST_SHARE
from evenstep.diagnose.measure.places import LEVELS, Layout, layouts, usual
from evenstep.diagnose.measure.recurrence import constant, when
from evenstep.diagnose.modes.intervention import found
from evenstep.diagnose.sentences import say


def find(case: Case) -> list[Finding]:
    """Ranks placed worse than their peers that are late, or whose groups are slow."""
    places = layouts(case.trace)
    peers = usual(places)
    worse = {
        rank: defects for rank, place in places.items() if (defects := place.defects(peers[rank]))
    }
    if not worse:
        return []
    columns = np.isin(case.grid.ranks, list(worse)) & case.delays.chronic
    cells = case.claims.free(case.delays.cells(Cause.WORK)) & columns[None, :]
    slow, excess = _slow_groups(case, worse)
    moving = case.gained(excess) if slow else np.zeros(len(case.grid.steps))
    share = case.share(case.loss(cells) + moving)
    if share.low < SMALLEST_SHARE:
        return []
    case.claims.cells(cells)
    case.claims.slow_ns += moving
    ranks = case.culprits(cells)
    members = {rank for group in slow for rank in case.trace.groups[group].ranks}
    late = list(ranks)
    ranks += [rank for rank in sorted(worse) if rank in members and rank not in ranks]
    parts = [case.relieved(cells), *([case.transferred(excess)] if slow else [])]
    where, first = case.where(ranks), ranks[0]
    told = " ".join(defect for rank in ranks for defect in worse[rank])
    names = ", ".join([case.trace.groups[group].name for group in slow][:4])
    seen = {
        say("locality.late", those=late, more=case.typical_excess_ns(cells)): late,
        say("locality.slow", groups=names): slow,
    }
    return found(
        case,
        "locality",
        share,
        numbers={
            "seen": "; ".join(text for text, there in seen.items() if there),
            "who": case.named(ranks),
            "defects": "; ".join(worse[first]),
            "nodes": ", ".join(where.nodes) or "the node",
        },
        where=where,
        at=when((cells.any(axis=1) | (moving > 0))[:, None], case.grid.steps),
        projected=constant,
        options=[*(one for one in ("cores", "adapter") if one in told), "replace"],
        evidence=[
            *_layout_evidence(first, places[first], peers[first]),
            *(case.wait_evidence(cells) if late else []),
        ],
        change=case.together(parts),
    )


def _slow_groups(case: Case, worse: dict[int, list[str]]) -> tuple[list[int], Array]:
    """Groups with such a rank that are slower than their like without one; and by how much."""
    if not case.transfers_known:
        return [], np.zeros(0)
    excess = np.zeros(len(case.transfers.rows))
    slow: set[int] = set()
    alike: dict[tuple[int, ...], list[int]] = {}  # however fast they are
    for shape in case.shapes:
        alike.setdefault(shape.lies, []).extend(shape.groups)
    for (op, *_), groups in alike.items():
        slow |= _of_groups(case, op, groups, worse, excess)
    return sorted(slow), excess


def _of_groups(
    case: Case, op: int, groups: list[int], worse: dict[int, list[str]], excess: Array
) -> set[int]:
    """The slow ones among groups that lie alike; what each transfer has too much is put into
    `excess`."""
    with_one = [g for g in groups if worse.keys() & set(case.trace.groups[g].ranks)]
    without = [group for group in groups if group not in with_one]
    if not with_one or not without:
        return set()
    measured, kinds = case.transfers, case.transfers.kinds
    mine = (kinds.op == op) & (kinds["count"] >= FEWEST)
    slow = set()
    for size in np.unique(kinds.size_bytes[mine & np.isin(kinds.group, with_one)]):
        alike = mine & (kinds.size_bytes == size)
        others = kinds.floor_ns[alike & np.isin(kinds.group, without)]
        for kind in np.flatnonzero(alike & np.isin(kinds.group, with_one)):
            if len(others) and kinds.floor_ns[kind] > np.median(others):
                rows = measured.rows.kind == kind
                more = measured.rows.transfer_ns[rows] - np.median(others)
                excess[rows] = np.minimum(np.maximum(more, 0), measured.rows.transfer_ns[rows])
                slow.add(int(kinds.group[kind]))
    return slow


def _layout_evidence(rank: int, place: Layout, peer: Layout) -> list[Evidence]:
    """The rank's place beside its peers'; a level is its place from PIX (0) to SYS (4)."""
    near = [LEVELS.index(one.nearest) if one.nearest in LEVELS else None for one in (place, peer)]
    lanes = [one.lanes and one.lanes[0] for one in (place, peer)]
    told: dict[str, tuple[Any, ...]] = {
        "gpu_to_adapter": (*near, "level"),
        "gpus_per_adapter": (place.sharing, peer.sharing, "GPUs"),
        "far_cores": (place.far_cores, 0, "1"),
        "pcie_lanes": (*lanes, "lanes"),
    }
    return [
        Evidence(f"{name}_of_rank_{rank}", *values)
        for name, values in told.items()
        if None not in values
    ]
