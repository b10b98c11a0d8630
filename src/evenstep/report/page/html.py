"""A diagnosis and its trace as one HTML file that opens from disk and asks no network.

The words and numbers are in the page itself and read without scripts; the charts are drawn by the
browser from columns packed into the page. A content policy in the page allows no request and no
script but our own, so a rank's or a host's name is text whatever it contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep import words
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.verdict import sureness, verdict
from evenstep.diagnose.what_if.what_if import WhatIfGain
from evenstep.report import markdown
from evenstep.report.page import fabric, sheet
from evenstep.report.page.contents import Contents, contents
from evenstep.report.page.cost import best_option, cost
from evenstep.report.page.scaling import Drawing, scaling
from evenstep.report.page.sheet import pack
from evenstep.report.terminal import terminal
from evenstep.report.terminal.sentences import acted, stragglers
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace

#: In the order they are joined into the page's one script.
SCRIPTS = (
    "quantities.js",
    "columns.js",
    "canvas.js",
    "cells.js",
    "curve.js",
    "heat.js",
    "pictures.js",
    "records.js",
    "spans.js",
    "spans_legend.js",
    "matrix.js",
    "bounds.js",
    "boxes.js",
    "scatter.js",
    "places.js",
    "svg.js",
    "fabric_layout.js",
    "fabric.js",
    "host_waits.js",
    "tools.js",
    "page.js",
)


def write(
    diagnosis: Diagnosis, trace: Trace, path: str | Path, *, force: bool = False, **more: Any
) -> None:
    """Write the page, with `more` as `render` takes it; it appears whole or not at all.

    Raises `UsageError` when `path` exists and `force` is not set, or cannot be written, and
    `MissingExtra` without jinja2.
    """
    sheet.write(Path(path), lambda: render(diagnosis, trace, **more), force=force)


def render(
    diagnosis: Diagnosis,
    trace: Trace,
    *,
    steps: Columns | None = None,
    case: Case | None = None,
    answers: Sequence[WhatIfGain] = (),
    price_per_rank_hour: float | None = None,
    links: Sequence[Mapping[str, Any]] = (),
    link_map: fabric.LinkMap | None = None,
) -> str:
    """The page as text.

    `steps` (the table of `diagnose.measure.overview.step_table`) and `case` are made from the trace
    when not given; `links` is what `evenstep simulate --json` says of a simulation's links,
    `link_map` the fabric they are in. Raises `MissingExtra` without jinja2.
    """
    template = sheet.template(
        "page.html.j2", "the HTML report", where=terminal.where, effect=terminal.effect,
        sureness=sureness,
    )  # fmt: skip
    shown = contents(diagnosis, trace, case=case, steps=steps)
    mapped = {"links": link_map.bundles} if link_map is not None else {}
    packed = pack({**shown.tables, **mapped})
    asked = {"what_if": [answer.to_json() for answer in answers]} if answers else {}
    drawn = scaling(diagnosis)
    loads = fabric.simulated(links) if links else []
    if not links and len(trace.nodes) > 1:
        loads = fabric.loads(trace)
    script = sheet.script(SCRIPTS)
    text: str = template.render(
        diagnosis=diagnosis,
        summary=diagnosis.summary,
        run=_run_line(diagnosis),
        shares=_shares(diagnosis),
        cost=cost(diagnosis, trace, price_per_rank_hour),
        said=verdict(diagnosis.findings, diagnosis.summary),
        markdown=markdown.render(diagnosis),
        best=best_option(diagnosis),
        shown=shown,
        answers=answers,
        scaling=drawn,
        stragglers=list(stragglers(diagnosis.summary.get("stragglers") or {})),
        pacing=list(acted(diagnosis.summary)),
        paced=(diagnosis.summary.get("pacing") or {}).get("effect"),
        loads=loads,
        simulated=bool(links),
        link_map=link_map,
        between=None if link_map is not None else shown.facts["host_waits"],
        sections=_sections(diagnosis, shown, drawn, answers, loads, link_map),
        columns=_place_columns(shown),
        style=sheet.style(),
        script=script,
        script_hash=sheet.content_hash(script),
        data=packed.data,
        facts=sheet.embedded(
            {
                "directory": packed.directory,
                "fabric": link_map.facts if link_map is not None else None,
                **shown.facts,
            }
        ),
        verdict=sheet.embedded(diagnosis.to_json() | asked),
    )
    return text


def _shares(diagnosis: Diagnosis) -> list[tuple[str, str, float]]:
    """(name, what it is called, share) of the parts of a step that are known."""
    shares = diagnosis.summary.get("shares") or {}
    return [
        (name, label, float(shares[name]))
        for name, label in words.SHARES
        if words.is_known(shares.get(name))
    ]


def _run_line(diagnosis: Diagnosis) -> str:
    summary, run = diagnosis.summary, diagnosis.run
    parts = [f"run {words.printable(run['run_id'])}"] if run.get("run_id") else []
    if runs := run.get("runs"):
        parts.append(f"{words.plural(len(runs), 'run')} together; charts are of the largest")
    parts += [
        words.plural(summary["ranks"], "rank"),
        words.plural(summary["steps"], "step"),
    ]
    return " · ".join(parts)


def _sections(
    diagnosis: Diagnosis,
    shown: Contents,
    drawn: Drawing | None,
    answers: Sequence[WhatIfGain],
    loads: Sequence[fabric.Load],
    link_map: fabric.LinkMap | None,
) -> list[tuple[str, str]]:
    """(anchor, title) of what this page has, in its order."""
    waits, measured = shown.facts["waiting"] is not None, bool(shown.ranks)
    listed = (
        ("findings", "findings", True),
        ("step-time", "step time", measured),
        ("waiting", "who waits", measured),
        ("one-step", "one step", True),
        ("blame", "for whom", waits),
        ("path", "critical path", waits),
        ("phases", "phases", len(shown.tables["dist"]) > 0),
        ("sizes", "collectives", shown.facts["sizes"] is not None),
        ("places-map", "places", measured),
        ("host-waits-map", "hosts", shown.facts["host_waits"] is not None and link_map is None),
        ("fabric-map", "fabric", bool(loads) or link_map is not None),
        ("pacing", "pacing", any(acted(diagnosis.summary))),
        ("scaling", "scaling", drawn is not None),
        ("stragglers", "stragglers", bool(diagnosis.summary.get("stragglers"))),
        ("what-if", "what if", bool(answers)),
        ("clocks", "clocks", True),
        ("limits", "limits", True),
    )
    return [(anchor, title) for anchor, title, there in listed if there]


def _place_columns(shown: Contents) -> list[tuple[str, str]]:
    """Columns of the ranks' places that are known of any of them."""
    several = len({place.get("node") for place in shown.places.values()}) > 1
    titles = {"gpu": "GPU", **({"nic": "adapter"} if several else {}), "numa": "NUMA"}
    known = {part for place in shown.places.values() for part in place}
    return [(part, title) for part, title in titles.items() if part in known]
