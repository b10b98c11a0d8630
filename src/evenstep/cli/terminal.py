"""Where a command speaks: its result, messages beside it, streams that may be closed or full."""

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
    """A result as JSON on standard output; plain ASCII, whatever the terminal's encoding."""
    print(json.dumps(document, indent=2, allow_nan=False))


def show(document: Any, render: Callable[[], str], *, as_json: bool) -> None:
    """A result on standard output: as JSON, or as the text that it is rendered to."""
    if as_json:
        print_json(document)
    else:
        print(render().rstrip("\n"))


def say(message: str, *, who: str = "evenstep") -> None:
    """A message on standard error: one line in a pipe or a file, filled on a terminal."""
    text = f"{who}: {message}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(_filled(line, width) for line in text.splitlines())
    print(text, file=sys.stderr, flush=True)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Work that goes on until Ctrl-C, which then is its end and no news."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def tell_written(path: Path | str, note: str = "") -> None:
    """The last line: which file there is now."""
    print(f"Wrote {path}{note}", file=sys.stderr, flush=True)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def open_streams() -> None:
    """Give a closed standard stream (`>&-`) the null device, before a file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
    for stream in (sys.stdout, sys.stderr):  # what an encoding does not have is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """What is still to be printed goes nowhere: its reader has left, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
