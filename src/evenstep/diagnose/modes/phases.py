"""Modes of recorded phases: a few ranks take longer in them, or all ranks wait alike.

`input_pipeline`: batches are not ready when the step begins. `checkpoint_stall`: training waits
while checkpoints are written or models evaluated.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import middle_of_others
from evenstep.diagnose.levels import DOMINANT, MINOR, MOST, NAMED, NEARLY_ALL
from evenstep.diagnose.modes.intervention import constant, finding_of, finding_of_late, when
from evenstep.diagnose.sentences import say
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

#: Phases in which all ranks may stop at once: name of the sentences, of the remedy, and the title.
STOPPED = {
    Phase.CHECKPOINT: ("everybody", "save", "checkpoints stop"),
    Phase.EVALUATION: ("evaluation", "rarer", "evaluation stops"),
}


def input_pipeline(case: Case) -> list[Finding]:
    """Ranks with late batches, beside the input that all ranks have; or the input of all, where no
    few of them cost much of it."""
    some = _late_batches(case)
    loading = case.grid.phase_ns[Phase.INPUT] - case.delays.starved_ns
    if _queued(case, loading) and (everybody := _all_waiting(case, loading)):
        return everybody
    few = bool(some) and 2 * len(some[0].where.ranks) <= len(case.grid.ranks)
    turns = bool(some) and not few and some[0].when.pattern != "chronic"
    everybody = _all_waiting(case, loading) if turns or _alike(case, loading) else []
    if everybody and not (few and 2 * some[0].severity >= everybody[0].severity):
        return everybody
    common = np.minimum(loading, middle_of_others(loading)[:, None])
    return [*some, *(_all_waiting(case, common) if some and _alike(case, common) else [])]


def checkpoint_stall(case: Case) -> list[Finding]:
    """Few ranks that save or evaluate while the others wait, and phases that all have at once."""
    lasted = case.grid.phase_ns
    few = [phase for phase in STOPPED if _longer_on_few(lasted[phase])]
    everybody = [one for phase in STOPPED for one in _all_stopped(case, phase, apart=phase in few)]
    cells = case.delays.cells(Cause.CHECKPOINT)
    if everybody:  # has all that the other phases cost
        cells = cells & np.any([lasted[phase] > 0 for phase in few], axis=0)
    return [*_late_saving(case, cells), *everybody]


def _longer_on_few(lasted: Array) -> bool:
    """Whether what ranks have of a phase beyond the others is mostly that of at most half."""
    more = np.maximum(lasted - middle_of_others(lasted)[:, None], 0).sum(axis=0)
    return bool(2 * np.count_nonzero(more > MINOR * more.max()) <= len(more))


# -- a few ranks -----------------------------------------------------------------------------------


def _late_batches(case: Case) -> list[Finding]:
    """Late batches; where the latest ranks have nearly all of the lateness, theirs alone: in the
    steps between them, others are the last by chance."""
    cells, values = case.delays.cells(Cause.INPUT), case.grid.phase_ns[Phase.INPUT]
    late = np.where(cells, case.delays.late_ns[Cause.INPUT], 0).sum(axis=0)
    latest = late >= MOST * late.max(initial=1)
    cells = cells & latest if late[latest].sum() >= NEARLY_ALL * late.sum() else cells
    columns = np.isin(case.grid.ranks, case.culprits(cells, Cause.INPUT))
    hit = np.any(cells & columns, axis=1)
    told = (values[hit][:, one] for one in (columns, ~columns))
    mine, others = (np.median(each) if each.size else 0 for each in told)
    often = f" in {hit.sum():,} of {len(cells):,} steps" if hit.mean() < DOMINANT else ""
    more = case.mean_excess_ns(cells & columns, Cause.INPUT)
    return finding_of_late(
        case, "input_pipeline.rank", cells, Cause.INPUT, options=["loader", "host"],
        numbers={"more": more, "often": often, "mine": mine, "others": others},
    )  # fmt: skip


def _late_saving(case: Case, cells: Array) -> list[Finding]:
    spent = [case.grid.phase_ns[phase][cells] for phase in STOPPED]
    saves = bool(spent[0].sum() >= spent[1].sum())
    return finding_of_late(
        case, "checkpoint_stall.rank", cells, Cause.CHECKPOINT,
        numbers={
            "steps": int(cells.any(axis=1).sum()), "all": len(case.grid.steps),
            "length": float(np.mean(spent[not saves])) if cells.any() else 0.0,
            "what": "checkpoints stop" if saves else "evaluation stops",
            "does": "writing a checkpoint" if saves else "evaluating",
        },
        options=["save" if saves else "evaluate"],
    )  # fmt: skip


# -- all ranks -------------------------------------------------------------------------------------


def _alike(case: Case, loading: Array) -> bool:
    """Whether of ranks that load (a server does not) the one with the shortest input still waits
    for half of the longest. Who is late by own work finds its batch ready: that counts, too."""
    loads, loaded = _loading(loading), loading.any(axis=1) | ~loading.any()
    waits = np.median((loading + case.delays.late_ns[Cause.WORK])[loaded][:, loads], axis=0)
    longest = np.median(loading[loaded], axis=0).max()
    return bool(waits.min(initial=longest) >= MOST * max(longest, 1.0))


def _queued(case: Case, loading: Array) -> bool:
    """Whether all ranks that load wait for workers of their loaders in most steps, the least for
    more than a ready batch takes: each has the pace of its own workers, which do not wait for it,
    and who gets its batch last delays nobody."""
    loads = _loading(loading)
    workers = (
        case.trace.ranks[rank].facts.get("loader_workers") for rank in case.grid.ranks[loads]
    )
    waits = np.median(loading[:, loads], axis=0) / max(np.median(case.step_ns), 1.0)
    return bool(loads.any()) and all(workers) and bool(waits.min() >= MINOR)


def _loading(values: Array) -> Array:
    """Mask of the ranks that load: a last stage that fetches its labels alone hardly does."""
    usual = values.mean(axis=0)
    return np.asarray((usual > 0) & (usual >= MINOR * usual.max(initial=0)))


def _all_waiting(case: Case, values: Array) -> list[Finding]:
    """The input of all ranks (steps × ranks), where it costs more than handing a batch over: in few
    steps that have most of it, as at the beginnings of epochs, or in all."""
    loads = _loading(values)
    wait = np.median(values[:, loads], axis=1)
    long = wait >= MOST * wait.max()
    stops = long.mean() < MOST and wait[long].sum() >= MOST * wait.sum()
    usual = np.median(wait[long] if stops else values[:, loads])
    finding = finding_of(
        case, f"input_pipeline.{'stops' if stops else 'everybody'}",
        case.without(values, Cause.INPUT),
        numbers={
            "steps": np.count_nonzero(long), "all": len(long), "usual": usual,
            "who": "every rank" + " that loads" * (not loads.all()),
            "short": say("input_pipeline.short") if case.contended else "",
        },
        at=when(long[:, None], case.grid) if stops else None, projected=constant,
        options=["storage", "workers"] if case.contended else ["workers", "storage"],
        where=case.where(case.grid.ranks[loads].tolist()) if loads.mean() <= MOST else Where(),
    )  # fmt: skip
    return [one for one in finding if one.severity >= NAMED]


def _all_stopped(case: Case, phase: Phase, *, apart: bool) -> list[Finding]:
    """A phase that most ranks have at once; `apart`: without what a rank has beyond the others."""
    lasted = case.grid.phase_ns[phase]
    common = middle_of_others(lasted)
    stopped = common > 0
    if not stopped.any() or (phase is Phase.EVALUATION and stopped.mean() > NEARLY_ALL):
        return []  # what every step evaluates, as with a teacher, is part of their work
    length_ns = float(np.mean(common[stopped]))
    name, option, what = STOPPED[phase]
    theirs = np.minimum(lasted, common[:, None]) if apart else lasted * stopped[:, None]
    return finding_of(
        case, f"checkpoint_stall.{name}", case.without(theirs, Cause.CHECKPOINT),
        numbers={
            "what": what, "steps": np.count_nonzero(stopped), "all": len(stopped),
            "who": "all ranks" if lasted[stopped].all() else "most ranks", "length": length_ns,
        },
        at=when(stopped[:, None], case.grid), projected=constant, options=[option],
    )  # fmt: skip
