"""Modes of phases on record: a few ranks take longer with them, or every rank waits alike.

`input_pipeline`: batches are not ready when the step begins. `checkpoint_stall`: training waits
while checkpoints are written or models evaluated.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import middle_of_others
from evenstep.diagnose.levels import MOST, NAMED
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.recurrence import throughout, when
from evenstep.diagnose.modes.late import late
from evenstep.diagnose.sentences import found
from evenstep.trace.spool.layout import Phase

#: What every rank does at once: the name of its sentences, of what to do about it, and its title.
STOPPED = {
    Phase.CHECKPOINT: ("everybody", "save", "checkpoints stop"),
    Phase.EVALUATION: ("evaluation", "rarer", "evaluation stops"),
}


def input_pipeline(case: Case) -> list[Finding]:
    """Ranks whose input is late, or all of it where every rank waits and no few cost the most."""
    everybody, some = _all_waiting(case), _late_batches(case)
    few = some is not None and 2 * len(some.where.ranks) <= len(case.grid.ranks)
    theirs = some and everybody and few and 2 * some.severity >= everybody.severity
    finding = some if theirs else everybody or some
    return [finding] if finding else []


def checkpoint_stall(case: Case) -> list[Finding]:
    """Ranks that save or evaluate while the others wait, and what all do at the same time."""
    everybody = (_all_stopped(case, phase) for phase in STOPPED)
    return [one for one in (_late_saving(case), *everybody) if one]


# -- ranks that are late with it -------------------------------------------------------------------


def _late_batches(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.INPUT)
    if not cells.any():
        return None
    ranks = case.culprits(cells, Cause.INPUT)
    columns = np.isin(case.grid.ranks, ranks)
    values = case.grid.phase_ns[Phase.INPUT]
    mine, others = values[:, columns], values[:, ~columns]
    expected = round(float(np.median(others))) if others.size else 0
    evidence = Evidence("input_per_step", round(float(np.median(mine))), expected, "ns")
    numbers = {"more": case.typical_excess_ns(cells & columns, Cause.INPUT)}
    return late(
        case, "input_pipeline.rank", cells, Cause.INPUT,
        numbers=numbers, options=("loader", "host"), evidence=[evidence],
    )  # fmt: skip


def _late_saving(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.CHECKPOINT)
    if not cells.any():
        return None
    writing = case.grid.phase_ns[Phase.CHECKPOINT]
    evaluating = case.grid.phase_ns[Phase.EVALUATION]
    saves = float(writing[cells].sum()) >= float(evaluating[cells].sum())
    length_ns = float(np.median((writing if saves else evaluating)[cells]))
    numbers = {
        "steps": int(cells.any(axis=1).sum()),
        "all": len(case.grid.steps),
        "wait": case.victims(cells)[1],
        "what": "checkpoints stop" if saves else "evaluation stops",
        "does": "writes a checkpoint" if saves else "evaluates",
        "length": length_ns,
    }
    return late(
        case, "checkpoint_stall.rank", cells, Cause.CHECKPOINT,
        numbers=numbers, options=["save" if saves else "evaluate"], evidence=[_length(length_ns)],
    )  # fmt: skip


# -- everybody -------------------------------------------------------------------------------------


def _all_waiting(case: Case) -> Finding | None:
    """All input, where even the ranks that wait least for it wait: nobody in particular is late."""
    values = case.grid.phase_ns[Phase.INPUT]
    if not values.size:
        return None
    each, usual = np.median(values, axis=0), float(np.median(values))
    if each.min() < MOST * max(each.max(), 1.0):
        return None
    change = case.taken(values, Cause.INPUT)
    share = case.share(case.saved(change))
    if share.value < NAMED:  # handing a batch over takes time, too
        return None
    return found(
        "input_pipeline.everybody",
        share,
        numbers={"usual": usual},
        where=Where(),
        when=throughout(case.grid.steps),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={"workers": share, "storage": share},
        evidence=[Evidence("input_per_step", round(usual), 0, "ns")],
        change=change,
    )


def _all_stopped(case: Case, phase: Phase) -> Finding | None:
    """What most ranks save or evaluate at once: what a late one takes beyond is counted above."""
    lasted = case.grid.phase_ns[phase]
    common = middle_of_others(lasted)
    stopped = common > 0
    if not stopped.any():
        return None
    change = case.taken(np.broadcast_to(common[:, None], lasted.shape), Cause.CHECKPOINT)
    share = case.share(case.saved(change))
    length_ns = float(np.median(common[stopped]))
    name, option, what = STOPPED[phase]
    return found(
        f"checkpoint_stall.{name}",
        share,
        numbers={
            "what": what,
            "steps": np.count_nonzero(stopped),
            "all": len(stopped),
            "who": "all ranks" if lasted[stopped].all() else "most ranks",
            "length": length_ns,
        },
        where=Where(),
        when=when(stopped[:, None], case.grid.steps),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={option: share},
        evidence=[_length(length_ns)],
        change=change,
    )


def _length(length_ns: float) -> Evidence:
    return Evidence("phase_length", round(length_ns), 0, "ns")
