"""What a diagnosis says: sentences of findings, and the verdict.

Sentences are templates in `sentences.toml`, filled with the numbers of a mode.

A field in braces is a number and its format: `{took:time}`, `{part:percent}`, `{those:ranks}`, or a
format of Python's; `{those:waits|wait}` is the first word for one and the second for several. An
option has three sentences: the action, its cost, and how its gain was predicted. Evidence has a
metric, the number measured, the one expected (by name or itself; "" unknown), and a unit; it is
left out where that number is not given.

The verdict has four parts that each stand alone: culprit, cost, cause and action. The cost is the
finding's part of what all findings cost; the gain of its removal alone is given as step times
before and after. The JSON's sentence, the terminal's first lines and the page's head come from
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import product
from math import isnan, nan
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from evenstep import words
from evenstep.diagnose.finding import (
    TERMINAL,
    CallStack,
    Effect,
    Evidence,
    Finding,
    Option,
    Projection,
    When,
    Where,
    whole,
)
from evenstep.diagnose.levels import CHANGED, MINOR, NAMED, SMALLEST_SHARE
from evenstep.trace.spool.files import read_toml

if TYPE_CHECKING:
    from evenstep.diagnose.graph.replay import Change
    from evenstep.statistics.interval import Share  # terminals have no numpy

TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
NOBODY = Where()
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "time": words.duration,
    "percent": words.percent,
    "ranks": words.ranks,
}


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
    where: Where = NOBODY,
    when: When,
    layer: str = "",
    confidence: float | None = None,
    projected: Sequence[Projection] = (),
    options: Mapping[str, Share | None],
    evidence: Sequence[Evidence] = (),
    stacks: Sequence[CallStack] = (),
    change: Change | Callable[[Change], Change] | None = None,
) -> Finding:
    """A finding of what this share of the step time is lost to.

    `name` is a mode, or one of the things it finds ("runtime_jitter.collector"); `options` are
    names of the mode's with what they give back (None, nan: nobody knows). Those that give back
    only a minor part are left out, and those that change the mathematics stand last. `confidence`
    is that of the share unless the evidence is of another kind; `evidence` comes after that of the
    table.
    """
    mode = name.partition(".")[0]
    texts = TEXTS[mode] | (TEXTS[mode][name.partition(".")[2]] if "." in name else {})
    known = [*texts.get("evidence", ()), *TEXTS["waits"]["evidence"]]
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
        evidence=[
            *(_evidence(one, numbers) for one in known if one[1] in numbers),
            *(one.rounded() for one in evidence),
        ],
        title=words.capital(_Sentence().vformat(texts["title"], (), numbers))
        + place_of(where, when),
        stacks=stacks, change=change,
    )  # fmt: skip


def place_of(where: Where, when: When) -> str:
    """Where, as the end of a title; nothing where nobody in particular is to blame."""
    named = culprits(where, when)
    return f"{', ' if when.pattern == 'rotating' else ' on '}{named}" if named else ""


def culprits(where: Where, when: When) -> str:
    """Who is to blame, in a few words: "rank 2"; nothing where nobody in particular is."""
    if when.pattern == "rotating":
        return "one rank after the other"
    if where.ranks and (len(where.ranks) == 1 or len(where.nodes) != 1):
        return words.ranks(where.ranks)
    return words.some(where.nodes or where.links)


def _evidence(told: Sequence[Any], numbers: Mapping[str, Any]) -> Evidence:
    metric, measured, usual, unit = told
    if isinstance(usual, str):
        usual = numbers[usual] if usual else None
    name = _Sentence().vformat(metric, (), numbers)
    return Evidence(name, numbers[measured], usual, unit).rounded()


def _option(texts: Sequence[str], gain: Share | None, numbers: Mapping[str, Any]) -> Option:
    action, cost, method = (_Sentence().vformat(text, (), numbers) for text in texts)
    value, low, high = (
        None if isnan(number) else number for number in (gain.rounded() if gain else [nan] * 3)
    )
    return Option(action, value, low, high, cost, method)


# -- the verdict -----------------------------------------------------------------------------------

CERTAIN, LIKELY = 0.95, 0.7  # confidence from which a finding is called so
MOST_WORDS = 35  # of a verdict, without numbers and signs
HEAD_WORDS = MOST_WORDS // 2  # of these, of what ended a job
ENOUGH_WORDS = 8  # of a cause or an action
_NAMED_BEFORE = re.compile(r"^ranks? [\d, and-]+(?: and \d+ more)?(?: \([^()]*\))?:? ")
_FOLDERS = re.compile(r"\S*/")
VERDICT_PARTS = ("who", "cost", "why", "action")
NOTHING = "no step was finished by every rank: there is nothing to judge yet"


@dataclass(slots=True, frozen=True)
class Verdict:
    """The verdict on a run. Parts that do not apply are empty; times are ns, None unknown."""

    who: str
    cost: str
    why: str = ""
    action: str = ""
    before_ns: float | None = None  # mean step
    after_ns: float | None = None  # mean step without the cause, or with the remedy
    healthy: bool = False
    when: str = "without it"  # the condition of `after_ns`
    remedy: Option | None = None  # whose action it is
    fabric: str = ""  # a sentence on its part

    @property
    def head(self) -> str:
        """Culprit and cost: "Rank 3 (gpu012) costs 22 % of step time"."""
        between = "" if self.cost.startswith(":") else " "
        return words.capital(f"{self.who}{between}{self.cost}".rstrip())

    @property
    def change(self) -> str:
        """ "806 → 516 ms a step without it"; empty where either time is unknown."""
        times = _change(self.before_ns, self.after_ns)
        return f"{times} {self.when}" if times else ""

    def __str__(self) -> str:
        """One or two sentences."""
        change = f", {self.change}" if self.change else ""
        why = f"Why: {self.why}" if self.why and self.change and not self.healthy else self.why
        parts = [f"{self.head}{change}", why, f"Do: {self.action}" if self.action else ""]
        parts.append(self.fabric)
        return " ".join(words.capital(part).rstrip(" .…") + "." for part in parts if part)

    def within(self, most: int, why: str, action: str) -> Verdict:
        """The verdict with this cause and action in so many words in all: cut within no clause if
        that is possible, neither short to spare the sentence on the fabric; then about evenly."""
        forms = [list(enumerate(words.shorter_forms(text))) for text in (why, action)]
        found = []
        for one in (self, replace(self, fabric="")):
            left = most - words.count_words(str(replace(one, why=".", action=".")))
            for (lost, causes), (missed, actions) in product(*forms):
                for cause, act in product(causes, actions):
                    shorter, longer = sorted(map(words.count_words, (cause, act)))
                    key = (max(lost, missed), -min(shorter, ENOUGH_WORDS), not one.fabric, -shorter)
                    if shorter + longer <= left:
                        found.append((key, replace(one, why=cause, action=act)))
        if found:
            return min(found, key=lambda each: each[0])[1]
        half = max(left // 2, words.FEWEST_WORDS)
        return replace(one, why=words.shorten(why, half), action=words.shorten(action, half))


def verdict(findings: Sequence[Finding], summary: Mapping[str, Any], fabric: str = "") -> Verdict:
    """The verdict on findings, worst first, their summary, and a sentence on the fabric's part."""
    if not findings and not summary.get("steps"):
        return Verdict(NOTHING, "", fabric=fabric)
    if not summary.get("scaling", True):  # of runs that make no curve
        return Verdict(words.capital(summary["verdict"]), "", fabric=fabric)
    worst = max((finding.severity for finding in findings), default=0.0)
    if worst < NAMED and not (findings and findings[0].mode in TERMINAL):
        found = _healthy(findings, summary)
        full = replace(found, fabric=fabric)
        return full if words.count_words(str(full)) <= MOST_WORDS else found
    first = findings[0]
    remedy = best(first)
    action = remedy.action if remedy else ""
    if first.mode in TERMINAL:
        seen = first.observation.partition("; ")[0]
        if first.mode == "hang" and not words.capital(seen).startswith(first.title):  # blame first
            theirs = seen.startswith(words.ranks(first.where.ranks))
            seen = first.title if theirs else f"{first.title}: {seen}"
        found = Verdict(words.shorten(seen, HEAD_WORDS), "", remedy=remedy, fabric=fabric)
        return found.within(MOST_WORDS, first.cause.partition("; ")[0], action)
    before_ns = (summary.get("step_time") or {}).get("mean_ns")
    verb = "cost" if len(first.where.ranks) > 1 and not takes_turns(first) else "costs"
    of = whole(findings)
    if of != "step time":  # shares are not those of a step
        before_ns = None
    elif before_ns is None:
        of = "the time in collectives"
    share = f"{words.percent(first.severity)} of {of}"
    cost = f"{verb} {share}" if first.where.ranks else f": {share}"  # a title is no subject
    gain, when = _given_back(first, remedy)
    after_ns = before_ns and before_ns * (1 - gain)
    found = Verdict(who(first), cost, "", "", before_ns, after_ns, False, when, remedy, fabric)
    cause = first.cause.partition(";")[0]
    named, _, rest = cause.partition(": ")
    cause = rest if rest and words.capital(found.who).startswith(words.capital(named)) else cause
    return found.within(MOST_WORDS, _NAMED_BEFORE.sub("", cause), action)


def partial(summary: Mapping[str, Any], limits: Sequence[str]) -> str:
    """Return what of the run was not read, in one sentence; empty if all was."""
    ranks, world = summary.get("ranks", 0), summary.get("world", 0)
    hidden = "waits for the others look like transfer"
    if say("limits.batches") in limits:
        hidden += "; throughput is in steps"
    parts = [f"{ranks:,} of {words.plural(world, 'rank')} ({hidden})"] if 0 < ranks < world else []
    parts += [limit.partition(":")[0] for limit in limits if " went on for " in limit]
    for how in ("left out", "read in part"):
        files = [limit for limit in limits if limit.startswith(f"{how}: ")]
        if len(files) == 1:
            told = _FOLDERS.sub("", files[0].split(": ")[1])
            parts.append(told if " " in told else f"{told} {how}")
        elif files:
            parts.append(f"{len(files):,} files {how}")
    return f"Only part of the run: {', '.join(parts)}" if parts else ""


def _given_back(finding: Finding, remedy: Option | None) -> tuple[float, str]:
    """The gain to report as a share of the step, and its condition: that of the remedy where it is
    smaller than the gain without the cause, which may differ from the cause's part of all costs."""
    now = finding.effect.now
    if remedy is not None and remedy.gain is not None and (remedy.high or remedy.gain) < now:
        return remedy.gain, "with this remedy"
    alone = abs(now - finding.severity) >= SMALLEST_SHARE
    return now, "without it alone" if alone else "without it"


def _healthy(findings: Sequence[Finding], summary: Mapping[str, Any]) -> Verdict:
    """The verdict where nothing is worth naming: `[verdict]` has what cannot be told."""
    shares, absent = summary.get("shares") or {}, summary.get("world", 0) - summary.get("ranks", 0)
    wait, moving = shares.get("wait"), shares.get("exposed_communication") or 0.0
    rows = (summary.get("blame") or {}).get("culprits") or ()
    timed, severities = summary.get("step_time"), [one.severity for one in findings]
    stages, idle = summary.get("stages"), (wait or 0.0) - sum(severities) >= 1 - 1 / CHANGED
    holding = {
        "untraced": absent > 0 and moving >= NAMED,
        "whole": not findings and not shares and timed and summary.get("ranks", 0) > 1,
        "moving": moving >= 1 - 1 / CHANGED,
        "pipeline": stages and idle,
        "turns": idle,
    }
    numbers = {"absent": absent, "world": summary.get("world"), "moving": moving, "wait": wait}
    numbers |= {"stages": stages, "waiting": "" if wait else "waiting, "}
    numbers["most"] = next((f"; rank {row['rank']} is waited for most" for row in rows), "")
    if name := next((name for name, holds in holding.items() if holds), ""):
        parts = (say(f"verdict.{name}.{part}", **numbers) for part in VERDICT_PARTS)
        subject, cost, why, action = parts
        return Verdict(subject, cost, why, action)
    coupling = ", as far as this trace shows"
    if wait:  # without any, no waits were recorded: nothing is known of the coupling
        whole = summary.get("overlapped_communication") is not None
        coupling = ": the parts are healthy" if whole else coupling
        coupling += f", waiting for each other takes {words.percent(wait)}"
    largest = findings[0] if findings else None
    why = f"the largest loss: {largest.title}, {words.percent(largest.severity)}" if largest else ""
    cost = f"costs {words.percent(NAMED)} of step time or more{coupling}"
    return Verdict("nothing", cost, why, before_ns=(timed or {}).get("mean_ns"), healthy=True)


def who(finding: Finding) -> str:
    """The culprits as the subject of a sentence; without any, the title."""
    ranks, nodes = list(finding.where.ranks), list(finding.where.nodes)
    if not ranks:
        return finding.title
    if takes_turns(finding):
        return f"one rank after the other ({words.ranks(ranks)})"
    return words.ranks(ranks) + (f" ({nodes[0]})" if len(nodes) == 1 and nodes[0] else "")


def takes_turns(finding: Finding) -> bool:
    """Whether a different rank is late each time."""
    return finding.when.pattern == "rotating"


def best(finding: Finding) -> Option | None:
    """The first remedy with a positive or unknown gain."""
    return next((one for one in finding.options if one.gain is None or one.gain > 0), None)


def sureness(confidence: float) -> str:
    """Confidence in a word."""
    return "certain" if confidence >= CERTAIN else "likely" if confidence >= LIKELY else "perhaps"


def _change(before_ns: float | None, after_ns: float | None) -> str:
    """Two times as text, with one unit where both share it."""
    if before_ns is None or after_ns is None:
        return ""
    before, after = words.duration(before_ns), words.duration(after_ns)
    number, _, unit = before.rpartition(" ")
    shared = unit == after.rpartition(" ")[2]
    return f"{number if shared else before} → {after} a step"
