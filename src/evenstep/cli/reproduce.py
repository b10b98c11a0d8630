"""`evenstep reproduce`: recompute a published result and show it beside the published numbers."""

from __future__ import annotations

import argparse
import csv
import io
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log2
from typing import Any

from evenstep.cli import files, progress
from evenstep.cli.terminal import show
from evenstep.report.page import sheet
from evenstep.report.terminal.style import table
from evenstep.reproduce import evaluation, table_one
from evenstep.reproduce.evaluation import EvaluationDocument
from evenstep.simulate.study.sweep import MeanInterval, run_units
from evenstep.workers import usable_cores

ARMS = ("paper", "token")
TITLES = {"paper": "the paper's rule", "token": "token"}
LIMITS = (
    "The parameters are fitted to the baseline columns; everything under the other heads is "
    "predicted.",
    "Every job on the core follows the arm; a job sees its exchange as its last rank does. That "
    "all of them do is why the paper's rule gains: it takes contention for waiting, as any rank "
    "must that sees only its own collectives. In a job that has its links to itself it only costs; "
    "the token does nothing there.",
    "A sign, not a size: a model with two numbers fitted to five points says which way "
    "coordination goes, not how far.",
    "Each family is one account of the baseline among several; contention that another cause "
    "explains is not cured by pacing.",
)
MEASURES = ("throughput", "cv", "efficiency", "gain", "cv_change")


def main(args: argparse.Namespace) -> int:
    return _table1(args) if args.name == "table1" else _evaluation(args)


def _csv_text(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# -- table 1 ---------------------------------------------------------------------------------------


def _table1(args: argparse.Namespace) -> int:
    """Predict both families, print them, and write the requested files."""
    files.check_free(args.csv, args.svg, force=args.force)
    families: list[dict[str, Any]] = []
    for family in table_one.FAMILIES:
        seeds = range(args.seed, args.seed + args.seeds)
        with progress.counting(f"{family.name}: {{}} of {{}} sizes") as tell:
            rows = table_one.predict(family, seeds=seeds, steps=args.steps, progress=tell)
        shown = table_one.timelines(family, seed=args.seed, steps=args.steps)
        families.append({**table_one.to_json(family, rows), "timeline": shown})
    data = {
        "schema": "evenstep.table1/1",
        "reproduction": "table1",
        "source": table_one.SOURCE,
        "seeds": [args.seed, args.seed + args.seeds - 1],
        "steps": args.steps,
        "families": families,
        "limits": list(LIMITS),
    }
    show(data, lambda: "\n".join(_table1_lines(data)), as_json=args.json)
    if args.csv is not None:
        files.write(args.csv, _csv_text(_table1_rows(families)))
    if args.svg is not None:
        files.write(args.svg, draw(families))
    return 0


def _table1_lines(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"{data['source']}: printed beside predicted (change of throughput, CV)"
    for family in data["families"]:
        yield ""
        yield from _family_text(family)
    yield ""
    for limit in data["limits"]:
        yield from textwrap.wrap(limit, 80)


def _family_text(family: Mapping[str, Any]) -> Iterator[str]:
    fitted, error = family["parameters"], family["fit_error"]
    yield (
        f"{family['family']}: {fitted['jobs']} jobs, η {fitted['goodput']:g}, exchange at 64 nodes "
        f"{fitted['exchange']:g} of compute"
    )
    yield (
        f"  fit: throughput off by {100 * error['throughput_rms']:.1f} % (rms; worst "
        f"{100 * error['throughput_worst']:+.1f} %), CV by {error['cv_rms']:.3f} (worst "
        f"{error['cv_worst']:+.3f})"
    )
    heads = ("baseline", "fitted", "printed gain", *(TITLES[arm] for arm in ARMS))
    rows = [("nodes", *heads), *((str(row["nodes"]), *_cells(row)) for row in family["rows"])]
    yield from table(rows, gap=" ")
    most = ", ".join(f"{100 * row['alone']['gain']:+.1f}" for row in family["rows"])
    yield f"  with the other jobs gone, the most there is: {most} %"
    for arm in ARMS:
        costs = ", ".join(f"{100 * row['lone'][arm]:+.1f}" for row in family["rows"])
        yield f"  {TITLES[arm]}, in a job alone on its links: {costs} %"
    for arm in ARMS:
        yield f"  {TITLES[arm]}, 64 nodes, 95 % over seeds: {_span(family['rows'][-1][arm])}"


def _span(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return "unknown from one seed"
    gain, low, high = (100 * figure[key] for key in ("gain", "low", "high"))
    return f"{gain:+.1f} % ({low:+.1f} to {high:+.1f})"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    printed = row["published"]
    yield f"{printed['baseline']:.0f} ({printed['baseline_cv']:.2f})"
    yield f"{row['baseline']['throughput']:.0f} ({row['baseline']['cv']:.2f})"
    gain = printed["coordinated"] / printed["baseline"] - 1
    yield f"{100 * gain:+.1f} % ({printed['coordinated_cv']:.2f})"
    for arm in ARMS:
        yield f"{100 * row[arm]['gain']:+.1f} % ({row[arm]['cv']:.2f})"


def _table1_rows(families: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield a row per family, size and arm; rows of the paper's own numbers are called printed."""
    yield ["family", "nodes", "arm", "throughput_samples_per_s", "gain", "cv"]
    for family in families:
        for row in family["rows"]:
            printed = row["published"]
            gain = printed["coordinated"] / printed["baseline"] - 1
            lines = [
                ("printed baseline", printed["baseline"], 0.0, printed["baseline_cv"]),
                ("printed coordination", printed["coordinated"], gain, printed["coordinated_cv"]),
            ]
            lines += [
                (arm, *(row[arm][key] for key in ("throughput", "gain", "cv")))
                for arm in ("baseline", *ARMS, "alone")
            ]
            for name, *numbers in lines:
                yield [family["family"], row["nodes"], name, *(f"{v:.6g}" for v in numbers)]


# -- the evaluation --------------------------------------------------------------------------------


def _evaluation(args: argparse.Namespace) -> int:
    """Run all combinations, print them, and write the requested files."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers use all cores already
    files.check_free(args.csv, force=args.force)
    units = evaluation.plan_matrix(
        nodes=args.nodes, oversubscription=args.oversubscription, placements=args.placement,
        controllers=args.coordination, repeats=args.repeats, steps=args.steps,
    )  # fmt: skip
    rows = []
    with progress.counting() as tell:
        for row in run_units(units, args.workers or usable_cores()):
            rows.append(row)
            tell(len(rows), len(units))
    table = evaluation.table(rows)
    document: EvaluationDocument = {
        "schema": "evenstep.evaluation/1", "repeats": args.repeats, "steps": args.steps,
        "rows": table, "limits": list(evaluation.LIMITS),
    }  # fmt: skip
    show(document, lambda: "\n".join(_evaluation_lines(document)), as_json=args.json)
    if args.csv is not None:
        files.write(args.csv, _csv_text(_evaluation_rows(table)))
    return 0


def _evaluation_lines(document: EvaluationDocument) -> Iterator[str]:
    yield f"{document['repeats']} repeats of {document['steps']} steps; ± half a 95 % interval"
    yield ""
    yield (
        f"{'nodes':>5} {'oversub.':>8} {'placement':10}{'coordination':12}{'samples/s':>13}"
        f"{'CV':>14}{'gain':>15}"
    )
    for row in document["rows"]:
        gain = "" if row["gain"] is None else _amount(row["gain"], 100, "+.1f", " %")
        yield (
            f"{row['nodes']:5d} {row['oversubscription']:6g}:1 {row['placement']:10}"
            f"{row['coordination']:12}{_amount(row['throughput'], 1, '.0f', ''):>13}"
            f"{_amount(row['cv'], 1, '.3f', ''):>14}{gain:>15}"
        )
    yield ""
    for limit in document["limits"]:
        yield from textwrap.wrap(limit, 80, initial_indent="- ", subsequent_indent="  ")


def _amount(found: MeanInterval, scale: float, form: str, unit: str) -> str:
    """Render a mean with half the width of its interval, if known."""
    value, high = found["value"], found["high"]
    if high is None:
        return f"{scale * value:{form}}{unit}"
    half = scale * (high - value)
    return f"{scale * value:{form}} ± {half:{form.lstrip('+')}}{unit}"


def _evaluation_rows(table: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    names = ("nodes", "oversubscription", "placement", "coordination", "repeats", "unit")
    yield [*names, *(f"{m}{end}" for m in MEASURES for end in ("", "_low", "_high"))]
    for row in table:
        found = (row[measure] or {} for measure in MEASURES)
        parts = (one.get(part) for one in found for part in ("value", "low", "high"))
        yield [*(row[name] for name in names), *parts]


# -- the figure of table 1 -------------------------------------------------------------------------
# Throughput and CV by nodes (the paper's figures 1 and 5), and timelines of ranks without and with
# pacing (its figure 2).

WIDTH, HEIGHT = 460, 300  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 40, 42
COLOURS = {
    "printed baseline": "#9a9a9a",
    "printed coordination": "#5b5b5b",
    "baseline": "#c2571a",
    "paper": "#8a6bbd",
    "token": "#1f6fb2",
    "ideal": "#bbbbbb",
}
DASHED = ("ideal", "printed baseline", "printed coordination")
LANE, BETWEEN, FOOT = 16, 4, 34  # heights of a timeline
SPANS = {
    "compute": "#9fc5a5",
    "exchange": "#1f6fb2",
    "wait": "#e3c565",
    "held": "#8a6bbd",
    "pause": "#c79adf",
}


def draw(families: Sequence[Mapping[str, Any]]) -> str:
    """Render panels of throughput and CV for each family, then the timelines. Raises `MissingExtra`
    without jinja2."""
    panels = [panel for family in families for panel in _panels(family)]
    timelines: list[dict[str, Any]] = []
    y = HEIGHT * len(families) + 28
    for family in families:
        timelines += _timelines(family["family"], family["timeline"], y)
        y += timelines[-1]["height"]
    text: str = sheet.template("table_one.svg.j2", "the figure of table 1").render(
        panels=panels, timelines=timelines, bottom=y, colours=COLOURS, kinds=SPANS, dashed=DASHED,
        width=WIDTH, height=HEIGHT, left=LEFT, right=WIDTH - RIGHT, lane=LANE,
    )  # fmt: skip
    return text + "\n"


def _panels(family: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rows = family["rows"]
    printed = [row["published"] for row in rows]
    per_node = printed[0]["baseline"] / printed[0]["nodes"]
    for title, key, ends in (
        ("throughput, samples/s", "throughput", ("baseline", "coordinated")),
        ("CV of step time", "cv", ("baseline_cv", "coordinated_cv")),
    ):
        series = {"ideal": [per_node * row["nodes"] for row in rows]} if key != "cv" else {}
        for name, end in zip(DASHED[1:], ends, strict=True):
            series[name] = [row[end] for row in printed]
        for arm in ("baseline", "paper", "token"):
            series[arm] = [row[arm][key] for row in rows]
        nodes = [int(row["nodes"]) for row in rows]
        yield {"title": f"{family['family']}: {title}", **_panel(nodes, series)}


def _panel(nodes: Sequence[int], series: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    top = 1.05 * max(max(values) for values in series.values())
    first, last = log2(nodes[0]), log2(nodes[-1])
    scale = (WIDTH - LEFT - RIGHT) / max(last - first, 1.0)
    across = [round(LEFT + (log2(count) - first) * scale, 1) for count in nodes]

    def height(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    marks = [share * top for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {
        "grid": [(height(mark), f"{mark:.{0 if top > 10 else 2}f}") for mark in marks],
        "ticks": list(zip(across, nodes, strict=True)),
        "lines": {
            name: " ".join(f"{x},{height(value)}" for x, value in zip(across, values, strict=True))
            for name, values in series.items()
        },
    }


def _timelines(family: str, timeline: Mapping[str, Any], y: int) -> Iterator[dict[str, Any]]:
    """Yield the timelines without and with pacing, below `y`, on one scale of time."""
    until = max(span["end"] for arm in ("before", "after") for span in timeline[arm])
    scale = (WIDTH - LEFT - RIGHT) / until
    lanes = sorted({(span["job"], span["rank"]) for span in timeline["before"]})  # ours first
    tops = {lane: TOP + place * (LANE + BETWEEN) for place, lane in enumerate(lanes)}
    foot = TOP + len(lanes) * (LANE + BETWEEN)
    titles = {
        "before": f"{family}: {timeline['nodes']} nodes, without pacing",
        "after": f"{timeline['steps']} steps with {timeline['controller']}",
    }
    for column, (arm, title) in enumerate(titles.items()):
        yield {
            "title": title, "column": column, "y": y, "until": until, "foot": foot + 16,
            "height": foot + FOOT,
            "lanes": [(f"tenant {job}" if job else f"rank {rank}", top)
                      for (job, rank), top in tops.items()],
            "spans": [
                (round(LEFT + scale * span["begin"], 1), tops[span["job"], span["rank"]],
                 round(scale * (span["end"] - span["begin"]), 2), span["kind"])
                for span in timeline[arm]
            ],
        }  # fmt: skip
