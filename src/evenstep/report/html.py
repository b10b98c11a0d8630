"""A diagnosis and its trace as one HTML file that opens from disk and asks no network.

The words and numbers are in the page itself and read without scripts; the charts are drawn by the
browser from columns packed into the page. A content policy in the page allows no request and no
script but our own, so a rank's or a host's name is text whatever it contains.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evenstep.diagnose.case import Case
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.what_if import Answer
from evenstep.errors import MissingExtra, UsageError
from evenstep.report import quantities, terminal
from evenstep.report.contents import Contents, contents
from evenstep.report.cost import best_option, cost
from evenstep.report.packing import pack
from evenstep.report.scaling import Drawing, scaling
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace

PAGE = Path(__file__).parent / "page"

#: In the order they are joined into the page's one script.
SCRIPTS = (
    "quantities.js",
    "columns.js",
    "canvas.js",
    "cells.js",
    "curve.js",
    "heat.js",
    "records.js",
    "spans.js",
    "matrix.js",
    "bounds.js",
    "boxes.js",
    "scatter.js",
    "places.js",
    "page.js",
)


def write(
    diagnosis: Diagnosis,
    trace: Trace,
    path: str | Path,
    *,
    force: bool = False,
    steps: Columns | None = None,
    case: Case | None = None,
    answers: Sequence[Answer] = (),
    projection: Mapping[str, Any] | None = None,
    price_per_rank_hour: float | None = None,
) -> None:
    """Write the page; it appears whole or not at all.

    `steps` (the table of `evenstep.diagnose.waits.step_table`) and `case` are made from the trace
    when not given; `projection` is what `evenstep project --json` prints. Raises `UsageError` when
    `path` exists and `force` is not set, or cannot be written, and `MissingExtra` without jinja2.
    """
    target = Path(path)
    if target.exists() and not force:
        raise UsageError(f"{target} exists; give another name, or --force to replace it")
    text = render(
        diagnosis,
        trace,
        steps=steps,
        case=case,
        answers=answers,
        projection=projection,
        price_per_rank_hour=price_per_rank_hour,
    )
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror}; give another place") from error


def render(
    diagnosis: Diagnosis,
    trace: Trace,
    *,
    steps: Columns | None = None,
    case: Case | None = None,
    answers: Sequence[Answer] = (),
    projection: Mapping[str, Any] | None = None,
    price_per_rank_hour: float | None = None,
) -> str:
    """The page as text. Raises `MissingExtra` without jinja2."""
    template = _template()
    shown = contents(diagnosis, trace, case=case, steps=steps)
    packed = pack(shown.tables)
    drawn = scaling(diagnosis, projection)
    script = _script()
    text: str = template.render(
        diagnosis=diagnosis,
        summary=diagnosis.summary,
        run=_run_line(diagnosis),
        shares=_shares(diagnosis),
        cost=cost(diagnosis, trace, price_per_rank_hour),
        best=best_option(diagnosis),
        shown=shown,
        answers=answers,
        scaling=drawn,
        sections=_sections(shown, drawn, answers),
        columns=_place_columns(shown),
        style=(PAGE / "page.css").read_text("utf-8"),
        script=script,
        script_hash=_content_hash(script),
        data=packed.data,
        facts=embedded({"directory": packed.directory, **shown.facts}),
        verdict=embedded(_document(diagnosis, answers)),
    )
    return text


def _document(diagnosis: Diagnosis, answers: Sequence[Answer]) -> dict[str, Any]:
    """What `evenstep diagnose --json` prints, with the answers to what-if questions."""
    asked = {"what_if": [answer.to_json() for answer in answers]} if answers else {}
    return {**diagnosis.to_json(), **asked}


def embedded(value: object) -> str:
    """JSON that stands safely inside a script element: ASCII, without `<`, NaN as null."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Plain values: NaN and infinity become None, numpy's numbers Python's."""
    scalar = getattr(value, "item", None)
    if callable(scalar):
        return _finite(scalar())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_finite(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra="report", purpose="the HTML report") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "duration", "percent", "interval", "measured", "plural", "printable"):
        environment.filters[name] = getattr(quantities, name)
    environment.globals.update(where=terminal.where, effect=terminal.effect)
    return environment.get_template("page.html.j2")


@cache
def _script() -> str:
    """All scripts in one function, so that they share names with each other and nobody else."""
    parts = [(PAGE / name).read_text("utf-8") for name in SCRIPTS]
    return '(async () => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"


def _content_hash(script: str) -> str:
    """The source expression that allows exactly this script (CSP level 3, section 2.3.1)."""
    digest = hashlib.sha256(f"\n{script}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _shares(diagnosis: Diagnosis) -> list[tuple[str, str, float]]:
    """(name, what it is called, share) of the parts of a step that are known."""
    shares = diagnosis.summary.get("shares") or {}
    return [
        (name, label, float(shares[name]))
        for name, label in quantities.SHARES
        if quantities.is_known(shares.get(name))
    ]


def _run_line(diagnosis: Diagnosis) -> str:
    summary, run = diagnosis.summary, diagnosis.run
    parts = [f"run {quantities.printable(run['run_id'])}"] if run.get("run_id") else []
    if runs := run.get("runs"):
        parts.append(f"{quantities.plural(len(runs), 'run')} together; charts are of the largest")
    parts += [
        quantities.plural(summary["ranks"], "rank"),
        quantities.plural(summary["steps"], "step"),
    ]
    return " · ".join(parts)


def _sections(
    shown: Contents, drawn: Drawing | None, answers: Sequence[Answer]
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
        ("scaling", "scaling", drawn is not None),
        ("what-if", "what if", bool(answers)),
        ("clocks", "clocks", True),
        ("limits", "limits", True),
    )
    return [(anchor, title) for anchor, title, there in listed if there]


def _place_columns(shown: Contents) -> list[tuple[str, str]]:
    """Columns of the ranks' places that are known of any of them."""
    titles = {"gpu": "GPU", "nic": "adapter", "numa": "NUMA"}
    known = {part for place in shown.places.values() for part in place}
    return [(part, title) for part, title in titles.items() if part in known]
