"""The whole diagnosis as text: the verdict, the summary, all findings, limits and overhead.

The text is the same with and without colour: files, pipes and `NO_COLOR` get plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenstep.diagnose.finding import Diagnosis, Finding, Option
from evenstep.diagnose.sentences import sureness
from evenstep.report.terminal.scaling import measured_notes, measured_table
from evenstep.report.terminal.sentences import describe_actions, movement, stragglers
from evenstep.report.terminal.style import Style
from evenstep.words import (
    SHARES,
    UNKNOWN,
    cells,
    duration,
    interval,
    is_known,
    measure,
    number,
    percent,
    plural,
    printable,
    ranges,
    some,
)
from evenstep.words import ranks as culprits

if TYPE_CHECKING:
    from evenstep.diagnose.predict.what_if import WhatIfGain

OPTIONS = 3
EVIDENCE = 4
LEAST_SHARE = 1e-4  # of step time that is mentioned

_GLYPHS = dict(zip((name for name, _ in SHARES), "█▓▒░·", strict=True))
_COLORS = dict(zip((name for name, _ in SHARES), ("34", "36", "33", "35", "90"), strict=True))


def render(diagnosis: Diagnosis, *, width: int | None = None, color: bool | None = None) -> str:
    """Render the diagnosis in at most `width` columns, with a newline at the end. None: as the
    terminal (80 without one), for colour also `NO_COLOR` (https://no-color.org)."""
    style, whole = Style.of(width, color), diagnosis.whole
    sections = [
        style.wrap(printable(diagnosis.verdict), code="1"),
        list(_summary(diagnosis, style)),
        list(scaling(diagnosis, style)),
        *(list(_finding(n, one, whole, style)) for n, one in enumerate(diagnosis.findings, 1)),
        *([style.paint(title, "1"), *lines] for title, lines in _lists(diagnosis, style) if lines),
        list(_agent(diagnosis, style)),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _summary(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    summary = diagnosis.summary
    shares = {key: value for key, value in (summary.get("shares") or {}).items() if is_known(value)}
    if shares:
        yield bar(shares, style)
        yield from legend(shares, style)
    yield from style.wrap(step_time(diagnosis))
    yield from style.wrap(_communication(diagnosis))
    yield from style.wrap(goodput(diagnosis))


def bar(shares: Mapping[str, Any], style: Style, width: int | None = None) -> str:
    """Render the shares of a step as a bar, as wide as the lines or as `width`."""
    counts = cells(shares, width or style.width)
    return "".join(style.paint(_GLYPHS[name] * n, _COLORS[name]) for name, n in counts.items())


def legend(shares: Mapping[str, Any], style: Style) -> Iterator[str]:
    """Name the parts that there are, in lines."""
    parts = [
        (f"{_GLYPHS[name]} {label} {percent(shares[name])}", name)
        for name, label in SHARES
        if shares.get(name)
    ]
    line, used = "", 0
    for text, name in parts:
        if used and used + 2 + len(text) > style.width:
            yield line
            line, used = "", 0
        line += ("  " if used else "") + style.paint(text[0], _COLORS[name]) + text[1:]
        used += (2 if used else 0) + len(text)
    yield line


def step_time(diagnosis: Diagnosis, *, brief: bool = False) -> str:
    summary = diagnosis.summary
    time, throughput = summary.get("step_time") or {}, summary.get("throughput") or {}
    parts = []
    if brief and time:
        parts.append(f"step {duration(time['mean_ns'])} mean, {duration(time['p99_ns'])} p99")
    elif not brief:
        parts.append(f"step {duration(time.get('mean_ns'))} mean")
        parts += [f"{duration(time.get(f'{p}_ns'))} {p}" for p in ("p50", "p99")]
        parts.append(f"CV {percent(time.get('cv'))}")
    if is_known(throughput.get("value")):
        parts.append(number(throughput["value"], printable(throughput.get("unit") or "")))
    inferred = any("steps were inferred" in limit for limit in diagnosis.limits)
    steps = plural(summary["steps"], "inferred step" if inferred else "step")
    parts.append(f"{plural(summary['ranks'], 'rank')}, {steps}")
    return " · ".join(parts)


def _communication(diagnosis: Diagnosis) -> str:
    summary = diagnosis.summary
    parts = []
    device = summary.get("device") or {}
    if is_known(device.get("idle")):
        used = " · ".join(
            f"{name} {percent(device[key])}"
            for key, name in (("compute", "compute"), ("communication", "communication"),
                              ("copy", "copies only"))
        )  # fmt: skip
        parts.append(f"devices busy {percent(device['busy'])} ({used}), idle "
                     f"{percent(device['idle'])}")  # fmt: skip
    if is_known(hidden := device.get("hidden")):
        parts.append(f"compute hides {percent(hidden)} of the communication")
    elif is_known(overlapped := summary.get("overlapped_communication")):
        exposed = (summary.get("shares") or {}).get("exposed_communication") or 0.0
        if exposed + (overlapped or 0.0) > LEAST_SHARE:  # tables of step times have no transfers
            parts.append(f"compute hides communication for {percent(overlapped)} of step time")
    if is_known(ratio := summary.get("communication_to_compute")):
        parts.append(f"communication : compute {number(ratio)}")
    if is_known(wasted := summary.get("rank_hours_wasted")):
        parts.append(f"{number(wasted)} rank-hours lost")
    return " · ".join(parts)


def goodput(diagnosis: Diagnosis) -> str:
    found = diagnosis.summary.get("goodput")
    if not found:
        return ""
    lost = sorted(found["lost"].items(), key=lambda item: -item[1])
    named = {"init": "initialization", "lost_work": "lost work"}
    parts = [f"{named.get(name, name)} {percent(share)}" for name, share in lost if share > 0]
    text = f"goodput {percent(found['share'])} of {duration(1e9 * found['elapsed_s'])}"
    return f"{text}; lost to {', '.join(parts)}" if parts else text


def _finding(index: int, finding: Finding, whole: str, style: Style) -> Iterator[str]:
    family = f"{finding.mode.replace('_', ' ')}, {finding.layer}"
    head = (
        f"{finding.title} ({family}): {percent(finding.severity)} of {whole} "
        f"recoverable, {sureness(finding.confidence)}"
    )
    yield from style.wrap(printable(head), first=f"{index}. ", indent=3, code="1")
    yield from style.field("seen", finding.observation)
    yield from style.field("cause", finding.cause)
    yield from style.field("where", where(finding))
    yield from style.field("costs", effect(finding, whole))
    for number_, chosen in enumerate(finding.options[:OPTIONS]):
        yield from style.field("do" if number_ == 0 else "or", option(chosen), code="32")
    yield from style.field("because", evidence(finding))


def where(finding: Finding) -> str:
    """Render culprits, steps and pattern: rank 7, node gpu012, steps 10-500 (chronic)."""
    place = finding.where
    parts = []
    if place.ranks:
        parts.append(culprits(sorted(place.ranks)))
    for word, names in (("node", place.nodes), ("link", place.links), ("group", place.groups)):
        if names:
            parts.append(f"{word}{'s' if len(names) > 1 else ''} {some(names)}")
    if finding.when.steps:
        steps = ranges(finding.when.steps)
        parts.append(f"step {steps}" if steps.isdigit() else f"steps {steps}")
    pattern = f" ({finding.when.pattern})" if finding.when.pattern else ""
    return ", ".join(parts) + pattern if parts else (finding.when.pattern or "")


def effect(finding: Finding, whole: str) -> str:
    """Render the cost now and at other sizes: 11 % of step time now; 14 % at 16 ranks."""
    parts = [f"{percent(finding.effect.now)} of {whole} now"]
    for point in finding.effect.projected:
        text = f"{percent(point.share)} at {point.ranks:,} ranks {interval(point.low, point.high)}"
        parts.append(text.rstrip())
    return "; ".join(parts)


def option(chosen: Option) -> str:
    gain = f"gives back {percent(chosen.gain)} {interval(chosen.low, chosen.high)}".rstrip()
    details = [gain if is_known(chosen.gain) else f"gain {UNKNOWN}"]
    details += [f"cost: {chosen.cost}"] if chosen.cost else []
    told = "predicted by" if is_known(chosen.gain) else "not predicted"
    details += [f"{told}: {chosen.method}"] if chosen.method else []
    return f"{chosen.action} [{'; '.join(details)}]"


def evidence(finding: Finding) -> str:
    """Render the first pieces of evidence, each with the value of a healthy run."""
    parts = []
    for item in finding.evidence[:EVIDENCE]:
        name = item.metric.replace("_", " ")
        unit = "" if item.unit in name.split() else item.unit  # ranks waiting: 15, not 15 ranks
        text = f"{name} {measure(item.measured, unit)}"
        if is_known(item.expected):
            text += f" (expected {measure(item.expected, unit)})"
        parts.append(text)
    return "; ".join(parts)


def scaling(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    """Render throughput by number of ranks, if several runs were diagnosed together."""
    found = diagnosis.summary.get("scaling")
    if not found:
        return
    kind = f"{found['kind']} scaling" if found.get("kind") else "scaling"
    yield style.paint(f"Throughput by ranks, {kind}", "1")
    yield from (f"  {printable(line)}" for line in measured_table(found))
    yield from style.items(measured_notes(found))


def _lists(diagnosis: Diagnosis, style: Style) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and lines of each list below the findings."""
    summary = diagnosis.summary
    yield "Cost of stragglers", list(style.items(stragglers(summary.get("stragglers") or {})))
    yield "Changes over the run", list(style.items(movement(summary)))
    yield "What actions did", list(style.items(describe_actions(summary)))
    yield "What this trace cannot tell", list(style.items(diagnosis.limits))


def _agent(diagnosis: Diagnosis, style: Style) -> Iterator[str]:
    agent = diagnosis.summary.get("agent") or {}
    if not agent.get("ns_per_collective") and not agent.get("share_of_step"):
        return  # not measured: a simulation, another tool's trace
    yield from style.wrap(
        f"Overhead of evenstep: {duration(agent.get('ns_per_collective'))} a collective, "
        f"{percent(agent.get('share_of_step'))} of step time. "
        f"Recorded by {printable(agent.get('recorder') or 'an unknown recorder')}.",
        code="2",
    )


# -- what if ---------------------------------------------------------------------------------------


def render_answers(answers: Sequence[WhatIfGain], *, width: int | None = None) -> str:
    """Render the answers to --what-if, as wide as the terminal; empty without any."""
    if not answers:
        return ""
    style = Style.of(width, color=False)
    heads = [f" {printable(answer.spec)}  " for answer in answers]
    widest = max((len(head) for head in heads if len(head) <= style.width // 2), default=4)
    lines = ["What if"]
    for head, answer in zip(heads, answers, strict=True):
        if len(head) > widest:  # too wide for the column: on lines of its own
            lines += style.wrap(head.strip(), first=" ", indent=1)
            head = ""
        lines += style.wrap(_outcome(answer), first=head.ljust(widest), indent=4)
    for method in dict.fromkeys(answer.method for answer in answers if answer.method):
        lines += style.wrap(method, first=" by ", indent=4)
    return "\n".join(lines)


def _outcome(answer: WhatIfGain) -> str:
    """Render the gain or loss, or the reason why it is unknown."""
    if answer.gain is None:
        return f"cannot be told: {answer.reason}"
    gives = answer.gain >= 0
    ends = sorted(one if gives else -one for one in (answer.low, answer.high) if one is not None)
    share = f"{percent(abs(answer.gain))} of step time {interval(*ends) if ends else ''}".rstrip()
    times = f"{duration(answer.step_ns_before)} becomes {duration(answer.step_ns_after)}"
    return f"{'gives back' if gives else 'costs'} {share}; {times}"
