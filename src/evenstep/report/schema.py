"""The published JSON schemas of what evenstep prints, by name and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evenstep.errors import UsageError

FOLDER = Path(__file__).parent / "schema"


def published() -> tuple[str, ...]:
    """Names of the schemas there are: diagnosis-1 describes `evenstep.diagnosis/1`."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def schema(name: str) -> dict[str, Any]:
    """A schema by its name, without the version too. Raises `UsageError` where there is none."""
    found = [each for each in published() if name in (each, each.rpartition("-")[0])]
    if not found:
        raise UsageError(f"there is no schema {name!r}; there are: {', '.join(published())}")
    document: dict[str, Any] = json.loads((FOLDER / f"{found[-1]}.json").read_text("utf-8"))
    return document
