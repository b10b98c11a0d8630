"""One check of a host: what was found, why it matters, how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

from evenstep.documents import Document, Meta
from evenstep.trace.spool.files import read_toml
from evenstep.words import some

#: The source of each check, and the texts of its failures.
TEXTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = read_toml(
    Path(__file__).with_name("checks.toml")
)


class Severity(IntEnum):
    """The severity of a check; the highest is the worst."""

    SKIPPED = 0  # could not be made; `found` is the reason
    OK = 1
    ADVICE = 2  # works, but could be better or safer
    WARNING = 3  # probably costs time, or will fail under load
    PROBLEM = 4  # costs time or fails now

    @property
    def word(self) -> str:
        """The name in messages and JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Document):
    """The result of a check. Invariant: `why` and `mend` are given from advice upwards."""

    name: Annotated[str, Meta("Subject and question: network.mtu.")]
    severity: Severity
    found: Annotated[str, Meta("The observation; the reason of a skipped check.")]
    why: Annotated[str | None, Meta("Why it matters; from advice upwards.")] = None
    mend: Annotated[str | None, Meta("How to fix it; from advice upwards.")] = None
    source: Annotated[str | None, Meta("Documentation that says so.")] = None


def wrong(what: str, /, **facts: object) -> Check:
    """Return the failure `what` of `checks.toml` (network.mtu.small), with facts filled in."""
    name, _, case = what.rpartition(".")
    severity, *texts = _texts(name)[case]
    values = {
        key: some([*map(str, fact)]) if isinstance(fact, list) else fact
        for key, fact in facts.items()
    }
    found, why, mend = (text.format(**values) for text in texts[:3])
    source = texts[3] if len(texts) > 3 else _texts(name)["source"]
    return Check(
        name=name, severity=Severity[severity.upper()], found=found, why=why, mend=mend,
        source=source,
    )  # fmt: skip


def fine(name: str, found: str) -> Check:
    return Check(name=name, severity=Severity.OK, found=found, source=_texts(name)["source"])


def skip(name: str, reason: str) -> Check:
    return Check(name=name, severity=Severity.SKIPPED, found=reason)


def _texts(name: str) -> Mapping[str, Any]:
    room, _, question = name.partition(".")
    return TEXTS[room][question]


def or_ok(checks: Iterable[Check], fine: Check) -> Iterator[Check]:
    """Yield the checks, or the passed check if there are none."""
    found = list(checks)
    yield from found or [fine]
