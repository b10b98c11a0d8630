"""What a process of the laboratory is started with."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path() -> str:
    """Where a child finds the laboratory and this very evenstep, whatever is installed."""
    places = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(filter(None, places))


def environment(**added: str) -> dict[str, str]:
    """Ranks import this very package; nothing of a launcher's or of our own settings is left."""
    foreign = ("EVENSTEP", "TORCHELASTIC", "SLURM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", **added}
