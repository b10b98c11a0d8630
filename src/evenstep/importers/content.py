"""What an importer is, and what it reads: files and lines, never more than their kind can have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream
from evenstep.trace.trace import Trace

#: Called with what is read, how much of it is done and how much there is (bytes).
Progress = Callable[[str, int, int], None]


@dataclass(slots=True, frozen=True)
class SourceFile:
    """A file to import. `head` is its first 64 KiB, decompressed."""

    path: Path
    head: bytes


@dataclass(slots=True, frozen=True)
class TraceFormat:
    """Files that hold a trace: one per rank, or one with all ranks."""

    name: str  # as messages call it: "Kineto trace"
    recognises: Callable[[SourceFile], bool]
    read: Callable[[Sequence[SourceFile], Progress], Trace]


@dataclass(slots=True, frozen=True)
class CompanionFormat:
    """Files that say something about the fabric beside a trace.

    What `read` returns is merged into `Trace.run` and read there by the diagnosis.
    """

    name: str
    recognises: Callable[[SourceFile], bool]
    read: Callable[[Sequence[SourceFile], Progress], Mapping[str, Any]]


Found = TypeVar("Found")

MOST_CONTAINERS = 2_000_000  # of a JSON text: each takes 64 bytes of memory and two of the file
_COLOURS = re.compile("\x1b\\[[0-9;]*[mK]")
LONGEST_LINE = 1 << 20  # bytes; the rest of such a line is left out


class TextLine(NamedTuple):
    """A line of a text."""

    number: int  # from 1
    start: int  # its first byte, of the decompressed file
    text: str


def reported(sources: Sequence[SourceFile], progress: Progress) -> Iterator[SourceFile]:
    """The sources one by one; how far they are is told in bytes of the files."""
    sizes = [_size(source.path) for source in sources]
    for number, source in enumerate(sources):
        progress(source.path.name, sum(sizes[:number]), sum(sizes))
        yield source
    if sources:
        progress(sources[-1].path.name, sum(sizes), sum(sizes))


def usable(
    sources: Sequence[SourceFile], progress: Progress, limits: list[str],
    read: Callable[[SourceFile], Found],
) -> Iterator[Found]:  # fmt: skip
    """What is read of each source; those that cannot be used are named in the limits."""
    for source in reported(sources, progress):
        try:
            yield read(source)
        except TraceError as error:
            limits.append(f"left out: {error}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # said when it is read
        return 0


def whole(value: Any) -> int:
    """A whole number from 0 below 2^64 as a file has it, in digits too; -1 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else -1


def content(path: Path, most_bytes: int) -> bytes:
    """All of a file. Raises `TraceError` where there is more of it than `most_bytes`."""
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


def whole_json(path: Path, most_bytes: int) -> Any:
    """What a JSON file says. Raises `TraceError` where it is damaged, or larger or more finely
    divided than a file of its kind can be."""
    return parsed_json(content(path, most_bytes), path)


def parsed_json(data: bytes, path: Path) -> Any:
    """What a JSON text of a file says, as `whole_json`."""
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


def lines(path: Path) -> Iterator[TextLine]:
    """The lines of a text, piece by piece; bytes that are not UTF-8 are replaced.

    Raises `TraceError` where the file cannot be read.
    """
    number, start, held, skipped = 1, 0, b"", 0
    with Stream(path) as stream:
        for piece in stream.pieces():
            *whole, held = (held + piece).split(b"\n")
            for line in whole:
                yield TextLine(number, start, _decoded(line))
                number, start, skipped = number + 1, start + skipped + len(line) + 1, 0
            if len(held) > LONGEST_LINE:
                skipped += len(held) - LONGEST_LINE
                held = held[:LONGEST_LINE]
    if held:
        yield TextLine(number, start, _decoded(held))


def _decoded(line: bytes) -> str:
    """A line's text, without the colours of a terminal."""
    text = line[:LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
    return _COLOURS.sub("", text) if "\x1b" in text else text
