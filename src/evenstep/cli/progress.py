"""How far long work is, and how long it may still take: on standard error, beyond three seconds.

On a terminal one line is drawn over and over; elsewhere there is a new one now and then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenstep.words import duration

QUIET_S = 3.0  # what ends before says nothing
DRAWN_S = 0.25  # between two looks of a terminal
LINE_S = 5.0  # between two lines where nobody watches one


class Line:
    """One line about the work, told no more often than is read. Safe from several threads."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self._next_s = self.begun_s + QUIET_S
        self._drawn = 0  # characters that stand on the terminal
        self._lock = threading.Lock()

    @property
    def passed_s(self) -> float:
        """Since the work began."""
        return time.monotonic() - self.begun_s

    def tell(self, words: Callable[[], str]) -> None:
        """Say it if it is time to."""
        with self._lock:
            if time.monotonic() < self._next_s:
                return
            terminal = sys.stderr.isatty()
            self._next_s = time.monotonic() + (DRAWN_S if terminal else LINE_S)
            text = words()
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


def time_left(done: float, total: float, passed_s: float) -> str:
    """How long the rest may take, if it goes on as so far: ", about 40 s left"."""
    if not 0 < done < total:
        return ""
    return f", about {duration(1e9 * passed_s * (total - done) / done)} left"


def counter(words: str = "simulated {} of {}") -> Callable[[int, int], None]:
    """What to call with how many are done, and of how many."""
    line = Line()

    def report(done: int, total: int) -> None:
        line.tell(lambda: words.format(done, total) + time_left(done, total, line.passed_s))
        if done >= total:
            line.end()

    return report


@contextmanager
def reading_progress(total_bytes: int) -> Iterator[Callable[[str, int, int], None]]:
    """What to call with a name, the bytes done and their number, while so much is read."""
    line = Line()
    done_by_name: dict[str, int] = {}

    def report(name: str, done: int, size: int) -> None:
        done_by_name[name] = min(done, size)
        all_done = sum(done_by_name.values())
        line.tell(
            lambda: (
                f"reading: {100 * all_done // max(total_bytes, 1)} % of "
                f"{total_bytes / 1e6:,.0f} MB{time_left(all_done, total_bytes, line.passed_s)}"
            )
        )

    try:
        yield report
    finally:
        line.end()


@contextmanager
def ticking(what: str, about_s: float | None = None) -> Iterator[None]:
    """Say that work goes on which cannot say how far it is; `about_s` is what it may take."""
    line, over = Line(), threading.Event()

    def words() -> str:
        passed_s = line.passed_s  # on a busy machine more than it should be: then nothing is known
        known = f" of about {about_s:.0f} s" if about_s and about_s > passed_s else ""
        return f"{what}: {passed_s:.0f} s{known}"

    def tick() -> None:
        while not over.wait(DRAWN_S):
            line.tell(words)

    thread = threading.Thread(target=tick, daemon=True, name="evenstep-progress")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        line.end()
