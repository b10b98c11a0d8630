"""Read the metrics of a run in MLflow's file store: `metrics/NAME` beside its `meta.yaml`.

A line has the time in ms since 1970, the value, and the step, which older versions leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from evenstep.importers.content import SourceFile, lines

MOST_METRICS, MOST_VALUES = 10_000, 10_000_000
SAMPLED = "system/"  # metrics of the machine, at any time


def recognises(source: SourceFile) -> bool:
    """Whether a file describes a run that has metrics."""
    named = source.path.name == "meta.yaml" and b"\nrun_id:" in b"\n" + source.head
    return named and (source.path.parent / "metrics").is_dir()


def scalars(path: Path, limits: list[str]) -> dict[str, list[tuple[int, float, float]]]:
    """The metrics of a run by name: (step, time in s, value) in order of writing."""
    folder = path.parent / "metrics"
    found: dict[str, list[tuple[int, float, float]]] = {}
    wrong, left = 0, MOST_VALUES
    for file in islice(sorted(folder.rglob("*")), MOST_METRICS):
        name = file.relative_to(folder).as_posix()
        if name.startswith(SAMPLED) or not file.is_file():
            continue
        for told in islice(_values(file), left):
            wrong += told is None
            left -= 1
            if told is not None:
                found.setdefault(name, []).append(told)
    if wrong:
        limits.append(f"{folder}: {wrong} lines that are no values were left out")
    return {name: _numbered(rows) for name, rows in found.items()}


def _values(file: Path) -> Iterator[tuple[int, float, float] | None]:
    """Step, time and value of each line of a metric; None of one that is damaged."""
    for line in lines(file):
        try:
            time_ms, value, *rest = line.text.split()
            yield int(rest[0]) if rest else 0, int(time_ms) / 1e3, float(value)
        except (ValueError, OverflowError):
            yield None


def _numbered(rows: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Rows by their steps, or by their order where none is told."""
    if any(step for step, _, _ in rows):
        return rows
    return [(number, time_s, value) for number, (_, time_s, value) in enumerate(rows)]
