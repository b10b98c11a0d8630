"""Questions about transfers: an operation at its floor, other buckets, another algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import allreduce
from evenstep.allreduce import Cost, Link
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.expected import TransferLine, line_through
from evenstep.diagnose.what_if_spec import Spec
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op

Array = npt.NDArray[Any]

REDUCTIONS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
FEW_SIZES = (
    "the collectives have too few different sizes: latency and bandwidth can be told apart from "
    "sizes that differ by a factor of 4 or more"
)


def operation_change(case: Case, spec: Spec) -> Change:
    """Transfers of one operation at the low end of their kind's, or multiplied."""
    rows = case.transfers.rows
    mine = rows.op == int(Op[spec.target.upper()])
    new = rows.transfer_ns * spec.factor
    if spec.change == "floor":
        new = np.minimum(rows.transfer_ns, case.transfers.of_kind("floor_ns"))
    return case.transferred(np.where(mine, rows.transfer_ns - new, 0.0))


def operation_refusal(case: Case, spec: Spec) -> str | None:
    rows = case.transfers.rows
    if (rows.op == int(Op[spec.target.upper()])).any():
        return None
    there = ", ".join(Op(op).name.lower() for op in np.unique(rows.op)) or "none"
    return f"no transfer of {spec.target} could be measured; there are {there}"


def algorithm_change(case: Case, spec: Spec) -> Change:
    """All-reduces by another algorithm, of the latency and bandwidth a ring would have here."""
    rows = case.transfers.rows
    line = _line(case, np.isin(rows.op, [int(Op.ALL_REDUCE)]))
    assert line is not None
    shorter = np.zeros(len(rows))
    for members in np.unique(rows.members[rows.op == int(Op.ALL_REDUCE)]).tolist():
        mine = (rows.op == int(Op.ALL_REDUCE)) & (rows.members == members)
        size = rows.size_bytes[mine].astype(float)
        alpha = line.alpha_ns / (2 * (members - 1))
        gBps = line.gBps * allreduce.bus_factor("all_reduce", members)  # noqa: N806
        cost = _ALGORITHMS[spec.change](case, members, Link(gBps, alpha))
        ratio = cost.grown(size) / line.time_ns(size)
        shorter[mine] = rows.transfer_ns[mine] * (1 - ratio)
    return case.transferred(shorter)


def _hierarchical(case: Case, members: int, link: Link) -> Cost:
    nodes = min(len(case.trace.nodes), members)
    inner = link._replace(latency_ns=0.0)
    return allreduce.hierarchical(1.0, nodes, members // nodes, inner=inner, outer=link)


#: Cost of an all-reduce of one byte.
_ALGORITHMS: dict[str, Callable[[Case, int, Link], Cost]] = {
    "ring": lambda _, members, link: allreduce.ring(1.0, members, link),
    "tree": lambda _, members, link: allreduce.double_tree(1.0, members, link),
    "hierarchical": _hierarchical,
}


def algorithm_refusal(case: Case, spec: Spec) -> str | None:
    rows = case.transfers.rows
    mine = rows.op == int(Op.ALL_REDUCE)
    if not mine.any():
        return "no all-reduce was recorded"
    if _line(case, mine) is None:
        return FEW_SIZES
    counts = [sum(info.node == n for info in case.trace.ranks.values()) for n in case.trace.nodes]
    if spec.change == "hierarchical" and (len(counts) < 2 or len(set(counts)) > 1):
        return "a hierarchy needs two or more nodes with the same number of ranks each"
    return None


def bucket_change(case: Case, spec: Spec) -> Change:
    """Gradients in buckets of this size: as many bytes, with another number of latencies."""
    rows = case.transfers.rows
    mine = _reductions(rows)
    line = _line(case, mine)
    assert line is not None
    size, step = rows.size_bytes[mine], rows.step[mine] * (int(rows.group.max()) + 2)
    step = np.unique(step + rows.group[mine], return_inverse=True)[1].reshape(-1)
    total = np.bincount(step, weights=size)
    now = np.bincount(step, weights=line.time_ns(size))
    buckets = np.ceil(total / spec.size_bytes)
    then = buckets * line.alpha_ns + total / line.gBps
    shorter = np.zeros(len(rows))
    shorter[mine] = rows.transfer_ns[mine] * (1 - then / now)[step]
    return case.transferred(shorter)


def bucket_refusal(case: Case, _: Spec) -> str | None:
    mine = _reductions(case.transfers.rows)
    if not mine.any():
        return "no reduction of gradients was recorded"
    return None if _line(case, mine) is not None else FEW_SIZES


def _reductions(rows: Columns) -> Array:
    """Reductions of gradients: of the groups that reduce most bytes."""
    mine = np.isin(rows.op, list(map(int, REDUCTIONS)))
    if not mine.any():
        return np.asarray(mine)
    group = rows.group - rows.group.min()
    summed = np.bincount(group[mine], weights=rows.size_bytes[mine], minlength=group.max() + 1)
    return np.asarray(mine & (summed[group] >= summed.max() / 2))


def _line(case: Case, mine: Array) -> TransferLine | None:
    """Line through the usual times of the kinds these transfers are of."""
    kinds = case.transfers.kinds.select(np.unique(case.transfers.rows.kind[mine]))
    return line_through(kinds.size_bytes, kinds.quiet_ns, kinds["count"])
