"""A comparison in words: its sentence, and why the two runs may not be comparable."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep import words
from evenstep.diagnose.compare.account import Account
from evenstep.diagnose.compare.findings import Changed
from evenstep.diagnose.compare.result import BETTER, NO_EVIDENCE, MetricChange

FEW_STEPS = 30
TAIL_STEPS = 500  # of which five lie above the p99
ALIKE = 0.1  # relative difference up to which two runs move the same bytes


def sentence(
    baseline: Account, other: Account, changes: Sequence[MetricChange], findings: Sequence[Changed]
) -> str:
    rate = changes[0]
    if rate.verdict == NO_EVIDENCE:
        text = (
            f"no evidence that {other.name} is faster or slower than {baseline.name}: throughput "
            f"{_relative(rate)}"
        )
    else:
        word = "faster" if rate.verdict == BETTER else "slower"
        text = f"{other.name} is {word} than {baseline.name}: throughput {_relative(rate)}"
    tail = next(item for item in changes if item.metric == "p99")
    if tail.verdict != NO_EVIDENCE:
        text += f"; p99 of the step time {_relative(tail)}"
    each = next((item for item in changes if item.metric == "throughput_per_rank"), None)
    if each is not None:
        text += f"; per rank {_relative(each)}"
    named = [item for item in findings if item.verdict != NO_EVIDENCE]
    if named:
        first = max(named, key=lambda item: abs(item.difference))
        text += (
            f"; most changed finding: {first.mode.replace('_', ' ')}, "
            f"{words.percent(first.baseline)} to {words.percent(first.value)} of step time"
        )
    return text


def _relative(change: MetricChange) -> str:
    if change.relative is None or change.relative_low is None or change.relative_high is None:
        return "unknown"
    low, high = signed(change.relative_low), signed(change.relative_high)
    return f"{signed(change.relative)} % ({low} to {high} %)"


def signed(share: float) -> str:
    """Hundredths with a sign and about two digits: +4.1, -12, +1,230, 0."""
    value = 100 * share
    size = abs(value)
    if size < 0.005:
        return "0"
    places = 0 if size >= 9.95 else 1 if size >= 0.95 else 2
    return f"{value:+,.{places}f}"


def limits(baseline: Account, other: Account, unit: str) -> list[str]:
    """Why the two may not be comparable, or the answer rough."""
    found = [
        f"{run.name} has only {run.steps} steps: its intervals are rough"
        for run in (baseline, other)
        if run.steps < FEW_STEPS
    ]
    fewest = min(baseline.steps, other.steps)
    if fewest < TAIL_STEPS:
        found.append(f"the p99 of {fewest} steps rests on {max(fewest // 100, 1)} of them: rough")
    if baseline.world != other.world:
        found.append(
            f"{baseline.name} has {baseline.world} ranks, {other.name} {other.world}: compare "
            "throughput per rank"
        )
    if baseline.script and other.script and baseline.script != other.script:
        found.append(f"the runs are of different scripts: {baseline.script}, {other.script}")
    moved = sorted([baseline.bytes_per_step, other.bytes_per_step])
    if moved[0] > 0 and moved[1] > (1 + ALIKE) * moved[0]:
        found.append(
            f"a rank passes {moved[0] / 1e6:,.4g} MB through collectives per step in one run and "
            f"{moved[1] / 1e6:,.4g} MB in the other: the model or its sharding differs"
        )
    if unit == "steps/s" and (baseline.samples is None) != (other.samples is None):
        found.append("only one run tells its batch: steps are compared, whatever their size")
    found.append(
        "intervals are of the steps within each run; what differs between two runs of the same "
        "thing is not in them: compare with a re-run as well"
    )
    return found
