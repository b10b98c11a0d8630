"""Comparisons and histories as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from evenstep.diagnose.compare.comparison import signed_percent
from evenstep.diagnose.compare.history import History, PastRun
from evenstep.diagnose.compare.result import (
    NO_EVIDENCE,
    Changed,
    Comparison,
    MetricChange,
    StepTimePart,
)
from evenstep.diagnose.finding import TERMINAL
from evenstep.report.terminal.style import PLAIN, Style
from evenstep.words import UNKNOWN, capital, duration, measure, number, percent, plural, printable

WIDTH = 80
COLUMN = 13  # width of a run's numbers and name
CHANGE = 27

LABELS = {
    "throughput": "throughput",
    "throughput_per_rank": "per rank",
    "step_time": "step time",
    "cv": "CV",
    "p50": "p50",
    "p99": "p99",
    "compute_share": "compute",
    "exposed_communication_share": "communication",
    "wait_share": "wait",
    "input_share": "input",
    "other_share": "other",
}
_COLORS = {"better": "32", "worse": "31"}


def render(
    baseline: str,
    comparisons: Sequence[Comparison],
    *,
    normalised: bool = False,
    color: bool | None = None,
) -> str:
    """Render the comparison of every run with the baseline; the text ends with a newline."""
    style = Style.of(WIDTH, color)
    blocks = ["\n".join(_one_comparison(baseline, item, normalised, style)) for item in comparisons]
    return "\n\n".join(blocks) + "\n"


def _one_comparison(
    baseline: str, found: Comparison, normalised: bool, style: Style
) -> Iterator[str]:
    sentence = printable(found.sentence)
    if found.verdict != NO_EVIDENCE:
        sentence = f"{found.verdict}: {sentence}"
    yield from style.wrap(capital(sentence), code="1")
    if found.changes:
        yield ""
        yield from _table(baseline, found, normalised, style)
    if found.parts and not normalised:
        yield ""
        yield from _parts(found)
    if found.findings:
        yield ""
        yield "findings, share of step time"
        for item in found.findings:
            yield _finding(item, normalised, style)
    yield from style.items(found.limits)


def _table(baseline: str, found: Comparison, normalised: bool, style: Style) -> Iterator[str]:
    first, second = _short(baseline), _short(found.name)
    yield f"{'':14}{first:>{COLUMN}}{second:>{COLUMN}}  {'change (95 %)':<{CHANGE}}verdict"
    for item in found.changes:
        before, after = values(item, normalised=normalised, units=False)
        if normalised:  # struck through, with an SGR code or with combining strokes
            crossed = f"\x1b[9m{before}\x1b[0m" if style.color else "\u0336".join([*before, ""])
            before = " " * (COLUMN - len(before)) + crossed
        by_unit = item.metric == "throughput" and not normalised  # to save space
        label = item.unit if by_unit else LABELS[item.metric]
        whole = difference(item)
        change = whole if len(whole) < CHANGE else whole.partition(" (")[0]
        head = f"{label:14}{before:>{COLUMN}}{after:>{COLUMN}}"
        yield f"{head}  {change:<{CHANGE}}{_word(item.verdict, style)}".rstrip()


def _word(verdict: str, style: Style) -> str:
    """Return "better" or "worse" in colour, and nothing without evidence."""
    return style.paint(verdict, _COLORS[verdict]) if verdict in _COLORS else ""


def values(item: MetricChange, *, normalised: bool, units: bool = True) -> tuple[str, str]:
    """Return the number in both runs, absolute or as a ratio to the baseline."""
    if not normalised:
        unit = "1" if item.unit.endswith("/s") and not units else item.unit
        return measure(item.baseline, unit), measure(item.value, unit)
    if not item.baseline:
        return "1", UNKNOWN
    return "1", number(item.value / item.baseline)


def difference(item: MetricChange) -> str:
    """Render the change with its interval: in percent, or for shares in points of step time."""
    if item.relative is None or item.relative_low is None or item.relative_high is None:
        if item.unit == "ns":
            return duration(item.difference)
        value, low, high, unit = item.difference, item.low, item.high, "pt"
    else:
        value, low, high, unit = item.relative, item.relative_low, item.relative_high, "%"
    return f"{signed_percent(value)} {unit} ({signed_percent(low)} to {signed_percent(high)})"


def _parts(found: Comparison) -> Iterator[str]:
    yield f"mean step, all ranks: {change_of(found.difference_ns or 0.0)} a step, of it"
    for item in found.parts:
        if max(item.baseline_ns, item.value_ns) >= 1:
            yield f"  {item.part:12}{change_of(item.difference_ns):>12}  {span(item)}"


def change_of(value_ns: float) -> str:
    """Render a signed time, rounded to nanoseconds."""
    whole = round(value_ns)
    return f"{'+' if whole > 0 else ''}{duration(whole)}"


def span(item: StepTimePart) -> str:
    return f"({change_of(item.low_ns)} to {change_of(item.high_ns)})"


def _finding(item: Changed, normalised: bool, style: Style) -> str:
    name = textwrap.shorten(item.title, 30, placeholder="…")
    if normalised:
        ratio = number(item.value / item.baseline) if item.baseline else item.change
        numbers = f"{ratio:>18}"
    else:
        numbers = f"{percent(item.baseline):>8} to {percent(item.value):>6}"
    line = f"  {printable(name):31}{numbers}  {item.change:5}"
    return f"{line}  {_word(item.verdict, style)}".rstrip()


def _short(name: str, width: int = COLUMN) -> str:
    text = printable(name)
    return text if len(text) < width else "…" + text[-(width - 2) :]


# -- past runs -------------------------------------------------------------------------------------

NAME = 12
SIMULATED_S = 1e6  # simulations start at Unix time 0


def render_history(found: History) -> str:
    """Render all runs, then each workload in words; the text ends with a newline."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: History) -> Iterator[str]:
    head = f"{'run':<{NAME}}{'started (UTC)':>14}{'ranks':>6}{'tries':>6}{'step':>9}{'CV':>7}"
    head += f"{'good':>6}"
    priced = any(run.cost_per_unit is not None for run in found.runs)
    yield f"{head}{'cost/1000' if priced else 'rank-h/1000':>12}{'J':>8}"
    units = {run.unit for run in found.runs}
    unit = "step" if len(units) > 1 else "".join(units)  # numbers below each other are of one unit
    for run in found.runs:
        yield _row(run, run.progress / max(run.steps, 1) if run.unit != unit else 1.0)
        yield from _culprit(run)
    cost = "cost/1000: cost" if priced else "rank-h/1000: rank-hours"
    yield from PLAIN.wrap(f"{cost} per 1,000 {unit}s; J: joules per {unit}; good: goodput")
    for workload in found.workloads:
        if len(workload.runs) == 1 and not workload.restarts:
            continue  # its row says it all
        yield ""
        yield from PLAIN.wrap(printable(workload.sentence))
        spread = workload.spread.get("step_ns")
        parts = [plural(workload.restarts, "restart")] if workload.restarts else []
        if spread is not None:
            parts += [f"step time differs by {percent(spread)} (CV) from run to run"]
        yield from PLAIN.wrap("; ".join(parts), first="  ", indent=2)
    yield from PLAIN.items(found.limits)


def _row(run: PastRun, units: float) -> str:
    """The row of a run; costs are of so many of its units of progress."""
    started = datetime.fromtimestamp(run.started_s, timezone.utc).strftime("%y%m%d-%H%M%S")
    started = started if run.started_s > SIMULATED_S else "simulated"
    energy = "" if run.joules_per_unit is None else number(units * run.joules_per_unit)
    cv = "" if run.cv is None else percent(run.cv)
    hours = run.rank_hours_per_unit if run.cost_per_unit is None else run.cost_per_unit
    name = _short(run.name, NAME)
    line = f"{name:<{NAME}}{started:>14}{run.ranks:>6}{run.attempts:>6}{duration(run.step_ns):>9}"
    good = percent(run.goodput["share"]).replace(" ", "") if run.goodput else ""
    return f"{line}{cv:>7}{good:>6}{number(1000 * units * hours):>12}{energy:>8}".rstrip()


def _culprit(run: PastRun) -> Iterator[str]:
    """Render the first finding below a run's row; nothing for a healthy run."""
    if run.culprit is None:
        return
    share = "" if run.culprit.mode in TERMINAL else f", {percent(run.culprit.severity)}"
    yield from PLAIN.wrap(f"{printable(run.culprit.title)}{share}", first="  ", indent=2)
