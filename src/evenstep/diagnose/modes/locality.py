"""`locality`: a rank whose GPU, adapter, memory and cores lie worse than its peers', and its cost.

Placement alone is no finding: these ranks must be late, or their groups must move data slower than
groups of the same shape without such a rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import FEWEST, SMALLEST_SHARE
from evenstep.diagnose.measure.hosts import LEVELS, Layout, layouts, usual
from evenstep.diagnose.measure.recurrence import constant, when
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.diagnose.sentences import say


def find(case: Case) -> list[Finding]:
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
    slow, excess = _slow_groups(case, worse)
    moving = case.gained(excess) if slow else np.zeros(len(case.grid.steps))
    share = case.share(case.loss(cells) + moving)
    if share.low < SMALLEST_SHARE:
        return []
    case.claims.claim(cells)
    case.claims.slow_ns += moving
    ranks = case.culprits(cells)
    members = {rank for group in slow for rank in case.trace.groups[group].ranks}
    late = list(ranks)
    ranks += [rank for rank in sorted(worse) if rank in members and rank not in ranks]
    parts = [case.relieved(cells), *([case.transferred(excess)] if slow else [])]
    where, first = case.where(ranks), ranks[0]
    all_defects = " ".join(defect for rank in ranks for defect in worse[rank])
    names = ", ".join([case.trace.groups[group].name for group in slow][:4])
    seen = [say("locality.late", those=late, more=case.mean_excess_ns(cells))] * bool(late)
    seen += [say("locality.slow", groups=names)] * bool(slow)
    return finding_of(
        case, "locality", Gain(share, case.combined(parts)),
        numbers={
            "seen": "; ".join(seen),
            "who": case.ranks_in_words(ranks),
            "defects": "; ".join(worse[first]),
            "nodes": ", ".join(where.nodes) or "the node",
        },
        where=where, at=when((cells.any(axis=1) | (moving > 0))[:, None], case.grid.steps),
        projected=constant,
        options=[*(one for one in ("cores", "adapter") if one in all_defects), "replace"],
        evidence=[
            *_layout_evidence(first, places[first], peers[first]),
            *(case.wait_evidence(cells) if late else []),
        ],
    )  # fmt: skip


def _slow_groups(case: Case, worse: dict[int, list[str]]) -> tuple[list[int], Array]:
    """Groups with a badly placed rank that are slower than groups of their kind without one; and
    by how much each transfer is slower, in ns."""
    if not case.transfers_known:
        return [], np.zeros(0)
    kinds, rows = case.transfers.kinds, case.transfers.rows
    lies = {(shape.op, group): shape.lies for shape in case.shapes for group in shape.groups}
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for kind in np.flatnonzero(kinds["count"] >= FEWEST).tolist():
        key = lies[int(kinds.op[kind]), int(kinds.group[kind])]
        alike[key, int(kinds.size_bytes[kind])].append(kind)
    ranks = [set(case.trace.groups[int(group)].ranks) for group in kinds.group]
    theirs = np.array([bool(worse.keys() & members) for members in ranks], bool)
    usual = kinds.floor_ns.astype(float)
    for same in alike.values():
        mine, others = (np.array(same)[theirs[same] == one] for one in (True, False))
        if len(others):
            usual[mine] = np.minimum(usual[mine], np.median(kinds.floor_ns[others]))
    slow = usual < kinds.floor_ns
    more = np.clip(rows.transfer_ns - usual[rows.kind], 0.0, rows.transfer_ns)
    return np.unique(kinds.group[slow]).tolist(), np.where(slow[rows.kind], more, 0.0)


def _layout_evidence(rank: int, place: Layout, peer: Layout) -> list[Evidence]:
    """The rank's layout beside its peers'; levels count from PIX (0) to SYS (4)."""
    near = [LEVELS.index(one.nearest) if one.nearest in LEVELS else None for one in (place, peer)]
    lanes = [one.lanes and one.lanes[0] for one in (place, peer)]
    values: dict[str, tuple[Any, ...]] = {
        "gpu_to_adapter": (*near, "level"),
        "gpus_per_adapter": (place.sharing, peer.sharing, "GPUs"),
        "far_cores": (place.far_cores, 0, "1"),
        "pcie_lanes": (*lanes, "lanes"),
    }
    return [
        Evidence(f"{name}_of_rank_{rank}", *each)
        for name, each in values.items()
        if None not in each
    ]
