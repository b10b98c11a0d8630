"""The outcome as plain values: what `--json` prints, and the floors a diagnosis is held against."""

from __future__ import annotations

from typing import Any

from evenstep.probe.findings import Judgement
from evenstep.probe.outcome import ProbedPlace, ProbeResult
from evenstep.statistics.outliers import Series

SCHEMA = "evenstep.probe/1"
FLOORS_SCHEMA = "evenstep.floors/1"


def document(outcome: ProbeResult, judged: Judgement, *, seconds: float) -> dict[str, Any]:
    """Everything, for `--json`."""
    return {
        "schema": SCHEMA,
        "complete": outcome.whole,
        "world": outcome.world,
        "nodes": outcome.nodes,
        "backend": outcome.backend,
        "seconds": seconds,
        "verdict": verdict(outcome, judged),
        "ranks": [_rank(outcome, place) for _, place in sorted(outcome.places.items())],
        "all_reduce": [
            {"bytes": row.bytes, "ranks": row.ranks, "nodes": row.nodes, **row.times.to_json(),
             "algbw_gBps": short(row.algbw_gBps), "busbw_gBps": short(row.busbw_gBps)}
            for row in outcome.reductions
        ],
        "pairs": _pairs(outcome),
        "findings": [finding.to_json() for finding in judged.findings],
        "noise": {name: found.to_json() for name, found in judged.standings.items()},
        "limits": list(outcome.limits),
    }  # fmt: skip


def verdict(outcome: ProbeResult, judged: Judgement) -> str:
    """The whole in a sentence."""
    heard = len(outcome.places)
    where = f"{outcome.nodes} node{'s' if outcome.nodes != 1 else ''}"
    who = f"{heard} of {outcome.world} ranks" if heard < outcome.world else f"{heard} ranks"
    if heard == outcome.world == 1:
        who = "1 rank"
    head = f"{who} on {where}" + (f", {outcome.backend}" if outcome.backend else "")
    if not judged.findings:
        return f"{head}: nobody stands out."
    first, *others = judged.findings
    more = f"; {len(others)} more below" if others else ""
    return f"{head}: {first.observation}{more}."


def _rank(outcome: ProbeResult, place: ProbedPlace) -> dict[str, Any]:
    compute, memory = outcome.compute.get(place.rank), outcome.memory.get(place.rank)
    return {
        "rank": place.rank,
        "node": outcome.node_name(place.rank),
        "host": place.host,
        "device": place.device,
        "compute": compute and {**compute.to_json(), "tflops": _tflops(place, compute)},
        "memory": memory and {**memory.to_json(), "gBps": _memory_gBps(place, memory)},
    }


def _tflops(place: ProbedPlace, times: Series) -> float:
    return short(place.flop / max(times.median_ns, 1.0) / 1e3)


def _memory_gBps(place: ProbedPlace, times: Series) -> float:  # noqa: N802
    """Bytes read and written."""
    return short(2 * place.copied_bytes / max(times.median_ns, 1.0))


def _pairs(outcome: ProbeResult) -> list[dict[str, Any]]:
    found = []
    for edge, times in sorted(outcome.transfer.items()):
        latency = outcome.latency.get(edge) or outcome.latency.get(edge[::-1])
        found.append(
            {
                "from": edge[0],
                "to": edge[1],
                "bytes": outcome.message_bytes,
                "transfer": times.to_json(),
                "gBps": short(outcome.message_bytes / max(times.median_ns, 1.0)),
                "latency": latency and latency.to_json(),
            }
        )
    return found


def short(value: float) -> float:
    """To five digits."""
    return float(f"{value:.5g}")


def floors(outcome: ProbeResult) -> dict[str, Any]:
    """What this fabric reaches with nobody late; `evenstep diagnose` reads it beside a trace."""
    return {
        "schema": FLOORS_SCHEMA,
        "world": outcome.world,
        "nodes": outcome.nodes,
        "backend": outcome.backend,
        "floors": [
            {"op": "all_reduce", "bytes": row.bytes, "time_ns": round(row.times.median_ns),
             "algbw_gBps": row.algbw_gBps, "busbw_gBps": row.busbw_gBps, "ranks": row.ranks,
             "nodes": row.nodes, "in_place": True, "dtype": "float", "wrong": None}
            for row in outcome.reductions
        ],
    }  # fmt: skip
