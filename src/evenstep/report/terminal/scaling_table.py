"""How throughput scales, as lines of text: a row a size, then what the fitted law says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep.report.terminal.style import table as aligned
from evenstep.words import is_known, number, percent

HEADS = ("ranks", "throughput", "efficiency", "law")


def table(scaling: Mapping[str, Any]) -> list[str]:
    """Aligned rows under their heads. Efficiency is throughput per rank ÷ the smallest run's."""
    unit = scaling["unit"]
    rows = [
        (
            f"{row['ranks']:,}",
            number(row["throughput"], unit),
            percent(row["efficiency"]),
            number(row["fitted"]),
        )
        for row in scaling["points"]
    ]
    return aligned([HEADS, *rows])


def notes(scaling: Mapping[str, Any]) -> Iterator[str]:
    """What the law and the last doubling say, each in a sentence."""
    law = scaling.get("law") or {}
    contention, coherency = law.get("contention") or {}, law.get("coherency") or {}
    if is_known(contention.get("value")) and is_known(coherency.get("value")):
        yield (
            f"{law['name']}: contention {percent(contention['value'])}, "
            f"coherency {coherency['value']:.2g}"
        )
    for name, text in (
        ("knee", "an added rank brings half of what the first did from about"),
        ("peak", "throughput is highest at about"),
    ):
        if is_known((law.get(name) or {}).get("value")):
            yield f"{text} {_ranks(law[name])}"
    if last := scaling.get("last_doubling"):
        first, second = last["ranks"]
        yield f"from {first:,} to {second:,} ranks throughput grows by {percent(last['gain'])}"
    if scaling.get("recommended_ranks"):
        yield f"worth using: {scaling['recommended_ranks']:,} ranks"


def _ranks(found: Mapping[str, Any]) -> str:
    """137 ranks (126 to 153); an interval without an end is open."""
    text = f"{found['value']:,.0f} ranks"
    if not is_known(found.get("low")):
        return text
    high = f"{found['high']:,.0f}" if is_known(found.get("high")) else "any number"
    return f"{text} ({found['low']:,.0f} to {high})"
