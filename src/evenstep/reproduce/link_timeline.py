"""What the ranks of jobs on a shared link do over a few steps: the spans of a timeline.

The driver that holds a job is asked when its last rank is ready, and told how long the first bucket
took every rank, and when the step began and ended. That is the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from evenstep.reproduce.link_pacing import drivers
from evenstep.reproduce.link_worlds import Driver, Free, LinkWorld, run

HELD, COMPUTE, WAIT, EXCHANGE = "held", "compute", "wait", "exchange"


class TimelineSpan(NamedTuple):
    """What one rank does from `begin` to `end`, in the world's time."""

    job: int
    rank: int
    kind: str
    begin: float
    end: float


class Watched:
    """Passes everything on to a driver and keeps the spans of one job in some steps."""

    def __init__(self, driver: Driver, job: int, steps: range) -> None:
        self.spans: list[TimelineSpan] = []
        self._driver = driver
        self._job = job
        self._steps = steps
        self._delays: Sequence[float] = ()
        self._asked: list[float] = []  # in the running step

    def before(self, step: int) -> Sequence[float]:
        """The driver's delays."""
        self._delays = self._driver.before(step)
        return self._delays

    def wait(self, now: float) -> float:
        """The driver's wait; the last question is when the exchange begins."""
        self._asked.append(now)
        return self._driver.wait(now)

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """Work the step out from when each rank entered."""
        self._driver.after(step, begin, end, first)
        asked, self._asked = self._asked, []
        if step not in self._steps:
            return
        ready = [begin + delay for delay in self._delays]
        least = min(first)  # of the last rank, who is ready when the job asks
        entered = [asked[0] - (took - least) for took in first]
        last = [asked[-1]] * len(ready)
        self._keep(HELD, [begin] * len(ready), ready)
        self._keep(COMPUTE, ready, entered)
        self._keep(WAIT, entered, last)
        self._keep(EXCHANGE, last, [end] * len(ready))

    def _keep(self, kind: str, begins: Sequence[float], ends: Sequence[float]) -> None:
        self.spans += [
            TimelineSpan(self._job, rank, kind, begin, end)
            for rank, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if end > begin
        ]


def timeline(
    world: LinkWorld, *, first_step: int, steps: int, **settings: Any
) -> list[TimelineSpan]:
    """What all ranks do while the first job makes these steps; without settings nobody paces.

    Times count from the beginning of the first of these steps.
    """
    last_step = first_step + steps - 1
    held = drivers(world, **settings) if settings else [Free(job.ranks) for job in world.jobs]
    shown = range(first_step, last_step + 1)  # of the first job; the others' are in between
    watched = [
        Watched(driver, job, range(last_step * 100) if job else shown)
        for job, driver in enumerate(held)
    ]
    run(world, watched, last_step + 1)
    begin = min(span.begin for span in watched[0].spans)
    end = max(span.end for span in watched[0].spans)
    return [
        span._replace(begin=max(span.begin, begin) - begin, end=min(span.end, end) - begin)
        for each in watched
        for span in each.spans
        if span.begin < end and span.end > begin
    ]
