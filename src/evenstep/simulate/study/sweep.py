"""A sweep: one scenario in every combination of some values, each repeated with other seeds.

A unit of work is a small value that can be pickled: the scenario as plain data, and its place in
the sweep. `outcome` turns it into one row of numbers. Repeat r of every combination has the seed of
the scenario plus r, so that combinations are compared under the same random numbers.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, cast

from evenstep.documents import Meta, Natural, Positive, plain
from evenstep.errors import ConfigError, UsageError
from evenstep.scenario import scenario as scenarios
from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario
from evenstep.statistics.interval import half_width
from evenstep.words import plural
from evenstep.workers import Engine, Local

if TYPE_CHECKING:
    from evenstep.simulate.result import Result

Row = dict[str, Any]

#: Short names of fields that are often varied; all others are named in full.
SHORT = {"strategy": "strategy.kind"} | {
    name.partition(".")[2]: name
    for name in (
        "cluster.nodes", "cluster.gpus_per_node", "job.ranks", "job.placement", "work.buckets",
        "fabric.oversubscription", "strategy.controller", "collectives.algorithm", "run.seed",
        "run.steps",
    )
}  # fmt: skip
MOST_UNITS = 100_000
VERSION = 1  # of the rows: those of another version are simulated again
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


class Axis(NamedTuple):
    """A field and the values it takes, as text that `schema.assign` reads."""

    field: str
    values: tuple[str, ...]


class SweepRun(NamedTuple):
    """One simulation: place in the sweep, varied values, and scenario as plain data."""

    number: int
    combination: int
    repeat: int
    varied: tuple[tuple[str, Any], ...]
    scenario: dict[str, Any]

    @property
    def key(self) -> str:
        """A digest of the simulation, independent of the sweep."""
        text = json.dumps([VERSION, self.scenario], sort_keys=True)
        return blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep simulates, in order."""

    axes: tuple[Axis, ...]
    repeats: int
    units: tuple[SweepRun, ...]

    def described(self) -> dict[str, Any]:
        """What makes it this sweep and no other, as plain data."""
        first = self.units[0]
        return {
            "schema": f"evenstep.sweep/{VERSION}",
            "vary": {axis.field: list(axis.values) for axis in self.axes},
            "repeats": self.repeats,
            "first": first.scenario,
        }


def axis(text: str) -> Axis:
    """`name=value,value…`; raises `UsageError` where there is no name or no value."""
    label, equals, values = text.partition("=")
    label = label.strip()
    found = tuple(value.strip() for value in _split(values))
    if not (equals and label and found and all(found)):
        raise UsageError(f"--vary takes name=value,value… such as nodes=4,8,16; found {text!r}")
    if len(set(found)) < len(found):
        raise UsageError(f"--vary {label} names a value twice: {values}")
    return Axis(SHORT.get(label, label), found)


def _split(values: str) -> list[str]:
    """Split at commas outside brackets, since lists are values too."""
    parts, depth = [""], 0
    for letter in values:
        depth += _BRACKETS.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def plan(
    data: Mapping[str, Any], axes: Sequence[Axis], *, repeats: int = 1,
    assignments: Sequence[str] = (),
) -> SweepPlan:  # fmt: skip
    """All units of a sweep over a scenario's plain values.

    Raises `ConfigError`, naming the combination, for one that is no valid scenario.
    """
    _check(axes, repeats)
    units: list[SweepRun] = []
    for combination, chosen in enumerate(itertools.product(*(axis.values for axis in axes))):
        fields = [f"{axis.field}={value}" for axis, value in zip(axes, chosen, strict=True)]
        try:
            asked = scenarios.parse(deepcopy(dict(data)), [*map(_in_full, assignments), *fields])
        except ConfigError as error:
            where = ", ".join(fields)
            raise ConfigError(f"with {where}: {error}" if where else str(error)) from error
        pairs = tuple((axis.field, _show(value)) for axis, value in zip(axes, chosen, strict=True))
        for repeat in range(repeats):
            seeded = with_seed(asked, repeat)
            units.append(SweepRun(len(units), combination, repeat, pairs, seeded))
    return SweepPlan(tuple(axes), repeats, tuple(units))


def _check(axes: Sequence[Axis], repeats: int) -> None:
    fields = [axis.field for axis in axes]
    twice = next((field for field in fields if fields.count(field) > 1), None)
    if twice is not None:
        raise UsageError(f"--vary names {twice} twice; give all its values in one")
    total = math.prod((repeats, *(len(one.values) for one in axes)))
    if total > MOST_UNITS:
        raise UsageError(f"these are {total:,} simulations; at most {MOST_UNITS:,} are one sweep")


def _in_full(assignment: str) -> str:
    """An assignment with the full name of its field."""
    label, equals, value = assignment.partition("=")
    return f"{SHORT.get(label, label)}{equals}{value}"


def _show(value: str) -> Any:
    """A number where the value is one, else the text."""
    found = schema.parse(value)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else value


def with_seed(asked: Scenario, repeat: int) -> dict[str, Any]:
    """A scenario as plain data, with the seed of a repeat."""
    data = schema.plain(asked)
    if repeat:
        data.setdefault("run", {})["seed"] = asked.run.seed + repeat
    return data


def expected_s(units: Sequence[SweepRun]) -> float:
    """Estimated seconds of units on one core, from the first, the middle and the last."""
    from evenstep.simulate.simulation import estimate_run, set_up

    looked = {0, len(units) // 2, len(units) - 1} if units else set()
    each = [estimate_run(set_up(schema.read(Scenario, units[n].scenario)))[1] for n in looked]
    return sum(each) / max(len(each), 1) * len(units)


# -- simulations -----------------------------------------------------------------------------------


def outcome(unit: SweepRun) -> dict[str, Any] | None:
    """Simulate a unit and return its row; None where it was interrupted."""
    from evenstep.simulate.simulation import simulate

    return row_of(unit, simulate(schema.read(Scenario, unit.scenario)))


def row_of(unit: SweepRun, result: Result) -> dict[str, Any] | None:
    """A result as a flat row; None for a partial one."""
    from evenstep.simulate import result as results

    if result.partial:
        return None
    asked = schema.read(Scenario, unit.scenario)
    energy, busiest = result.energy or {}, result.links[0] if result.links else None
    named = ("ranks", "nodes", "steps", "throughput", "unit", "efficiency")
    return {
        "number": unit.number,
        "combination": unit.combination,
        "repeat": unit.repeat,
        "seed": unit.scenario.get("run", {}).get("seed", 0),
        **dict(unit.varied),
        **{name: getattr(result, name) for name in named},
        **{f"step_{name}": value for name, value in plain(result.step_time).items()},
        **{f"share_{name}": value for name, value in plain(result.shares).items()},
        "transfer_alone_ns": max((use.alone_ns for use in result.collectives), default=0.0),
        "busiest_link": busiest and busiest.link,
        "busiest_link_utilisation": busiest and busiest.utilisation,
        **{name: energy.get(name) for name in ("joules_per_unit", "cost_per_unit")},
        "goodput": (result.goodput or {}).get("useful"),
        "without_effect": "\n".join(results.without_effect(asked, result.collectives)),
        "key": unit.key,
    }


def without_effect(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> Iterator[str]:
    """What was set but changed nothing, each as a sentence; of some combinations with the first."""
    told = [(row, text) for row in rows for text in row.get("without_effect", "").splitlines()]
    for sentence in dict.fromkeys(text for _, text in told):
        those = {row["combination"]: row for row, text in told if text == sentence}
        first, *others = those.values()
        where = ", ".join(f"{name}={first[name]}" for name in varied)
        more = f" and {plural(len(others), 'other combination')}" if others else ""
        every = len(those) == len({row["combination"] for row in rows})
        yield sentence if every else f"with {where}{more}: {sentence}"


class MeanInterval(TypedDict):
    """A mean over repeats and its 95 % interval; of a single one the bounds are unknown."""

    value: float
    low: float | None
    high: float | None


class Measures(TypedDict):
    """Columns that are numbers of their own in every repeat: the others say what was simulated."""

    throughput: MeanInterval | None
    efficiency: MeanInterval | None
    step_mean_ns: MeanInterval | None
    step_cv: MeanInterval | None
    step_p50_ns: MeanInterval | None
    step_p99_ns: MeanInterval | None
    share_compute: MeanInterval | None
    share_exposed_communication: MeanInterval | None
    share_wait: MeanInterval | None
    share_input: MeanInterval | None
    share_held: MeanInterval | None
    joules_per_unit: MeanInterval | None
    cost_per_unit: MeanInterval | None
    goodput: MeanInterval | None


class Combination(Measures):
    """What was varied, and what came of it."""

    varied: Annotated[dict[str, str | float | bool], Meta("Fields and what they are here.")]
    ranks: Positive
    nodes: Positive
    steps: Natural
    unit: str
    repeats: Positive


class SweepDocument(TypedDict):
    """What `--json` prints."""

    schema: Literal["evenstep.sweep/1"]
    vary: dict[str, list[str]]
    repeats: Positive
    simulations: Positive
    finished: Natural
    partial: bool
    combinations: list[Combination]


def run_units(
    units: Sequence[SweepRun],
    engine: Engine | int,
    work: Callable[[SweepRun], Row | None] = outcome,
) -> Generator[Row, None, None]:
    """Yield the rows of units as they finish; a number as `engine` means local workers.

    Closing the iterator ends the workers and discards unfinished units. Raises `KeyboardInterrupt`
    where this process was interrupted.
    """
    carrier = Local(engine) if isinstance(engine, int) else engine
    finished = carrier.carried(units, work)
    try:
        for row in finished:
            if row is None:
                raise KeyboardInterrupt
            yield row
    finally:
        finished.close()


# -- summary ---------------------------------------------------------------------------------------


def summed_up(rows: Iterable[Mapping[str, Any]], axes: Iterable[str]) -> list[Combination]:
    """One entry for each combination: varied values, and measures as value, low and high."""
    by_combination: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: int(row["number"])):
        by_combination.setdefault(int(row["combination"]), []).append(row)
    return [_combination(same, list(axes)) for same in by_combination.values()]


def _combination(rows: list[Mapping[str, Any]], axes: list[str]) -> Combination:
    first = rows[0]
    found: dict[str, Any] = {"varied": {name: first[name] for name in axes}}
    found |= {name: first[name] for name in ("ranks", "nodes", "steps", "unit")}
    found["repeats"] = len(rows)
    for name in Measures.__annotations__:
        values = [float(row[name]) for row in rows if row[name] is not None]
        found[name] = interval(values) if values else None
        if len(values) > 1:
            found[name]["low"] = max(found[name]["low"], 0.0)  # of what is measured
    return cast("Combination", found)


def interval(values: list[float]) -> MeanInterval:
    """Mean and its 95 % interval (Student's t); of a single value the bounds are unknown."""
    mean = fmean(values)
    if len(values) < 2:
        return {"value": mean, "low": None, "high": None}
    half = half_width(values)
    return {"value": mean, "low": mean - half, "high": mean + half}
