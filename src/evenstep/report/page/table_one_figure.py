"""Throughput and CV against nodes, as the paper's figures 1 and 5 draw them, and its figure 2: what
ranks do before and after pacing. One SVG, no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log2
from typing import Any

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
TEXT = 'font-family="sans-serif" font-size="11" fill="#333"'

Series = dict[str, list[float]]


def draw(families: Sequence[Mapping[str, Any]]) -> str:
    """Two panels for each family: throughput with the ideal line, and CV; then the timelines."""
    parts: list[str] = []
    for place, family in enumerate(families):
        nodes = [int(row["nodes"]) for row in family["rows"]]
        panels = [
            _panel(f"{family['family']}: {title}", nodes, series)
            for title, series in _panels(family["rows"])
        ]
        parts += _beside(panels, place * HEIGHT)
    y = HEIGHT * len(families) + 28
    parts.append(_legend(y - 14))
    for family in families:
        timeline = family["timeline"]
        panels = _timelines(family["family"], timeline, WIDTH)
        parts += _beside(panels, y)
        y += _timeline_height(timeline)
    parts.append(_timeline_legend(y + 6))
    width, height = 2 * WIDTH, y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
        "<title>Throughput and CV of step time against nodes, and what ranks do</title>"
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _beside(panels: Sequence[str], y: int) -> list[str]:
    return [
        f'<g transform="translate({column * WIDTH} {y})">{body}</g>'
        for column, body in enumerate(panels)
    ]


def _panels(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Series]]:
    printed = [row["published"] for row in rows]
    arms = ("baseline", "paper", "token")
    per_node = printed[0]["baseline"] / printed[0]["nodes"]
    throughput: Series = {
        "ideal": [per_node * row["nodes"] for row in rows],
        "printed baseline": [row["baseline"] for row in printed],
        "printed coordination": [row["coordinated"] for row in printed],
        **{arm: [row[arm]["throughput"] for row in rows] for arm in arms},
    }
    cv: Series = {
        "printed baseline": [row["baseline_cv"] for row in printed],
        "printed coordination": [row["coordinated_cv"] for row in printed],
        **{arm: [row[arm]["cv"] for row in rows] for arm in arms},
    }
    return [("throughput, samples/s", throughput), ("CV of step time", cv)]


def _panel(title: str, nodes: Sequence[int], series: Series) -> str:
    top = 1.05 * max(max(values) for values in series.values())
    across = [_x(count, nodes) for count in nodes]
    parts = [f'<text x="{LEFT}" y="22" {TEXT} font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share * top, top)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" {TEXT}>'
            f"{share * top:.{0 if top > 10 else 2}f}</text>"
        )
    for x, count in zip(across, nodes, strict=True):
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="middle" {TEXT}>{count}</text>'
        )
    for name, values in series.items():
        points = " ".join(f"{x:.1f},{_y(v, top):.1f}" for x, v in zip(across, values, strict=True))
        dashes = ' stroke-dasharray="5 4"' if name in DASHED else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" '
            f'stroke-width="2"{dashes}><title>{escape(name)}</title></polyline>'
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle" {TEXT}>nodes</text>')
    return "".join(parts)


def _x(count: int, nodes: Sequence[int]) -> float:
    first, last = log2(nodes[0]), log2(nodes[-1])
    return LEFT + (log2(count) - first) / max(last - first, 1.0) * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _legend(y: int) -> str:
    parts = []
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 145 * place
        dashes = ' stroke-dasharray="5 4"' if name in DASHED else ""
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2"{dashes}/><text x="{x + 27}" y="{y + 4}" {TEXT}>{name}</text>'
        )
    return "".join(parts)


# -- timelines -------------------------------------------------------------------------------------


def _timeline_height(timeline: Mapping[str, Any]) -> int:
    """Of one panel, in the figure's units."""
    return TOP + FOOT + len(_lanes(timeline)) * (LANE + BETWEEN)


def _timelines(family: str, timeline: Mapping[str, Any], width: int) -> list[str]:
    """Two panels of `width`, without and with pacing, on one scale of time."""
    until = max(span["end"] for arm in ("before", "after") for span in timeline[arm])
    titles = {
        "before": f"{family}: {timeline['nodes']} nodes, nobody paces",
        "after": f"{timeline['steps']} steps with {timeline['controller']}",
    }
    return [
        _timeline(titles[arm], timeline[arm], _lanes(timeline), until, width)
        for arm in ("before", "after")
    ]


def _timeline_legend(y: int) -> str:
    """What the colours mean."""
    parts = []
    for place, (kind, colour) in enumerate(SPANS.items()):
        x = LEFT + 110 * place
        parts.append(
            f'<rect x="{x}" y="{y - 6}" width="22" height="10" fill="{colour}"/>'
            f'<text x="{x + 27}" y="{y + 4}" {TEXT}>{kind}</text>'
        )
    return "".join(parts)


def _lanes(timeline: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(job, rank), ours first."""
    return sorted({(span["job"], span["rank"]) for span in timeline["before"]})


def _timeline(
    title: str,
    spans: Sequence[Mapping[str, Any]],
    lanes: Sequence[tuple[int, int]],
    until: float,
    width: int,
) -> str:
    scale = (width - LEFT - RIGHT) / until
    parts = [f'<text x="{LEFT}" y="22" {TEXT} font-weight="bold">{escape(title)}</text>']
    tops = {lane: TOP + place * (LANE + BETWEEN) for place, lane in enumerate(lanes)}
    for (job, rank), top in tops.items():
        name = f"rank {rank}" if job == 0 else f"tenant {job}"
        parts.append(f'<text x="{LEFT - 6}" y="{top + 12}" text-anchor="end" {TEXT}>{name}</text>')
    for span in spans:
        top, begin = tops[span["job"], span["rank"]], LEFT + scale * span["begin"]
        length = scale * (span["end"] - span["begin"])
        parts.append(
            f'<rect x="{begin:.1f}" y="{top}" width="{length:.2f}" height="{LANE}" '
            f'fill="{SPANS[span["kind"]]}"><title>{span["kind"]}</title></rect>'
        )
    foot = TOP + len(lanes) * (LANE + BETWEEN) + 16
    parts.append(
        f'<text x="{width / 2}" y="{foot}" text-anchor="middle" {TEXT}>'
        f"time, 0 to {until:.2f} computes of our job</text>"
    )
    return "".join(parts)
