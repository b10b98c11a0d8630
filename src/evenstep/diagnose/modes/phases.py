"""Modes of phases on record: a few ranks take longer with them, or every rank waits alike.

`input_pipeline`: batches are not ready when the step begins. `checkpoint_stall`: training waits
while checkpoints are written or models evaluated.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import middle_of_others
from evenstep.diagnose.levels import MOST, NAMED
from evenstep.diagnose.measure.recurrence import constant, when
from evenstep.diagnose.modes.intervention import found, late
from evenstep.trace.spool.layout import Phase

#: What every rank does at once: the name of its sentences, of what to do about it, and its title.
STOPPED = {
    Phase.CHECKPOINT: ("everybody", "save", "checkpoints stop"),
    Phase.EVALUATION: ("evaluation", "rarer", "evaluation stops"),
}


def input_pipeline(case: Case) -> list[Finding]:
    """Ranks whose input is late, or all of it where every rank waits and no few cost the most."""
    some = _late_batches(case)
    few = bool(some) and 2 * len(some[0].where.ranks) <= len(case.grid.ranks)
    turns = bool(some) and not few and some[0].when.pattern != "chronic"
    everybody = _all_waiting(case) if turns or _alike(case) else []
    if not (everybody and some):
        return everybody or some
    return some if few and 2 * some[0].severity >= everybody[0].severity else everybody


def checkpoint_stall(case: Case) -> list[Finding]:
    """Ranks that save or evaluate while the others wait, and what all do at the same time."""
    everybody = [one for phase in STOPPED for one in _all_stopped(case, phase)]
    return [*_late_saving(case), *everybody]


# -- ranks that are late with it -------------------------------------------------------------------


def _late_batches(case: Case) -> list[Finding]:
    cells, values = case.delays.cells(Cause.INPUT), case.grid.phase_ns[Phase.INPUT]
    columns = np.isin(case.grid.ranks, case.culprits(cells, Cause.INPUT))
    mine, others = (np.median(values[:, one]) if one.any() else 0 for one in (columns, ~columns))
    numbers = {"more": case.mean_excess_ns(cells & columns, Cause.INPUT)}
    return late(
        case, "input_pipeline.rank", cells, Cause.INPUT, numbers=numbers,
        options=["loader", "host"], evidence=[Evidence("input_per_step", mine, others, "ns")],
    )  # fmt: skip


def _late_saving(case: Case) -> list[Finding]:
    cells = case.delays.cells(Cause.CHECKPOINT)
    spent = [case.grid.phase_ns[phase][cells] for phase in STOPPED]
    saves = bool(spent[0].sum() >= spent[1].sum())
    length_ns = np.median(spent[not saves]) if cells.any() else 0.0
    numbers = {
        "steps": int(cells.any(axis=1).sum()),
        "all": len(case.grid.steps),
        "wait": case.victims(cells)[1],
        "what": "checkpoints stop" if saves else "evaluation stops",
        "does": "writes a checkpoint" if saves else "evaluates",
        "length": length_ns,
    }
    return late(
        case, "checkpoint_stall.rank", cells, Cause.CHECKPOINT, numbers=numbers,
        options=["save" if saves else "evaluate"],
        evidence=[Evidence("phase_length", length_ns, 0, "ns")],
    )  # fmt: skip


# -- everybody -------------------------------------------------------------------------------------


def _alike(case: Case) -> bool:
    """Whether even the ranks that wait least for input wait: nobody in particular is late. Who is
    later by work of its own finds the batch readier, and would wait so much longer."""
    waits = case.grid.phase_ns[Phase.INPUT] + case.delays.late_ns[Cause.WORK]
    each = np.median(waits, axis=0) if waits.size else np.zeros(1)
    return bool(each.min() >= MOST * max(each.max(), 1.0))


def _all_waiting(case: Case) -> list[Finding]:
    """All input, where every rank waits for it, or most in turns."""
    values = case.grid.phase_ns[Phase.INPUT]
    usual = np.median(values)
    finding = found(
        case,
        "input_pipeline.everybody",
        case.taken(values, Cause.INPUT),
        numbers={"usual": usual},
        projected=constant,
        options=["workers", "storage"],
        evidence=[Evidence("input_per_step", usual, 0, "ns")],
    )
    # handing a batch over takes time, too
    return [one for one in finding if one.severity >= NAMED]


def _all_stopped(case: Case, phase: Phase) -> list[Finding]:
    """What most ranks save or evaluate at once: what a late one takes beyond is counted above."""
    lasted = case.grid.phase_ns[phase]
    common = middle_of_others(lasted)
    stopped = common > 0
    if not stopped.any():
        return []
    length_ns = np.median(common[stopped])
    name, option, what = STOPPED[phase]
    return found(
        case,
        f"checkpoint_stall.{name}",
        case.taken(np.broadcast_to(common[:, None], lasted.shape), Cause.CHECKPOINT),
        numbers={
            "what": what,
            "steps": np.count_nonzero(stopped),
            "all": len(stopped),
            "who": "all ranks" if lasted[stopped].all() else "most ranks",
            "length": length_ns,
        },
        at=when(stopped[:, None], case.grid.steps),
        projected=constant,
        options=[option],
        evidence=[Evidence("phase_length", length_ns, 0, "ns")],
    )
