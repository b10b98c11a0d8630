"""The live view as lines of text: verdict, step times, ranks, pacing, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenstep.diagnose.finding import Diagnosis
from evenstep.report.terminal import brief
from evenstep.report.terminal.style import Style
from evenstep.report.terminal.terminal import bar, legend
from evenstep.watch.findings import Journal
from evenstep.watch.frame import Frame, LiveFinding, RankRow
from evenstep.watch.run import WINDOW_STEPS
from evenstep.words import duration, number, percent, plural, printable

FEWEST_ROWS = 3
HOST_WIDTH = 12
_SPARKS = "▁▂▃▄▅▆▇█"
_LEFT = 4 + 1 + HOST_WIDTH + 1 + 8 + 1 + 8 + 1  # columns of a row before its bar


@dataclass(slots=True, frozen=True)
class View(Style):
    """The size of the view, and whether it has colour."""

    width: int = 80
    color: bool = False
    height: int = 24

    def filled(self, text: str, *, first: str = "", code: str = "") -> list[str]:
        """Wrap text; all lines are indented by the length of `first`."""
        return self.wrap(printable(text), first=first, indent=len(first), code=code)


def lines(
    frame: Frame, journal: Journal, view: View, diagnosis: Diagnosis | None = None
) -> list[str]:
    """Render the latest steps; of a run that takes no more of them its diagnosis."""
    head = view.filled(where_text(frame), code="2")
    if diagnosis is not None:
        told = brief.render(diagnosis, width=view.width, color=view.color).splitlines()
        return [*head, *told, *_pacing(frame, view)]
    head += view.filled(frame.verdict, code="1")
    head += _steps(frame, view)
    tail = [*_pacing(frame, view), *_findings(frame, journal, view)]
    room = max(view.height - len(head) - len(tail) - 3, FEWEST_ROWS)
    return [*head, *_ranks(frame, view, room), *tail]


def status_line(frame: Frame) -> str:
    """Render a frame in one line, for a log."""
    parts = [f"step {frame.step:,}" if frame.step is not None else "no step yet"]
    parts += [duration(frame.step_time["mean_ns"])] if frame.step is not None else []
    return printable(" · ".join([*parts, frame.verdict]))


def where_text(frame: Frame) -> str:
    parts = [frame.run]
    if frame.attempts > 1:
        parts.append(f"attempt {frame.attempt} ({plural(frame.attempts, 'attempt')} so far)")
    if frame.ranks_seen:
        of_world = f" of {frame.world:,}" if frame.world != frame.ranks_seen else ""
        ranks = f"{frame.ranks_seen:,}{of_world} rank{'' if frame.world == 1 else 's'}"
        parts.append(f"{ranks} on {plural(frame.hosts, 'node')}")
    if frame.step is not None:
        parts.append(f"step {frame.step:,}")
    if frame.steps_per_s is not None and frame.state == "running":
        parts.append(number(frame.steps_per_s, "steps/s"))
    if frame.diagnosed:
        silent_s = max(row.silent_s for row in frame.rows)
        how = f"no step for {duration(1e9 * silent_s)}" if silent_s else frame.state
        parts.append(f"{how}, shown as by evenstep diagnose")
    return " · ".join(parts)


def _steps(frame: Frame, view: View) -> Iterator[str]:
    """Render step time with its curve, and the shares of all ranks."""
    if frame.step is None:
        return
    text = time_text(frame)
    yield from view.filled(f"{text}   {sparkline(frame.curve_ns, view.width - len(text) - 3)}")
    yield next(legend(frame.shares, view))
    if text := waits_text(frame):
        yield from view.filled(text)


def waits_text(frame: Frame) -> str:
    """Say that communication includes waits, and why; "" if it does not."""
    if frame.step is None or frame.world == 1 or "wait" in frame.shares:
        return ""
    return "communication includes waits: not every rank can tell the two apart yet"


def time_text(frame: Frame) -> str:
    time = frame.step_time
    mean, p99 = duration(time["mean_ns"]), duration(time["p99_ns"])
    steps = plural(min(len(frame.curve_ns), WINDOW_STEPS), "step")
    of = "all steps" if frame.diagnosed else f"latest {steps}"
    return f"{of}: {mean} mean, {p99} p99, CV {percent(time['cv'])}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Render the latest values as bars between minimum and maximum."""
    shown = list(values)[-max(width, 0) :] if width > 0 else []
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span <= 0.02 * max(shown):  # show noise below 2 % as a flat line
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[int((value - low) / span * (len(_SPARKS) - 1))] for value in shown)


def _ranks(frame: Frame, view: View, room: int) -> Iterator[str]:
    if not frame.rows:
        return
    yield ""
    head = f"{'rank':>4} {'host':<{HOST_WIDTH}} {'step':>8} {'late':>8} its step"
    yield view.paint(head[: view.width], "2")
    shown = list(frame.rows)[:room]
    for row in shown:
        yield _row(row, view)
    if text := more_text(frame, len(shown)):
        yield view.paint(text[: view.width], "2")


def more_text(frame: Frame, shown: int) -> str:
    """Describe how many of the ranks are shown; "" if all are."""
    return f"the {shown} latest of {plural(frame.ranks_seen, 'rank')}" * (shown < frame.ranks_seen)


def _row(row: RankRow, view: View) -> str:
    rank, host, step, late, stopped = map(printable, cells(row))
    host = host if len(host) <= HOST_WIDTH else host[: HOST_WIDTH - 1] + "…"
    width = max(view.width - _LEFT, 4)
    right = view.paint(stopped[:width], "31") if stopped else bar(row.shares, view, width)
    return f"{rank:>4} {host:<{HOST_WIDTH}} {step:>8} {late:>8} {right}"


def cells(row: RankRow) -> tuple[str, str, str, str, str]:
    """Return rank, host, step, lateness, and why it makes no progress, "" if it does."""
    late = "-" if row.late_ns is None else duration(max(row.late_ns, 0.0))
    stopped = {"gone": "its process has ended", "failed": "not recorded any more"}.get(row.state)
    if row.state == "silent":
        inside = f", in {row.inside}" if row.inside else ""
        stopped = f"no step for {duration(row.silent_s * 1e9)}{inside}"
    return f"{row.rank}", row.host, "-" if row.step is None else f"{row.step}", late, stopped or ""


def _pacing(frame: Frame, view: View) -> Iterator[str]:
    if text := pacing_text(frame):
        yield ""
        yield from view.filled(text, first="pacing ")


def pacing_text(frame: Frame) -> str:
    """Describe the pacing state; "" if no rank reports one."""
    pacing = frame.pacing
    if not pacing:
        return ""
    modes = pacing["modes"]
    text = ", ".join(f"{mode} on {plural(count, 'rank')}" for mode, count in modes.items())
    text = text if len(modes) > 1 else str(*modes)
    if pacing["threshold"] is not None:
        text += f" (threshold {percent(pacing['threshold'])},"
        text += f" max delay {percent(pacing['max_delay'])})"
    if pacing["held_ranks"]:
        text += f": delays {plural(pacing['held_ranks'], 'rank')} by {percent(pacing['held'])} of"
        text += " all step time"
    else:
        text += ": no rank is delayed"
    if pacing["note"]:
        text += f"; {pacing['note']}"
    followed = pacing["followed_by"]
    if followed is not None and followed < frame.ranks_seen:
        text += f"; requested: {pacing['requested']}; {followed} of"
        text += f" {plural(frame.ranks_seen, 'rank')} follow so far"
    return text


def _findings(frame: Frame, journal: Journal, view: View) -> Iterator[str]:
    if frame.findings or journal.past:
        yield ""
    for finding in frame.findings:
        yield from view.filled(finding_text(finding, journal), first=" ! ", code="33")
    for text in journal.past:
        yield from view.filled(text, first="   ", code="2")


def finding_text(finding: LiveFinding, journal: Journal) -> str:
    since = journal.since(finding)
    begun = "" if since is None else f" (since step {since})"
    return f"{finding.mode.replace('_', ' ')}{begun}: {finding.text}"
