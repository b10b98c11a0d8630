"""A probe's document as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep import words
from evenstep.report.terminal.style import Style

_MOST_ROWS = 32


def render(found: Mapping[str, Any], *, width: int | None = None) -> str:
    """The document in at most `width` columns."""
    style = Style.of(width, color=False)
    lines = style.wrap(found["verdict"])
    for finding in found["findings"]:
        limit = f" (named from {finding['limit']:.2f} times on)" if finding["limit"] else ""
        lines += style.wrap(f"{finding['observation']}{limit}", first="- ", indent=2)
        lines += style.wrap(finding["mend"], first="  mend: ", indent=8)
    lines += [*_ranks(found["ranks"]), *_reductions(found["all_reduce"]), *_pairs(found["pairs"])]
    limits = [*found["limits"], *_noise(found["noise"])]
    lines += [""] if limits else []
    for limit in limits:
        lines += style.wrap(limit, first="- ", indent=2)
    return "\n".join(lines) + "\n"


def _ranks(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"{'rank':>5} {'compute':>14} {'memory':>12}  node")
    for row in rows[:_MOST_ROWS]:
        compute, memory = row["compute"], row["memory"]
        tflops = f"{compute['tflops']:.3g} TFLOP/s" if compute else "-"
        speed = f"{memory['gBps']:.3g} GB/s" if memory else "-"
        yield f"{row['rank']:>5} {tflops:>14} {speed:>12}  {row['node'][:40]}"
    yield from _more(rows)


def _reductions(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"{'all-reduce':>12} {'time':>10} {'± MAD':>10} {'bus':>12}  ranks × nodes")
    for row in rows[:_MOST_ROWS]:
        speed = f"{row['busbw_gBps']:.3g} GB/s"
        times = " ".join(f"{words.duration(row[key]):>10}" for key in ("median_ns", "mad_ns"))
        size = words.size(row["bytes"])
        yield f"{size:>12} {times} {speed:>12}  {row['ranks']} on {row['nodes']}"


def _pairs(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"{'from':>5} {'to':>5} {'bandwidth':>12} {'latency':>10}")
    slowest = sorted(rows, key=lambda row: float(row["gBps"]))
    for row in slowest[:_MOST_ROWS]:
        latency = words.duration(row["latency"]["median_ns"]) if row["latency"] else "-"
        speed = f"{row['gBps']:.3g} GB/s"
        yield f"{row['from']:>5} {row['to']:>5} {speed:>12} {latency:>10}"
    yield from _more(rows)


def _more(rows: list[dict[str, Any]]) -> Iterator[str]:
    if len(rows) > _MOST_ROWS:
        yield f"  … and {len(rows) - _MOST_ROWS} more; --json has all"


def _noise(found: Mapping[str, Any]) -> Iterator[str]:
    parts = [f"{name} {1 + one['limit']:.2f}" for name, one in found.items() if one["usual_ns"]]
    if parts:
        yield (
            f"slower than usual by less than this is within the noise of this probe "
            f"(times the usual): {', '.join(parts)}"
        )
