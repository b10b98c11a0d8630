"""`evenstep watch`: a live view of a running job, refreshed every second from its files."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenstep.cli import traces
from evenstep.cli.progress import RestartGrace
from evenstep.cli.terminal import say, until_interrupted
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import TERMINAL, Diagnosis
from evenstep.diagnose.measure.attempts import load_run
from evenstep.errors import TraceError, UsageError, refuse_as
from evenstep.report.terminal.style import wants_color
from evenstep.trace.spool.folder import RunFolder, is_closed, is_gone, read_facts
from evenstep.trace.spool.identity import hostname
from evenstep.trace.trace import Trace
from evenstep.watch.findings import Journal, live_findings
from evenstep.watch.frame import Frame, LiveFinding, frame
from evenstep.watch.run import SILENT_STEPS, FollowedRun, LiveRun
from evenstep.watch.terminal import View, lines, status_line
from evenstep.watch.tree import encode, follow, summary_path, write_summary
from evenstep.watch.web import LiveServer, page_frame, tunnel_command
from evenstep.words import plural


@dataclass(slots=True)
class StandstillDiagnosis:
    """The diagnosis of a followed run while it takes no step, as `evenstep diagnose` finds it: one
    at each death and at the end of an attempt, and of silent ranks another whenever their silence
    has doubled. None of a job that goes on without its dead.

    The latest steps tell what goes on now. Where nothing does, as every rank has ended, died or
    hangs, the whole trace tells more, and does not change."""

    read: Callable[[Path], tuple[Trace, float]] = lambda path: (load_run(path), 0.0)
    judge: Callable[[Trace, float], Diagnosis] = lambda trace, _: diagnose(trace)
    diagnosis: Diagnosis | None = None  # to be shown
    notes: list[LiveFinding] = field(default_factory=list)  # why there is none
    _of: tuple[int | None, ...] | None = None  # attempt, whether over, deaths, doublings of silence
    _deaths: tuple[int | None, int] = (None, 0)  # attempt, and how many
    _step: int = 0  # that all living ranks had finished when they were seen

    def is_due(self, run: FollowedRun) -> bool:
        """Whether the run is to be diagnosed; forget its diagnosis where it takes steps again."""
        silent = [state.silent_s for state in run.states if not (state.closed or state.gone)]
        deaths = sum(state.failed for state in run.states)
        if not run.states or not (self._ends(run, deaths) or all(silent)):
            self.diagnosis, self.notes, self._of = None, [], None
            return False
        before, doublings = self._of, int(min(silent, default=0.0)).bit_length()
        self._of = run.attempt, run.over, deaths, doublings
        if self._of != before and self.diagnosis is None:
            self.notes = [LiveFinding("agent", (), None, "the whole run is being diagnosed")]
        return self._of != before

    def _ends(self, run: FollowedRun, deaths: int) -> bool:
        """Whether ranks died, after whose deaths the others take no more steps than under way."""
        living = [each.rank for each in run.states if not (each.closed or each.gone or each.failed)]
        steps = run.window.last_step[np.isin(run.window.ranks, living)]
        step = int(steps.min()) if len(steps) else 0
        if self._deaths != (run.attempt, deaths):
            self._deaths, self._step = (run.attempt, deaths), step
        return deaths > 0 and step <= self._step + SILENT_STEPS

    def renew(self, run: FollowedRun) -> None:
        """Diagnose the run; of living ranks that is kept if it says what ended the job."""
        self.diagnosis, self.notes = None, []
        ranks, spools = len(run.states), RunFolder(run.path).spools(run.attempt or 0)
        try:
            if (missing := ranks - len(spools)) > 0:  # on disks of their nodes
                raise TraceError(f"traces of {missing} of {plural(ranks, 'rank')} are elsewhere")
            found = self.judge(*self.read(run.path))
        except TraceError as error:
            why = f"the whole run is not diagnosed: {error}"
            self.notes = [LiveFinding("agent", (), None, why)]
            return
        if run.over or any(finding.mode in TERMINAL for finding in found.findings):
            self.diagnosis = found


def main(args: argparse.Namespace) -> int:
    path = run_folder(args.run)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; give the run folder")
    if args.into is not None and not args.aggregate:
        raise UsageError("--into needs --aggregate")
    if args.port and not args.web:
        raise UsageError("--port needs --web")
    if args.web and args.once:
        raise UsageError("--web serves a page until it is interrupted; leave out --once")
    first = next(path.glob("attempt-*/rank-*.spool"), path)
    if closed := [each for each in (path, *path.glob("attempt-*"), first) if is_closed(each)]:
        raise TraceError(f"no permission to read {closed[0]}")
    started = any(any(path.glob(at)) for at in ("attempt-*/rank-*.spool", "live/node-*.bin"))
    if args.once and not started and RunFolder(path).meeting() is None:
        raise TraceError(f"no rank has started in {path}; without --once, watch waits for ranks")
    with until_interrupted():
        _watch(args, path)
    return 0


def _watch(args: argparse.Namespace, path: Path) -> None:
    looks = _looks(path, args.every, once=args.once)
    if args.aggregate:
        _aggregate(path, args.into or path, args.every, once=args.once)
    elif args.web:
        _serve(looks, args.port)
    elif args.json:
        for look in looks:
            told = json.dumps(look.frame.to_json(), allow_nan=False, separators=(",", ":"))
            print(told, flush=True)
    elif args.once:
        print("\n".join(_lines(next(looks), sys.stdout.isatty())))
    elif sys.stdout.isatty():
        _show(looks)
    else:
        _log(looks)


def run_folder(path: Path) -> Path:
    """Return the run folder of a run, one of its attempts or a spool."""
    if path.suffix == ".spool":
        path = path.parent
    return path.parent if any(path.glob("rank-*.spool")) else path


def _aggregate(path: Path, into: Path, every_s: float, *, once: bool) -> None:
    """Write summaries of this node's ranks until some time after they have ended."""
    run, place = LiveRun(path.absolute(), here=True), summary_path(into, hostname())
    if not once:
        say(f"writing summaries of the ranks of {hostname()} to {place} while the job runs")
    over = RestartGrace()
    for _ in _refreshes(every_s):
        run.refresh()
        if run.states:
            mend = "; name a writable folder with --into"
            with refuse_as(UsageError, f"cannot write {place}", mend):
                write_summary(place, encode(run, hostname()))
        ended = bool(run.states) and all(state.closed for state in run.states)
        died = bool(run.states) and all(state.closed or state.gone for state in run.states)
        if once and not run.states:
            raise TraceError(f"no rank of {hostname()} has started in {path}")
        if once:
            say(f"wrote a summary of {plural(len(run.states), 'rank')} to {place}")
        if once or over.is_out(ended=ended, died=died):
            break


class Look(NamedTuple):
    """A run at a refresh; `diagnosis` of one that takes no more steps."""

    frame: Frame
    journal: Journal
    new: Sequence[LiveFinding]
    diagnosis: Diagnosis | None


def _looks(path: Path, every_s: float, *, once: bool) -> Iterator[Look]:
    """Yield a look at every refresh, until some time after the run; only the first if `once`."""
    journal, over = Journal(), RestartGrace()
    shown = (traces.read_timed, traces.judge)  # with progress, where nothing else is shown
    still = StandstillDiagnosis(*shown) if once else StandstillDiagnosis()
    for _, run in zip(_refreshes(every_s), follow(path.absolute()), strict=False):
        if still.is_due(run):
            if not once:
                yield _look(run, journal, still)
            still.renew(run)
        yield _look(run, journal, still)
        ended = over.is_out(ended=run.ended, died=run.over)
        if once or ended or (run.over and _launcher_is_gone(path)):
            return


def _look(run: FollowedRun, journal: Journal, still: StandstillDiagnosis) -> Look:
    found = live_findings(run)
    shown = frame(run, [*found, *still.notes], still.diagnosis)
    return Look(shown, journal, journal.note(found, shown.step), still.diagnosis)


def _launcher_is_gone(path: Path) -> bool:
    """Whether the run had a launcher on this host, which has ended: no attempt follows."""
    try:
        facts = read_facts(path / "run.json")
    except TraceError:
        return False
    return facts.get("written_by") == "launcher" and is_gone(facts, 0)


def _refreshes(every_s: float) -> Iterator[None]:
    """Yield at even times; pause shortly after a refresh that took longer."""
    while True:
        due = time.monotonic() + every_s
        yield
        time.sleep(max(due - time.monotonic(), 0.05 * every_s))


def _lines(look: Look, terminal: bool) -> list[str]:
    size = shutil.get_terminal_size((80, 24))
    view = View(max(size.columns, 40), wants_color(), size.lines if terminal else 1_000)
    return lines(look.frame, look.journal, view, look.diagnosis)


def _show(looks: Iterator[Look]) -> None:
    """Redraw the view in place on a terminal; the last one stays."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for look in looks:
            text = "\n".join(_lines(look, terminal=True))
            live.update(Text.from_ansi(text, no_wrap=True), refresh=True)


def _log(looks: Iterator[Look]) -> None:
    """Print a line to a file or pipe when the state, the worst finding or who it names changes, a
    finding is new, or the run has been diagnosed; not when numbers change."""
    last = None
    for shown, _, new, _ in looks:
        worst = [(finding.mode, finding.ranks) for finding in shown.findings[:1]]
        if (shown.state, shown.diagnosed, worst) != last or new:
            last = shown.state, shown.diagnosed, worst
            print(status_line(shown), flush=True)


def _serve(looks: Iterator[Look], port: int) -> None:
    with LiveServer(port) as server:
        say(f"watch at {server.url}")
        say(f"from elsewhere: {tunnel_command(server.port)}")
        for look in looks:
            server.publish(page_frame(look.frame, look.journal))
        told = look.frame.verdict.rstrip(".")
        say(f"{told}; evenstep diagnose {look.frame.run} --html FILE writes a page")
