"""How well the hosts' clocks are known against each other: one row per clock."""

from __future__ import annotations

from typing import Any

from evenstep.trace.clocks.clocks import ClockOffset, Clocks
from evenstep.trace.trace import Trace
from evenstep.words import some_ranks


def hosts(trace: Trace, clocks: Clocks) -> list[dict[str, Any]]:
    """Each clock: `host`, `ranks`, `reference`, and offset, drift and error where it was placed.

    `offset_ns` is that of the middle of the run, to be added to the host's own times;
    `error_ns` the widest the error bar gets; `drift_ppm` None where one point is all there is.
    """
    members: dict[str, list[int]] = {}
    for rank, info in sorted(trace.ranks.items()):
        members.setdefault(info.clock, []).append(rank)
    rows: list[dict[str, Any]] = [
        {
            "host": trace.ranks[ranks[0]].node,
            "ranks": some_ranks(ranks),
            "reference": clock == clocks.reference,
            **_bars(clocks.by_rank.get(ranks[0])),
        }
        for clock, ranks in members.items()
    ]
    widest = max((row["error_ns"] or 0.0 for row in rows), default=0.0)
    return [{**row, "of_widest": _share(row["error_ns"], widest)} for row in rows]


def _share(error_ns: float | None, widest_ns: float) -> float | None:
    """Length of an error bar beside the widest."""
    return None if error_ns is None else error_ns / widest_ns if widest_ns > 0 else 0.0


def _bars(offset: ClockOffset | None) -> dict[str, float | None]:
    if offset is None:
        return {"offset_ns": None, "error_ns": None, "drift_ppm": None}
    middle = len(offset.offset_ns) // 2
    lasted = float(offset.at_ns[-1] - offset.at_ns[0])
    change = float(offset.offset_ns[-1] - offset.offset_ns[0])
    return {
        "offset_ns": float(offset.offset_ns[middle]),
        "error_ns": float(offset.error_ns.max()),
        "drift_ppm": 1e6 * change / lasted if lasted > 0 else None,
    }
