"""Recommend a strategy, algorithm or layout for a cluster: simulate every option.

All options have the same noise and neighbours. The recommendation is the option with the most
throughput within the limits among those that do not change the training result; its reason names
faster options that were refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from evenstep.documents import plain
from evenstep.errors import ConfigError
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.job.strategies import Convergence
from evenstep.simulate.result import Result
from evenstep.simulate.simulation import check_runs, estimate_run, set_up, simulate
from evenstep.simulate.study import margin as margins
from evenstep.simulate.study.decision_options import DecisionOption, change, neutral, options
from evenstep.simulate.study.margin import Edges, Margin
from evenstep.workers import Local

SCHEMA = "evenstep.strategies/1"
EQUAL = 1e-3  # relative: throughputs that differ by less are equal, and the simpler option wins
CV = 0.10  # the limit where none is given
LEAST_STEPS, MOST_MESSAGES = 20, 3_000_000  # an option with more messages gets fewer steps

#: Called with the number of finished options and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an option; None: no limit. Times in nanoseconds."""

    cv: float | None = None
    p99_ns: float | None = None
    efficiency: float | None = None  # at least
    staleness: float | None = None  # mean updates

    @property
    def edges(self) -> Edges:
        """The limits that margins are measured to, with defaults."""
        return Edges(**{k: v for k, v in self.to_json().items() if k in Edges._fields})

    def to_json(self) -> dict[str, float]:
        rows = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return {name: value for name, value in rows if value is not None}

    def excess(self, row: DecisionRow) -> dict[str, float]:
        """By how much an option breaks limits, relative to each, by their names."""
        found = {}
        for name, limit in self.to_json().items():
            value = float(getattr(row, name))
            over = limit - value if name == "efficiency" else value - limit
            if over > 0:
                found[name.removesuffix("_ns")] = over / limit if limit else over
        return found


class DecisionRow(NamedTuple):
    """The result of one option."""

    option: DecisionOption
    throughput: float
    unit: str
    mean_ns: float
    cv: float
    p99_ns: float
    efficiency: float
    staleness: float  # mean; 0 where ranks are synchronous
    convergence: Convergence | None
    joules_per_unit: float | None
    cost_per_unit: float | None
    held_share: float  # of the ranks' time, by pacing
    margins: dict[str, Margin]

    def to_json(self, first: DecisionRow, limits: Limits) -> dict[str, Any]:
        """The row with its gain over the synchronous strategy and the limits it breaks."""
        option = self.option
        gain = self.throughput / first.throughput - 1 if first.throughput else None
        return {
            "name": option.name,
            "family": option.family,
            "set": list(option.sets),
            "changes_training": option.training,
            "applied_by": option.by,
            **{name: plain(getattr(self, name)) for name in self._fields[1:]},
            "gain": gain,
            "breaks": list(limits.excess(self)),
        }


class Choice(NamedTuple):
    """The recommended option and the reason. `other_training`: the best option that changes the
    training result, where it is faster; never recommended."""

    row: DecisionRow
    within: bool  # whether it keeps the limits; else it is the option nearest to them
    reason: str
    other_training: DecisionRow | None


@dataclass(frozen=True, slots=True)
class DecisionTable:
    """Every option of a scenario, and the recommendation."""

    scenario: Scenario
    limits: Limits
    rows: tuple[DecisionRow, ...]
    choice: Choice
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """One object; unknown is null."""
        first, choice = self.rows[0], self.choice
        other = choice.other_training
        return {
            "schema": SCHEMA,
            "name": self.scenario.name,
            "ranks": self.scenario.ranks,
            "limits": self.limits.to_json(),
            "edges": self.limits.edges._asdict(),
            "strategies": [row.to_json(first, self.limits) for row in self.rows],
            "recommendation": {
                "name": choice.row.option.name,
                "set": list(choice.row.option.sets),
                "applied_by": choice.row.option.by,
                "within_limits": choice.within,
                "reason": choice.reason,
                "other_training": None if other is None else other.option.name,
            },
            "notes": list(self.notes),
        }


def compare(
    scenario: Scenario, limits: Limits, *, axes: Sequence[str] = tuple(margins.AXES),
    workers: int = 1, progress: Progress | None = None,
    estimate: Callable[[float], None] | None = None,
) -> DecisionTable:  # fmt: skip
    """Run every option. Raises `ConfigError` where the synchronous one cannot be run. `estimate` is
    called first, with the expected seconds on one core."""
    if not limits.to_json():
        limits = Limits(cv=CV)
    data = neutral(scenario)
    wanted, notes = options(scenario)
    check_runs(set_up(change(data, ())))  # raises errors at once
    if (steps := min(_steps(data, option) for option in wanted)) < scenario.run.steps:
        data["run"] = {**data.get("run", {}), "steps": steps}
        notes.append(f"over {steps} of {scenario.run.steps} steps: more would take long")
    if estimate is not None:
        trials = margins.TRIALS * len(axes) * min(1.0, margins.MOST_STEPS / steps)
        alone = estimate_run(set_up(change(data, wanted[0].sets)))[1]
        estimate((1 + trials) * len(wanted) * alone)
    whole = [_whole_periods(data, option) for option in wanted]
    first, *others = [
        OptionRun(number, data, option, limits.edges, tuple(axes), {})
        for number, option in enumerate(whole)
    ]
    found = dict([run(first)])
    like = found[0].margins if isinstance(found[0], DecisionRow) else {}
    report = progress or (lambda *_: None)
    report(1, len(whole))
    units = [one._replace(like=like) for one in others]
    with closing(Local(workers).carried(units, run)) as finished:
        for number, row in finished:
            found[number] = row
            report(len(found), len(whole))
    ordered = [found[number] for number in sorted(found)]
    rows = [one for one in ordered if isinstance(one, DecisionRow)]
    notes += [one for one in ordered if isinstance(one, str)]
    return DecisionTable(scenario, limits, tuple(rows), choose(rows, limits), tuple(notes))


def _steps(data: dict[str, Any], option: DecisionOption) -> int:
    run = change(data, ()).run
    try:
        messages, _ = estimate_run(set_up(change(data, option.sets)))
    except ConfigError:  # reported where it is run
        return run.steps
    steps = int(MOST_MESSAGES / max(messages / run.steps, 1.0))
    return min(run.steps, run.warm_up + max(LEAST_STEPS, steps))


def _whole_periods(data: dict[str, Any], option: DecisionOption) -> DecisionOption:
    """The option with as many more steps as give each its share of an average."""
    every = [text for text in option.sets if text.startswith("strategy.every=")]
    run, period = change(data, ()).run, int(every[0].partition("=")[2]) if every else 1
    steps = run.steps + (run.warm_up - run.steps) % period
    more = () if steps == run.steps else (f"run.steps={steps}",)
    return replace(option, sets=(*option.sets, *more))


class OptionRun(NamedTuple):
    """The input of one option's run, for any process."""

    number: int
    data: dict[str, Any]
    option: DecisionOption
    edges: Edges
    axes: tuple[str, ...]
    like: dict[str, Margin]  # margins to look near


def run(unit: OptionRun) -> tuple[int, DecisionRow | str]:
    """Run one option: its number and row, or a sentence where this cluster cannot run it."""
    try:
        scenario = change(unit.data, unit.option.sets)
        result = simulate(scenario)
        if result.partial:
            raise KeyboardInterrupt
        found = margins.margins(scenario, result, unit.edges, unit.axes, unit.like)
        return unit.number, _row(unit.option, result, found)
    except ConfigError as error:
        return unit.number, f"{unit.option.name}: {error}"


def _row(option: DecisionOption, result: Result, found: dict[str, Margin]) -> DecisionRow:
    energy, staleness = result.energy or {}, result.convergence and result.convergence.staleness
    step = result.step_time
    return DecisionRow(
        option, result.throughput, result.unit, step.mean_ns, step.cv, step.p99_ns,
        result.efficiency, staleness.mean if staleness else 0.0, result.convergence,
        energy.get("joules_per_unit") or None, energy.get("cost_per_unit") or None,
        result.shares.held, found,
    )  # fmt: skip


# -- recommendation --------------------------------------------------------------------------------


def choose(rows: Sequence[DecisionRow], limits: Limits) -> Choice:
    """Choose the most throughput within the limits; of equal options the first, the simplest."""
    same = [row for row in rows if not row.option.training]
    allowed = [row for row in same if not limits.excess(row)]
    if not allowed:
        nearest = min(same, key=lambda row: (max(limits.excess(row).values()), -row.throughput))
        broken = " and ".join(limits.excess(nearest))
        reason = f"no option keeps {_name_limits(limits)}; this one is nearest, but breaks {broken}"
        return Choice(nearest, False, reason, None)
    best = most_throughput(allowed)
    looser = [row for row in rows if row.option.training and not limits.excess(row)]
    other = most_throughput([best, *looser])
    found = None if other is best else other
    return Choice(best, True, _because(best, rows, limits, found), found)


def most_throughput(rows: Iterable[DecisionRow]) -> DecisionRow:
    """The first row within `EQUAL` of the most throughput."""
    found = list(rows)
    enough = max(row.throughput for row in found) * (1 - EQUAL)
    return next(row for row in found if row.throughput >= enough)


def _because(
    best: DecisionRow, rows: Sequence[DecisionRow], limits: Limits, other: DecisionRow | None
) -> str:
    first, within = rows[0], f"within {_name_limits(limits)}"
    text = f"most throughput of {len(rows)} options {within}"
    if best.option == first.option:
        text = f"nothing else {within} brings more than {100 * EQUAL:g} % over it"
    else:
        text += f": {_gain(best, first)} over waiting for everybody, CV {best.cv:.3g}"
    faster = [
        row for row in rows
        if limits.excess(row) and row.throughput > best.throughput and not row.option.training
    ]  # fmt: skip
    if faster:
        top = max(faster, key=lambda row: row.throughput)
        broken = " and ".join(limits.excess(top))
        text += f"; {top.option.name} is faster ({_gain(top, best)}) but breaks {broken}"
    if other is not None:
        name, gain = other.option.name, _gain(other, best)
        text += f"; {name} is faster ({gain}) but changes what is trained"
    return text


def _gain(row: DecisionRow, first: DecisionRow) -> str:
    return f"{100 * (row.throughput / first.throughput - 1):+.1f} %"


def _name_limits(limits: Limits) -> str:
    given = [
        f"p99 {limit / 1e6:g} ms" if name == "p99_ns" else f"{name.replace('cv', 'CV')} {limit:g}"
        for name, limit in limits.to_json().items()
    ]
    return " and ".join(given)
