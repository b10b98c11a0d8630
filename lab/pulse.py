"""How far a job is, and which processes its ranks are: what disturbs them has to know."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from lab.scenario import MOST_RANKS

if TYPE_CHECKING:
    from typing import Self

_WORD = struct.Struct("<q")
_BYTES = _WORD.size * (1 + MOST_RANKS)
NOT_YET = -1  # no step has ended


class Pulse:
    """The number of steps a job has finished, and its processes."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, folder: Path, job: int) -> Self:
        """A new one, before the first step."""
        _path(folder, job).write_bytes(_WORD.pack(NOT_YET).ljust(_BYTES, b"\0"))
        return cls.open(folder, job)

    @classmethod
    def open(cls, folder: Path, job: int) -> Self:
        """The one that somebody has created."""
        with _path(folder, job).open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _BYTES))

    @property
    def steps(self) -> int:
        """Steps finished; `NOT_YET` before the first has ended."""
        return int(_WORD.unpack_from(self._memory)[0])

    def beat(self, steps: int) -> None:
        """So many have been finished."""
        _WORD.pack_into(self._memory, 0, steps)

    def enter(self, rank: int, process: int) -> None:
        """A rank is this process."""
        _WORD.pack_into(self._memory, _WORD.size * (1 + rank), process)

    def process(self, rank: int) -> int:
        """The process of a rank; 0 before it has entered."""
        return int(_WORD.unpack_from(self._memory, _WORD.size * (1 + rank))[0])

    def remove(self, folder: Path, job: int) -> None:
        """The job is over."""
        self._memory.close()
        _path(folder, job).unlink(missing_ok=True)


def _path(folder: Path, job: int) -> Path:
    return folder / f".pulse-{job}"
