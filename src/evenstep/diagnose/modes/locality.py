"""`locality`: a rank whose GPU, adapter, memory and cores lie worse than its peers', and its cost.

Placement alone is no finding: what counts is that the ranks so placed are late, or that the groups
they are in move data slower than groups of the same shape without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Array, Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.levels import FEWEST, SMALLEST_SHARE
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.places import LEVELS, Layout, layouts, usual
from evenstep.diagnose.measure.recurrence import when
from evenstep.diagnose.sentences import found, say
from evenstep.statistics.interval import Share


class Odd(NamedTuple):
    """Ranks placed worse than their peers, and what shows that it costs something."""

    ranks: list[int]  # the costliest first
    defects: dict[int, list[str]]
    cells: Array  # (steps, ranks): they are late
    slow: list[int]  # groups that they slow down
    moving_ns: Array  # what that costs, per step
    change: Change  # without either


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
    ranks += [rank for rank in sorted(worse) if rank in members and rank not in ranks]
    parts = [case.relieved(cells), *([case.transferred(excess)] if slow else [])]
    named = {rank: worse[rank] for rank in ranks}
    odd = Odd(ranks, named, cells, slow, moving, case.together(parts))
    return [_finding(case, odd, share)]


def _slow_groups(case: Case, worse: dict[int, list[str]]) -> tuple[list[int], Array]:
    """Groups with such a rank that are slower than their like without one; and by how much."""
    if not case.transfers_known:
        return [], np.zeros(0)
    measured = case.transfers
    excess = np.zeros(len(measured.rows))
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


# -- the finding -----------------------------------------------------------------------------------


def _finding(case: Case, odd: Odd, share: Share) -> Finding:
    first, where = odd.ranks[0], case.where(odd.ranks)
    affected = odd.cells.any(axis=1) | (odd.moving_ns > 0)
    places = layouts(case.trace)
    told = " ".join(defect for defects in odd.defects.values() for defect in defects)
    return found(
        "locality",
        share,
        numbers={
            "seen": "; ".join(_seen(case, odd)),
            "who": case.named(odd.ranks),
            "defects": "; ".join(odd.defects[first]),
            "nodes": ", ".join(where.nodes) or "the node",
        },
        where=where,
        when=when(affected[:, None], case.grid.steps),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={
            **({"cores": share} if "cores" in told else {}),
            **({"adapter": share} if "adapter" in told else {}),
            "replace": share,
        },
        evidence=[
            *_layout_evidence(first, places[first], usual(places)[first]),
            *(case.wait_evidence(odd.cells) if odd.cells.any() else []),
        ],
        change=odd.change,
    )


def _seen(case: Case, odd: Odd) -> list[str]:
    seen = []
    if late := case.culprits(odd.cells):
        seen.append(say("locality.late", those=late, more=case.typical_excess_ns(odd.cells)))
    if odd.slow:
        names = ", ".join([case.trace.groups[group].name for group in odd.slow][:4])
        seen.append(say("locality.slow", groups=names))
    return seen


def _layout_evidence(rank: int, place: Layout, peer: Layout) -> list[Evidence]:
    """The rank's place beside its peers'; a level is its place from PIX (0) to SYS (4)."""
    items = []
    if place.nearest in LEVELS and peer.nearest in LEVELS:
        levels = LEVELS.index(place.nearest or ""), LEVELS.index(peer.nearest or "")
        items.append(Evidence(f"gpu_to_adapter_of_rank_{rank}", *levels, "level"))
    if place.sharing and peer.sharing:
        items.append(
            Evidence(f"gpus_per_adapter_of_rank_{rank}", place.sharing, peer.sharing, "GPUs")
        )
    if place.far_cores is not None:
        items.append(Evidence(f"far_cores_of_rank_{rank}", int(place.far_cores), 0, "1"))
    if place.lanes and peer.lanes:
        items.append(Evidence(f"pcie_lanes_of_rank_{rank}", place.lanes[0], peer.lanes[0], "lanes"))
    return items
