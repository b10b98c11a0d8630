"""What a process of the laboratory is started with."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path() -> str:
    """Where a child finds the laboratory and this very evenstep, whatever is installed."""
    places = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(filter(None, places))
