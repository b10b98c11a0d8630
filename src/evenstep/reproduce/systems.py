"""Named presets for `evenstep explain`: published claims beside our numbers.

The claims are in `claims.toml`, with the source of each input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.trace.spool.files import read_toml


@dataclass(slots=True, frozen=True, kw_only=True)
class Claim:
    """A published number, and the options of a topic that should give it."""

    name: str
    topic: str
    options: Mapping[str, str]
    result: str  # name of the claimed number in the answer
    low: float  # equal to `high` where one number is claimed
    high: float
    says: str
    inputs: str  # sources of the options

    def error(self, results: Mapping[str, float]) -> float:
        """Signed relative distance to the claim; 0 inside a claimed range."""
        value = results[self.result]
        if self.low <= value <= self.high:
            return 0.0
        nearest = self.low if value < self.low else self.high
        return (value - nearest) / nearest

    def checked(self, results: Mapping[str, float]) -> dict[str, Any]:
        """The claim beside our number, as plain data."""
        error = self.error(results)
        if self.low < self.high:
            verdict = f"{100 * error:+.1f} % outside" if error else "within what is claimed"
        else:
            verdict = f"off by {100 * error:+.1f} %"
        return {
            "name": self.name, "topic": self.topic, "says": self.says, "inputs": self.inputs,
            "result": self.result, "predicted": results[self.result], "low": self.low,
            "high": self.high, "error": error,
            "sentence": f"Claimed: {self.says}. Our {self.result} is {verdict}. "
                        f"Inputs: {self.inputs}.",
        }  # fmt: skip


CLAIMS: tuple[Claim, ...] = tuple(
    Claim(name=name, **entries)
    for name, entries in read_toml(Path(__file__).with_name("claims.toml")).items()
)
