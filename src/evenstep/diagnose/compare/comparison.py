"""The changes from one run to another, with intervals, and whether they are better or worse.

Each run is reduced to the length and the parts of every step. A draw is a whole run with its blocks
of steps resampled (moving blocks, Künsch 1989): every number of the run is computed for each draw,
too, and their spread is its interval. A change whose interval holds zero is no evidence. Intervals
are of the steps within each of the two runs: differences between re-runs of the same job are not in
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt, sqrt

import numpy as np

from evenstep import words
from evenstep.diagnose.compare.result import (
    BETTER,
    DIRECTIONS,
    NO_EVIDENCE,
    PARTS,
    WORSE,
    Changed,
    Comparison,
    MetricChange,
    StepTimePart,
    locality,
    pair_findings,
)
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.levels import FEW_STEPS, FEWEST, NAMED
from evenstep.diagnose.measure.overview import time_shares, time_spent
from evenstep.diagnose.measure.transfers import usual_of_same
from evenstep.diagnose.predict.scaling import bytes_per_rank, differences, script
from evenstep.statistics.interval import BLOCK_STEPS, SEED, blocks, of_draws, student, z
from evenstep.trace.columns import Array
from evenstep.trace.trace import Trace

Numbers = dict[str, float]

NEGLIGIBLE = 0.001  # of the baseline, or of step time: too small to count, however sure


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
    spent_ns: tuple[Array, ...]  # on compute, blocked, of that waiting, and on input
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
        """Width of the interval over that of the draws: for few blocks t over z, and n over n - 1;
        for short ones the correlation of neighbours, with steps as an AR(1) process."""
        block = block_steps(self.steps)
        blocks = max(self.steps // block, 2)
        few = student(blocks - 1) / z(0.975) * sqrt(blocks / (blocks - 1))
        return few / sqrt(seen_variance(memory(self.step_ns), block))


def block_steps(steps: int) -> int:
    """Length of the blocks: growing with the run, as slow drifts do, with at least 5 of them."""
    return max(1, min(max(BLOCK_STEPS, isqrt(steps)), steps // 5))


def memory(values: Array) -> float:
    """Autocorrelation of neighbours, 0 to .95 (0 without spread), less its bias in short series
    (Marriott, Pope 1954)."""
    rest = values - values.mean()
    power = float((rest**2).sum())
    if len(values) < 4 or power <= 0:
        return 0.0
    found = float((rest[1:] * rest[:-1]).sum()) / power
    return min(max(found + (1 + 3 * found) / len(values), 0.0), 0.95)


def seen_variance(coefficient: float, block: int) -> float:
    """Share of the variance of an AR(1) process's mean that blocks of this length show: 1 - 2φ(1 -
    φ^l) / (l(1 - φ²))."""
    left = 2 * coefficient * (1 - coefficient**block) / (block * (1 - coefficient**2))
    return max(1 - left, 0.05)


def account(name: str, trace: Trace) -> Account:
    """Diagnose and reduce a run; without a finished step its arrays are empty."""
    case = open_case(trace)
    grid, diagnosis = case.grid, diagnose(case)
    known = len(grid.steps) > 0 and (grid.samples > 0).all() and len(grid.ranks) >= trace.world
    return Account(
        name=name, diagnosis=diagnosis, world=trace.world, nodes=len(trace.nodes),
        script=script(trace.run.get("command") or []), bytes_per_rank=bytes_per_rank(trace),
        step_ns=grid.step_ns, length_ns=_mean(grid.duration_ns),
        spent_ns=tuple(map(_mean, time_spent(grid))), above_floor=_above_floor(case),
        samples=grid.samples.sum(axis=1).astype(float) if known else None,
    )  # fmt: skip


def _mean(cells: Array) -> Array:
    """Mean over ranks for each step; empty without a step, whatever the ranks."""
    return np.asarray(cells.mean(axis=1), float) if len(cells) else np.zeros(0)


def _above_floor(case: Case) -> Array | None:
    """Share of each step's transfers above the floor, the time that they take in quiet steps."""
    grid, rows = case.grid, case.transfers.rows
    if len(grid.ranks) < case.trace.world or not len(rows):
        return None
    took = rows.transfer_ns.astype(float)
    above = np.maximum(took - usual_of_same(rows)["floor_ns"], 0)
    total, more = (np.bincount(rows.step, each, len(grid.steps)) for each in (took, above))
    return grid.spread(np.where(total > 0, more / np.maximum(total, 1), 0.0))


# -- numbers of a run, and of each of its draws ----------------------------------------------------


def shares(run: Account, at: Array) -> dict[str, float]:
    """Shares of the time of these steps, as in the diagnosis' summary; they sum to 1."""
    return time_shares(*(float(part[at].sum()) for part in (run.length_ns, *run.spent_ns)))


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
        moving = np.maximum(run.spent_ns[1][at] - run.spent_ns[2][at], 0)
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


# -- differences and their intervals ---------------------------------------------------------------


def compare(baseline: Account, other: Account) -> Comparison:
    findings = pair_findings(baseline.diagnosis, other.diagnosis)
    if not (baseline.steps and other.steps):
        empty = baseline.name if not baseline.steps else other.name
        reason = f"{empty} has no step that every rank finished: there is nothing to compare"
        return Comparison(other.name, NO_EVIDENCE, reason, findings=findings)
    known = baseline.samples is not None and other.samples is not None
    unit = "samples/s" if known else "steps/s"
    changes, split = _changes(baseline, other, unit), _parts(baseline, other)
    return Comparison(
        name=other.name, verdict=_rate(changes).verdict,
        sentence=sentence(baseline, other, changes, findings, split),
        changes=changes, findings=findings, parts=split, limits=limits(baseline, other, unit),
        difference_ns=float(other.length_ns.mean() - baseline.length_ns.mean()),
    )  # fmt: skip


def _rate(changes: Sequence[MetricChange]) -> MetricChange:
    """The change of throughput, of runs of unlike size that of a rank."""
    by_metric = {item.metric: item for item in changes}
    return by_metric.get("throughput_per_rank", by_metric["throughput"])


def _draw_differences(
    baseline: Account, other: Account, of: Callable[[Account, Array], Numbers]
) -> dict[str, tuple[float, float, Array, Array]]:
    """Each number of both runs, and of their draws, which are independent of each other."""
    tables = []
    for stream, run in enumerate((baseline, other)):
        rows = [of(run, at) for at in run.draws(stream)]
        point = of(run, np.arange(run.steps))
        drawn = {name: np.array([row[name] for row in rows]) for name in point}
        width = run.widening
        spread = {n: point[n] + width * (values - values.mean()) for n, values in drawn.items()}
        tables += [point, spread]
    first, first_drawn, second, second_drawn = tables
    return {n: (first[n], second[n], first_drawn[n], second_drawn[n]) for n in first}


def _changes(baseline: Account, other: Account, unit: str) -> list[MetricChange]:
    def of(run: Account, at: Array) -> Numbers:
        found = numbers(run, at, unit=unit)
        if baseline.world != other.world:
            found["throughput_per_rank"] = found["throughput"] / run.world
        return found

    drawn = _draw_differences(baseline, other, of)
    found = {name: _change(name, unit, *drawn[name]) for name in DIRECTIONS if name in drawn}
    whole = found["step_time"]
    for name, one in found.items():
        if one.unit != "share" or NO_EVIDENCE in (one.verdict, whole.verdict):
            continue
        more = one.value * whole.value > one.baseline * whole.baseline
        same = name == "compute_share" or more == (one.verdict == BETTER)
        if one.verdict != whole.verdict and same:  # only a share of a longer or shorter step
            found[name] = replace(one, verdict=NO_EVIDENCE)
    return list(found.values())


def _change(
    name: str, unit: str, before: float, after: float, draws_before: Array, draws_after: Array
) -> MetricChange:
    direction, own_unit = DIRECTIONS[name]
    difference, low, high = of_draws(after - before, draws_after - draws_before)
    relative = relative_low = relative_high = None
    if before > 0 and own_unit != "share":
        safe = np.maximum(draws_before, NAMED * before)  # no ratio to next to nothing
        ratios = np.maximum(draws_after, 0) / safe
        relative, relative_low, relative_high = of_draws(after / before - 1, ratios - 1)
    negligible = NEGLIGIBLE * (1.0 if own_unit == "share" else before)
    return MetricChange(
        metric=name, unit=own_unit or unit, baseline=before, value=after, difference=difference,
        low=low, high=high, relative=relative, relative_low=relative_low,
        relative_high=relative_high,
        verdict=word_of_difference(low, high, direction, negligible=negligible),
    )  # fmt: skip


def word_of_difference(low: float, high: float, direction: int, *, negligible: float) -> str:
    """The word for a difference: no evidence where its interval holds a negligible one."""
    if low <= negligible and high >= -negligible:
        return NO_EVIDENCE
    return BETTER if (low > 0) == (direction > 0) else WORSE


def _parts(baseline: Account, other: Account) -> list[StepTimePart]:
    """The difference of the mean step, part by part."""
    split = baseline.above_floor is not None and other.above_floor is not None

    def of(run: Account, at: Array) -> Numbers:
        return parts(run, at, split=split, locality=locality(run.diagnosis))

    drawn, found = _draw_differences(baseline, other, of), []
    for name in PARTS:
        if name in drawn:
            before, after, draws_before, draws_after = drawn[name]
            change = of_draws(after - before, draws_after - draws_before)
            found.append(StepTimePart(name, before, after, *change))
    return found


# -- in words --------------------------------------------------------------------------------------


#: The parts of a step in words.
_IN_WORDS = {
    "floor": "transfers in quiet steps, too", "contention": "transfers slower than in quiet steps",
    "transfer": "transfers", "wait": "waits",
}  # fmt: skip


def sentence(
    baseline: Account, other: Account, changes: Sequence[MetricChange],
    findings: Sequence[Changed], split: Sequence[StepTimePart],
) -> str:  # fmt: skip
    """The comparison in one sentence: throughput (of runs of unlike size that of a rank), p99, and
    the finding that changed most, or of a faster or slower run without one the part that did."""
    by_metric = {item.metric: item for item in changes}
    whole, tail, rate = by_metric["throughput"], by_metric["p99"], _rate(changes)
    word, each = "faster" if rate.verdict == BETTER else "slower", " per rank" * (rate is not whole)
    text = f"{other.name} is {word} than {baseline.name}{each}"
    if rate.verdict == NO_EVIDENCE:
        text = f"no evidence that {other.name} is faster or slower than {baseline.name}{each}"
    text += f": throughput {_relative(rate)}" + (f", in all {_relative(whole)}" if each else "")
    if tail.verdict != NO_EVIDENCE:
        text += f"; p99 of the step time {_relative(tail)}"
    if named := [item for item in findings if item.verdict != NO_EVIDENCE]:
        first = max(named, key=lambda item: abs(item.difference))
        span = f"{words.percent(first.baseline)} to {words.percent(first.value)}"
        text += f"; most changed finding: {first.title}, {span} of step time"
    elif rate.verdict != NO_EVIDENCE:
        most = max(split, key=lambda part: abs(part.difference_ns))
        more_ns = sum(part.difference_ns for part in split)
        grows = (more_ns > 0) == (rate.verdict == WORSE) == (most.difference_ns > 0)
        if grows and most.part != "other":  # which may be whole steps, and tells nothing
            part, whole_ns = words.duration(abs(most.difference_ns)), words.duration(abs(more_ns))
            text += f"; mostly {_IN_WORDS.get(most.part, most.part)}: {part} of {whole_ns} a step"
    return text


def _relative(change: MetricChange) -> str:
    if change.relative is None or change.relative_low is None or change.relative_high is None:
        return "unknown"
    low, high = signed_percent(change.relative_low), signed_percent(change.relative_high)
    return f"{signed_percent(change.relative)} % ({low} to {high} %)"


def signed_percent(share: float) -> str:
    """A share in percent with a sign and about two digits: +4.1, -12, +1,230, 0."""
    value = 100 * share
    size = abs(value)
    if size < 0.005:
        return "0"
    places = 0 if size >= 9.95 else 1 if size >= 0.95 else 2
    return f"{value:+,.{places}f}"


def limits(baseline: Account, other: Account, unit: str) -> list[str]:
    """Reasons why the runs may not be comparable, or the intervals are rough."""
    found = [
        f"{run.name} has only {run.steps} steps: its intervals are rough"
        for run in (baseline, other)
        if run.steps < FEW_STEPS
    ]
    fewest = min(baseline.steps, other.steps)
    if fewest // 100 < FEWEST:  # above the p99
        found.append(f"the p99 of {fewest} steps rests on {max(fewest // 100, 1)} of them: rough")
    if baseline.world != other.world:
        sizes = f"{baseline.name} has {baseline.world} ranks, {other.name} {other.world}"
        found.append(f"{sizes}: compare throughput per rank")
    pair = (baseline, other)
    batches = [run.samples.mean() / run.world for run in pair if run.samples is not None]
    if len(batches) == 2 and not 1 - NAMED < batches[1] / batches[0] < 1 + NAMED:
        steps = f"a step of {baseline.name} has {batches[0]:,.4g} samples a rank"
        found.append(f"{steps}, of {other.name} {batches[1]:,.4g}: compare throughput")
    found += differences([run.script for run in pair], [run.bytes_per_rank for run in pair])
    if unit == "steps/s" and (baseline.samples is None) != (other.samples is None):
        found.append("only one run tells its batch: steps are compared, whatever their size")
    found.append(
        "intervals are of the steps within each run; what differs between two runs of the same "
        "thing is not in them: compare with a re-run as well"
    )
    return found
