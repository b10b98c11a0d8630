"""Parts of steps in the timers that trainers print: of one rank, or of all.

Of one rank are those of DeepSpeed and of the first Megatron-LM (`time (ms) | forward: …`). Of all
are those of Megatron-LM (`--timing-log-option`), or the shortest and longest of all, and reports
of stragglers in its forks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from evenstep.importers.kineto.names import NAMES
from evenstep.importers.steps.records import WHOLE
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Phase

ONE = "time (ms) | "  # of one rank
MARKS = ("times across ranks (ms):", "Section Timings (ms):", ONE)  # of timers with a rank
_ALL = (*MARKS[:2], "across ranks (ms):")
_MS = r"(\d{1,12}(?:\.\d{1,9})?)"
_OF_RANK = re.compile(rf"^\s*[Rr]ank\s+(\d{{1,7}}): {_MS}(?:ms)?\s*$")
_NAME = re.compile(r"^\s*([\w-]{1,60}):\s*$")
_OF_ALL = re.compile(rf"^\s*[\w-]{{1,60}} \.+: \(?(?:{_MS}, )?{_MS}\)?\s*$")
_BESIDE = re.compile(r"^\s*(?:Min: .*)?$")  # lines within a report that are not of a rank
_MICRO = "_microstep"
_OF_ONE = re.compile(rf"([\w-]{{1,60}}): {_MS}")
_PHASES = {name: Phase[of.upper()] for of, names in NAMES["timers"].items() for name in names}
WORK = {Phase.FORWARD, Phase.BACKWARD}


@dataclass(slots=True)
class Timers:
    """Parts of steps in the timers read so far."""

    cells: dict[tuple[int, int], dict[Phase, float]] = field(default_factory=dict)  # rank, step; s
    micro: dict[tuple[int, int], dict[Phase, float]] = field(default_factory=dict)  # of DeepSpeed's
    # micro-batches, which are steps where no timers of steps are
    lines: Counter[tuple[int, bool]] = field(default_factory=Counter)  # of one rank's timers
    clock_s: dict[tuple[int, int], float] = field(default_factory=dict)  # of one rank's lines
    open: bool = False  # whether timers of all ranks follow
    extremes: bool = False  # whether some of them name no rank
    reports: int = 0  # of all ranks
    name: str = ""  # of the timer whose ranks follow

    def take(self, text: str, rank: int, number: int | None, clock_s: float) -> None:
        """Take in a line that was printed at `clock_s` (nan: unknown) after that of step `number`;
        None: each line of timers is a step."""
        if ONE in text:
            told = {name: float(value) for name, value in _OF_ONE.findall(text)}
            if micro := all(name.endswith(_MICRO) for name in told):
                told = {name.removesuffix(_MICRO): value for name, value in told.items()}
            if number is None and Phase.FORWARD not in map(_PHASES.get, told):
                return
            self.lines[rank, micro] += 1
            at = self.lines[rank, micro] if number is None or micro else number
            self.clock_s |= {} if micro else {(rank, at): clock_s}
            self._enter(rank, at, told, micro)
        elif "(ms):" in text and any(mark in text for mark in _ALL):
            self.open, self.reports = True, self.reports + 1
        elif self.open and (found := _OF_RANK.match(text)):
            at = self.reports if number is None else number
            self._enter(int(found[1]), at, {self.name: float(found[2])})
        elif self.open and _OF_ALL.match(text):
            self.extremes = True
        elif self.open and not _BESIDE.match(text):
            found = _NAME.match(text)
            self.open, self.name = bool(found), found[1] if found else ""

    def _enter(self, rank: int, at: int, told: Mapping[str, float], micro: bool = False) -> None:
        cells = self.micro if micro else self.cells
        cell = cells.setdefault((min(rank, MOST_RANKS), at), {})
        cell |= {_PHASES[name]: ms / 1e3 for name, ms in told.items() if name in _PHASES}

    def rows(self, whole_s: Mapping[int, float]) -> Iterator[tuple[int, int, float, float, int]]:
        """Rank, step, start (unknown), seconds and phase of each part, and of the steps from one
        line to the next. Where `whole_s` has the length of a step, what its parts leave of it is
        communication, and forward includes input."""
        for (rank, number), cell in (self.cells or self.micro).items():
            if not cell.keys() >= WORK:
                continue
            if number in whole_s:
                cell[Phase.FORWARD] -= cell.get(Phase.INPUT, 0.0)
                rest = whole_s[number] - sum(cell.values()) + cell.get(Phase.SYNC, 0.0)
                cell[Phase.SYNC] = max(rest, 0.0)
            else:
                before_s = self.clock_s.get((rank, number - 1), np.nan)
                lasted = self.clock_s.get((rank, number), np.nan) - before_s
                if lasted > sum(cell.values()):
                    yield rank, number, np.nan, lasted, WHOLE
            for phase, seconds in sorted(cell.items()):
                yield rank, number, np.nan, seconds, int(phase)

    def limits(self) -> list[str]:
        """What the timers do not tell."""
        if self.micro and not self.cells:
            return ["timers of this log are of micro-batches: each is taken for a step"]
        known = any(cell.keys() >= WORK for cell in self.cells.values())
        what = "" if known or not self.cells else "of parts that all ranks end together"
        if self.extremes:
            what = "the longest of all ranks, or these and the shortest"
        said = f"timers of this log are {what}: they do not tell which rank is slow; log with "
        return [f"{said}--timing-log-level 2 --timing-log-option all"] if what else []
