"""Numbers that every process of a run can see: which block is on, how far each job is.

The campaign alone writes the block, a job its steps. Whoever follows asks at the end of a step,
never inside one. Ranks may see a new block one step apart: what follows a change does not count
(`run.settle_s`). Those that must act alike (end together) agree through their job, or are ended by
their tier.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from lab.scenario import MOST_RANKS

if TYPE_CHECKING:
    from typing import Self

_WORD = struct.Struct("<q")
BEFORE, OVER = -1, -2  # nothing counts yet; the run is over
NOT_YET = -1  # no step has ended


class SharedWords:
    """A file of eight-byte numbers in memory."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory, at * _WORD.size)[0])

    def __setitem__(self, at: int, value: int) -> None:
        _WORD.pack_into(self._memory, at * _WORD.size, value)

    def close(self) -> None:
        """Let go of it."""
        self._memory.close()


class Board(SharedWords):
    """The number of the block that is on, from 0; `BEFORE` the first, `OVER` at the end."""

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new board, showing `BEFORE`."""
        path.write_bytes(_WORD.pack(BEFORE))
        return cls(path)

    @property
    def block(self) -> int:
        """The block that is on now."""
        return self[0]

    def show(self, block: int) -> None:
        """Begin another block."""
        self[0] = block


class Pulse(SharedWords):
    """The number of steps a job has finished, and the processes of its ranks."""

    def __init__(self, folder: Path, job: int) -> None:
        self._path = folder / f".pulse-{job}"
        super().__init__(self._path)

    @classmethod
    def create(cls, folder: Path, job: int) -> Self:
        """A new one, before the first step."""
        (folder / f".pulse-{job}").write_bytes(
            _WORD.pack(NOT_YET).ljust(_WORD.size * (1 + MOST_RANKS), b"\0")
        )
        return cls(folder, job)

    @property
    def steps(self) -> int:
        """Steps finished; `NOT_YET` before the first has ended."""
        return self[0]

    def beat(self, steps: int) -> None:
        """So many have been finished."""
        self[0] = steps

    def enter(self, rank: int, process: int) -> None:
        """A rank is this process."""
        self[1 + rank] = process

    def process(self, rank: int) -> int:
        """The process of a rank; 0 before it has entered."""
        return self[1 + rank]

    def remove(self) -> None:
        """The job is over."""
        self.close()
        self._path.unlink(missing_ok=True)
