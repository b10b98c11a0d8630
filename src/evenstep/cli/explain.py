"""`evenstep explain`: explain a failure mode, or compute a quantity from its formula."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evenstep import words
from evenstep.cli.arguments import Parser
from evenstep.cli.terminal import show
from evenstep.errors import UsageError
from evenstep.explain import arithmetic, topic
from evenstep.explain.topic import SCHEMA, Parameter, Topic
from evenstep.reproduce.systems import CLAIMS, Claim
from evenstep.trace.spool.files import read_toml
from evenstep.values import nearest

if TYPE_CHECKING:
    from evenstep.diagnose.modes.catalog import Mode
    from evenstep.reproduce.published.rows import System

_WORDS: Mapping[str, Any] = read_toml(Path(topic.__file__).with_name("topics.toml"))


def _topic(name: str, words: dict[str, Any]) -> Topic:
    listed = words.pop("parameters")
    at = listed.index("link") if "link" in listed else 0
    links = _WORDS["links"]["parameters"] if "link" in listed else []
    rows = [*listed[:at], *links, *listed[at + bool(links) :]]
    parameters = [Parameter(**{**row, "kind": getattr(topic, row["kind"])}) for row in rows]
    work = getattr(arithmetic, f"explain_{name}")
    return Topic(name=name, parameters=parameters, work=work, **words)


TOPICS = tuple(_topic(*item) for item in _WORDS["topics"].items())
BY_NAME = {one.name: one for one in TOPICS}


def published_comparison() -> dict[str, Any]:
    """Published measurements beside closed forms and simulations, and the claims of presets."""
    from evenstep.reproduce.published import training  # it simulates, which needs numpy
    from evenstep.reproduce.published.table import systems

    found = systems()
    errors = [abs(row.error) for system in found for row in system.predicted]
    return {
        "schema": SCHEMA,
        "topic": "published",
        "kind": "comparison",
        "mean_error": fmean(errors),
        "predicted_rows": len(errors),
        "systems": [_system(system) for system in found],
        "simulated": [{**row._asdict(), "error": row.error} for row in training.simulated_rows()],
        "claims": [
            claim.checked(BY_NAME[claim.topic].answer(claim.options)["results"]) for claim in CLAIMS
        ],
    }


def _system(system: System) -> dict[str, Any]:
    named = ("name", "source", "model", "limits", "mean_error")
    return {name: getattr(system, name) for name in named} | {
        "inputs": list(system.inputs),
        "fitted": [number._asdict() for number in system.fitted],
        "rows": [{**row._asdict(), "error": row.error} for row in system.rows],
    }


PUBLISHED = "published"
PUBLISHED_SUMMARY = "published measurements beside the closed forms"
#: The quantity that belongs to a mode: `explain straggler --ranks 512 …` prints both.
ARITHMETIC = {
    "straggler": "slowest",
    "synchronization_amplification": "slowest",
    "checkpoint_stall": "checkpoint",
    "restart_amplification": "goodput",
    "bandwidth_bound": "efficiency",
    "latency_bound": "allreduce",
}
WIDTH = 80
DIGITS = 4  # one more than in a report, so that they can be checked


def main(args: argparse.Namespace) -> int:
    name, *options = args.words or [""]
    as_json = args.json or "--json" in options
    options = [option for option in options if option != "--json"]
    lines: Callable[[Mapping[str, Any]], Iterable[str]]
    if not name:
        data = {
            "schema": SCHEMA,
            "kind": "list",
            "modes": {mode.name: mode.symptom for mode in _modes().values()},
            "quantities": {t.name: t.summary for t in TOPICS} | {PUBLISHED: PUBLISHED_SUMMARY},
        }
        lines = _list_text
    elif name in BY_NAME:
        data, lines = _quantity(BY_NAME[name], options), answer
    elif name == PUBLISHED:
        _refuse(name, options)
        data, lines = published_comparison(), published_lines
    else:
        data, lines = _mode(name, options), _mode_text
    show(data, lambda: "\n".join(lines(data)), as_json=as_json)
    return 0


def _quantity(topic: Topic, options: Sequence[str]) -> dict[str, Any]:
    """Return the answer as plain data, with the published claim of a preset."""
    given = _parse(topic, options)
    name = given.pop("preset", None)
    claim = next((claim for claim in CLAIMS if claim.name == name), None)
    typed = {name: value for name, value in given.items() if value is not None}
    data = topic.answer({**_preset(claim, typed), **typed})
    if claim is not None and not typed:
        data["claim"] = claim.checked(data["results"])
    return data


def _mode(name: str, options: Sequence[str]) -> dict[str, Any]:
    mode = _modes().get(name.replace("-", "_"))
    if mode is None:
        near = nearest(name.replace("-", "_"), (*_modes(), *BY_NAME, PUBLISHED))
        hint = f"did you mean {near!r}?" if near else "`evenstep explain` lists all topics"
        raise UsageError(f"there is no topic {name!r}; {hint}")
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "topic": mode.name,
        "kind": "mode",
        "layer": mode.layer,
        "symptom": mode.symptom,
        "look_at": list(mode.look_at),
        "remedy": list(mode.remedy),
        "confirm": mode.confirm,
    }
    if options and mode.name in ARITHMETIC:
        data["arithmetic"] = _quantity(BY_NAME[ARITHMETIC[mode.name]], options)
    else:
        _refuse(mode.name, options)
    return data


def _refuse(name: str, options: Sequence[str]) -> None:
    if options:
        raise UsageError(f"explain {name} takes no options, found {options[0]!r}")


def _parse(topic: Topic, options: Sequence[str]) -> dict[str, Any]:
    """Return the options as typed; None where not given."""
    parser = Parser(
        prog=f"evenstep explain {topic.name}",
        description=f"{topic.summary[0].upper()}{topic.summary[1:]}.",
        epilog=f"example: evenstep explain {topic.name} {topic.example}",
        allow_abbrev=False,
    )
    for row in topic.parameters:
        default = f" ({row.default})" if row.default is not None else ""
        parser.add_argument(
            f"--{row.name}", dest=row.name, metavar=row.kind.metavar,
            help=f"{row.meaning}{default}".replace("%", "%%"),
        )  # fmt: skip
    if presets := [claim.name for claim in CLAIMS if claim.topic == topic.name]:
        meaning = f"inputs of a known case: {', '.join(presets)}"
        parser.choice("--preset", presets, meaning, metavar="NAME")
    parser.json("the answer")
    given = vars(parser.parse_args(options))
    del given["json"]
    return given


def _preset(claim: Claim | None, typed: Mapping[str, str]) -> dict[str, str]:
    """Return a preset's options without its link speed if one was typed, in either unit."""
    speeds = {"gBps", "gbps"}
    ours = claim.options if claim else {}
    replaced = speeds if speeds & typed.keys() else set()
    return {name: value for name, value in ours.items() if name not in replaced}


def _modes() -> dict[str, Mode]:
    from evenstep.diagnose.modes.catalog import MODES

    return {mode.name: mode for mode in MODES}


def _list_text(data: Mapping[str, Any]) -> Iterable[str]:
    yield "Failure modes (symptom, what to look at, remedy, how to confirm):"
    yield from _columns(data["modes"])
    yield ""
    yield "Quantities (numbers, formula, source; options: `evenstep explain NAME --help`):"
    yield from _columns(data["quantities"])


def _columns(rows: Mapping[str, str]) -> Iterable[str]:
    for name, meaning in rows.items():
        yield from hanging_lines(f"  {name:<30}", meaning)


def _mode_text(data: Mapping[str, Any]) -> Iterable[str]:
    yield f"{data['topic'].replace('_', ' ')} ({data['layer']})"
    yield from section("symptom", [data["symptom"]])
    yield from section("what to look at", data["look_at"])
    yield from section("remedy, best first", data["remedy"])
    yield from section("how to confirm", [data["confirm"]])
    if "arithmetic" in data:
        yield ""
        yield from answer(data["arithmetic"])


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
