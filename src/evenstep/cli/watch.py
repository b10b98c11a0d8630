"""`evenstep watch`: a running job, looked at once a second from outside."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli.arguments import seconds
from evenstep.cli.terminal import say, until_interrupted
from evenstep.errors import TraceError, UsageError

if TYPE_CHECKING:
    from evenstep.watch.findings import Journal
    from evenstep.watch.frame import Frame

HELP = """Show a running job: who is late, where each rank's step goes, what stands out.

RUN is the run's folder; it need not exist yet. Only the latest 32 steps of every rank are read,
from the files the job writes anyway, so that it costs the job nothing: mean and p99 are theirs (a
diagnosis has those of all steps but the first three). Ranks may die and be started again. --web
serves the same in a page, to this machine alone. Ctrl-C ends the watching, not the job.

For thousands of ranks, or where their files lie on the nodes: start --aggregate once on each node.
It shows nothing, but sums up its node's ranks every second in a small file in RUN (or in the run's
folder that --into names), from which watch RUN, anywhere, puts the job together."""

RESTART_PATIENCE_S = 30.0  # after the end of all ranks, for another attempt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep watch`."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path)
    add("--once", action="store_true", help="show it as it is now, and end")
    add("--json", action="store_true", help="print a line of JSON at every look")
    add("--web", action="store_true", help="serve a page on 127.0.0.1")
    add("--aggregate", action="store_true", help="sum up this node's ranks for other watchers")
    add("--into", metavar="DIR", type=Path, help="of --aggregate: the folder those watch")
    add("--port", metavar="N", type=_port, default=0, help="of the page; a free one unless given")
    add(
        "--every",
        metavar="SECONDS",
        type=seconds(0.1, 3600),
        default=1.0,
        help="between looks, 1 unless given",
    )


def main(args: argparse.Namespace) -> int:
    """Watch until the run ends or somebody presses Ctrl-C."""
    path = run_folder(args.run)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; give the run's folder")
    if args.into is not None and not args.aggregate:
        raise UsageError("--into says where --aggregate writes; give both")
    if args.once and not _has_begun(path):
        raise TraceError(
            f"no rank has begun in {path}; without --once, evenstep watch waits for it"
        )
    with until_interrupted():
        return _watched(args, path)


def _watched(args: argparse.Namespace, path: Path) -> int:
    """Watch in the form asked for."""
    if args.aggregate:
        return _aggregate(path, args.into or path, args.every, once=args.once)
    pictures = _pictures(path, args.every)
    if args.web:
        return _serve(pictures, args.port)
    if args.json:
        return _print_json(pictures, once=args.once)
    if args.once:
        frame, journal, _ = next(pictures)
        print("\n".join(_lines(frame, journal, sys.stdout.isatty())))
        return 0
    if sys.stdout.isatty():
        return _show(pictures)
    return _log(pictures)


def run_folder(path: Path) -> Path:
    """The run's folder, also where one of its attempts or a spool is named."""
    if path.suffix == ".spool":
        path = path.parent
    return path.parent if any(path.glob("rank-*.spool")) else path


def _has_begun(path: Path) -> bool:
    return any(any(path.glob(place)) for place in ("attempt-*/rank-*.spool", "live/node-*.bin"))


def _aggregate(path: Path, into: Path, every_s: float, *, once: bool) -> int:
    """Sum up the ranks of this node again and again; ends some time after they have."""
    from evenstep.trace.spool.identity import hostname
    from evenstep.watch.node import encoded, news_path, write_news
    from evenstep.watch.run import LiveRun

    run, place = LiveRun(path.absolute(), here=True), news_path(into, hostname())
    say(f"sums up the ranks of {hostname()} in {place}")
    over = _Patience()
    for look in _looks(every_s):
        run.refresh()
        if run.states:
            try:
                write_news(place, encoded(run, hostname(), look))
            except OSError as error:
                raise UsageError(
                    f"cannot write {place}: {error.strerror}; name a writable folder with --into"
                ) from error
        ended = bool(run.states) and all(state.closed for state in run.states)
        if once or over.is_out(ended=ended):
            break
    return 0


def _pictures(path: Path, every_s: float) -> Iterator[tuple[Frame, Journal, list[str]]]:
    """The run again and again, with what was found new in it; ends some time after the run."""
    from evenstep.watch.findings import Journal, live_findings
    from evenstep.watch.frame import frame
    from evenstep.watch.tree import Follower

    follower, journal = Follower.of(path.absolute()), Journal()
    over = _Patience()
    for _ in _looks(every_s):
        run = follower.refresh()
        window = run.window()
        found = live_findings(run, window)
        shown = frame(run, found, window)
        new = journal.note(found, shown.step)
        yield shown, journal, [finding.text for finding in new]
        if over.is_out(ended=run.ended):
            return


def _looks(every_s: float) -> Iterator[int]:
    """Counts up, at even times; a look that took too long is followed by a short rest."""
    for number in count():
        due = time.monotonic() + every_s
        yield number
        time.sleep(max(due - time.monotonic(), 0.05 * every_s))


@dataclass
class _Patience:
    """How long an ended run is watched for another attempt."""

    since_s: float | None = None

    def is_out(self, *, ended: bool) -> bool:
        """Whether it has been over for long enough."""
        now = time.monotonic()
        self.since_s = (self.since_s or now) if ended else None
        return self.since_s is not None and now - self.since_s > RESTART_PATIENCE_S


def _print_json(pictures: Iterator[tuple[Frame, Journal, list[str]]], *, once: bool) -> int:
    for frame, _, _ in pictures:
        print(json.dumps(frame.to_json(), allow_nan=False, separators=(",", ":")), flush=True)
        if once:
            break
    return 0


def _lines(frame: Frame, journal: Journal, terminal: bool) -> list[str]:
    from evenstep.report.terminal.style import wants_color
    from evenstep.watch.terminal import View, lines

    size = shutil.get_terminal_size((80, 24))
    height = size.lines if terminal else 1_000
    return lines(frame, journal, View(max(size.columns, 40), wants_color(), height))


def _show(pictures: Iterator[tuple[Frame, Journal, list[str]]]) -> int:
    """On a terminal: the picture in its place, the last one left standing."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for frame, journal, _ in pictures:
            text = "\n".join(_lines(frame, journal, terminal=True))
            live.update(Text.from_ansi(text, no_wrap=True), refresh=True)
    return 0


def _log(pictures: Iterator[tuple[Frame, Journal, list[str]]]) -> int:
    """Into a file or a pipe: a line whenever the verdict changes, and what is found."""
    from evenstep.watch.terminal import status_line

    said = ""
    for frame, _, new in pictures:
        if frame.verdict.partition(":")[0] != said or new:
            said = frame.verdict.partition(":")[0]
            print(status_line(frame), flush=True)
    return 0


def _serve(pictures: Iterator[tuple[Frame, Journal, list[str]]], port: int) -> int:
    from evenstep.watch.web import LiveServer, tunnel_command

    with LiveServer(port) as server:
        say(f"watch at {server.url}")
        say(f"from elsewhere: {tunnel_command(server.port)}")
        for frame, journal, _ in pictures:
            server.publish(frame.to_json() | {"past": list(journal.past)})
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, found {text!r}")
    return int(text)
