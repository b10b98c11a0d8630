"""One run as a comparison needs it: the length and the parts of every step, and draws of the run.

A draw is a whole run with its blocks of steps resampled (moving blocks, Künsch 1989): every number
of the run is computed for each draw, too, and their spread is its interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.measure.overview import compute_ns, time_shares
from evenstep.diagnose.measure.transfer import floors
from evenstep.diagnose.sizes.workload import bytes_per_rank, script
from evenstep.statistics.interval import BLOCK_STEPS, SEED, blocks, student, z
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

SHARES = ("compute", "exposed_communication", "wait", "input", "other")
PARTS = ("compute", "floor", "contention", "transfer", "wait", "locality", "input", "other")
#: Whether more of it is good (+1) or bad (-1), and its unit; None stands for the throughput's.
DIRECTIONS: dict[str, tuple[int, str | None]] = {
    "throughput": (1, None),
    "throughput_per_rank": (1, None),
    "step_time": (-1, "ns"),
    "cv": (-1, "1"),
    "p50": (-1, "ns"),
    "p99": (-1, "ns"),
    **{f"{name}_share": (1 if name == "compute" else -1, "share") for name in SHARES},
}


@dataclass(slots=True, frozen=True)
class Account:
    """A run's steps. Arrays are (steps,), ns, means over ranks unless said otherwise."""

    name: str
    diagnosis: Diagnosis
    world: int
    nodes: int
    script: str
    bytes_per_rank: float  # through collectives, per step; 0 unknown
    step_ns: Array  # of the job: the median over ranks
    length_ns: Array
    compute_ns: Array
    blocked_ns: Array
    wait_ns: Array
    input_ns: Array
    above_floor: Array | None  # share of the exposed transfer that is above the floor; None unknown
    samples: Array | None  # of all ranks; None unknown

    @property
    def steps(self) -> int:
        """Number of steps; 0 where they took no time."""
        return len(self.step_ns) if self.step_ns.any() else 0

    def draws(self, stream: int) -> Iterator[Array]:
        """Indices of the steps of each resampled run; another stream gives independent ones."""
        random = np.random.default_rng((SEED, stream))
        return blocks(self.steps, random, length=block_steps(self.steps)).indices()

    @property
    def widening(self) -> float:
        """Width of the interval over that of the draws.

        For few blocks t over z, and n over n - 1. For short blocks the correlation of neighbouring
        ones, with steps as a first-order process of the coefficient estimated from them.
        """
        block = block_steps(self.steps)
        blocks = max(self.steps // block, 2)
        few = student(blocks - 1) / z(0.975) * sqrt(blocks / (blocks - 1))
        return few / sqrt(seen_variance(memory(self.step_ns), block))


def block_steps(steps: int) -> int:
    """Length of the blocks: growing with the run, as slow drifts do, with at least 5 of them."""
    return max(1, min(max(BLOCK_STEPS, isqrt(steps)), steps // 5))


def memory(values: Array) -> float:
    """Autocorrelation of neighbours, 0 to .95, less its bias in short series (Marriott, Pope 1954).

    A series without spread has none.
    """
    rest = values - values.mean()
    power = float((rest**2).sum())
    if len(values) < 4 or power <= 0:
        return 0.0
    found = float((rest[1:] * rest[:-1]).sum()) / power
    return min(max(found + (1 + 3 * found) / len(values), 0.0), 0.95)


def seen_variance(coefficient: float, block: int) -> float:
    """Share of the variance of a first-order process's mean that blocks of this length show.

    1 - 2φ(1 - φ^l) / (l(1 - φ²)): the variance of a block's mean over l^-1 (1 + φ)/(1 - φ).
    """
    left = 2 * coefficient * (1 - coefficient**block) / (block * (1 - coefficient**2))
    return max(1 - left, 0.05)


def account(name: str, trace: Trace) -> Account:
    """Diagnose and reduce a run; without a finished step its arrays are empty."""
    case = open_case(trace)
    grid, diagnosis = case.grid, diagnose(case)
    known = bool(len(grid.steps)) and bool((grid.samples > 0).all()) and not trace.missing_ranks
    return Account(
        name=name, diagnosis=diagnosis, world=trace.world, nodes=len(trace.nodes),
        script=script(trace.run.get("command") or []), bytes_per_rank=bytes_per_rank(trace),
        step_ns=grid.step_ns, length_ns=_mean(grid.duration_ns), compute_ns=_mean(compute_ns(grid)),
        blocked_ns=_mean(grid.blocked_ns), wait_ns=_mean(grid.wait_ns),
        input_ns=_mean(grid.phase_ns[Phase.INPUT]), above_floor=_above_floor(case),
        samples=grid.samples.sum(axis=1).astype(float) if known else None,
    )  # fmt: skip


def _mean(cells: Array) -> Array:
    """Mean over ranks for each step; empty without a step, whatever the ranks."""
    return np.asarray(cells.mean(axis=1), float) if len(cells) else np.zeros(0)


def _above_floor(case: Case) -> Array | None:
    """Share of each step's transfers above the floor, the time that they take in quiet steps."""
    grid, rows = case.grid, case.transfers.rows
    if case.trace.missing_ranks or not len(rows):
        return None
    took = rows.transfer_ns.astype(float)
    above = np.maximum(took - floors(rows.step, rows.kind, took), 0)
    steps = len(grid.steps)
    total = np.bincount(rows.step, took, steps)
    more = np.bincount(rows.step, above, steps)
    return grid.spread(np.where(total > 0, more / np.maximum(total, 1), 0.0))


# -- numbers of a run, and of each of its draws ----------------------------------------------------


def shares(run: Account, at: Array) -> dict[str, float]:
    """Shares of the time of these steps, as in the diagnosis' summary; they sum to 1."""
    spent = run.length_ns, run.compute_ns, run.blocked_ns, run.wait_ns, run.input_ns
    return time_shares(*(float(part[at].sum()) for part in spent))


def numbers(run: Account, at: Array, *, unit: str) -> dict[str, float]:
    """Throughput in that unit, step time and shares of these steps."""
    step = run.step_ns[at]
    mean, amount = float(step.mean()), float(len(step))
    if unit == "samples/s" and run.samples is not None:
        amount = float(run.samples[at].sum())
    p50, p99 = np.quantile(step, [0.5, 0.99])
    return {
        "throughput": amount / float(step.sum()) * 1e9,
        "step_time": mean,
        "cv": float(step.std() / mean),
        "p50": float(p50),
        "p99": float(p99),
        **{f"{name}_share": value for name, value in shares(run, at).items()},
    }


def parts(run: Account, at: Array, *, split: bool, locality: float) -> dict[str, float]:
    """Mean step time in ns as parts that add up to it.

    `split` divides the exposed transfer into floor and contention. `locality`, a share of the step,
    is taken out of the wait first, then of the transfer: its late ranks and slow groups show there.
    """
    mean = float(run.length_ns[at].mean())
    found = {name: share * mean for name, share in shares(run, at).items()}
    exposed = found.pop("exposed_communication")
    if split and run.above_floor is not None:
        moving = np.maximum(run.blocked_ns[at] - run.wait_ns[at], 0)
        weight = float(moving.sum())
        above = float((moving * run.above_floor[at]).sum()) / weight if weight else 0.0
        found |= {"floor": exposed * (1 - above), "contention": exposed * above}
    else:
        found["transfer"] = exposed
    owed = locality * mean
    for name in ("wait", "floor", "contention", "transfer"):
        taken = min(owed, found.get(name, 0.0))
        if taken > 0:
            found[name] -= taken
            owed -= taken
    return found | {"locality": locality * mean - owed}
