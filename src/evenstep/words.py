"""Numbers and ranks as people read them, in every sentence of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.trace.ranks import format_ranks, parse_ranks
from evenstep.trace.spool.layout import Phase

LISTED = 8

BEFORE_BACKWARD = "before backward (in forward, or in the script around it)"
SOMEWHERE = "somewhere in the step (no phases were recorded)"
#: Where an excess lies, as it completes "… more": inside backward, in the input, …
PLACES = {
    Phase.INPUT: "waiting for input",
    Phase.FORWARD: "inside forward",
    Phase.BACKWARD: "inside backward",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.CHECKPOINT: "writing checkpoints",
    Phase.EVALUATION: "in evaluation",
    Phase.SYNC: "blocked",
    Phase.OTHER: "outside the phases that can be seen (between optimizer and forward)",
}


def duration(nanoseconds: float) -> str:
    """Three significant digits with the fitting unit: "51.2 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def percent(share: float) -> str:
    """ "12 %", with a decimal below ten."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"


def ranks(numbers: Sequence[int]) -> str:
    """ "rank 7", "ranks 0, 1 and 8", "ranks 0-3 and 8"; of many "…, 14 and 1,020 more"."""
    parts = [part for run in format_ranks(numbers).split(",") for part in _pair(run)]
    if len(parts) > LISTED:
        named = len(parse_ranks(",".join(parts[:LISTED])))
        shown = f"{', '.join(parts[:LISTED])} and {len(set(numbers)) - named:,} more"
    else:
        shown = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {shown}"


def _pair(run: str) -> list[str]:
    """Two neighbours are two ranks; three and more are a run."""
    first, _, last = run.partition("-")
    return [first, last] if last and int(last) == int(first) + 1 else [run]
