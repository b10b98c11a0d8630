"""What restarts cost a run, and how often a checkpoint is best written.

Young (1974): the best time between checkpoints is τ = √(2CM) for a checkpoint of C and a mean time
between failures M. Daly (2006): τ = √(2CM)(1 + ⅓√(C/2M) + C/(18M)) − C for C < 2M. Waste is about
C/τ + τ/(2M) + R/M with a restart of R.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from evenstep.diagnose.measure.attempts import Attempt
from evenstep.diagnose.measure.resets import CHANGED


class Loss(NamedTuple):
    """What one restart cost."""

    steps: int  # done again
    work_s: float
    gap_s: float  # from the last step of one attempt to the first of the next
    seen: bool  # a checkpoint or a logged count tells how much was lost


class AttemptsAccount(NamedTuple):
    """All attempts of a run together."""

    losses: list[Loss]
    elapsed_s: float
    running_s: float
    steps: int  # done, those done again included
    lost_steps: int

    @property
    def net_steps(self) -> int:
        """Steps that count."""
        return max(self.steps - self.lost_steps, 1)

    @property
    def lost_s(self) -> float:
        """Time for work done again and for restarts."""
        return sum(loss.work_s + loss.gap_s for loss in self.losses)

    @property
    def amplification(self) -> float:
        """Elapsed time per step that counts, over the running time of a step."""
        return (self.elapsed_s / self.net_steps) / (self.running_s / max(self.steps, 1))


def account(attempts: Sequence[Attempt]) -> AttemptsAccount:
    """Add up what the restarts between these attempts cost."""
    losses = [between(before, after) for before, after in pairwise(attempts)]
    return AttemptsAccount(
        losses,
        elapsed_s=attempts[-1].ended_s - attempts[0].started_s,
        running_s=sum(one.steps * one.step_ns for one in attempts) / 1e9,
        steps=sum(one.steps for one in attempts),
        lost_steps=sum(loss.steps for loss in losses),
    )


def running_share(attempts: Sequence[Attempt]) -> float:
    """Share of a run's time that was not lost to its restarts; 1 where it had none."""
    if len(attempts) < 2:
        return 1.0
    total = account(attempts)
    return max(0.0, 1 - total.lost_s / total.elapsed_s) if total.elapsed_s > 0 else 1.0


def between(before: Attempt, after: Attempt) -> Loss:
    """What was lost from one attempt to the next.

    A count that the script logs shows which steps were done again; else what followed the last
    checkpoint was, and all of the attempt where there was none.
    """
    gap_s = max(after.started_s - before.ended_s, 0.0)
    if before.last_progress is not None and after.first_progress is not None:
        again = min(max(before.last_progress - after.first_progress + 1, 0), before.steps)
        return Loss(again, again * before.step_ns / 1e9, gap_s, seen=True)
    seen = before.checkpoints > 0 or after.checkpoints > 0
    return Loss(before.steps_since_checkpoint, before.since_checkpoint_ns / 1e9, gap_s, seen)


def young(checkpoint_s: float, between_failures_s: float) -> float:
    """Best time between checkpoints, first order (Young 1974)."""
    return sqrt(2 * checkpoint_s * between_failures_s)


def daly(checkpoint_s: float, between_failures_s: float) -> float:
    """Best time between checkpoints, higher order (Daly 2006, eq. 37)."""
    ratio = checkpoint_s / (2 * between_failures_s)
    if ratio >= 1:
        return between_failures_s
    first = young(checkpoint_s, between_failures_s)
    return first * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def waste(
    every_s: float, checkpoint_s: float, between_failures_s: float, restart_s: float
) -> float:
    """Share of time lost to writing, to work done again and to restarts."""
    again = every_s / (2 * between_failures_s)
    return checkpoint_s / every_s + again + restart_s / between_failures_s


class Cadence(NamedTuple):
    """Checkpoints as they were taken, and as they should be."""

    checkpoint_s: float
    between_failures_s: float
    now_s: float | None  # run time between two; None where there was none
    best_s: float

    def saved(self, restart_s: float) -> float | None:
        """Share of time that the best cadence gives back."""
        if self.now_s is None:
            return None
        rest = self.checkpoint_s, self.between_failures_s, restart_s
        return max(0.0, waste(self.now_s, *rest) - waste(self.best_s, *rest))


def cadence(attempts: Sequence[Attempt], total: AttemptsAccount) -> Cadence | None:
    """Of a run whose checkpoints were seen; None where none was."""
    number = sum(one.checkpoints for one in attempts)
    lengths = [(one.checkpoint_ns or 0.0) * one.checkpoints for one in attempts]
    if not number or sum(lengths) <= 0:
        return None
    cost_s = sum(lengths) / number / 1e9
    mean_s = total.running_s / max(len(total.losses), 1)
    return Cadence(cost_s, mean_s, total.running_s / number, daly(cost_s, mean_s))


def restart_verdict(before: Attempt, after: Attempt) -> str | None:
    """Whether a restart reset, left or amplified the variation of the step time."""
    old, new = before.cv_at_end, after.cv_at_start
    if not old or not new:
        return None
    if max(old, new) / min(old, new) < CHANGED:
        return "unchanged"
    return "amplified" if new > old else "reset"


def entries(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Restarts as `resets.entry` tells of checkpoints, where enough steps are on both sides.

    Slow ranks and floors are those of a grid, which other attempts have none of here.
    """
    return [
        {
            "step": None,
            "kind": "restart",
            "cv": [before.cv_at_end, after.cv_at_start],
            "slow_ranks": [None, None],
            "floor_ns": [None, None],
            "verdict": verdict,
        }
        for before, after in pairwise(attempts)
        if (verdict := restart_verdict(before, after)) is not None
    ]
