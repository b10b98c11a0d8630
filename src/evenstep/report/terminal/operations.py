"""What stragglers cost a job of which every operation is known, under the published names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep.words import is_known, number, percent, printable

SHOWN = 4  # parts of a kind, the slowest first
_PARTS = (("stage", "stage"), ("dp_rank", "data-parallel rank"), ("optype", "operation"))


def stragglers(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the report: Lin et al. (OSDI 2025), equations 1, 2, 4 and 5, and section 5.2."""
    slowdown = found.get("blocking_slowdown")
    if not is_known(slowdown):
        return
    text = f"slowdown {_times(slowdown)}: the step as it was over one with every operation as usual"
    if is_known(late := found.get("launch_slowdown")):
        text += f"; {_times(late)} by work that was not recorded"
    yield text
    last, slowest = found["ms"]["Ms"], found["mw"]["Mw"]
    yield (
        f"of the slowdown, {percent(last)} goes with the last stage as usual (M_S) and "
        f"{percent(slowest)} with the slowest workers as usual (M_W)"
    )
    for kind, name in _PARTS:
        parts = found.get(f"blocking_decompose_by_{kind}") or {}
        shown = [f"{printable(str(part))} {_times(by)}" for part, by in list(parts.items())[:SHOWN]]
        if shown:
            yield f"slowdown by {name}: {', '.join(shown)}" + (" …" if len(parts) > SHOWN else "")


def _times(value: float | None) -> str:
    return f"{number(value)} ×"
