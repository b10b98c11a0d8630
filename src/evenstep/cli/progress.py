"""How far long work is, on standard error; in a pipe a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_S = 5.0  # between two lines where nobody watches a terminal
LONG_BYTES = 32_000_000  # on disk; compressed, about a second's work


def counter(words: str = "simulated {} of {}") -> Callable[[int, int], None]:
    """What to call with how many are done, and of how many: a line that counts them.

    On a terminal it is drawn at most a hundred times and ended when all are done; elsewhere it is
    a new line every few seconds.
    """
    percent, last_s = -1, time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal percent, last_s
        now_s = time.monotonic()
        if not sys.stderr.isatty() and now_s - last_s > LINE_S:
            last_s = now_s
            print(words.format(done, total), file=sys.stderr, flush=True)
        before, percent = percent, 100 * done // total
        if percent != before and sys.stderr.isatty():
            end = "\n" if done == total else ""
            print("\r" + words.format(done, total), end=end, file=sys.stderr, flush=True)

    return report


@contextmanager
def shown(total_bytes: int) -> Iterator[Callable[[str, int, int], None] | None]:
    """What to call with a name, the bytes done and their number; None where nobody looks."""
    if total_bytes < LONG_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total_bytes)
        done_by_name: dict[str, int] = {}

        def progress(name: str, done: int, size: int) -> None:
            done_by_name[name] = min(done, size)
            bar.update(task, description=name[-40:], completed=sum(done_by_name.values()))

        yield progress
