"""What an importer is: a way to recognise a file by its first bytes, and a way to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
