"""Find, read and diagnose traces for commands, showing progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli import progress
from evenstep.cli.terminal import say
from evenstep.trace.spool.folder import RUNS, RunFolder, is_closed

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.trace.trace import Trace

MOST_LISTED = 20
TO_READING = 2.0  # time of a diagnosis or a fit to that of reading: 1 to 5 for 32 to 1,024 ranks


def read(path: Path) -> Trace:
    """Read the trace at a path, with other attempts of its run, and say what of it was not read.
    Raises `TraceError` if there is none, `UsageError` if several."""
    trace = read_timed(path)[0]
    tell_unread(trace)
    return trace


def tell_unread(trace: Trace) -> None:
    """Print what of a run was not read, for commands that do not list what a trace cannot tell."""
    from evenstep.diagnose.sentences import partial

    if told := partial({"ranks": len(trace.ranks), "world": trace.world}, trace.limits):
        say(told)


def read_timed(path: Path) -> tuple[Trace, float]:
    """Read the trace at a path as `read` does; return also how many seconds that took."""
    from evenstep.diagnose.measure.attempts import with_attempts
    from evenstep.importers.opening import load

    with progress.reading(path) as passed_s:
        return with_attempts(load(path), path), passed_s()


def judge(trace: Trace, read_s: float = 0.0) -> Diagnosis:
    """Diagnose a trace that took `read_s` to read here, which tells how long it may take."""
    from evenstep.diagnose.engine import diagnose

    with progress.ticking(f"diagnosing {trace.world:,} ranks", TO_READING * read_s):
        return diagnose(trace)


def latest(place: Path = Path()) -> tuple[Path | None, list[Path]]:
    """Return the latest run (the folder itself, else in its `evenstep-runs`, else in the folder) in
    which a rank has started; and later ones that recorded none or cannot be read."""
    if RunFolder(place).exists():
        return place, []
    runs = inside(place / RUNS, "*", "*/*") or inside(place)
    at = next((at for at, run in enumerate(runs) if RunFolder(run).attempts()), 0)
    return (runs[at], runs[:at]) if runs else (None, [])


def inside(place: Path, *patterns: str) -> list[Path]:
    """Return the runs in a folder, latest first. `patterns` match folders in a place for runs only:
    there a folder that must not be read is one, too."""
    places = (path for pattern in patterns or ("*",) for path in place.glob(pattern))
    found = [path for path in places if path.is_dir()]
    closed = {path for path in found if is_closed(path)}
    runs = closed if patterns else set()
    runs = runs.union(path for path in found if path not in closed and RunFolder(path).exists())
    return sorted(runs, key=lambda path: (_began(path), path.name), reverse=True)


def list_runs(place: Path, now_s: float | None = None) -> Iterator[str]:
    """Render the runs of a folder, latest first, and the command that opens the first."""
    from evenstep.trace.spools import spools_in

    runs = inside(place)
    now_s = time.time() if now_s is None else now_s
    for path in runs[:MOST_LISTED]:
        attempts = RunFolder(path).attempts()
        last = RunFolder(path).spool_path(attempts[-1], 0).parent if attempts else path
        ranks = len(spools_in(last)[0])
        yield f"{_age(now_s - _began(path)):>12}  {ranks:>5} ranks  {path}"
    if len(runs) > MOST_LISTED:
        yield f"{'':>12}  and {len(runs) - MOST_LISTED} older"
    yield f"evenstep diagnose {runs[0]}"


def _began(path: Path) -> float:
    """Return the time of `run.json`, else of the folder's last change (s, Unix time)."""
    facts = RunFolder(path).facts_path
    return (path if is_closed(path) or not facts.exists() else facts).stat().st_mtime


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"
