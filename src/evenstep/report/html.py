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
from collections.abc import Mapping
from dataclasses import asdict
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import Any

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.leaving import sharpened
from evenstep.errors import MissingExtra, UsageError
from evenstep.report import quantities, terminal
from evenstep.report.overview import Bins, bins, curve, grid, per_rank
from evenstep.report.packing import pack
from evenstep.report.timeline import Timeline, timeline
from evenstep.trace.clocks import align
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Flag, Kind, Op, Phase
from evenstep.trace.ranks import format_ranks
from evenstep.trace.trace import Trace

PAGE = Path(__file__).parent / "page"

#: In the order they are joined into the page's one script.
SCRIPTS = (
    "quantities.js",
    "columns.js",
    "canvas.js",
    "curve.js",
    "heat.js",
    "records.js",
    "spans.js",
    "page.js",
)

#: As they follow each other in a step.
PHASES_IN_ORDER = (*sorted(set(Phase) - {Phase.OTHER}), Phase.OTHER)

RANKS_IN_TABLE = 32
CULPRITS_NAMED = 1024


def write(
    diagnosis: Diagnosis,
    trace: Trace,
    path: str | Path,
    *,
    force: bool = False,
    steps: Columns | None = None,
) -> None:
    """Write the page; it appears whole or not at all.

    `steps` is the table of `evenstep.diagnose.waits.step_table`, made from the trace when not
    given. Raises `UsageError` when `path` exists and `force` is not set, or cannot be written,
    and `MissingExtra` without jinja2.
    """
    target = Path(path)
    if target.exists() and not force:
        raise UsageError(f"{target} exists; give another name, or --force to replace it")
    text = render(diagnosis, trace, steps=steps)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror}; give another place") from error


def render(diagnosis: Diagnosis, trace: Trace, *, steps: Columns | None = None) -> str:
    """The page as text. Raises `MissingExtra` without jinja2."""
    template = _template()
    table = _step_table(trace) if steps is None else steps
    culprits = _culprits(diagnosis)
    shape = bins(table, trace.world)
    clocks = sharpened(trace, align(trace))  # those the findings rest on
    shown = timeline(trace, table, clocks, culprits=culprits)
    packed = pack(_tables(table, shown, shape))
    ranks = per_rank(table)
    script = _script()
    text: str = template.render(
        diagnosis=diagnosis,
        summary=diagnosis.summary,
        run=_run_line(diagnosis),
        shares=_shares(diagnosis),
        ranks=_worst_ranks(ranks),
        ranks_total=len(ranks),
        phases=_phases(ranks),
        nodes={rank: info.node for rank, info in trace.ranks.items()},
        style=(PAGE / "page.css").read_text("utf-8"),
        script=script,
        script_hash=_content_hash(script),
        data=packed.data,
        facts=embedded(
            {
                "directory": packed.directory,
                "grid": _shape(shape),
                "culprits": culprits,
                "clock_error_us": clocks.error_ns / 1e3,
                "unplaced": clocks.unplaced,
                **_names(trace, shown),
            }
        ),
        verdict=embedded(diagnosis.to_json()),
    )
    return text


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


def _step_table(trace: Trace) -> Columns:
    from evenstep.diagnose.waits import step_table

    return step_table(trace)


def _tables(steps: Columns, shown: Timeline, shape: Bins | None) -> dict[str, Columns]:
    tables = {"curve": curve(steps), "records": shown.records, "kept": shown.steps}
    if shape is not None:
        tables["grid"] = grid(steps, shape)
    return tables


def _shape(shape: Bins | None) -> dict[str, int] | None:
    if shape is None:
        return None
    return {**asdict(shape), "rows": shape.rows, "columns": shape.columns}


def _names(trace: Trace, shown: Timeline) -> dict[str, Any]:
    """A name for every number in the columns."""
    used = set(shown.records.name.tolist())
    return {
        "names": {index: name for index, name in enumerate(trace.names) if index in used},
        "groups": [
            {"name": group.name, "ranks": format_ranks(group.ranks)} for group in trace.groups
        ],
        "nodes": {rank: info.node for rank, info in trace.ranks.items()},
        "kinds": _members(Kind),
        "ops": _members(Op),
        "phases": _members(Phase),
        "flags": _members(Flag),
    }


def _members(numbers: type[IntEnum] | type[IntFlag]) -> dict[str, int]:
    return {name.lower(): int(value) for name, value in numbers.__members__.items()}


def _culprits(diagnosis: Diagnosis) -> list[int]:
    ranks = (rank for finding in diagnosis.findings for rank in finding.where.ranks)
    return list(dict.fromkeys(int(rank) for rank in ranks))[:CULPRITS_NAMED]


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
    parts += [
        quantities.plural(summary["ranks"], "rank"),
        quantities.plural(summary["steps"], "step"),
    ]
    return " · ".join(parts)


def _phases(rows: list[dict[str, float | None]]) -> list[str]:
    """Columns of the phases that took any time, in the order of a step."""
    columns = [f"phase_{phase.name.lower()}_ns" for phase in PHASES_IN_ORDER]
    return [name for name in columns if any(row.get(name) for row in rows)]


def _worst_ranks(rows: list[dict[str, float | None]]) -> list[dict[str, float | None]]:
    """All ranks, or of very many the latest, in order of rank."""
    worst = sorted(rows, key=lambda row: -(row["lateness_ns"] or 0.0))[:RANKS_IN_TABLE]
    return sorted(worst, key=lambda row: row["rank"] or 0)
