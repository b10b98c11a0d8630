"""A source of measurements of the host or a device: opened once, then read about every second;
and the GPUs of a host that a process may use, found without any driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import ClassVar

from evenstep.errors import EvenstepError
from evenstep.host.sysfs import read_int

#: metric (its name ends in its unit), device index (`HOST_DEVICE` for the host), value
Reading = tuple[str, int, float]


class SourceUnavailable(EvenstepError):  # noqa: N818 (a state, not a mistake)
    """A source has no readings here, for a reason in one plain sentence for the report. `may_come`:
    the state can change, such as CUDA not being in use yet."""

    def __init__(self, reason: str, *, may_come: bool = False) -> None:
        super().__init__(reason)
        self.may_come = may_come


class Source:
    """One source. Lives on the background thread: its methods may be slow."""

    name: ClassVar[str]

    def open(self) -> None:
        """Find the available readings. Raises `SourceUnavailable`."""

    def read(self) -> list[Reading]:
        """Current values; counters as their raw running totals."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` acquired, if anything."""


class FileSource(Source):
    """Files below `sysroot` with one number each, of those that exist when it is opened."""

    held = False  # whether no driver is involved: see `read_text`

    def __init__(self, *, sysroot: str = "/") -> None:
        self._sysroot = Path(sysroot)
        self._files: list[tuple[str, int, str, float]] = []  # metric, device, file, factor

    def add(self, metric: str, device: int, files: Iterable[tuple[Path, float]]) -> None:
        """Read a metric from the first readable file, times its factor to the metric's unit."""
        for file, factor in files:
            if read_int(str(file)) is not None:
                self._files.append((metric, device, str(file), factor))
                return

    def read(self) -> list[Reading]:
        values = ((entry, read_int(entry[2], held=self.held)) for entry in self._files)
        return [(metric, i, v * factor) for (metric, i, _, factor), v in values if v is not None]


# -- GPUs that a process may use -------------------------------------------------------------------

NVIDIA = ("CUDA_VISIBLE_DEVICES",)
AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def visible(environ: Mapping[str, str], variables: Sequence[str]) -> list[str] | None:
    """Ordinals or unique names by the first of `variables` that is set, in the process's order;
    None: all. As CUDA reads it, the list ends at the first that names nothing (empty, or -1)."""
    text = next((environ[name] for name in variables if name in environ), None)
    if text is None:
        return None
    tokens = map(str.strip, text.split(","))
    return list(takewhile(lambda token: token and not token.startswith("-"), tokens))


def pick(tokens: list[str] | None, names: Sequence[str]) -> list[int]:
    """Positions of the visible GPUs among the host's, which have the unique `names`; tokens may be
    their beginnings. The list ends at the first that matches no GPU."""
    if tokens is None:
        return list(range(len(names)))
    places = (int(one) if one.isdigit() else _index_of_name(one, names) for one in tokens)
    return list(takewhile(lambda place: place < len(names), places))


def _index_of_name(token: str, names: Sequence[str]) -> int:
    """The position of the one name that begins so; else one behind the last."""
    fits = [i for i, name in enumerate(names) if name.lower().startswith(token.lower())]
    return fits[0] if len(fits) == 1 else len(names)
