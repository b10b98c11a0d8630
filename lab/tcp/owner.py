"""Whose a network namespace is: its name says which process made it, and whether that still lives.

A name is `evenstep-lab-PID-START-NUMBER-PART`. START is when that process began, in the kernel's
ticks since boot, so that a later process with the same number is not taken for the owner. Nothing
is ever touched that is not named like this.
"""

from __future__ import annotations

import os
import re
from itertools import count
from typing import NamedTuple

from evenstep.attachment.attempts import started_ticks

PREFIX = "evenstep-lab"
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-(\d+)-([a-z0-9]+)")
_numbers = count()


class Owner(NamedTuple):
    """A process, and which of its networks."""

    pid: int
    start: int
    number: int

    @classmethod
    def here(cls) -> Owner:
        """This process, with a network it has not made yet."""
        pid = os.getpid()
        return cls(pid, started_ticks(pid) or 0, next(_numbers))

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return started_ticks(self.pid) == self.start

    def name(self, part: str) -> str:
        """The name of one of its namespaces."""
        return f"{PREFIX}-{self.pid}-{self.start}-{self.number}-{part}"


def of(name: str) -> Owner | None:
    """Whose namespace this is; None where it is not one of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else Owner(*map(int, found.groups()[:3]))
