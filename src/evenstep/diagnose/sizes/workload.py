"""One run as a point of a scaling curve, and whether several runs did the same work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.levels import MINOR
from evenstep.statistics.interval import SEED, blocks
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

WEAK, STRONG = -0.35, -0.65  # slope of log compute per rank over log ranks


@dataclass(slots=True, frozen=True)
class ScalingPoint:
    """A run as a point of a scaling curve."""

    ranks: int
    step_ns: Array  # (steps,) of the job: the median over ranks
    samples: float | None  # per step, of all ranks
    compute_ns: float | None  # per rank and step
    bytes_per_rank: float  # through collectives, per step
    script: str
    diagnosis: Diagnosis


def point(trace: Trace, diagnosis: Diagnosis) -> ScalingPoint:
    """The point of a run; without a finished step its `step_ns` is empty."""
    steps = trace.of_kind(Kind.STEP)
    done = steps.exit_ns > 0
    numbers = steps.step[done]
    length = (steps.exit_ns - steps.enter_ns)[done].astype(float)
    order = np.lexsort([length, numbers])
    first = np.flatnonzero(np.diff(numbers[order].astype(np.int64), prepend=-1))
    count = np.diff(np.append(first, len(order)))
    middle = (length[order][first + (count - 1) // 2] + length[order][first + count // 2]) / 2
    whole = middle[count == count.max()] if len(count) else middle
    step_ns = whole[3:] if len(whole) > 15 else whole  # warm-up, as in the grid
    time = diagnosis.summary.get("step_time") or {}
    share = (diagnosis.summary.get("shares") or {}).get("compute") or 0.0
    return ScalingPoint(
        ranks=trace.world, step_ns=step_ns, samples=_samples(diagnosis),
        compute_ns=share * (time.get("mean_ns") or 0.0) or None,
        bytes_per_rank=bytes_per_rank(trace), script=script(trace.run.get("command") or []),
        diagnosis=diagnosis,
    )  # fmt: skip


def _samples(diagnosis: Diagnosis) -> float | None:
    rate = diagnosis.summary.get("throughput") or {}
    time = diagnosis.summary.get("step_time") or {}
    if rate.get("unit") != "samples/s" or not rate.get("value"):
        return None
    return float(rate["value"]) * float(time["mean_ns"]) / 1e9


def bytes_per_rank(trace: Trace) -> float:
    """Bytes of a rank's collectives in a step, from the step summaries; 0 unknown."""
    steps = float(trace.summaries["count"].sum())
    return float(trace.summaries["bytes"].sum()) / steps if steps else 0.0


def script(command: Sequence[str]) -> str:
    """The script of a command line: its first Python file or module, else the program's name."""
    for index, word in enumerate(command):
        if word.endswith(".py"):
            return PurePath(word).name
        if word == "-m" and index + 1 < len(command) and "run" not in command[index + 1]:
            return command[index + 1]
    return PurePath(command[0]).name if command else ""


def kind_of(points: Sequence[ScalingPoint]) -> str | None:
    """`weak` where the work of a rank stays, `strong` where the total does; None unknown."""
    ranks = np.log([point.ranks for point in points])
    for values in (
        [point.samples / point.ranks if point.samples else None for point in points],
        [point.compute_ns for point in points],
    ):
        if all(value for value in values):
            logs = np.log(np.array(values, float))
            slope = float(np.polyfit(ranks, logs, 1)[0])
            return "weak" if slope > WEAK else "strong" if slope < STRONG else None
    return None


def differences(scripts: Iterable[str], bytes_per_rank: Iterable[float]) -> list[str]:
    """Reasons why runs may not have done the same work; scripts "" and bytes 0 are unknown."""
    found = []
    known = dict.fromkeys(script for script in scripts if script)
    if len(known) > 1:
        found.append(f"the runs are of different scripts: {', '.join(known)}")
    moved = [each for each in bytes_per_rank if each > 0]
    if moved and max(moved) > (1 + MINOR) * min(moved):
        found.append(
            f"a rank passes {min(moved) / 1e6:,.4g} to {max(moved) / 1e6:,.4g} MB through "
            "collectives per step: the model or its sharding differs between the runs"
        )
    return found


def resampled(points: Sequence[ScalingPoint]) -> Array:
    """Mean step time of each run under draws of its blocks of steps. (draws, runs)."""
    random = np.random.default_rng(SEED)
    drawn = [blocks(len(point.step_ns), random) for point in points]
    means = [
        each.sums(point.step_ns) / (each.starts.shape[1] * each.length)
        for each, point in zip(drawn, points, strict=True)
    ]
    return np.stack(means, axis=1)
