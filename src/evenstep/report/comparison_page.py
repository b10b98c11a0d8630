"""A comparison as one HTML file: all runs side by side, no script, no request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenstep.diagnose.comparison_result import Comparison
from evenstep.errors import MissingExtra, UsageError
from evenstep.report import comparison as words
from evenstep.report import quantities

TEMPLATE = "comparison.html.j2"


def render(baseline: str, comparisons: Sequence[Comparison], *, normalised: bool = False) -> str:
    """The page as text. Raises `MissingExtra` without jinja2."""
    known = {change.metric for item in comparisons for change in item.changes}
    labels = {name: label for name, label in words.LABELS.items() if name in known}
    text: str = _template().render(
        baseline=baseline, comparisons=comparisons, normalised=normalised, labels=labels
    )
    return text


def write(
    baseline: str,
    comparisons: Sequence[Comparison],
    path: Path,
    *,
    normalised: bool = False,
    force: bool = False,
) -> None:
    """Write the page whole or not at all. Raises `UsageError` where it may not be written."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists; give another name, or --force to replace it")
    text = render(baseline, comparisons, normalised=normalised)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}; give another place") from error


def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra="report", purpose="the page of a comparison") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = quantities.percent
    environment.filters["duration"] = quantities.duration
    environment.filters["number"] = quantities.number
    environment.filters["printable"] = quantities.printable
    environment.globals.update(
        values=words.values,
        difference=words.difference,
        change_of=words.change_of,
        span=words.span,
    )
    return environment.get_template(TEMPLATE)
