"""Measured rows beside predictions, and the systems they belong to (`systems.toml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from evenstep.trace.spool.files import read_toml

_WORDS: Mapping[str, Mapping[str, Any]] = read_toml(Path(__file__).with_name("systems.toml"))


class Fitted(NamedTuple):
    """A number that is fitted to the rows marked as fitted, and to nothing else."""

    name: str
    value: float
    unit: str


class PublishedRow(NamedTuple):
    """One published number. A fitted row, or one measured with software that does otherwise than
    is modelled, is shown, but is no prediction."""

    what: str
    measured: float
    predicted: float
    unit: str
    fitted: bool = False
    modelled: bool = True  # what was measured; else its note or its system's limits say why not
    bound: bool = False  # published as "more than"
    note: str = ""

    @property
    def error(self) -> float:
        """(predicted − measured)/measured; 0 where a bound is met."""
        if self.bound and self.predicted >= self.measured:
            return 0.0
        return (self.predicted - self.measured) / self.measured


@dataclass(slots=True, frozen=True, kw_only=True)
class System:
    """Rows that share a model, its inputs and at most three fitted numbers."""

    rows: Sequence[PublishedRow]
    fitted: Sequence[Fitted]
    name: str
    source: str
    model: str
    inputs: Sequence[str]  # each with its origin
    kind: str = ""  # `work.kind` of scenarios with steps like these; "": none
    limits: str = ""  # of the model: its assumptions, and what it does not reproduce

    @classmethod
    def of(cls, key: str, rows: Sequence[PublishedRow], *fitted: Fitted, **facts: object) -> System:
        """The system with this key in `systems.toml`, with facts put into its words."""
        known = {**_WORDS["shared"], **facts}
        words: dict[str, Any] = {
            name: text.format(**known)
            if isinstance(text, str)
            else [t.format(**known) for t in text]
            for name, text in _WORDS[key].items()
        }
        return cls(rows=rows, fitted=fitted, **words)

    @property
    def predicted(self) -> list[PublishedRow]:
        """Rows of what is modelled, without any number fitted to them."""
        return [row for row in self.rows if row.modelled and not row.fitted]

    @property
    def mean_error(self) -> float:
        """Mean of absolute relative errors of predicted rows, or of all not fitted if none is."""
        told = self.predicted or [row for row in self.rows if not row.fitted]
        return fmean(abs(row.error) for row in told)
