"""How far long work is, and how long it may still take: on standard error, beyond three seconds.

On a terminal one line is drawn over and over; elsewhere there is a new one now and then.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

from evenstep.cli.terminal import say
from evenstep.words import duration

Row = TypeVar("Row")

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a result that lacks what was not finished
QUIET_S = 3.0  # what ends before says nothing
DRAWN_S = 0.25  # between two looks of a terminal
LINE_S = 5.0  # between two lines where nobody watches one
LONG_S = 60.0  # work that takes longer says so first


class Line:
    """One line about the work, told no more often than is read. Safe from several threads."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self._next_s = self.begun_s + QUIET_S
        self._drawn = 0  # characters that stand on the terminal
        self._lock = threading.Lock()

    def tell(self, words: Callable[[float], str]) -> None:
        """Say it, given the seconds since the work began, if it is time to."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._next_s:
                return
            terminal = sys.stderr.isatty()
            self._next_s = now_s + (DRAWN_S if terminal else LINE_S)
            text = words(now_s - self.begun_s)
            if not terminal:
                print(text, file=sys.stderr, flush=True)
                return
            sys.stderr.write("\r" + text.ljust(self._drawn))
            sys.stderr.flush()
            self._drawn = len(text)

    def end(self) -> None:
        """Leave nothing behind on a terminal."""
        with self._lock:
            if self._drawn:
                sys.stderr.write("\r" + " " * self._drawn + "\r")
                sys.stderr.flush()
            self._drawn, self._next_s = 0, float("inf")


def announce(what: str, seconds: float) -> None:
    """Say before long work about how long it takes."""
    if seconds > LONG_S:
        print(f"{what}: about {duration(seconds * 1e9)}", file=sys.stderr, flush=True)


def time_left(done: float, total: float, passed_s: float) -> str:
    """How long the rest may take, if it goes on as so far: ", about 40 s left"."""
    if not 0 < done < total:
        return ""
    return f", about {duration(1e9 * passed_s * (total - done) / done)} left"


@contextmanager
def ticking(what: str, about_s: float | None = None) -> Iterator[None]:
    """Say that work goes on which cannot say how far it is; `about_s` is what it may take."""

    def words(passed_s: float) -> str:  # on a busy machine more than it should be: not known then
        known = f" of about {about_s:.0f} s" if about_s and about_s > passed_s else ""
        return f"{what}: {passed_s:.0f} s{known}"

    with _told(words):
        yield


@contextmanager
def counting(words: str = "simulated {} of {}") -> Iterator[Callable[[int, int], None]]:
    """What to call with how many are done, and of how many."""
    state = (0, 0)

    def text(passed_s: float) -> str:
        done, total = state
        if not total:
            return f"{words.partition(' ')[0]} none yet: {passed_s:.0f} s"
        return words.format(done, total) + time_left(done, total, passed_s)

    with _told(text) as line:

        def report(done: int, total: int) -> None:
            nonlocal state
            state = (done, total)
            line.tell(text)

        yield report


def finished(
    work: Generator[Row, None, None],
    total: int,
    rows: list[Row],
    keep: Callable[[Row], object] = lambda _: None,
) -> None:
    """Add what is finished to `rows` and `keep` it; Ctrl-C ends the work, not what came of it."""
    try:
        with closing(work), counting() as tell:
            for row in work:
                rows.append(row)
                keep(row)
                tell(len(rows), total)
    except KeyboardInterrupt:
        say(f"interrupted: {len(rows)} of {total} are finished")


@contextmanager
def reading_progress(total_bytes: int) -> Iterator[Callable[[str, int, int], None]]:
    """What to call with a name, the bytes done and their number, while so much is read."""
    done_by_name: dict[str, int] = {}

    def text(passed_s: float) -> str:
        done = sum(done_by_name.values())
        share = f"{100 * done // max(total_bytes, 1)} % of {total_bytes / 1e6:,.0f} MB"
        return f"reading: {share}{time_left(done, total_bytes, passed_s)}"

    with _told(text) as line:

        def report(name: str, done: int, size: int) -> None:
            done_by_name[name] = min(done, size)
            line.tell(text)

        yield report


@contextmanager
def _told(words: Callable[[float], str]) -> Iterator[Line]:
    """A line that is told now and then by itself; left clean at the end."""
    line, over = Line(), threading.Event()

    def tick() -> None:
        while not over.wait(DRAWN_S):
            line.tell(words)

    thread = threading.Thread(target=tick, daemon=True, name="evenstep-progress")
    thread.start()
    try:
        yield line
    finally:
        over.set()
        thread.join()
        line.end()
