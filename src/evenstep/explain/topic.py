"""A topic of `evenstep explain`: its words in `topics.toml`, and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.errors import UsageError
from evenstep.explain.measures import MeasureKind

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
