"""A comparison as one HTML file: all runs side by side, without script or network access."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.diagnose.compare.result import Comparison
from evenstep.report.page import sheet
from evenstep.report.terminal import comparison as words


def render(baseline: str, comparisons: Sequence[Comparison], *, normalised: bool = False) -> str:
    """Render the page. Raises `MissingExtra` without jinja2."""
    known = {change.metric for item in comparisons for change in item.changes}
    labels = {name: label for name, label in words.LABELS.items() if name in known}
    template = sheet.template("comparison.html.j2", "the page of a comparison", words=words)
    shown = {"comparisons": comparisons, "normalised": normalised, "labels": labels}
    return str(template.render(baseline=baseline, **shown))
