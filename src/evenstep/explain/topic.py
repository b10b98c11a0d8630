"""A topic of `evenstep explain`: its words in `topics.toml`, and the function that answers it.

Its parameters are measures: a number and a unit, read strictly. GB is 10^9 bytes and GiB 2^30, Gb
would be bits; ms is not Ms. An ambiguous unit is refused, with a list of those to choose from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.allreduce import ALGORITHMS
from evenstep.errors import UsageError

_MEASURE = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)", re.ASCII)

BYTES = {"B": 1.0} | {
    prefix + unit: float(base**power)
    for unit, base, prefixes in (("B", 1000, "kMGTP"), ("iB", 1024, "KMGTP"))
    for power, prefix in enumerate(prefixes, start=1)
}
TIMES_NS = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9,
    "min": 60e9, "h": 3600e9, "d": 86400e9,
}  # fmt: skip
SMALLEST, LARGEST = 1e-12, 1e24  # between which no formula overflows
COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
SHARES = {"": 1.0, "%": 0.01}


class MeasureKind(NamedTuple):
    """A kind of measure: `parse` raises `ValueError` with a sentence that completes the option."""

    unit: str  # appended to the name of the value: "_ns"
    metavar: str  # of a value in the help
    parse: Callable[[str], Any]


def measure(text: str, units: Mapping[str, float], *, example: str) -> float:
    """The number in the unit that counts as 1; a bare one needs an empty unit, or must be 0."""
    match = _MEASURE.fullmatch(text.strip())
    if set(units) == {""} and (match is None or match[2]):
        raise ValueError(f"{text!r} is no plain number; write it like {example}, the option's name "
                         "says the unit")  # fmt: skip
    if match is None:
        raise ValueError(f"{text!r} is no number with a unit; write it like {example}")
    number, unit = float(match[1]), match[2]
    if unit not in units and not (unit == "" and number == 0):
        known = ", ".join(name for name in units if name)
        found = f"{unit!r} is no unit of it" if unit else f"{text!r} lacks a unit"
        raise ValueError(f"{found}; write it like {example} (units: {known})")
    value = number * units.get(unit, 1.0)
    if value and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"{text!r} is beyond what can be computed with; check its unit")
    return value


def _kind(
    unit: str, units: Mapping[str, float], example: str, *, low: float, high: float = math.inf,
    open_low: bool = False, metavar: str | None = None, whole: bool = False,
) -> MeasureKind:  # fmt: skip
    bounds = "a whole number of " * whole + (f"above {low:g}" if open_low else f"at least {low:g}")
    bounds += f" and at most {high:,.16g}" * (high < math.inf)

    def parse(text: str) -> float:
        value = measure(text, units, example=example)
        is_odd = whole and value != int(value)
        if is_odd or not low <= value <= high or (open_low and value == low):
            raise ValueError(f"must be {bounds}, found {text!r}")
        return int(value) if whole else value

    return MeasureKind(unit, metavar or example, parse)


def _choice(*names: str) -> MeasureKind:
    """One of several names; underscores read as dashes."""

    def parse(text: str) -> str:
        text = text.replace("_", "-")
        if text not in names:
            raise ValueError(f"there is no {text!r}; choose from {', '.join(names)}")
        return text

    return MeasureKind("", "NAME", parse)


def _sides(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 10**6 for part in parts):
        raise ValueError(f"{text!r} is no shape; write it like 16x16x16")
    return tuple(map(int, parts))


SIZE = _kind("_bytes", BYTES | {"": 1.0}, "20GB", low=0, open_low=True)
TIME = _kind("_ns", TIMES_NS, "2us", low=0)
STEP_TIME = _kind("_ns", TIMES_NS | {"": 1e6}, "250ms", low=0)
TIME_ABOVE_0 = _kind("_ns", TIMES_NS, "60s", low=0, open_low=True)
NUMBER = _kind("", {"": 1.0}, "50", low=0, metavar="X")
POSITIVE = _kind("", {"": 1.0}, "50", low=0, open_low=True, metavar="X")
FACTOR = _kind("", {"": 1.0}, "1.5", low=1, metavar="X")
AMOUNT = _kind("", COUNTS, "10B", low=0, open_low=True)
SHARE = _kind("", SHARES, "5%", low=0, high=1)
SHARE_ABOVE_0 = _kind("", SHARES, "50%", low=0, high=1, open_low=True)
RATIO = _kind("", SHARES, "2%", low=0)
RANKS = _kind("", COUNTS, "512", low=1, high=1e9, metavar="N", whole=True)
COUNT = _kind("", COUNTS, "512", low=0, high=1e9, metavar="N", whole=True)
SHAPE = MeasureKind("", "16x16x16", _sides)
ALGORITHM = _choice(*ALGORITHMS, "hierarchical", "torus")
YES_OR_NO = _choice("no", "yes")


SCHEMA = "evenstep.explain/1"
Numbers = dict[str, float | None]
_UNITS = ("ns", "bytes")  # with which names of numbers end


class Parameter(NamedTuple):
    """One input. `default` is text as on the command line; None without a default."""

    name: str  # as an option: "--name"
    kind: MeasureKind
    meaning: str
    default: str | None = None
    required: bool = False

    @property
    def key(self) -> str:
        """Name among the values, with the unit: latency_ns."""
        name = self.name.replace("-", "_")
        unit = self.kind.unit
        return name if not unit or name == unit[1:] else name + unit


class Quantity(NamedTuple):
    """One number of the answer; its name ends with its unit, if any."""

    name: str
    value: float | bool | None
    unit: str  # "ns", "bytes", "share", "GB/s", … or "" for a plain number
    meaning: str


class CitedFormula(NamedTuple):
    """A formula and its source."""

    text: str
    source: str


class Worked(NamedTuple):
    """What the arithmetic of a topic gives: numbers by name, facts for their meanings, and the
    formulas before and after those of the topic, and notes."""

    numbers: Mapping[str, float | None]
    facts: Mapping[str, int] = {}
    first: Sequence[CitedFormula] = ()
    last: Sequence[CitedFormula] = ()
    notes: Sequence[str] = ()


@dataclass(slots=True, frozen=True, kw_only=True)
class Topic:
    """A quantity that can be explained."""

    name: str
    summary: str
    example: str  # the options of a first call
    parameters: Sequence[Parameter]
    numbers: Mapping[str, str | Sequence[str]]  # meaning of each, perhaps after its unit
    work: Callable[[Mapping[str, Any]], Worked]
    formulas: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def answer(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The answer as plain data: inputs and `results` by name, `rows` with unit and meaning.
        Raises `UsageError` that names the option of a bad input, or the contradiction."""
        values = {row.key: self._value(row, given.get(row.name)) for row in self.parameters}
        found = self.work(values)
        known = {**values, **found.facts}
        formulas = [*found.first, *(CitedFormula(*one) for one in self.formulas), *found.last]
        return {
            "schema": SCHEMA,
            "topic": self.name,
            "kind": "quantity",
            "inputs": {key: value for key, value in values.items() if value is not None},
            "results": dict(found.numbers),
            "rows": [self._row(name, value, known) for name, value in found.numbers.items()],
            "formulas": [formula._asdict() for formula in formulas],
            "notes": [*(note.format(**known) for note in self.notes), *found.notes],
        }

    def _row(self, name: str, value: float | None, known: Mapping[str, Any]) -> dict[str, Any]:
        words = self.numbers[name]
        end = name.rpartition("_")[2]
        unit, meaning = (end * (end in _UNITS), words) if isinstance(words, str) else words
        return Quantity(name, value, unit, meaning.format(**known))._asdict()

    def _value(self, parameter: Parameter, text: str | None) -> Any:
        text = parameter.default if text is None else text
        if text is None:
            if parameter.required:
                raise UsageError(
                    f"explain {self.name} needs --{parameter.name} ({parameter.meaning}); "
                    f"for example: evenstep explain {self.name} {self.example}"
                )
            return None
        try:
            return parameter.kind.parse(text)
        except ValueError as error:
            raise UsageError(f"--{parameter.name}: {error}") from None
