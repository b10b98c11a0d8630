"""Read the metrics of a run in MLflow's file store: `metrics/NAME` beside its `meta.yaml`.

A line has the time in ms since 1970, the value, and the step.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from evenstep.importers.content import SourceFile, lines

MOST_METRICS, MOST_VALUES = 10_000, 1_000_000  # of a run, of a metric
SAMPLED = "system/"  # metrics of the machine, at any time


def recognises(source: SourceFile) -> bool:
    """Whether a file describes a run that has metrics."""
    named = source.path.name == "meta.yaml" and b"\nrun_id:" in b"\n" + source.head
    return named and (source.path.parent / "metrics").is_dir()


def scalars(path: Path, limits: list[str]) -> dict[str, list[tuple[int, float, float]]]:
    """The metrics of a run by name: (step, time in s, value) in order of writing."""
    folder = path.parent / "metrics"
    found: dict[str, list[tuple[int, float, float]]] = {}
    for file in islice(sorted(folder.rglob("*")), MOST_METRICS):
        name, wrong = file.relative_to(folder).as_posix(), 0
        for line in islice(lines(file), MOST_VALUES) if file.is_file() else ():
            try:
                time_ms, value, step, *_ = line.text.split()
                row = int(step), int(time_ms) / 1e3, float(value)
            except (ValueError, OverflowError):
                wrong += 1
                continue
            found.setdefault(name, []).append(row)
        if wrong:
            limits.append(f"{file}: {wrong} lines that are no values were left out")
    return {name: rows for name, rows in found.items() if not name.startswith(SAMPLED)}
