"""What rank 0 knows of the running job, in one small file that anybody may read: `live.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenstep.agent.windows import WINDOW_STEPS, Late, WindowReport


class LiveView:
    """Writes `live.json`, whole or not at all; on the background thread of rank 0."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "live.json"
        self._windows = 0
        self._late: dict[int, int] = {}  # rank -> windows in which it was late

    def update(self, reports: Sequence[WindowReport], late: Late | None) -> None:
        """Take a complete window. Raises OSError where the file cannot be written."""
        self._windows += 1
        if late is not None:
            self._late[late.rank] = self._late.get(late.rank, 0) + 1
        scratch = self.path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(self._document(reports, late)) + "\n")
        scratch.replace(self.path)

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
