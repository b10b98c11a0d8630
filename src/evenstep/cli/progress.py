"""Progress of work that takes over three seconds, with the estimated time left, on standard error.

A terminal shows one line that is redrawn; elsewhere a new line is printed every few seconds.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from evenstep.cli.terminal import say
from evenstep.trace.reports import reporting
from evenstep.words import duration

Row = TypeVar("Row")

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a partial result
QUIET_S = 3.0  # shorter work shows no progress
DRAWN_S = 0.25  # between two updates of a terminal
LINE_S = 5.0  # between two lines elsewhere
LONG_S = 60.0  # longer work is announced before it starts
RESTART_GRACE_S = 30.0  # time to wait for another attempt after all ranks have ended
DEATH_GRACE_S = 600.0  # and after some were killed: a rendezvous of torchrun waits for so long


@dataclass
class RestartGrace:
    """The time that an ended run is still watched for another attempt."""

    since_s: float | None = None

    def is_out(self, *, ended: bool, died: bool = False) -> bool:
        """Whether the run has been over for longer than the grace period: it has `ended`, or at
        least no rank lives any more."""
        now = time.monotonic()
        self.since_s = (self.since_s or now) if ended or died else None
        grace_s = RESTART_GRACE_S if ended else DEATH_GRACE_S
        return self.since_s is not None and now - self.since_s > grace_s


def announce(what: str, seconds: float) -> None:
    """Print how long the work will take, if that is over a minute."""
    if seconds > LONG_S:
        print(f"{what}: about {duration(seconds * 1e9)}", file=sys.stderr, flush=True)


def time_left(done: float, total: float, passed_s: float, since_s: float = 0.0) -> str:
    """The time left by the work that was done `since_s` ago: ", about 40 s left"; else empty."""
    left_s = (passed_s - since_s) * (total - done) / done - since_s if done else 0.0
    return f", about {duration(1e9 * left_s, digits=2)} left" if left_s > 0 else ""


def ticking(what: str, about_s: float = 0.0) -> AbstractContextManager[None]:
    """Show the elapsed seconds of work without a count; `about_s` is its expected duration, which
    is told while it lies ahead."""

    def words(passed_s: float) -> str:
        known = f" of about {duration(1e9 * about_s, digits=2)}" if about_s > passed_s else ""
        return f"{what}: {passed_s:.0f} s{known}"

    return _show_seconds(words)


@contextmanager
def counting(words: str = "simulated {} of {}") -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the number done and the total."""
    state = [0, 0, 0.0]

    def text(passed_s: float) -> str:
        done, total, at_s = state
        if not total:
            return f"{words.partition(' ')[0]} none yet: {passed_s:.0f} s"
        left = time_left(done, total, passed_s, time.monotonic() - at_s)
        return words.format(done, total) + (left or f": {passed_s:.0f} s")

    def report(done: int, total: int) -> None:
        if [done, total] != state[:2]:
            state[:] = done, total, time.monotonic()

    with _show_seconds(text):
        yield report


def keep_finished(
    work: Generator[Row, None, None],
    total: int,
    rows: list[Row],
    keep: Callable[[Row], object] = lambda _: None,
) -> None:
    """Append each finished row to `rows` and pass it to `keep`; Ctrl-C keeps finished rows."""
    try:
        with closing(work), counting() as report:
            for row in work:
                rows.append(row)
                keep(row)
                report(len(rows), total)
    except KeyboardInterrupt:
        say(f"interrupted: {len(rows)} of {total} finished")


@contextmanager
def reading(path: Path) -> Iterator[Callable[[], float]]:
    """Show how far the files of a trace have been read within the block; yield a function that
    returns the seconds since its start."""
    files: dict[str, tuple[int, int]] = {}  # bytes read and in all
    begun_s = time.monotonic()

    def text(passed_s: float) -> str:
        done, total = map(sum, zip((0, 0), *files.values(), strict=True))
        share = f", {100 * done // total} % of {total / 1e6:,.0f} MB" if total else ""
        return f"reading {path}: {passed_s:.0f} s{share}{time_left(done, total, passed_s)}"

    def report(name: str, done: int, size: int) -> None:
        files[name] = min(done, size), size

    with _show_seconds(text), reporting(report):
        yield lambda: time.monotonic() - begun_s


@contextmanager
def _show_seconds(words: Callable[[float], str]) -> Iterator[None]:
    """Print `words(seconds since the start)` again and again, from a thread of its own."""
    over = threading.Event()
    thread = threading.Thread(None, _show, "evenstep-progress", (words, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(words: Callable[[float], str], over: threading.Event) -> None:
    begun_s, drawn, terminal = time.monotonic(), 0, sys.stderr.isatty()
    pause_s = QUIET_S
    while not over.wait(pause_s):
        text = words(time.monotonic() - begun_s)
        if terminal:
            print("\r" + text.ljust(drawn), end="", file=sys.stderr, flush=True)
            pause_s, drawn = DRAWN_S, len(text)
        else:
            print(text, file=sys.stderr, flush=True)
            pause_s = LINE_S
    if drawn:  # leave the terminal clean
        print("\r" + " " * drawn + "\r", end="", file=sys.stderr, flush=True)
