"""A topic of `evenstep explain`: its parameters and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.errors import UsageError
from evenstep.explain.measures import MeasureKind


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


@dataclass(slots=True, frozen=True)
class Answer:
    """The numbers of an answer, their formulas, and notes."""

    quantities: Sequence[Quantity]
    formulas: Sequence[CitedFormula]
    notes: Sequence[str] = ()

    def value(self, name: str) -> float:
        """The number of this name; raises `KeyError` where it is unknown."""
        return {row.name: row.value for row in self.quantities if row.value is not None}[name]


@dataclass(slots=True, frozen=True)
class Topic:
    """A quantity that can be explained."""

    name: str
    summary: str
    parameters: Sequence[Parameter]
    answer: Callable[[Mapping[str, Any]], Answer]
    example: str  # the options of a first call

    def values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Parsed inputs by key, defaults filled in; raises `UsageError` naming the option."""
        unknown = set(given) - {parameter.name for parameter in self.parameters}
        if unknown:
            raise UsageError(f"explain {self.name} has no option --{min(unknown)}")
        return {row.key: self._value(row, given.get(row.name)) for row in self.parameters}

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
