"""A probe's document as text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from evenstep import words

_WIDEST, _NARROWEST = 100, 40
_MOST_ROWS = 32


def render(found: Mapping[str, Any], *, width: int | None = None) -> str:
    """The document in at most `width` columns."""
    columns = width or shutil.get_terminal_size((80, 24)).columns
    columns = max(min(columns, _WIDEST), _NARROWEST)
    lines = textwrap.wrap(found["verdict"], columns)
    for finding in found["findings"]:
        lines += _wrapped(f"- {finding['observation']}{_limit(finding)}", columns, "  ")
        lines += _wrapped(f"  mend: {finding['mend']}", columns, "        ")
    lines += [*_ranks(found["ranks"]), *_reductions(found["all_reduce"]), *_pairs(found["pairs"])]
    limits = [*found["limits"], *_noise(found["noise"])]
    if limits:
        lines.append("")
    for limit in limits:
        lines += _wrapped(f"- {limit}", columns, "  ")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, columns: int, hanging: str) -> list[str]:
    return textwrap.wrap(text, columns, subsequent_indent=hanging, break_on_hyphens=False)


def _limit(finding: Mapping[str, Any]) -> str:
    limit = finding["limit"]
    return f" (named from {limit:.2f} times on)" if limit else ""


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
