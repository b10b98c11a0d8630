"""Rank 0's view of the running job: `live/window.json`, and a line of log when a rank becomes late.

The file is rewritten with every window, in a folder of its own: what is written in the run's wakes
all ranks (see `evenstep.agent.control`). The log gets one line when a rank is certainly late (see
`evenstep.lateness.interval`), after however few windows, and one when it is certainly late no more.
Where windows are single steps, there are also windows that end with a step's first collective. Both
kinds are evaluated, each among its own, so that a late rank is reported before its step has ended.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenstep import lateness
from evenstep.agent.exchange.messages import Late, WindowReport
from evenstep.trace.spool.files import write_whole

log = logging.getLogger("evenstep")

KEPT = 32  # windows remembered
KNOWN = 8  # older windows from which the scatter is known without the latest ones
GROUPS = (1, 2, 4, 8)  # windows that are taken together
OVER = 0.5  # of the reported lateness; it has passed when it is certainly below this share


class _Window(NamedTuple):
    """Lateness in one window."""

    late: int | None  # the rank that the others waited for
    excess: dict[int, float]  # of each rank: its work above the others', as a share of the step
    steps: int


class _Series:
    """Windows of one kind: of whole steps, or of steps that have begun."""

    def __init__(self) -> None:
        self.windows: deque[_Window] = deque(maxlen=KEPT)
        self.since = 0  # windows since the last line of log: only they may lead to another


class LiveView:
    """Reports late ranks while the job runs; on the background thread of rank 0.

    `threshold` is the lateness that counts, as a share of a step.
    """

    def __init__(self, folder: Path, threshold: float = lateness.LATE) -> None:
        self.path = folder / "live" / "window.json"
        self._threshold = threshold
        self._count = 0  # windows so far
        self._late: dict[int, int] = {}  # rank -> windows in which it was late
        self._series = _Series(), _Series()  # of whole steps, and of those that have begun
        #: The rank, its lateness, and by how many windows together that was seen.
        self._reported: tuple[int, float, int] | None = None

    def update(self, reports: Sequence[WindowReport], late: Late | None) -> None:
        """Take a complete window. Raises OSError where the file cannot be written."""
        begun = max((report.begun for report in reports), default=0)
        series = self._series[begun]
        series.since += 1
        series.windows.append(_window(reports, late))
        if late is not None and (self._reported is None or self._reported[0] != late.rank):
            self._report(series, late)
        elif self._reported is not None and not begun:
            self._take_back(series, *self._reported)
        if begun:
            return
        self._count += 1
        if late is not None:
            self._late[late.rank] = self._late.get(late.rank, 0) + 1
        self.path.parent.mkdir(exist_ok=True)
        write_whole(self.path, json.dumps(self._document(reports, late)) + "\n")

    def _set_reported(self, reported: tuple[int, float, int] | None) -> None:
        self._reported = reported
        for series in self._series:
            series.since = 0

    def _report(self, series: _Series, late: Late) -> None:
        """Log a line if the rank of the newest window has certainly become late."""
        for each, latest, named, (low, high) in _looks(series, late.rank):
            if named[0] and 2 * sum(named) >= len(named) and low > self._threshold:
                share = (low + high) / 2
                log.warning(
                    "evenstep: rank %d is late by %s, %.0f %% of a step, in %d steps looked at%s",
                    late.rank, lateness.in_words(share / late.share * late.excess_ns),
                    100 * share, sum(window.steps for window in latest),
                    f"; ranks waiting for it: {late.waiting_ranks}" if late.waiting_ranks else "",
                )  # fmt: skip
                self._set_reported((late.rank, share, each))
                return

    def _take_back(self, series: _Series, rank: int, share: float, least: int) -> None:
        """Log a line if the reported rank is certainly late no more, by groups of `least` windows
        or more: one that is late in every eighth is not in most."""
        if series.windows[-1].late == rank:
            return
        for _, _, named, (_, high) in _looks(series, rank, least):
            if 2 * sum(named) < len(named) and high < OVER * share:
                log.warning("evenstep: nobody waits for rank %d any more", rank)
                self._set_reported(None)
                return

    def _document(self, reports: Sequence[WindowReport], late: Late | None) -> dict[str, Any]:
        first, end = (reports[0].first, reports[0].end) if reports else (0, 0)
        return {
            "schema": "evenstep.live/1",
            "steps": [first, end - 1],
            "late": late._asdict() if late else None,
            "windows": self._count,
            "late_windows": {str(rank): count for rank, count in sorted(self._late.items())},
            "ranks": [report._asdict() for report in reports],
        }


def _looks(
    series: _Series, rank: int, least: int = 1
) -> Iterator[tuple[int, list[_Window], list[bool], tuple[float, float]]]:
    """How many windows are a group, at `least`: of a rank late in every other one only pairs are
    alike; the latest windows with a rank, fewest first; whether it and no other was late in each
    group, and the interval of its mean lateness in them, in shares of a step."""
    mine = [window for window in series.windows if rank in window.excess]
    for each in (group for group in GROUPS if group >= least):
        measured = [mine[at : at + each] for at in range(len(mine) % each, len(mine), each)]
        excess = [sum(window.excess[rank] for window in few) / each for few in measured]
        fewest = lateness.FEWEST - (len(measured) >= KNOWN + lateness.FEWEST)  # steps may be long
        named = [{window.late for window in few} - {None} == {rank} for few in measured]
        for count in range(fewest, min(len(measured), series.since // each) + 1):
            yield each, mine[-count * each :], named[-count:], lateness.interval(excess, count)


def _window(reports: Sequence[WindowReport], late: Late | None) -> _Window:
    """The window as it is remembered."""
    step_ns = max([1, *(report.step_ns for report in reports)])
    steps = max((report.steps for report in reports), default=0)
    excess = {r.rank: by / step_ns for r, by in zip(reports, _excess(reports), strict=True)}
    return _Window(None if late is None else late.rank, excess, steps)


def _excess(reports: Sequence[WindowReport]) -> list[float]:
    """Each rank's work above the median of the others: by the median of all, the middle rank would
    never differ."""
    work, queued = [each.work_ns for each in reports], [each.queued_ns for each in reports]
    step_ns = max((report.step_ns for report in reports), default=0)
    each = [(one, sorted(one)) for one in lateness.measures(work, queued, step_ns)]
    return [
        min(one[i] - _of_others(order, one[i]) for one, order in each) for i in range(len(work))
    ]


def _of_others(ordered: Sequence[float], own: float) -> float:
    """The median of sorted values without one of them; that one where there is no other."""
    low, high = ((len(ordered) - by) // 2 for by in (2, 1))
    others = [ordered[place + (own <= ordered[place])] for place in (low, high) if len(ordered) > 1]
    return sum(others) / 2 if others else own
