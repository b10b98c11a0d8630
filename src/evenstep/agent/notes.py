"""Failures that do not stop the agent: one line of log each, and a fact of the trace."""

from __future__ import annotations

import logging

from evenstep.trace.spool.spool import Spool

log = logging.getLogger("evenstep")
LONGEST = 200  # characters of an error that the trace keeps


class Notes:
    """The failures of one rank that have been reported."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._reported: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Report, once, that an optional part does not work."""
        text = f"{type(error).__name__}: {error}"[:LONGEST]
        self.once(what, f"{what}: {error}", text)

    def once(self, what: str, line: str, fact: str) -> None:
        """Log a line and write the fact `what`, the first time."""
        if what not in self._reported:
            self._reported.add(what)
            log.warning("evenstep: %s", line)
            self._spool.add_fact(what, fact)
