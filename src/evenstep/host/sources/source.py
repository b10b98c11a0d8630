"""A place facts about the host or a device come from: opened once, then read about every second."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from evenstep.errors import EvenstepError
from evenstep.host.sysfs import read_int

#: metric (its name ends in its unit), device index (`HOST_DEVICE` for the host), value
Reading = tuple[str, int, float]


class SourceUnavailable(EvenstepError):  # noqa: N818 (a state, not a mistake)
    """A source gives nothing here, and why, in one plain sentence for the report.

    `may_come` marks a state that can pass, such as CUDA not being in use yet.
    """

    def __init__(self, reason: str, *, may_come: bool = False) -> None:
        super().__init__(reason)
        self.may_come = may_come


class Source:
    """One source. Lives on the background thread: its methods may be slow, never noisy."""

    name: ClassVar[str]

    def open(self) -> None:
        """Find out what there is to read. Raises `SourceUnavailable`."""

    def read(self) -> list[Reading]:
        """Values as they are now; counters as the raw running total, for others to subtract."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `open` took; most take nothing."""


class FileSource(Source):
    """Of files below `sysroot` with one number each, those that exist when it is opened."""

    held = False  # whether no driver is asked: see `read_text`

    def __init__(self, *, sysroot: str = "/") -> None:
        self._sysroot = Path(sysroot)
        self._files: list[tuple[str, int, str, float]] = []  # metric, device, file, factor

    def add(self, metric: str, device: int, files: Iterable[tuple[Path, float]]) -> None:
        """Read the first of the files that can be read, times its factor to the metric's unit."""
        for file, factor in files:
            if read_int(str(file)) is not None:
                self._files.append((metric, device, str(file), factor))
                return

    def read(self) -> list[Reading]:
        values = ((entry, read_int(entry[2], held=self.held)) for entry in self._files)
        return [(metric, i, v * factor) for (metric, i, _, factor), v in values if v is not None]
