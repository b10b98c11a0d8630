"""`checkpoint_stall`: training waits while checkpoints are written, by one rank or by all."""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case, found
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import middle_of_others
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.modes import projection
from evenstep.diagnose.modes.mode import Mode
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Phase


def find(case: Case) -> list[Finding]:
    """Ranks that save or evaluate while the others wait, and what all save at the same time."""
    findings = [_late_ranks(case), _everybody(case)]
    return [finding for finding in findings if finding and finding.severity >= SMALLEST_SHARE]


def _late_ranks(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.CHECKPOINT)
    if not cells.any():
        return None
    share = case.share(case.loss(cells, Cause.CHECKPOINT))
    ranks = case.culprits(cells, Cause.CHECKPOINT)
    writing = case.grid.phase_ns[Phase.CHECKPOINT]
    evaluating = case.grid.phase_ns[Phase.EVALUATION]
    saves = float(writing[cells].sum()) >= float(evaluating[cells].sum())
    length_ns = float(np.median((writing if saves else evaluating)[cells]))
    what = "writes a checkpoint" if saves else "evaluates"
    return found(
        "checkpoint_stall",
        "framework",
        share,
        observation=(
            f"in {int(cells.any(axis=1).sum())} of {len(case.grid.steps)} steps the other "
            f"ranks wait {words.duration(case.victims(cells)[1])}"
        ),
        cause=(
            f"{case.named(ranks)} {what} for {words.duration(length_ns)} while the others are ready"
        ),
        where=case.where(ranks),
        when=when(cells, case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options=[_option(share, saves=saves)],
        evidence=[
            *case.wait_evidence(cells),
            Evidence("phase_length", round(length_ns), 0, "ns"),
        ],
        change=case.relieved(cells, Cause.CHECKPOINT),
    )


def _everybody(case: Case) -> Finding | None:
    """Checkpoints that most ranks write at once: what a late one takes beyond is counted above."""
    writing = case.grid.phase_ns[Phase.CHECKPOINT]
    common = middle_of_others(writing)
    saving = common > 0
    if not saving.any():
        return None
    change = case.taken(np.broadcast_to(common[:, None], writing.shape), Cause.CHECKPOINT)
    share = case.share(case.saved(change))
    length_ns = float(np.median(common[saving]))
    who = "every rank writes" if writing[saving].all() else "most ranks write"
    return found(
        "checkpoint_stall",
        "framework",
        share,
        observation=(
            f"in {np.count_nonzero(saving)} of {len(saving)} steps {who} a checkpoint for "
            f"{words.duration(length_ns)}"
        ),
        cause="checkpoints are written between the steps, and training stands still meanwhile",
        where=Where(),
        when=when(saving[:, None], case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options=[_option(share, saves=True)],
        evidence=[Evidence("phase_length", round(length_ns), 0, "ns")],
        change=change,
    )


def _option(share: Share, *, saves: bool) -> Option:
    action, cost = (
        (
            "write asynchronously (torch.distributed.checkpoint.async_save), in shards from all "
            "ranks",
            "memory for a staged copy",
        )
        if saves
        else ("evaluate on all ranks at once, or in a job of its own", "a change of the script")
    )
    return Option(action, *share.rounded(), cost, "replay of the trace without the phase")


MODE = Mode(
    name="checkpoint_stall",
    layer="framework",
    symptom="Every so many steps one step is much longer: a rank or all of them save or evaluate.",
    look_at=(
        "the checkpoint and evaluation phases of each rank, and who waits for whom meanwhile",
        "the interval between checkpoints beside the mean time between failures",
    ),
    remedy=(
        "write asynchronously, or in shards from all ranks",
        "stage to local memory or disk first and upload behind the training",
        "choose the interval by Young and Daly: sqrt(2 * write time * time between failures)",
    ),
    confirm="Skip one checkpoint: that step takes as long as its neighbours.",
    find=find,
)
