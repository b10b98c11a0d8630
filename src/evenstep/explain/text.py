"""Answers as text: a line for each number, then formulas and notes.

Numbers have four significant digits, one more than in a report, so that they can be checked.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenstep import words

WIDTH = 80
DIGITS = 4


def format_quantity(value: float | None, unit: str) -> str:
    """A number with its unit: "798.4 ms", "49.66 %", "unknown"."""
    if unit == "share":
        return words.number(value and 100 * value, "%", digits=DIGITS)
    if unit in ("ns", "bytes"):
        return (words.duration if unit == "ns" else words.size)(value, digits=DIGITS)
    return words.number(value, unit, digits=DIGITS)


def answer(data: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the answer of a topic, `data` from `Topic.answer`."""
    width = max((len(row["name"]) for row in data["rows"]), default=0)
    for row in data["rows"]:
        head = f"{row['name']:<{width}}  {format_quantity(row['value'], row['unit']):>14}  "
        yield from hanging_lines(head, row["meaning"])
    yield ""
    for formula in data["formulas"]:
        yield from hanging_lines("", f"{formula['text']}   [{formula['source']}]")
    for note in data["notes"]:
        yield from hanging_lines("", note)
    if "claim" in data:
        yield ""
        yield from hanging_lines("", data["claim"]["sentence"])


def published_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the published comparison, `data` from `published_comparison`."""
    for system in data["systems"]:
        yield from hanging_lines("", f"{system['name']}   [{system['source']}]")
        yield from hanging_lines("  ", system["model"])
        yield from hanging_lines("  ", "from: " + "; ".join(system["inputs"]))
        numbers = [
            f"{n['name']} {format_quantity(n['value'], n['unit'])}" for n in system["fitted"]
        ]
        yield from hanging_lines("  ", "fitted: " + ("; ".join(numbers) or "nothing"))
        for row in system["rows"]:
            yield _measured_text(row)
            yield from hanging_lines("        ", row["note"])
        whose = "predicted rows" if any(map(_is_predicted, system["rows"])) else "rows not fitted"
        yield f"  mean error of {whose}: {100 * system['mean_error']:.1f} %"
        yield from hanging_lines("  ", system["limits"])
        yield ""
    yield f"Mean error of {data['predicted_rows']} predicted rows: {100 * data['mean_error']:.1f} %"
    yield "In parentheses: no prediction, as what was measured is not what is modelled"
    yield ""
    yield "Whole training steps, simulated from their presets:"
    for row in data["simulated"]:
        yield _measured_text(row)
    errors = [abs(row["error"]) for row in data["simulated"] if _is_predicted(row)]
    mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
    yield f"  a simulated step is off by {mean:.1f} % on average, {worst:.1f} % at most"
    yield ""
    yield "Claims with a preset (`evenstep explain TOPIC --preset NAME`):"
    for claim in data["claims"]:
        error = f"{100 * claim['error']:+6.1f} %"
        yield from hanging_lines(
            f"  {claim['topic']:<12}{claim['name']:<20}{error}  ", claim["says"]
        )


def _is_predicted(row: Mapping[str, Any]) -> bool:
    return row["modelled"] and not row["fitted"]


def _measured_text(row: Mapping[str, Any]) -> str:
    unit = row["unit"]
    error = f"{100 * row['error']:+.1f} %"
    how = "fitted" if row["fitted"] else error if row["modelled"] else f"({error})"
    bound = "more than " if row["bound"] else ""
    measured = bound + format_quantity(row["measured"], unit)
    predicted = format_quantity(row["predicted"], unit.partition(" ")[0])  # without "per …"
    head = f"  {row['what']:<33} "
    return f"{head}{measured:>{56 - len(head)}} {predicted:>13}{how:>10}"


def hanging_lines(head: str, text: str) -> list[str]:
    """Lines of a text behind its head; further lines are indented below the text."""
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def section(title: str, items: Sequence[str]) -> Iterator[str]:
    """A titled list, each item a paragraph."""
    yield f"\n{title}"
    for item in items:
        yield from textwrap.wrap(item, WIDTH, initial_indent="  ", subsequent_indent="    ")
