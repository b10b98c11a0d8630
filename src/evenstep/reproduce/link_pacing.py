"""Pacers and tokens for jobs on a shared link, the same objects as in a live job; and a timeline.

A pacer observes only what its rank could see itself: the time of its first bucket, beside that of
its quickest one so far. A job with a token posts its state to all other jobs with one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evenstep.pacing import Decision, Pacer, PacerSettings, Slowest, StepObservation, TrialBudget
from evenstep.pacing.token import TOKEN, Post, Token
from evenstep.reproduce.link_worlds import UNIT_NS, Free, LinkStep, LinkWorld, Outcome, run

MARGIN = 0.1  # of the floor: above it by no more, a bucket may have had no wait


class PacedRanks(Free):
    """The pacers of one job."""

    ahead = 1

    def __init__(self, ranks: int, **settings: Any) -> None:
        super().__init__(ranks)
        self.pacers = [
            Pacer(PacerSettings(rank=rank, world=ranks, **{"mode": "on", **settings}))
            for rank in range(ranks)
        ]
        self._decisions: list[Decision] = []
        self._floor_ns = 1 << 62
        self._shared: Slowest | None = None

    def before(self, step: int) -> Sequence[float]:
        """The delay of every rank; a published plan reaches all of them at once."""
        decisions = self._decisions = [pacer.decide(step) for pacer in self.pacers]
        for plan in [found.plan for found in decisions if found.plan is not None]:
            for pacer in self.pacers:
                pacer.adopt(plan)
        return [found.delay_ns / UNIT_NS for found in decisions]

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """Let every pacer observe the step as its rank saw it."""
        flight = [int(duration * UNIT_NS) for duration in first]
        self._floor_ns = min(self._floor_ns, *flight)
        step_ns = int((end - begin) * UNIT_NS)
        held = [found.delay_ns for found in self._decisions]
        work = [max(0, step_ns - each - own) for each, own in zip(flight, held, strict=True)]
        for rank, pacer in enumerate(self.pacers):
            pacer.observe(StepObservation(
                step=step, step_ns=step_ns, work_ns=work[rank],
                wait_ns=flight[rank] - self._floor_ns, margin_ns=int(MARGIN * self._floor_ns),
                in_flight_ns=flight[rank], floor_lower_ns=self._floor_ns, delay_ns=held[rank],
                slowest=self._shared,
            ))  # fmt: skip
        if self.pacers[0].settings.sharing:  # shared values arrive a step later
            self._shared = Slowest(step, step, max(work))


class TokenJob(Free):
    """A job with a token; `board` is shared by all of them on this link."""

    ahead = 0

    def __init__(self, ranks: int, board: list[TokenJob], *, guarded: bool = True) -> None:
        super().__init__(ranks)
        self.token = Token(TrialBudget(), guarded=guarded)
        self._board = board
        self._ready = -1.0
        board.append(self)

    def wait(self, now: float) -> float:
        """Ask the token, from the first time the job is ready."""
        if self._ready < 0:
            self._ready = now
        return self.token.ask(_ns(now), self._others) / UNIT_NS

    def after(self, step: int, begin: float, end: float, first: Sequence[float]) -> None:
        """Leave the link at the end of the exchange, which ends the step."""
        del first
        exchange_ns = _ns(end) - _ns(self._ready)
        self._ready = -1.0
        self.token.leave(_ns(end))
        leads = next((job for job in self._board if job.token.post.step_ns), self)
        leader = None if leads is self else leads.token.post
        step_ns = int((end - begin) * UNIT_NS)
        self.token.end_step(step, step_ns, _ns(end), self._others, leader, exchange_ns)

    @property
    def _others(self) -> list[Post]:
        return [job.token.post for job in self._board if job is not self]


def _ns(time: float) -> int:
    return int(time * UNIT_NS) + 1  # 0 is never


def paced(world: LinkWorld, steps: int, **settings: Any) -> Outcome:
    """Run the world with pacing in the jobs that have it."""
    return run(world, drivers(world, **settings), steps)


def drivers(world: LinkWorld, controller: str = TOKEN, **settings: Any) -> list[Free]:
    """The driver of each job of a world: the token of its link, or a pacer on every rank."""
    board: list[TokenJob] = []
    found: list[Free] = []
    for index, job in enumerate(world.jobs):
        if not job.paced:
            found.append(Free(job.ranks))
        elif controller == TOKEN:
            found.append(TokenJob(job.ranks, board, guarded=settings.get("guarded", True)))
        else:
            named = {"run_id": f"link-{world.seed}-{index}", "controller": controller, **settings}
            found.append(PacedRanks(job.ranks, **named))
    return found


# -- a timeline ------------------------------------------------------------------------------------

HELD, COMPUTE, WAIT, EXCHANGE = "held", "compute", "wait", "exchange"


class TimelineSpan(NamedTuple):
    """The activity of one rank from `begin` to `end`, in the world's time."""

    job: int
    rank: int
    kind: str
    begin: float
    end: float


def timeline(
    world: LinkWorld, *, first_step: int, steps: int, **settings: Any
) -> list[TimelineSpan]:
    """Spans of all ranks during these steps of the first job; without settings, without pacing.

    Times count from the beginning of the first of these steps.
    """
    held = drivers(world, **settings) if settings else [Free(job.ranks) for job in world.jobs]
    found: list[LinkStep] = []
    run(world, held, first_step + steps, found.append)
    shown = [one for one in found if one.job == 0][first_step : first_step + steps]
    begin, end = shown[0].begin, shown[-1].end
    spans = [span for one in found for span in _spans(one)]
    return [
        span._replace(begin=max(span.begin, begin) - begin, end=min(span.end, end) - begin)
        for span in spans
        if span.begin < end and span.end > begin
    ]


def _spans(step: LinkStep) -> list[TimelineSpan]:
    """Spans of each rank in a step, one after the other."""
    moments: list[Any] = [step.begin, step.computes, step.entered, step.exchanges, step.end]
    edges = np.stack([np.broadcast_to(moment, step.entered.shape) for moment in moments])
    return [
        TimelineSpan(step.job, rank, kind, begin, end)
        for kind, (begins, ends) in zip(
            (HELD, COMPUTE, WAIT, EXCHANGE), itertools.pairwise(edges), strict=True
        )
        for rank, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
        if end > begin
    ]
