"""Source files, formats, and bounded reading of bytes, lines and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream
from evenstep.trace.reports import report_file


@dataclass(slots=True, frozen=True)
class SourceFile:
    """A file to import. `head` is its first 64 KiB, decompressed."""

    path: Path
    head: bytes


class TraceFormat(Protocol):
    """A module that reads files of a kind: one per rank, or one with all ranks."""

    NAME: str  # in messages: "Kineto trace"

    @staticmethod
    def recognises(source: SourceFile, /) -> bool:
        """Whether a file is of this kind."""

    @staticmethod
    def read(sources: Sequence[SourceFile], /) -> Any:
        """The trace of all files, or what goes with one (see `opening.COMPANIONS`)."""


Found = TypeVar("Found")

MOST_CONTAINERS = 2_000_000  # in a JSON text: each takes 64 bytes of memory, two of the file
_COLOURS = re.compile("\x1b\\[[0-9;]*[mK]")
_HOLE = re.compile(rb"\0{64,}")  # what a crash or a rotation of logs leaves in a file
_CONTROLS = bytes({*range(32)} - {*b"\b\t\n\f\r\x1b"})
MOST_CONTROLS = 0.01  # share of a text's bytes, as of fixed fields that programs print with NULs
SEARCHED_BYTES = 1 << 24  # of a text: before a log's steps go lines of NCCL, settings, weights
LONGEST_LINE = 1 << 20  # bytes; the rest of a longer line is left out


class TextLine(NamedTuple):
    """A line of a text."""

    number: int  # from 1
    start: int  # offset in the decompressed file
    text: str


def usable(
    sources: Sequence[SourceFile], limits: list[str], read: Callable[[SourceFile], Found]
) -> Iterator[Found]:
    """Yield the result of reading each source; `limits` names sources that cannot be read."""
    for source in sources:
        try:
            found = read(source)
        except TraceError as error:
            limits.append(f"left out: {error}")
            continue
        report_file(source.path, read=True)
        yield found


def whole(value: Any) -> int:
    """A whole number in [0, 2^64), given as a number or as digits; -1 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else -1


def unquoted(value: Any) -> Any:
    """A value that a file may hold as JSON in a text; None of a text that is not JSON."""
    if not isinstance(value, str | bytes | msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return None


def content(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file, decompressed. Raises `TraceError` beyond `most_bytes`."""
    pieces: list[bytes] = []
    with Stream(path) as stream:
        for piece in stream.pieces():
            pieces.append(piece)
            if stream.read_bytes > most_bytes:
                raise TraceError(
                    f"{path} holds more than {most_bytes / 1e6:.0f} MB, which no file of its kind "
                    "does; it was not read"
                )
    return b"".join(pieces)


def parsed_json(data: bytes, path: Path) -> Any:
    """The value in a JSON file's bytes. Raises `TraceError` where it is damaged, or has more
    containers than a file of its kind can have."""
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS:
        raise TraceError(f"{path} holds more lists and objects than a file of its kind can")
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path} is not whole JSON: {error.msg} at byte {error.pos}; was it cut short? copy or "
            "write it again"
        ) from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path} is JSON that no tool writes; copy or write it again") from None


def lines(path: Path, limit_bytes: int | None = None) -> Iterator[TextLine]:
    """Yield the lines of a text file; bytes that are not UTF-8 are replaced. As on a terminal, a
    carriage return begins a line anew: a bar of progress is many lines, however long it is.

    Raises `TraceError` where the file cannot be read, and beyond the limit (None: any file's).
    """
    number, start, held, skipped = 1, 0, b"", 0
    with Stream(path, limit_bytes=limit_bytes) as stream:
        for piece in stream.pieces():
            *whole, held = (held + piece).splitlines(keepends=True)
            for line in whole:
                yield TextLine(number, start, _decode(line))
                number, start, skipped = number + 1, start + skipped + len(line), 0
            if len(held) > LONGEST_LINE:
                kept = held.lstrip(b"\0")
                kept = kept[:LONGEST_LINE] + kept[LONGEST_LINE:][-1:]  # it may end the line
                skipped, held = skipped + len(held) - len(kept), kept
    if held:
        yield TextLine(number, start, _decode(held))


def beginning(source: SourceFile) -> Iterator[str]:
    """Yield the lines in which a text tells what it is, as far as it is whole; none of a binary."""
    head = _HOLE.sub(b"", source.head)
    if len(head) - len(head.translate(None, _CONTROLS)) <= MOST_CONTROLS * len(head):
        with suppress(TraceError):
            yield from (line.text for line in lines(source.path, SEARCHED_BYTES))


def _decode(line: bytes) -> str:
    line = line.lstrip(b"\0")[:LONGEST_LINE].rstrip(b"\r\n")
    text = line.decode("utf-8", "replace")
    return _COLOURS.sub("", text) if "\x1b" in text else text
