"""Step times of every job, from its trace, labelled with the block that was on.

The jobs ran on the campaign's own clock, so a step's start says which block it belongs to. What
lies in the first part of a block (`settle_s`), across its end or in the warm-up counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from lab.arms import Schedule
from lab.run import INTERRUPTED, Record
from lab.scenario import Run, Scenario
from lab.tier import LabError

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class JobSteps:
    """One job's steps, in order, as its slowest rank saw them. Times in ns."""

    name: str
    paced: bool
    start_ns: Array
    step_ns: Array
    held_ns: Array  # mean over the ranks: delay and pauses
    block: Array  # -1: counts for nothing

    def of(self, blocks: Sequence[int]) -> Array:
        """Step times in some blocks."""
        return self.step_ns[np.isin(self.block, blocks)]


def job_steps(
    scenario: Scenario, schedule: Schedule, record: Record, folder: Path
) -> list[JobSteps]:
    """The steps of all jobs. Raises `TraceError` where a trace is missing, `LabError` where no step
    was finished, and `KeyboardInterrupt` where that is because the run was interrupted."""
    found = []
    for job in scenario.jobs:
        try:
            start_ns, step_ns, held_ns = read_steps(folder / job.name)
        except LabError:
            if record.ended == INTERRUPTED:
                raise KeyboardInterrupt from None
            raise
        block = labels(start_ns, start_ns + step_ns, record, schedule, scenario.run)
        found.append(JobSteps(job.name, job.paced, start_ns, step_ns, held_ns, block))
    return found


def read_steps(folder: Path) -> tuple[Array, Array, Array]:
    """(start, length, held) of every step that all ranks have finished.

    A step lasts from the last rank's end of the one before to the last rank's end of its own.
    """
    steps = load(folder).of_kind(Kind.STEP)
    if not len(steps):
        raise LabError(f"no step was finished in {folder}; give it more time (run.block_s)")
    ranks = int(steps.rank.max()) + 1
    order = np.lexsort((steps.rank, steps.step))
    number = steps.step[order]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    counts = np.diff(np.append(first, len(number)))
    end_ns = np.maximum.reduceat(steps.exit_ns[order], first)[counts == ranks]
    held_ns = np.add.reduceat(steps.held_ns[order], first)[counts == ranks] / ranks
    return end_ns[:-1], np.diff(end_ns), held_ns[1:]


def labels(start_ns: Array, end_ns: Array, record: Record, schedule: Schedule, run: Run) -> Array:
    """The block each step counts for, -1 for none."""
    starts = np.array(record.starts_ns, np.int64)
    ends = np.append(starts[1:], record.end_ns)
    block = np.searchsorted(starts, start_ns, side="right") - 1
    known = np.clip(block, 0, None)
    settled = start_ns >= starts[known] + int(run.settle_s * 1e9)
    first = schedule.warm_up_rounds * len(schedule.arms)
    counts = (block >= first) & (block < record.whole) & settled & (end_ns <= ends[known])
    return np.where(counts, block, -1)
