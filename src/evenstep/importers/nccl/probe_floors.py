"""Read floors that `evenstep probe` has measured: the fabric's speed when no rank is late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import TraceError
from evenstep.importers.content import CompanionFormat, SourceFile, whole_json

NAME = "floors file of evenstep probe"
SCHEMA = "evenstep.floors/1"
MOST_BYTES = 64_000_000
MOST_FLOORS = 100_000
_NUMBERS = ("bytes", "time_ns", "algbw_gBps", "busbw_gBps")


def recognises(source: SourceFile) -> bool:
    """Whether the file has the schema of a floors file."""
    return source.head.lstrip()[:1] == b"{" and SCHEMA.encode() in source.head[:1_000]


def read(sources: Sequence[SourceFile]) -> Mapping[str, Any]:
    """Read the floors of all files. Raises `TraceError` where a file is damaged."""
    floors: list[dict[str, Any]] = []
    for source in sources:
        floors += _rows(source.path)
    return {"floors": floors[:MOST_FLOORS]}


FORMAT = CompanionFormat(NAME, recognises, read)


def _rows(path: Path) -> list[dict[str, Any]]:
    value = whole_json(path, MOST_BYTES)
    rows = value.get("floors") if isinstance(value, dict) else None
    if not isinstance(rows, list) or not all(map(_is_floor, rows)):
        raise TraceError(f"{path} has no list of floors; write it again with evenstep probe")
    return [{**row, "file": path.name, "by": "evenstep probe"} for row in rows]


def _is_floor(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("op"), str) and all(
        isinstance(row.get(name), int | float) and math.isfinite(row[name]) and row[name] >= 0
        for name in _NUMBERS
    )  # fmt: skip
