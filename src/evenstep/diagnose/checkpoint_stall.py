"""`checkpoint_stall`: one rank writes a checkpoint or evaluates while the others wait for it."""

from __future__ import annotations

import numpy as np

from evenstep.diagnose import projection, words
from evenstep.diagnose.case import SMALLEST_SHARE, Case, found
from evenstep.diagnose.delays import Cause
from evenstep.diagnose.finding import Evidence, Finding, Option
from evenstep.diagnose.mode import Mode
from evenstep.diagnose.patterns import when
from evenstep.trace.layout import Phase


def find(case: Case) -> list[Finding]:
    """The cells that are late because of it, as one finding."""
    cells = case.claims.cells(case.delays.cells(Cause.CHECKPOINT))
    share = case.share(case.loss(cells))
    if not cells.any() or share.value < SMALLEST_SHARE:
        return []
    ranks = case.culprits(cells)
    writing = case.grid.phase_ns[Phase.CHECKPOINT]
    evaluating = case.grid.phase_ns[Phase.EVALUATION]
    saves = float(writing[cells].sum()) >= float(evaluating[cells].sum())
    values = (writing if saves else evaluating)[cells]
    what = "writes a checkpoint" if saves else "evaluates"
    gain = share.rounded()
    action = (
        "write asynchronously (torch.distributed.checkpoint.async_save) or from all ranks in shards"
        if saves
        else "evaluate on all ranks at once, or in a job of its own"
    )
    return [
        found(
            "checkpoint_stall",
            "framework",
            share,
            observation=(
                f"in {int(cells.any(axis=1).sum())} of {len(case.grid.steps)} steps the other "
                f"ranks wait {words.duration(case.victims(cells)[1])}"
            ),
            cause=(
                f"{case.named(ranks)} {what} for {words.duration(float(np.median(values)))} "
                "while the others are ready"
            ),
            where=case.where(ranks),
            when=when(cells, case.grid.steps),
            projected=projection.constant(share, len(case.grid.ranks)),
            options=[
                Option(
                    action,
                    *gain,
                    "memory for a staged copy" if saves else "a change of the script",
                    "replay of the trace without the phase",
                )
            ],
            evidence=[
                *case.wait_evidence(cells),
                Evidence("phase_length", round(float(np.median(values))), 0, "ns"),
            ],
        )
    ]


MODE = Mode(
    name="checkpoint_stall",
    layer="framework",
    symptom="Every so many steps one step is much longer: one rank saves or evaluates, all wait.",
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
