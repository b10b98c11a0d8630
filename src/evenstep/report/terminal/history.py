"""Past runs as a table of 80 columns, and what they tell together in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from evenstep.diagnose.compare.history import History, PastRun, Workload
from evenstep.diagnose.finding import TERMINAL
from evenstep.report.terminal.style import Style
from evenstep.words import duration, number, percent, plural, printable

LINES = Style(80, color=False)
NAME = 12
SIMULATED_S = 1e6  # a simulation begins at the beginning of Unix time


def render(found: History) -> str:
    """All runs, then each workload in words; ends in a newline."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: History) -> Iterator[str]:
    head = f"{'run':<{NAME}}{'started (UTC)':>14}{'ranks':>6}{'tries':>6}{'step':>9}{'CV':>7}"
    head += f"{'good':>6}"
    priced = any(run.cost_per_unit is not None for run in found.runs)
    yield f"{head}{'cost/1000' if priced else 'rank-h/1000':>12}{'J':>8}"
    for run in found.runs:
        yield _row(run)
        yield from _culprit(run)
    for workload in found.workloads:
        yield ""
        yield from _workload(workload)
    for limit in found.limits:
        yield from LINES.wrap(printable(limit), first=" - ")


def _row(run: PastRun) -> str:
    started = datetime.fromtimestamp(run.started_s, timezone.utc).strftime("%y%m%d-%H%M%S")
    started = started if run.started_s > SIMULATED_S else "simulated"
    energy = "" if run.joules_per_unit is None else number(run.joules_per_unit)
    cv = "" if run.cv is None else percent(run.cv)
    hours = run.rank_hours_per_unit if run.cost_per_unit is None else run.cost_per_unit
    name = printable(run.name)
    name = name if len(name) < NAME else "…" + name[-(NAME - 2) :]
    line = f"{name:<{NAME}}{started:>14}{run.ranks:>6}{run.attempts:>6}{duration(run.step_ns):>9}"
    good = percent(run.goodput["share"]).replace(" ", "") if run.goodput else ""
    return f"{line}{cv:>7}{good:>6}{number(1000 * hours):>12}{energy:>8}".rstrip()


def _culprit(run: PastRun) -> Iterator[str]:
    """Who or what the run was waiting for, below its row; a healthy run has no such line."""
    if run.culprit is None:
        return
    share = "" if run.culprit.mode in TERMINAL else f", {percent(run.culprit.severity)}"
    yield from LINES.wrap(f"{printable(run.culprit.title)}{share}", first="  ", indent=2)


def _workload(found: Workload) -> Iterator[str]:
    yield from LINES.wrap(printable(found.sentence))
    spread = found.spread.get("step_ns")
    text = plural(found.restarts, "restart")
    if spread is not None:
        text += f"; step time differs by {percent(spread)} (CV) from run to run"
    yield from LINES.wrap(text, first="  ", indent=2)
