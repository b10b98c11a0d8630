"""Parts of steps in the timers that trainers print: of one rank (`time (ms) | forward: …`), or in
Megatron-LM of all, or the shortest and longest of all (`--timing-log-option`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Phase

MARKS = ("times across ranks (ms):", "time (ms) | ")  # of timers with a rank
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_OF_RANK = re.compile(rf"^\s*rank\s+(\d{{1,7}}): {_NUMBER}\s*$")
_NAME = re.compile(r"^\s*([\w-]{1,60}):\s*$")
_OF_ALL = re.compile(rf"^\s*([\w-]{{1,60}}) \.+: \(?(?:{_NUMBER}, )?{_NUMBER}\)?\s*$")
_RANK = re.compile(r"\[Rank (\d{1,7})\]")
_OF_ONE = re.compile(rf"([\w-]{{1,60}}): {_NUMBER}")
#: Of the timers that contain each other, those of a rank's own work and of its calls.
_PHASES = {
    "batch-generator": Phase.INPUT, "batch_input": Phase.INPUT,
    "forward-compute": Phase.FORWARD, "forward": Phase.FORWARD, "fwd": Phase.FORWARD,
    "backward-compute": Phase.BACKWARD, "backward_inner": Phase.BACKWARD,
    "bwd_inner": Phase.BACKWARD, "backward-params-all-reduce": Phase.SYNC,
    "backward_allreduce": Phase.SYNC, "bwd_allreduce": Phase.SYNC,
    "optimizer": Phase.OPTIMIZER, "step": Phase.OPTIMIZER,
}  # fmt: skip
_WORK = {Phase.FORWARD, Phase.BACKWARD}


@dataclass(slots=True)
class Timers:
    """The timers read so far."""

    cells: dict[tuple[int, int], dict[Phase, float]] = field(default_factory=dict)  # rank, step; s
    spread: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # ms, of all ranks
    lines: Counter[int] = field(default_factory=Counter)  # of one rank's timers, by rank
    open: bool = False  # whether timers of all ranks follow
    name: str = ""  # of the timer whose ranks follow

    def take(self, text: str, rank: int, number: int | None) -> None:
        """Take in a line after that of step `number`; None: each line of timers is a step."""
        if MARKS[1] in text:
            told = {name: float(value) for name, value in _OF_ONE.findall(text)}
            if number is None and not told.keys() & {"forward", "fwd"}:
                return
            rank = int(by[1]) if (by := _RANK.search(text)) else rank
            self.lines[rank] += 1
            self._enter(rank, self.lines[rank] if number is None else number, told)
        elif "across ranks (ms):" in text:
            self.open = True
        elif self.open and (found := _OF_RANK.match(text)):
            self._enter(int(found[1]), number or 0, {self.name: float(found[2])})
        elif self.open and (found := _OF_ALL.match(text)):
            low, high = found[2] or "nan", found[3]
            self.spread.setdefault(found[1], []).append((float(low), float(high)))
        elif self.open:
            found = _NAME.match(text)
            self.open, self.name = bool(found), found[1] if found else ""

    def _enter(self, rank: int, number: int, told: Mapping[str, float]) -> None:
        cell = self.cells.setdefault((min(rank, MOST_RANKS), number), {})
        cell |= {_PHASES[name]: ms / 1e3 for name, ms in told.items() if name in _PHASES}

    def rows(self, whole_s: Mapping[int, float]) -> Iterator[tuple[int, int, float, float, int]]:
        """Rank, step, start (unknown), seconds and phase of each part. Where the length of a step
        is known, what its parts leave of it is communication, and forward includes input."""
        for (rank, number), cell in self.cells.items():
            if not cell.keys() >= _WORK:
                continue
            if number in whole_s:
                cell[Phase.FORWARD] -= cell.get(Phase.INPUT, 0.0)
                rest = whole_s[number] - sum(cell.values()) + cell.get(Phase.SYNC, 0.0)
                cell[Phase.SYNC] = max(rest, 0.0)
            for phase, seconds in sorted(cell.items()):
                yield rank, number, np.nan, seconds, int(phase)

    def limits(self) -> list[str]:
        """What the timers do not tell."""
        known = any(cell.keys() >= _WORK for cell in self.cells.values())
        what = "" if known or not self.cells else "of parts that all ranks end together"
        if self.spread:
            names = [name for name, part in _PHASES.items() if part in _WORK]
            name = min(self.spread.keys() & set(names) or self.spread)
            low, high = np.median(self.spread[name], axis=0)
            what = f"the longest of all ranks ({name}: {high:.6g} ms)"
            if low >= 0:
                both = f"{low:.6g} and {high:.6g} ms"
                what = f"the shortest and longest of all ranks ({name}: {both})"
        if not what:
            return []
        return [
            f"timers of this log are {what}: they do not tell which rank is slow; log with "
            "--timing-log-level 2 --timing-log-option all"
        ]
