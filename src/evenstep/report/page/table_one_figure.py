"""The figure of table 1 as SVG: throughput and CV by nodes (the paper's figures 1 and 5), and
timelines of ranks without and with pacing (its figure 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from typing import Any

from evenstep.report.page import sheet

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
