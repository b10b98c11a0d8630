"""A comparison of the laboratory as one HTML file: gains with intervals, every step by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.report.page import sheet
from evenstep.report.page.sheet import Packed, pack
from evenstep.trace.columns import Columns
from lab.forest import forest

SCRIPTS = ("quantities.js", "columns.js", "canvas.js", "blocks.js", "lab.js")
BASELINE, AGAIN = "baseline", "baseline again"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Whose turn it was, and when, in s since the first block."""

    arm: str
    start_s: float
    end_s: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One job's steps in order: starts in s since the first block, lengths in ms."""

    job: str
    start_s: Any
    step_ms: Any
    counts: Any  # whether the comparison counts the step


def render(
    document: Document,
    series: Sequence[Series] = (),
    blocks: Sequence[Block] = (),
    predicted: Mapping[str, Sequence[float] | None] | None = None,
) -> str:
    """The page of what `python -m lab compare --json` prints.

    `predicted` is the simulator's gain of each job, by arm; None where it does not know the
    scenario. Raises `MissingExtra` without jinja2.
    """
    script = sheet.script(SCRIPTS)
    packed = packed_steps(series)
    foretold = {arm: list(each) for arm, each in (predicted or {}).items() if each is not None}
    template = sheet.template("lab.html.j2", "the page of a comparison", gain=gain, cv=cv)
    text: str = template.render(
        document=document,
        verdict=verdict(document["arms"]),
        compared=[arm for arm in document["arms"] if arm["gain"] is not None],
        again=next((arm for arm in document["arms"] if arm["arm"] == AGAIN), None),
        forest=forest(document["arms"], foretold),
        foretold=foretold,
        drawn=bool(series),
        style=sheet.style(),
        script=script,
        script_hash=sheet.content_hash(script),
        comparison=sheet.embedded(document),
        facts=sheet.embedded(
            facts(packed.directory, [arm["arm"] for arm in document["arms"]], series, blocks)
        ),
        data=packed.data,
    )
    return text


def verdict(arms: Sequence[Mapping[str, Any]]) -> str:
    """What came of each arm, in a line: slack: gains, +2.1 % (+1.0 to +3.2); paper: …"""
    said = [(arm["arm"], arm["verdict"], gain(arm["gain"])) for arm in arms if arm["verdict"]]
    if not said:
        return "Only the baseline ran: there is nothing to compare it with"
    return "; ".join(f"{name}: {found}, {change}" for name, found, change in said)


def gain(interval: Mapping[str, float | None] | None) -> str:
    """A gain in percent with its interval: +2.1 % (+1.0 to +3.2)."""
    if interval is None or interval["value"] is None:
        return "unknown"
    low, high = interval["low"], interval["high"]
    ends = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return f"{100 * interval['value']:+.1f} %{ends}"


def cv(interval: Mapping[str, float | None] | None) -> str:
    """A coefficient of variation with its interval: 0.041 (0.036 to 0.046)."""
    if interval is None or interval["value"] is None:
        return "unknown"
    low, high = interval["low"], interval["high"]
    ends = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return f"{interval['value']:.3f}{ends}"


def packed_steps(series: Sequence[Series]) -> Packed:
    """The steps as they travel in a page: job0, job1 …"""
    return pack(
        {
            f"job{at}": Columns(
                {
                    "start_s": np.asarray(one.start_s, np.float64),
                    "step_ms": np.asarray(one.step_ms, np.float32),
                    "counts": np.asarray(one.counts, np.uint8),
                }
            )
            for at, one in enumerate(series)
        }
    )


def facts(
    directory: Mapping[str, Any],
    arms: Sequence[str],
    series: Sequence[Series],
    blocks: Sequence[Block],
) -> dict[str, Any]:
    """What the page's script has to know of the steps: where they lie, and whose turn was when."""
    return {
        "directory": directory,
        "jobs": [one.job for one in series],
        "arms": list(arms),
        "blocks": [
            {"arm": arms.index(one.arm), "from": one.start_s, "to": one.end_s, "counts": one.counts}
            for one in blocks
        ],
    }
