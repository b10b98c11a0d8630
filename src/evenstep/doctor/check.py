"""One check of a host: what was found, why it matters, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

from evenstep.documents import Document, Meta
from evenstep.trace.spool.files import read_toml

#: Of each subject its source, and what may be wrong with it.
TEXTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = read_toml(
    Path(__file__).with_name("checks.toml")
)


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


def wrong(what: str, /, **facts: object) -> Check:
    """What `checks.toml` says under this name (network.mtu.small), these facts put in."""
    name, _, case = what.rpartition(".")
    severity, *texts = _texts(name)[case]
    told = {key: listed(fact) if isinstance(fact, list) else fact for key, fact in facts.items()}
    found, why, mend = (text.format(**told) for text in texts[:3])
    source = texts[3] if len(texts) > 3 else _texts(name)["source"]
    return Check(
        name=name, severity=Severity[severity.upper()], found=found, why=why, mend=mend,
        source=source,
    )  # fmt: skip


def fine(name: str, found: str) -> Check:
    """As it should be."""
    return Check(name=name, severity=Severity.OK, found=found, source=_texts(name)["source"])


def skipped(name: str, reason: str) -> Check:
    """Not checked, and why."""
    return Check(name=name, severity=Severity.SKIPPED, found=reason)


def _texts(name: str) -> Mapping[str, Any]:
    room, _, question = name.partition(".")
    return TEXTS[room][question]


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
