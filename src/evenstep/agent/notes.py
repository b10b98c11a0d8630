"""What went wrong beside the job, said once: one line of log, and a fact of the trace."""

from __future__ import annotations

import logging

from evenstep.trace.spool.spool import Spool

log = logging.getLogger("evenstep")
LONGEST = 200  # characters of an error that the trace keeps


class Notes:
    """Remembers what has been said of one rank."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._said: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Something that can be done without did not work."""
        text = f"{type(error).__name__}: {error}"[:LONGEST]
        self.once(what, f"{what}: {error}", text)

    def once(self, what: str, line: str, fact: str) -> None:
        """Say a line, and write the fact `what`, unless that was said before."""
        if what not in self._said:
            self._said.add(what)
            log.warning("evenstep: %s", line)
            self._spool.add_fact(what, fact)
