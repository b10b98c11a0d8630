"""Measures as options of the command line: a number and a unit, read strictly.

GB is 10^9 bytes and GiB 2^30, Gb would be bits; ms is not Ms. An ambiguous unit is refused, with a
list of those to choose from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenstep.allreduce import ALGORITHMS

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
