"""Versions of packages that an integration was tested with."""

from __future__ import annotations

import logging
from typing import NamedTuple

from evenstep.agent.stacks import ObservedRank

log = logging.getLogger("evenstep")


class Tested(NamedTuple):
    """Versions of a package that an integration has been tested with, both ends included."""

    package: str
    first: str  # major.minor, as `last`
    last: str

    def outside(self, found: str) -> str:
        """A warning for a version outside the tested ones; else empty."""
        if _version_numbers(self.first) <= _version_numbers(found) <= _version_numbers(self.last):
            return ""
        tested = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return (
            f"found {self.package} {found}, but its callback was tested with {tested}: check that "
            "steps and phases look right"
        )

    def check(self, found: str, agent: ObservedRank) -> None:
        """Record the warning for a version outside the tested ones; rank 0 logs it."""
        if outside := self.outside(found):
            agent.spool.add_fact("stack", outside)
            if agent.identity.rank == 0:
                log.warning("evenstep: %s", outside)


def _version_numbers(version: str) -> tuple[int, ...]:
    """Major and minor as numbers; what is no number counts as 0."""
    parts = [*version.split("."), "0"][:2]
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in parts)
