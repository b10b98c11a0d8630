"""Jobs of the laboratory under one arm, or beside their prediction, as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.report.page import sheet
from lab.comparison_page import (
    BASELINE,
    SCRIPTS,
    Block,
    Document,
    Series,
    facts,
    packed_steps,
)


def render(document: Document, series: Sequence[Series] = (), blocks: Sequence[Block] = ()) -> str:
    """The page of what `python -m lab run` or `python -m lab predict` prints with --json.

    Raises `MissingExtra` without jinja2.
    """
    script = sheet.script(SCRIPTS)
    packed = packed_steps(series)
    arm = document.get("arm", BASELINE)
    template = sheet.template("lab_jobs.html.j2", "the page of a run of the laboratory")
    text: str = template.render(
        document=document,
        arm=arm,
        foretold="predicted_gain" in document,
        drawn=bool(series),
        style=sheet.style(),
        script=script,
        script_hash=sheet.content_hash(script),
        result=sheet.embedded(document),
        facts=sheet.embedded(facts(packed.directory, [arm], series, blocks)),
        data=packed.data,
    )
    return text
