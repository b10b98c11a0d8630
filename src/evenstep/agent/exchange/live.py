"""What rank 0 knows of the running job: a small file anybody may read, and a line in the log.

`live.json` is rewritten with every window. The log gets one line when a rank has been late for
`STEADY` windows in a row, of which one in which it was late in nearly every step counts twice, and
one when that is over: never more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenstep.agent.exchange.windows import Late, WindowReport
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.layout import WINDOW_STEPS

log = logging.getLogger("evenstep")

STEADY = 3


class LiveView:
    """Says who is late while the job runs; on the background thread of rank 0."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "live.json"
        self._windows = 0
        self._late: dict[int, int] = {}  # rank -> windows in which it was late
        self._current: int | None = None  # rank late in the latest window
        self._steady = self._since = 0  # how sure that is, and since which window
        self._said: int | None = None

    def update(self, reports: Sequence[WindowReport], late: Late | None) -> None:
        """Take a complete window. Raises OSError where the file cannot be written."""
        self._windows += 1
        if late is not None:
            self._late[late.rank] = self._late.get(late.rank, 0) + 1
        self._say(late)
        write_whole(self.path, json.dumps(self._document(reports, late)) + "\n")

    def _say(self, late: Late | None) -> None:
        """Tell the log of a rank that has become, or is no longer, the one to wait for."""
        rank = None if late is None else late.rank
        if rank != self._current:
            self._current, self._steady, self._since = rank, 0, self._windows
        self._steady += 2 if late is not None and late.always else 1
        if self._steady < STEADY or rank == self._said:
            return
        if late is None:
            log.warning("evenstep: nobody waits for rank %d any more", self._said)
        else:
            log.warning(
                "evenstep: rank %d is late by %.3g ms, %.0f %% of a step, in %d steps looked at; "
                "ranks waiting for it: %d",
                late.rank,
                late.excess_ns / 1e6,
                100 * late.share,
                (self._windows - self._since + 1) * WINDOW_STEPS,
                late.waiting_ranks,
            )
        self._said = rank

    def _document(self, reports: Sequence[WindowReport], late: Late | None) -> dict[str, Any]:
        window = reports[0].window if reports else 0
        return {
            "schema": "evenstep.live/1",
            "steps": [window * WINDOW_STEPS, (window + 1) * WINDOW_STEPS - 1],
            "late": late._asdict() if late else None,
            "windows": self._windows,
            "late_windows": {str(rank): count for rank, count in sorted(self._late.items())},
            "ranks": [report._asdict() for report in reports],
        }
