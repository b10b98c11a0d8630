"""Output of commands: results on standard output, messages on standard error."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def show(document: Any, render: Callable[[], str], *, as_json: bool) -> None:
    """Print a result on standard output, as JSON or as rendered text."""
    if as_json:
        print_json(document)
    else:
        print(render().rstrip("\n"))


def say(message: str, *, who: str = "evenstep") -> None:
    """Print a message on standard error: wrapped on a terminal, one line elsewhere."""
    text = f"{who}: {message}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).fill
        text = "\n".join(map(wrap, text.splitlines()))
    print(text, file=sys.stderr, flush=True)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Exit without a message when Ctrl-C ends the work."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


@contextmanager
def until_stopped() -> Iterator[None]:
    """End a server well, and say so, when Ctrl-C or SIGTERM does: nothing else ever ends it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say("stopped")


def tell_written(path: Path | str, note: str = "") -> None:
    """Print the last line of a command: the file it has written."""
    print(f"Wrote {path}{note}", file=sys.stderr, flush=True)


def open_streams() -> None:
    """Open the null device for closed standard streams (`>&-`), before a file gets their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):  # replace characters that the encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """Discard buffered output whose pipe is closed or whose disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
