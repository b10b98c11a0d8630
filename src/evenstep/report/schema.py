"""The published JSON schemas of the commands' results, by name and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evenstep.errors import UsageError

FOLDER = Path(__file__).parent / "schema"


def published_schemas() -> tuple[str, ...]:
    """Return the names of all schemas: diagnosis-1 describes `evenstep.diagnosis/1`."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def schema(name: str) -> dict[str, Any]:
    """Return a schema by its name, with or without version. Raises `UsageError` if unknown."""
    found = [each for each in published_schemas() if name in (each, each.rpartition("-")[0])]
    if not found:
        raise UsageError(
            f"there is no schema {name!r}; there are: {', '.join(published_schemas())}"
        )
    document: dict[str, Any] = json.loads((FOLDER / f"{found[-1]}.json").read_text("utf-8"))
    return document
