"""What-if questions, as `rank:3=median` or `bucket=25MB`: what of the step time they give back.

A question is read into a `Spec`; a case answers it with a `Change`, with which the run is replayed,
or with the reason why the trace cannot tell.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Cost, Link
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.graph.structure import TimeLine, means
from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.transfers import TransferLine, line_through
from evenstep.diagnose.modes.runtime_jitter import aligned_pauses
from evenstep.diagnose.sentences import say
from evenstep.documents import Document
from evenstep.errors import UsageError
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.columns import Array, Columns
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.trace import Trace
from evenstep.values import bytes_of

_NUMBERED = ("rank", "stage", "dp")


class Spec(NamedTuple):
    """One change: of what (`subject`, `target` or `numbers`), and to what."""

    text: str
    subject: str
    target: str
    numbers: tuple[int, ...]
    change: str  # "x" with a factor
    factor: float
    size_bytes: int


def parse(text: str) -> Spec:
    """Read one specification; raises `UsageError` with the nearest valid form."""
    if text.strip().startswith("remove:"):
        subject, colon, target = text.strip().removeprefix("remove:").partition(":")
        if subject != "rank" or not colon:
            raise _misunderstood(text, "only ranks can be removed")
        return Spec(text, "remove", target, _numbers(text, subject, target), "removed", 1.0, 0)
    left, equals, right = text.strip().partition("=")
    subject, colon, target = left.partition(":")
    if subject not in _SUBJECTS:
        raise _misunderstood(text, "nothing of this kind can be changed")
    which, changes, _ = _SUBJECTS[subject]
    if not equals:
        raise _misunderstood(text, "what it is to be must follow an equals sign")
    if bool(target) != bool(which) or (colon and not target):
        raise _misunderstood(text, f"{subject}: {'there is only one' if target else 'which one?'}")
    factor = _factor(right) if any(change.startswith("x") for change in changes) else None
    size = 0
    if subject == "bucket" and right.endswith("B"):
        with suppress(ValueError):
            size = bytes_of(right)
    named = right in changes and not right.startswith("x")
    if not named and factor is None and not size:
        raise _misunderstood(text, f"{subject} cannot be {right!r}")
    if subject == "op" and target.upper() not in Op.__members__:
        raise _misunderstood(text, f"there is no operation {target!r}")
    change = right if factor is None else "x"
    numbers = _numbers(text, subject, target)
    return Spec(text, subject, target, numbers, change, 1.0 if factor is None else factor, size)


def _factor(text: str) -> float | None:
    with suppress(ValueError):
        value = float(text.removeprefix("x")) if text.startswith("x") else -1.0
        return value if 0 <= value < 1e6 else None
    return None


def _numbers(text: str, subject: str, target: str) -> tuple[int, ...]:
    if subject not in _NUMBERED:
        return ()
    with suppress(ValueError):
        if re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", target):
            return parse_ranks(target)
    raise _misunderstood(text, f"{target!r} is no number of a {subject}")


def _misunderstood(text: str, why: str) -> UsageError:
    subject = text.partition("=")[0].partition(":")[0]
    same = [form for form in FORMS if form.partition("=")[0].partition(":")[0] == subject]
    near = difflib.get_close_matches(text, same or FORMS, n=1, cutoff=0.0 if same else 0.6)
    forms = f"the nearest form is {near[0]}" if near else f"forms are {', '.join(FORMS)}"
    return UsageError(f"--what-if {text!r} is not understood: {why}; {forms}")


# -- ranks and nodes -------------------------------------------------------------------------------


def _ranks(case: Case, spec: Spec) -> Change | str:
    """The ranks without what they are late for, as findings cost it, at the median work of all
    others where no other has their program; or their own work multiplied."""
    if spec.change == "ideal":
        return _computes(case, spec)
    costs, mine = case.costs, _columns(case, spec)
    own, work = costs.graph.own_ns.copy(), np.median(case.grid.work_ns, axis=0)
    if spec.change == "x":
        own[mine[costs.graph.rows.lane]] *= spec.factor
        return costs.change_to(own)
    if mine.all():
        return "there are no other ranks to take the median of"
    alone = [part for part in costs.parts if mine[part.lanes].all()]
    for part in alone:
        own[part.rows] *= np.median(work[~mine]) / max(np.median(work[mine]), 1.0)
    late = mine & ~np.isin(np.arange(len(mine)), [lane for part in alone for lane in part.lanes])
    late = np.broadcast_to(late, case.grid.shape)
    return costs.combined([case.all_relieved(late), costs.change_to(own)])


def _columns(case: Case, spec: Spec) -> Array:
    """Columns of the grid asked about."""
    if spec.subject == "node":
        wanted = [rank for rank, info in case.trace.ranks.items() if info.node == spec.target]
        return np.isin(case.grid.ranks, wanted)
    if spec.subject in _COLUMN:
        return np.isin(_in_table(case, case.grid.ranks, _COLUMN[spec.subject]), spec.numbers)
    return np.isin(case.grid.ranks, spec.numbers)


def _even(case: Case, _: Spec) -> Change | str:
    """Each row's own work at the mean of all ranks of the same program."""
    if len(case.grid.ranks) < 2:
        return "there is one rank only"
    return case.costs.even(level=lambda here: here.mean(axis=1, keepdims=True))


# -- computes of an operation table ----------------------------------------------------------------

_COLUMN = {"stage": "stage", "dp": "dp_rank"}


def _in_table(case: Case, ranks: Array, column: str) -> Array:
    table = case.trace.operations
    assert table is not None
    known, first = np.unique(table["rank"], return_index=True)
    return np.asarray(table[column][first][np.searchsorted(known, ranks)])


def _computes(case: Case, spec: Spec) -> Change | str:
    """Computes with the usual duration of their type, multiplied, or with those of each stage as
    long on average as those of all stages."""
    graph, records = case.costs.graph, case.grid.records.of_kind(Kind.PHASE)
    mine = (records.op != int(Phase.SYNC)) & np.isin(records.step, graph.steps)
    records = records.select(mine & np.isin(records["rank"], case.grid.ranks))
    length = (records.exit_ns - records.enter_ns).astype(float)
    changed = _lengths(case, spec, records, length)
    if isinstance(changed, str):
        return changed
    own = graph.own_ns.copy()
    np.add.at(own, _rows_of(case, records), changed - length)
    return case.costs.change_to(own)


def _lengths(case: Case, spec: Spec, records: Columns, length_ns: Array) -> Array | str:
    if spec.change == "balanced":
        stage = _in_table(case, records["rank"], "stage")
        place = np.unique(stage * len(Phase) + records.op, return_inverse=True)[1]
        layers = np.isin(records.op, (int(Phase.FORWARD), int(Phase.BACKWARD)))
        mean = means(length_ns, place)
        first = np.unique(place, return_index=True)[1]
        all_stages = means(mean, records.op[first].astype(np.int64))[records.op]
        return np.where(layers, length_ns * all_stages / np.maximum(mean[place], 1.0), length_ns)
    if spec.subject == "optype":
        mine = records.name == case.trace.names.index(spec.target)
        if not mine.any():
            return f"{spec.target} is no compute; of transfers ask op:all_reduce=floor"
    else:
        mine = _columns(case, spec)[np.searchsorted(case.grid.ranks, records["rank"])]
    usual = means(length_ns, records.name.astype(np.int64))[records.name]
    return np.where(mine, usual if spec.change == "ideal" else length_ns * spec.factor, length_ns)


def _rows_of(case: Case, records: Columns) -> Array:
    """The row of the graph whose work each of these records ends in."""
    rows = case.costs.graph.rows
    ended = case.grid.clocks.placed(records)[1]
    lane = np.searchsorted(case.grid.ranks, records["rank"])
    order = np.lexsort([rows.at_ns, rows.lane])
    at = TimeLine(rows.lane[order], rows.at_ns[order]).before(lane, ended - 1)
    return np.asarray(order[np.minimum(at, len(order) - 1)])


# -- pauses and input ------------------------------------------------------------------------------


def _collector(case: Case, spec: Spec) -> Change | str:
    """Without pauses; or aligned, with the longest n-th pause on all ranks at the same time."""
    if not len(case.trace.of_kind(Kind.PAUSE)):
        return "no pause of a garbage collector was recorded"
    if spec.change == "aligned":
        return aligned_pauses(case)
    return case.without(case.grid.pause_ns, Cause.COLLECTOR)


def _input(case: Case, _: Spec) -> Change | str:
    loading = case.grid.phase_ns[Phase.INPUT]
    return case.without(loading, Cause.INPUT) if loading.any() else "no input phase was recorded"


# -- transfers -------------------------------------------------------------------------------------


FEW_SIZES = (
    "the collectives have too few different sizes: latency and bandwidth can be told apart from "
    "sizes that differ by a factor of 4 or more"
)


def _operation(case: Case, spec: Spec) -> Change | str:
    """Transfers of one operation at the floor of their kind, or multiplied."""
    rows = case.transfers.rows
    mine = rows.op == int(Op[spec.target.upper()])
    if not mine.any():
        there = ", ".join(Op(op).name.lower() for op in np.unique(rows.op)) or "none"
        return f"no transfer of {spec.target} could be measured; there are {there}"
    new = rows.transfer_ns * spec.factor
    if spec.change == "floor":
        new = np.minimum(rows.transfer_ns, case.transfers.of_kind("floor_ns"))
    return case.transferred(np.where(mine, rows.transfer_ns - new, 0.0))


def _algorithm(case: Case, spec: Spec) -> Change | str:
    """All-reduces by another algorithm, with the latency and bandwidth of a ring here."""
    rows = case.transfers.rows
    reduces = rows.op == int(Op.ALL_REDUCE)
    line = _line(case, reduces) if reduces.any() else None
    if line is None:
        return FEW_SIZES if reduces.any() else "no all-reduce was recorded"
    counts = {sum(i.node == n for i in case.trace.ranks.values()) for n in case.trace.nodes}
    if spec.change == "hierarchical" and (len(case.trace.nodes) < 2 or len(counts) > 1):
        return "a hierarchy needs two or more nodes with the same number of ranks each"
    shorter = np.zeros(len(rows))
    for members in np.unique(rows.members[reduces]).tolist():
        mine = reduces & (rows.members == members)
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


def _buckets(case: Case, spec: Spec) -> Change | str:
    """Gradients in buckets of this size: the same bytes with another number of latencies."""
    rows = case.transfers.rows
    mine = _reductions(rows)
    line = _line(case, mine) if mine.any() else None
    if line is None:
        return FEW_SIZES if mine.any() else "no reduction of gradients was recorded"
    size, step = rows.size_bytes[mine], rows.step[mine] * (int(rows.group.max()) + 2)
    step = np.unique(step + rows.group[mine], return_inverse=True)[1].reshape(-1)
    total = np.bincount(step, weights=size)
    now = np.bincount(step, weights=line.time_ns(size))
    then = np.ceil(total / spec.size_bytes) * line.alpha_ns + total / line.gBps
    shorter = np.zeros(len(rows))
    shorter[mine] = rows.transfer_ns[mine] * (1 - then / now)[step]
    return case.transferred(shorter)


def _reductions(rows: Columns) -> Array:
    """Mask of reductions of gradients: those of the groups that reduce most bytes."""
    mine = np.isin(rows.op, (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER)))
    if not mine.any():
        return np.asarray(mine)
    group = rows.group - rows.group.min()
    summed = np.bincount(group[mine], weights=rows.size_bytes[mine], minlength=group.max() + 1)
    return np.asarray(mine & (summed[group] >= summed.max() / 2))


def _line(case: Case, mine: Array) -> TransferLine | None:
    """The line through the undisturbed times of the kinds of these transfers."""
    kinds = case.transfers.kinds.select(np.unique(case.transfers.rows.kind[mine]))
    return line_through(kinds.size_bytes, kinds.quiet_ns, kinds["count"])


#: Subjects: an example of which one (none where there is only one), possible changes, and what
#: answers. 1.5 and 0.5 stand for any factor, 25MB for any size.
_SUBJECTS: Mapping[str, tuple[str, tuple[str, ...], Callable[[Case, Spec], Change | str]]] = {
    "rank": ("3", ("median", "ideal", "x1.5"), _ranks),
    "node": ("gpu012", ("median", "x1.5"), _ranks),
    "stage": ("3", ("ideal", "x1.5"), _ranks),
    "stages": ("", ("balanced",), _computes),
    "work": ("", ("balanced",), _even),
    "dp": ("1", ("ideal", "x1.5"), _ranks),
    "optype": ("forward-compute", ("ideal", "x1.5"), _computes),
    "op": ("all_reduce", ("floor", "x0.5"), _operation),
    "gc": ("", ("aligned", "off"), _collector),
    "bucket": ("", ("25MB",), _buckets),
    "algorithm": ("", ("tree", "ring", "hierarchical"), _algorithm),
    "input": ("", ("hidden",), _input),
}
#: An example of every form, for messages.
FORMS: tuple[str, ...] = (
    *(
        f"{subject}:{which}={change}" if which else f"{subject}={change}"
        for subject, (which, changes, _) in _SUBJECTS.items()
        for change in changes
    ),
    "remove:rank:7",
)


def answer(case: Case, spec: Spec) -> Change | str:
    """The change that is asked for, or why the trace cannot tell."""
    if not len(case.grid.steps):
        return "no step was finished by every rank"
    if not len(case.grid.graph.operations):
        return "no collective that all traced ranks took part in was recorded"
    of_table = spec.change == "ideal" or spec.subject in ("stage", "stages", "dp", "optype")
    if of_table and case.trace.operations is None:
        return f"{spec.text!r} needs an operation table, with every compute and message"
    if spec.subject == "remove":
        if np.count_nonzero(~_columns(case, spec)) < 2:
            return "fewer than two ranks would be left"
        return _ranks(case, spec._replace(change="x", factor=0.0))
    return _SUBJECTS[spec.subject][2](case, spec)


# -- answers ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class WhatIfGain(Document):
    """The share of step time that a change gives back, below zero where it costs time; None, with a
    `reason`, where the trace cannot tell. `low` and `high` are None of a single step, too."""

    spec: str
    gain: float | None
    low: float | None
    high: float | None
    step_ns_before: int | None
    step_ns_after: int | None
    method: str | None
    reason: str | None = None


def answers(trace: Trace, specs: Sequence[str]) -> list[WhatIfGain]:
    """Answer each question by itself and, of several, all of them together at the end, unless two
    are about the same part. Raises `UsageError` for what is no question, or is about something the
    trace has not."""
    asked = [parse(text) for text in specs]
    for spec in asked:
        _check(trace, spec)
    if not asked:
        return []
    case = open_case(trace)
    changes = [answer(case, spec) for spec in asked]
    found = []
    for spec, change in zip(asked, changes, strict=True):
        method = say(f"what_if.graph.{'ideal' if spec.change == 'ideal' else spec.subject}")
        found.append(_gain(case, spec.text, [change], method))
    about = {(spec.subject.replace("remove", "rank"), spec.target) for spec in asked}
    if 1 < len(asked) == len(about) and all(one.reason is None for one in found):
        text = " + ".join(spec.text for spec in asked)
        found.append(_gain(case, text, changes, "replay with all of them at once"))
    return found


def _gain(case: Case, text: str, changes: Sequence[Any], method: str) -> WhatIfGain:
    before = case.step_ns.astype(float)
    reason = next((change for change in changes if isinstance(change, str)), None)
    if reason is not None:
        return WhatIfGain(text, None, None, None, _mean(before), None, None, reason)
    saved = case.saved(case.costs.combined(changes))
    scale = 1.0 if saved.sum() >= 0 else -1e3  # more than the step may be lost: shares end at 1
    gain, *ends = (scale * value for value in share_of(saved / scale, before))
    share = Share(gain, *sorted(ends)).rounded()
    found = WhatIfGain(text, *share, _mean(before), _mean(before - saved), method)
    return found if len(before) > 1 else replace(found, low=None, high=None)


def _mean(step_ns: Array) -> int | None:
    return round(float(step_ns.mean())) if len(step_ns) else None


def _check(trace: Trace, spec: Spec) -> None:
    """Raise `UsageError` where the trace lacks what is asked about."""
    there: dict[str, list[Any]] = {"rank": sorted(trace.ranks), "node": list(trace.nodes)}
    table = trace.operations
    if table is not None:
        there["stage"] = np.unique(table.stage).tolist()
        there["dp"] = np.unique(table.dp_rank).tolist()
        there["optype"] = [trace.names[kind] for kind in np.unique(table.optype)]
    if spec.subject not in there:
        return
    wanted = spec.numbers or (spec.target,)
    absent = [one for one in wanted if one not in there[spec.subject]]
    if absent:
        known = ", ".join(map(str, there[spec.subject][:16])) or "none"
        raise UsageError(
            f"--what-if {spec.text!r}: there is no {spec.subject} {absent[0]} in this trace; "
            f"there are {known}{' …' if len(there[spec.subject]) > 16 else ''}"
        )
