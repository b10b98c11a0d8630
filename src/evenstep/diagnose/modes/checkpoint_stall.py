"""`checkpoint_stall`: training waits while checkpoints are written, by one rank or by all."""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import middle_of_others
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found
from evenstep.trace.spool.layout import Phase


def find(case: Case) -> list[Finding]:
    """Ranks that save or evaluate while the others wait, and what all save at the same time."""
    findings = [_late_ranks(case), _everybody(case)]
    return [finding for finding in findings if finding]


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
    return found(
        "checkpoint_stall.rank",
        share,
        numbers={
            "steps": int(cells.any(axis=1).sum()),
            "all": len(case.grid.steps),
            "wait": case.victims(cells)[1],
            "who": case.named(ranks),
            "what": "checkpoints stop" if saves else "evaluation stops",
            "does": "writes a checkpoint" if saves else "evaluates",
            "length": length_ns,
        },
        where=case.where(ranks),
        when=when(cells, case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options={"save" if saves else "evaluate": share},
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
    return found(
        "checkpoint_stall.everybody",
        share,
        numbers={
            "what": "checkpoints stop",
            "steps": np.count_nonzero(saving),
            "all": len(saving),
            "who": "every rank writes" if writing[saving].all() else "most ranks write",
            "length": length_ns,
        },
        where=Where(),
        when=when(saving[:, None], case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options={"save": share},
        evidence=[Evidence("phase_length", round(length_ns), 0, "ns")],
        change=change,
    )
