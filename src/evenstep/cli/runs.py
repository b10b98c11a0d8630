"""The runs that lie here: the latest, and a list of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from evenstep.trace.spool.folder import RUNS, RunFolder

SHOWN = 20


def latest(place: Path | None = None) -> Path | None:
    """The run in ./evenstep-runs (or `place`) that began last; None where there is none."""
    found = inside(place or Path(RUNS))
    return found[0] if found else None


def inside(place: Path) -> list[Path]:
    """Runs that lie directly in a folder, the latest first."""
    if not place.is_dir():
        return []
    runs = [path for path in place.iterdir() if path.is_dir() and RunFolder(path).exists()]
    return sorted(runs, key=lambda path: (_began(path), path.name), reverse=True)


def listed(place: Path, now_s: float | None = None) -> Iterator[str]:
    """Lines on the runs of a folder, the latest first, and how to open one."""
    runs = inside(place)
    now_s = time.time() if now_s is None else now_s
    for path in runs[:SHOWN]:
        attempts = RunFolder(path).attempts()
        ranks = len(list(path.glob(f"attempt-{attempts[-1]:03d}/rank-*.spool"))) if attempts else 0
        yield f"{_age(now_s - _began(path)):>12}  {ranks:>5} ranks  {path}"
    if len(runs) > SHOWN:
        yield f"{'':>12}  and {len(runs) - SHOWN} older"
    yield f"evenstep diagnose {runs[0]}"


def _began(path: Path) -> float:
    """When its `run.json` was written, else when its folder last changed (s, Unix time)."""
    facts = RunFolder(path).facts_path
    return (facts if facts.exists() else path).stat().st_mtime


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"
