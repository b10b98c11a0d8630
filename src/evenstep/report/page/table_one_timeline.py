"""What ranks do over a few steps, before and after pacing, as the paper's figure 2 draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

LEFT, RIGHT, TOP = 62, 16, 40
LANE, BETWEEN = 16, 4  # heights
FOOT = 34
COLOURS = {
    "compute": "#9fc5a5",
    "exchange": "#1f6fb2",
    "wait": "#e3c565",
    "held": "#8a6bbd",
    "pause": "#c79adf",
}
TEXT = 'font-family="sans-serif" font-size="11" fill="#333"'


def height(timeline: Mapping[str, Any]) -> int:
    """Of one panel, in the figure's units."""
    return TOP + FOOT + len(_lanes(timeline)) * (LANE + BETWEEN)


def panels(family: str, timeline: Mapping[str, Any], width: int) -> list[str]:
    """Two panels of `width`, without and with pacing, on one scale of time."""
    until = max(span["end"] for arm in ("before", "after") for span in timeline[arm])
    titles = {
        "before": f"{family}: {timeline['nodes']} nodes, nobody paces",
        "after": f"{timeline['steps']} steps with {timeline['controller']}",
    }
    return [
        _panel(titles[arm], timeline[arm], _lanes(timeline), until, width)
        for arm in ("before", "after")
    ]


def legend(y: int) -> str:
    """What the colours mean."""
    parts = []
    for place, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * place
        parts.append(
            f'<rect x="{x}" y="{y - 6}" width="22" height="10" fill="{colour}"/>'
            f'<text x="{x + 27}" y="{y + 4}" {TEXT}>{kind}</text>'
        )
    return "".join(parts)


def _lanes(timeline: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(job, rank), ours first."""
    return sorted({(span["job"], span["rank"]) for span in timeline["before"]})


def _panel(
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
            f'fill="{COLOURS[span["kind"]]}"><title>{span["kind"]}</title></rect>'
        )
    foot = TOP + len(lanes) * (LANE + BETWEEN) + 16
    parts.append(
        f'<text x="{width / 2}" y="{foot}" text-anchor="middle" {TEXT}>'
        f"time, 0 to {until:.2f} computes of our job</text>"
    )
    return "".join(parts)
