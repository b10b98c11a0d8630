"""One check of a host: what was found, why it matters, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from evenstep.documents import Document, Meta


class Severity(IntEnum):
    """How much a check matters, the worst highest."""

    SKIPPED = 0  # it could not be made; `found` says why
    OK = 1
    ADVICE = 2  # works, and could be better or safer
    WARNING = 3  # likely costs time, or will fail under load
    PROBLEM = 4  # costs time or fails as it stands

    @property
    def word(self) -> str:
        """As messages and JSON call it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Document):
    """What one look found. Invariant: `why` and `mend` are given from advice upwards."""

    name: Annotated[str, Meta("Subject and question: network.mtu.")]
    severity: Severity
    found: Annotated[str, Meta("Of a skipped one: the reason.")]
    why: Annotated[str | None, Meta("It matters; from advice upwards.")] = None
    mend: str | None = None
    source: Annotated[str | None, Meta("Who says so.")] = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Checks of one name, before their severity is known."""

    name: str
    source: str | None = None

    def ok(self, found: str) -> Check:
        """As it should be."""
        return Check(name=self.name, severity=Severity.OK, found=found, source=self.source)

    def skipped(self, reason: str) -> Check:
        """Not checked, and why."""
        return Check(name=self.name, severity=Severity.SKIPPED, found=reason)

    def advice(self, found: str, why: str, mend: str) -> Check:
        """Works, and could be better."""
        return self.of(Severity.ADVICE, found, why, mend)

    def warning(self, found: str, why: str, mend: str) -> Check:
        """Likely costs time."""
        return self.of(Severity.WARNING, found, why, mend)

    def problem(self, found: str, why: str, mend: str) -> Check:
        """Costs time or fails."""
        return self.of(Severity.PROBLEM, found, why, mend)

    def of(self, severity: Severity, found: str, why: str, mend: str | None) -> Check:
        """With a severity that was found out."""
        return Check(
            name=self.name, severity=severity, found=found, why=why, mend=mend, source=self.source
        )


def or_ok(checks: Iterable[Check], fine: Check) -> Iterator[Check]:
    """The checks, or that all is fine where there are none."""
    found = list(checks)
    yield from found or [fine]


def listed(names: Iterable[object], most: int = 6) -> str:
    """Names in a sentence; of many, the first and how many more."""
    words = [str(name) for name in names]
    if len(words) > most:
        return ", ".join(words[:most]) + f" and {len(words) - most} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
