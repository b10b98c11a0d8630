"""Sentences of findings: templates in `sentences.toml`, filled with the numbers of a mode.

A field in braces is a number and its format: `{took:time}`, `{part:percent}`, `{those:ranks}`, or a
format of Python's; `{those:waits|wait}` is the first word for one and the second for several. An
option has three sentences: the action, its cost, and how its gain was predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from math import isnan, nan
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from evenstep import words
from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, Projection, When, Where
from evenstep.diagnose.levels import MINOR
from evenstep.statistics.interval import Share
from evenstep.trace.spool.files import read_toml

if TYPE_CHECKING:
    from evenstep.diagnose.graph.replay import Change

TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "time": words.duration,
    "percent": words.percent,
    "ranks": words.ranks,
}

_UNKNOWN = Share(nan, nan, nan)


class _Sentence(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        """A number in its format, or the word for one or for several."""
        one, several, more = format_spec.partition("|")
        if several:
            count = len(value) if isinstance(value, Sized) else value
            return one if count == 1 else more
        form = _FORMS.get(format_spec)
        return form(value) if form else str(super().format_field(value, format_spec))


def say(sentence: str, **numbers: Any) -> str:
    """The sentence of this name ("incast.cause") with its numbers."""
    found: Any = TEXTS
    for name in sentence.split("."):
        found = found[name]
    return _Sentence().vformat(found, (), numbers)


def make_finding(
    name: str,
    share: Share,
    *,
    numbers: Mapping[str, Any],
    where: Where,
    when: When,
    layer: str = "",
    confidence: float | None = None,
    projected: Sequence[Projection] = (),
    options: Mapping[str, Share | None],
    evidence: Sequence[Evidence] = (),
    change: Change | Callable[[Change], Change] | None = None,
) -> Finding:
    """A finding of what this share of the step time is lost to.

    `name` is a mode, or one of the things it finds ("runtime_jitter.collector"); `options` are
    names of the mode's with what they give back (None, nan: nobody knows). Those that give back
    only a minor part are left out, and those that change the mathematics stand last. `confidence`
    is that of the share unless the evidence is of another kind.
    """
    mode = name.partition(".")[0]
    texts = TEXTS[mode] | (TEXTS[mode][name.partition(".")[2]] if "." in name else {})
    told = [
        _option(texts["options"][one], gain, numbers)
        for one, gain in options.items()
        if gain is None or not gain.value <= max(MINOR * share.value, 0.0)
    ]
    return Finding(
        mode=mode, layer=layer or texts["layer"], severity=round(share.value, 4),
        confidence=round(share.confidence if confidence is None else confidence, 3),
        observation=_Sentence().vformat(texts["observation"], (), numbers),
        cause=_Sentence().vformat(texts["cause"], (), numbers), where=where, when=when,
        effect=Effect(round(share.value, 4), projected),
        options=sorted(told, key=lambda option: "convergence" in option.cost),
        evidence=[one.rounded() for one in evidence],
        title=words.capital(_Sentence().vformat(texts["title"], (), numbers))
        + place_of(where, when),
        change=change,
    )  # fmt: skip


def place_of(where: Where, when: When) -> str:
    """Where, as the end of a title; nothing where nobody in particular is to blame."""
    if when.pattern == "rotating":
        return ", one rank after the other"
    if where.ranks and (len(where.ranks) == 1 or len(where.nodes) != 1):
        return f" on {words.ranks(where.ranks)}"
    named = where.nodes or where.links
    return f" on {words.some(named)}" if named else ""


def _option(texts: Sequence[str], gain: Share | None, numbers: Mapping[str, Any]) -> Option:
    action, cost, method = (_Sentence().vformat(text, (), numbers) for text in texts)
    value, low, high = (
        None if isnan(number) else number for number in (gain or _UNKNOWN).rounded()
    )
    return Option(action, value, low, high, cost, method)
