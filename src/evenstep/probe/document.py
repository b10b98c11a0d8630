"""The result of a probe as JSON, as text, and as floors of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypedDict

from evenstep import words
from evenstep.documents import Amount, Meta, Natural, Positive, plain, short
from evenstep.errors import TraceError
from evenstep.probe.findings import Judgement, ProbeFinding
from evenstep.probe.outcome import ProbedPlace, ProbeResult
from evenstep.report.terminal.style import Style, table
from evenstep.statistics.outliers import Series


class RepeatedTimes(TypedDict):
    """Statistics of repeated measurements."""

    median_ns: Natural
    mad_ns: Natural
    count: Positive


class ComputeTimes(RepeatedTimes):
    """Times of matrix products."""

    tflops: Amount


class MemoryTimes(RepeatedTimes):
    """Times of memory copies."""

    gBps: Amount


class ProbedRank(TypedDict):
    """The measurements of one rank."""

    rank: Natural
    node: str
    host: str
    device: str
    compute: ComputeTimes | None
    memory: MemoryTimes | None


class AllReduceRow(RepeatedTimes):
    """All-reduces of one size over one kind of group."""

    bytes: Natural
    ranks: Positive
    nodes: Positive
    algbw_gBps: Amount
    busbw_gBps: Annotated[float, Meta("As nccl-tests defines it.", minimum=0)]


PairRow = TypedDict(
    "PairRow",
    {"from": Natural, "to": Natural, "bytes": Natural, "transfer": RepeatedTimes, "gBps": Amount,
     "latency": RepeatedTimes | None},
)  # fmt: skip


class NoiseRow(TypedDict):
    """The reference and the limit of a metric."""

    usual_ns: Natural
    limit: Amount


class ProbeDocument(TypedDict):
    """The document that `--json` prints."""

    schema: Literal["evenstep.probe/1"]
    complete: Annotated[bool, Meta("Whether every rank finished all measurements.")]
    world: Positive
    nodes: Natural
    backend: str | None
    seconds: Amount
    verdict: str
    ranks: list[ProbedRank]
    all_reduce: list[AllReduceRow]
    pairs: list[PairRow]
    findings: list[ProbeFinding]
    noise: Annotated[
        dict[str, NoiseRow],
        Meta("The usual value of each metric, and the share slower than it that is named."),
    ]  # fmt: skip
    limits: list[str]


class FloorRow(TypedDict):
    """The speed of all-reduces of one size."""

    op: str
    bytes: Natural
    time_ns: Natural
    algbw_gBps: Amount
    busbw_gBps: Amount
    ranks: Positive
    nodes: Positive
    in_place: bool
    dtype: str
    wrong: Natural | None


class FloorsDocument(TypedDict):
    """The document that `--floors` writes."""

    schema: Literal["evenstep.floors/1"]
    world: Positive
    nodes: Natural
    backend: str | None
    floors: list[FloorRow]


def document(outcome: ProbeResult, judged: Judgement, *, seconds: float) -> dict[str, Any]:
    whole: ProbeDocument = {
        "schema": "evenstep.probe/1",
        "complete": outcome.whole,
        "world": outcome.world,
        "nodes": outcome.nodes,
        "backend": outcome.backend,
        "seconds": seconds,
        "verdict": verdict(outcome, judged),
        "ranks": [_rank(outcome, place) for _, place in sorted(outcome.places.items())],
        "all_reduce": [
            {"bytes": row.bytes, "ranks": row.ranks, "nodes": row.nodes, **_times(row.times),
             "algbw_gBps": short(row.algbw_gBps), "busbw_gBps": short(row.busbw_gBps)}
            for row in outcome.reductions
        ],
        "pairs": _pairs(outcome),
        "findings": list(judged.findings),
        "noise": {
            name: {"usual_ns": round(found.usual_ns), "limit": round(found.limit, 4)}
            for name, found in judged.standings.items()
        },
        "limits": list(outcome.limits),
    }  # fmt: skip
    return dict(plain(whole))


def verdict(outcome: ProbeResult, judged: Judgement) -> str:
    heard = len(outcome.places)
    of = f"{heard} of " if heard < outcome.world else ""
    head = f"{of}{words.plural(outcome.world, 'rank')} on {words.plural(outcome.nodes, 'node')}"
    head += f", {outcome.backend}" if outcome.backend else ""
    if not judged.findings:
        return f"{head}: no slow ranks or links."
    first, *others = judged.findings
    more = f"; {len(others)} more below" if others else ""
    return f"{head}: {first.observation}{more}."


def _times(series: Series) -> RepeatedTimes:
    median_ns, mad_ns = round(series.median_ns), round(series.mad_ns)
    return {"median_ns": median_ns, "mad_ns": mad_ns, "count": len(series.values_ns)}


def _rank(outcome: ProbeResult, place: ProbedPlace) -> ProbedRank:
    compute, memory = outcome.compute.get(place.rank), outcome.memory.get(place.rank)
    flop, copied = place.flop / 1e3, 2 * place.copied_bytes  # read and written
    return {
        "rank": place.rank,
        "node": outcome.node_name(place.rank),
        "host": place.host,
        "device": place.device,
        "compute": {**_times(compute), "tflops": _rate(flop, compute)} if compute else None,
        "memory": {**_times(memory), "gBps": _rate(copied, memory)} if memory else None,
    }


def _rate(amount: float, times: Series) -> float:
    """Return an amount per nanosecond."""
    return short(amount / max(times.median_ns, 1.0))


def _pairs(outcome: ProbeResult) -> list[PairRow]:
    found: list[PairRow] = []
    for edge, times in sorted(outcome.transfer.items()):
        latency = outcome.latency.get(edge) or outcome.latency.get(edge[::-1])
        found.append(
            {
                "from": edge[0],
                "to": edge[1],
                "bytes": outcome.message_bytes,
                "transfer": _times(times),
                "gBps": _rate(outcome.message_bytes, times),
                "latency": _times(latency) if latency else None,
            }
        )
    return found


def floors(outcome: ProbeResult) -> FloorsDocument:
    """Return the speeds of the fabric without waits, for `evenstep diagnose --floors`. Raises
    `TraceError` if no all-reduce was measured."""
    if not outcome.reductions:
        raise TraceError("floors need measured all-reduces; probe again with all ranks")
    return {
        "schema": "evenstep.floors/1",
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


# -- as text ---------------------------------------------------------------------------------------

_MOST_ROWS = 32


def render(found: Mapping[str, Any], *, width: int | None = None) -> str:
    style = Style.of(width, color=False)
    lines = style.wrap(found["verdict"])
    for finding in found["findings"]:
        limit = f" (named from {finding['limit']:.2f} times on)" if finding["limit"] else ""
        lines += style.wrap(f"{finding['observation']}{limit}", first="- ", indent=2)
        lines += style.wrap(finding["mend"], first="  fix: ", indent=7)
    for head, rows, left in _tables(found):
        if rows:
            shown = table([head, *rows[:_MOST_ROWS]], left=left)
            lines += ["", *map(str.rstrip, shown)]
        if len(rows) > _MOST_ROWS:
            lines.append(f"  … and {len(rows) - _MOST_ROWS} more; --json has all")
    limits, noise = list(found["limits"]), found["noise"].items()
    if parts := [f"{name} {1 + one['limit']:.2f}" for name, one in noise if one["usual_ns"]]:
        limits.append(
            "this probe cannot tell times below these multiples of the usual from noise: "
            f"{', '.join(parts)}"
        )
    lines += [""] if limits else []
    for limit in limits:
        lines += style.wrap(limit, first="- ", indent=2)
    return "\n".join(lines) + "\n"


def _tables(found: Mapping[str, Any]) -> Iterator[tuple[list[str], list[list[str]], set[int]]]:
    """The head and rows of each table, and which of its columns are left-aligned."""
    ranks = [
        [str(row["rank"]), _speed(row["compute"], "tflops", "TFLOP/s"),
         _speed(row["memory"], "gBps", "GB/s"), row["node"][:40]]
        for row in found["ranks"]
    ]  # fmt: skip
    yield ["rank", "compute", "memory", "node"], ranks, {3}
    reductions = [
        [words.size(row["bytes"]), words.duration(row["median_ns"]), words.duration(row["mad_ns"]),
         _speed(row, "busbw_gBps", "GB/s"), f"{row['ranks']} on {row['nodes']}"]
        for row in found["all_reduce"]
    ]  # fmt: skip
    yield ["all-reduce", "time", "± MAD", "bus", "ranks × nodes"], reductions, {4}
    pairs = [
        [str(row["from"]), str(row["to"]), _speed(row, "gBps", "GB/s"),
         words.duration(row["latency"]["median_ns"]) if row["latency"] else "-"]
        for row in sorted(found["pairs"], key=lambda row: float(row["gBps"]))
    ]  # fmt: skip
    yield ["from", "to", "bandwidth", "latency"], pairs, set()


def _speed(row: Mapping[str, Any] | None, key: str, unit: str) -> str:
    return f"{row[key]:.3g} {unit}" if row else "-"
