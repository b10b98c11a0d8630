"""Which block of a comparison is on: eight bytes that every process of a run can see.

Written by the campaign alone. Whoever follows it asks at the end of a step, never inside one. Ranks
may see a new block one step apart: what follows a change does not count (`run.settle_s`). Those
that must act alike (end together) agree through their job, or are ended by their tier.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

_WORD = struct.Struct("<q")
BEFORE, OVER = -1, -2  # nothing counts yet; the run is over


class Board:
    """The number of the block that is on, from 0; `BEFORE` the first, `OVER` at the end."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new board, showing `BEFORE`."""
        path.write_bytes(_WORD.pack(BEFORE).ljust(mmap.PAGESIZE, b"\0"))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The board that somebody has created."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _WORD.size))

    @property
    def block(self) -> int:
        """The block that is on now."""
        return int(_WORD.unpack_from(self._memory)[0])

    def show(self, block: int) -> None:
        """Begin another block."""
        _WORD.pack_into(self._memory, 0, block)

    def close(self) -> None:
        """Let go of it."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
