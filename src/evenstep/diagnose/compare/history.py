"""Many runs in a folder: culprits, re-runs, variance, energy and cost per unit, and the trend.

Numbers come from step summaries, which are never lost: a run of a week is read as fast as one of a
minute. The culprit comes from a diagnosis of the last attempt, whose records are bounded. A unit of
progress is a sample where the batch is known, else a step. Work that is done again counts as time,
energy and cost, but not as progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from evenstep import words
from evenstep.diagnose.compare.comparison import NEGLIGIBLE
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.levels import SEVERAL
from evenstep.diagnose.measure.attempts import load_run, read_attempts
from evenstep.diagnose.measure.effects import account
from evenstep.diagnose.predict.scaling import script
from evenstep.diagnose.sentences import verdict
from evenstep.documents import Document, Meta, Natural, Portion, Positive
from evenstep.errors import TraceError
from evenstep.statistics.interval import student
from evenstep.trace.columns import Array
from evenstep.trace.spool.folder import RunFolder

SCHEMA = "evenstep.history/1"
DEPTH = ("", "*/", "*/*/")  # of the folders that are searched for runs

#: Numbers with a trend, and their names in sentences.
TRENDS = {
    "step_ns": "step time",
    "cv": "CV of the step time",
    "rank_hours_per_unit": "cost in rank-hours per unit of progress",
    "joules_per_unit": "energy per unit of progress",
    "cost_per_unit": "cost in money per unit of progress",
}


@dataclass(slots=True, frozen=True)
class Culprit:
    """The finding that makes a run's verdict, as `evenstep diagnose` names it."""

    title: str
    mode: str
    severity: Annotated[Portion, Meta("Recoverable share of the total step time.")]
    ranks: Sequence[Natural]
    nodes: Sequence[str]


@dataclass(slots=True, frozen=True)
class PastRun:
    """One run as a whole. None: unknown."""

    name: str
    script: str
    ranks: Natural
    started_s: float
    elapsed_s: float
    attempts: Positive
    steps: Natural  # that count
    steps_again: Natural
    unit: Annotated[str, Meta("Of progress.", enum=("sample", "step"))]
    progress: float
    step_ns: float
    cv: float | None
    rank_hours_per_unit: float
    joules_per_unit: float | None
    cost_per_unit: float | None
    goodput: dict[str, Any] | None = None  # of its diagnosis, see `GoodputSeconds.to_json`
    culprit: Annotated[
        Culprit | None, Meta("Null where the run is healthy, or where a limit says why.")
    ] = None


@dataclass(slots=True, frozen=True)
class MetricTrend:
    """Trend of a number over runs: relative change per run, with its 95 % interval."""

    metric: Annotated[str, Meta(enum=tuple(TRENDS))]
    change_per_run: float
    low: float
    high: float
    words: str


@dataclass(slots=True, frozen=True)
class Workload:
    """Runs of one script on as many ranks. `spread` is the CV of each number over them."""

    script: str
    ranks: Natural
    runs: Sequence[str]
    restarts: Natural
    spread: Annotated[Mapping[str, float | None], Meta("CV from run to run.")]
    trends: Sequence[MetricTrend]
    sentence: str


@dataclass(slots=True, frozen=True)
class History(Document):
    """All runs in order of their start, and their workloads."""

    schema: ClassVar[str] = SCHEMA

    runs: Sequence[PastRun]
    workloads: Sequence[Workload]
    limits: Sequence[str]


def history(
    folder: Path,
    *,
    price_per_rank_hour: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> History:
    """Read and diagnose every run in a folder; `progress` gets how many of how many are done.
    Raises `TraceError` where there is none."""
    places = find(folder)
    if not places:
        raise TraceError(f"there is no run in {folder}; give a folder that holds runs' folders")
    found: list[PastRun] = []
    limits: list[str] = []
    names: dict[PastRun, str] = {}  # by all numbers of a run, which two never share
    for done, place in enumerate(places, start=1):
        name = str(place.relative_to(folder)) if place != folder else place.absolute().name
        run = past_run(place, name, price_per_rank_hour=price_per_rank_hour)
        if run is None:
            limits.append(f"left out: {name} has no finished step, or marks none")
        elif (copied := names.setdefault(replace(run, name="", script=""), name)) != name:
            limits.append(f"left out: {name} is a copy of {copied}")
        else:
            found.append(run)
            try:
                found[-1] = diagnose_run(run, place)
            except TraceError as error:
                limits.append(f"{name} is not diagnosed: {error}")
        if progress is not None:
            progress(done, len(places))
    found.sort(key=lambda run: run.started_s)
    return History(found, workloads(found), limits)


def find(folder: Path) -> list[Path]:
    """Folders of runs in this one, itself included; last those that lack their `run.json`."""
    places = [depth + name for depth in DEPTH for name in ("run.json", "attempt-*")]
    found = {path.parent for place in places for path in folder.glob(place)}
    return sorted(found, key=lambda path: (not RunFolder(path).facts_path.exists(), path))


def diagnose_run(run: PastRun, folder: Path) -> PastRun:
    """A run: its goodput, and step time, CV and first finding (unless healthy) of its last attempt,
    which may have hung before its first step. Raises `TraceError`."""
    found = diagnose(load_run(folder))
    step, goodput = found.summary["step_time"] or {}, found.summary["goodput"]
    mean_ns = float(step.get("mean_ns") or run.step_ns)
    run = replace(run, goodput=goodput, step_ns=mean_ns, cv=step.get("cv"))
    if not found.findings or verdict(found.findings, found.summary).healthy:
        return run
    first = found.findings[0]
    name = Culprit(first.title, first.mode, first.severity, first.where.ranks, first.where.nodes)
    return replace(run, culprit=name)


def past_run(
    folder: Path, name: str, *, price_per_rank_hour: float | None = None
) -> PastRun | None:
    """One run from its summaries; None where no step was finished."""
    attempts = read_attempts(folder)
    if not attempts:
        return None
    total = account(attempts)
    ranks = attempts[-1].ranks
    samples = sum(one.samples * one.steps * one.ranks for one in attempts)
    counts = total.net_steps / max(total.steps, 1)
    unit, progress = "step", float(total.net_steps)
    if samples > 0:
        unit, progress = "sample", samples * counts
    hours = total.elapsed_s / 3600 * ranks
    joules = [one.energy_joules for one in attempts if one.energy_joules is not None]
    price = price_per_rank_hour
    return PastRun(
        name=name, script=_script(folder), ranks=ranks, started_s=attempts[0].started_s,
        elapsed_s=total.elapsed_s, attempts=len(attempts), steps=total.net_steps,
        steps_again=total.lost_steps, unit=unit, progress=progress,
        step_ns=sum(one.steps * one.step_ns for one in attempts) / max(total.steps, 1), cv=None,
        rank_hours_per_unit=hours / progress,
        joules_per_unit=sum(joules) / progress if len(joules) == len(attempts) else None,
        cost_per_unit=None if price is None else price * hours / progress,
    )  # fmt: skip


def _script(folder: Path) -> str:
    """The script of a run, or the scenario of a simulation; "" unknown."""
    try:
        facts = RunFolder(folder).read()
    except TraceError:
        return ""
    if "scenario" in facts:
        return f"{facts['scenario'].get('name') or 'a scenario'} (simulated)"
    return script(facts.get("command") or [])


# -- workloads -------------------------------------------------------------------------------------


def workloads(runs: Sequence[PastRun]) -> list[Workload]:
    """Runs by script, number of ranks and unit, in order of their first start."""
    groups: dict[tuple[str, int, str], list[PastRun]] = {}
    for run in runs:
        groups.setdefault((run.script, run.ranks, run.unit), []).append(run)
    return [_workload(group) for group in groups.values()]


def _workload(runs: Sequence[PastRun]) -> Workload:
    found = [trend for name in TRENDS if (trend := _trend(name, runs)) is not None]
    values = {name: _values(name, runs) for name in TRENDS}
    return Workload(
        script=runs[0].script, ranks=runs[0].ranks, runs=[run.name for run in runs],
        restarts=sum(run.attempts - 1 for run in runs),
        spread={
            name: None if one is None or len(one) < 2 else float(one.std(ddof=1) / one.mean())
            for name, one in values.items()
        },
        trends=found,
        sentence=_sentence(runs, found),
    )  # fmt: skip


def _values(name: str, runs: Sequence[PastRun]) -> Array | None:
    """A number of all runs; None where one of them does not have it."""
    values = [getattr(run, name) for run in runs]
    known = all(value is not None and value > 0 for value in values)
    return np.array(values, float) if known else None


def _trend(name: str, runs: Sequence[PastRun]) -> MetricTrend | None:
    """Slope of the logarithm over the runs' order: least squares with Student's interval."""
    values = _values(name, runs)
    if values is None or len(values) < SEVERAL:
        return None
    order, logs = np.arange(len(values)) - (len(values) - 1) / 2, np.log(values)
    slope = float(order @ logs / (order @ order))
    rest = logs - logs.mean() - slope * order
    freedom = len(values) - 2
    half = student(freedom) * float(np.sqrt(rest @ rest / freedom / (order @ order)))
    change, low, high = (float(np.expm1(each)) for each in (slope, slope - half, slope + half))
    return MetricTrend(name, change, low, high, _in_words(TRENDS[name], change, low, high))


def _moves(low: float, high: float) -> bool:
    """Whether an interval of changes is clear of negligible ones."""
    return low > NEGLIGIBLE or high < -NEGLIGIBLE


def _in_words(name: str, change: float, low: float, high: float) -> str:
    if not _moves(low, high):
        return f"no evidence that the {name} changes from run to run"
    word = "rises" if change > 0 else "falls"
    ends = sorted((abs(low), abs(high)))
    return (
        f"the {name} {word} by {100 * abs(change):.2g} % a run "
        f"({100 * ends[0]:.2g} to {100 * ends[1]:.2g} %)"
    )


def _sentence(runs: Sequence[PastRun], trends: Sequence[MetricTrend]) -> str:
    name, ranks = runs[0].script or "an unnamed script", words.plural(runs[0].ranks, "rank")
    head = f"{words.plural(len(runs), 'run')} of {name} with {ranks}"
    if not trends:
        return f"{head}: a trend needs at least {SEVERAL}"
    moving = [trend for trend in trends if _moves(trend.low, trend.high)]
    if not moving:
        return f"{head}: no evidence of a trend in {', '.join(TRENDS[t.metric] for t in trends)}"
    return f"{head}: {'; '.join(trend.words for trend in moving)}"
