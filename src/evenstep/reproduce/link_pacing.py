"""Pacers on the ranks of a job on a shared link: the same objects that run in a live job.

What a rank is told is what it could see itself: when it entered and left each bucket. How long a
bucket takes alone it knows only from its own quickest ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenstep.pacing import Decision, Gaps, Pacer, PacerSettings, Slowest, StepObservation
from evenstep.reproduce.link_worlds import BUCKETS, Driver, Free, LinkWorld, Outcome, run

UNIT_NS = 100_000_000  # of a world's time
MARGIN = 0.1  # of the floor: how far above it a bucket without wait may lie


class PacedRanks:
    """The pacers of one job; their controller is `auto`, the only one with all actuators."""

    def __init__(self, ranks: int, **settings: Any) -> None:
        self.pacers = [
            Pacer(
                PacerSettings(
                    rank=rank, world=ranks, **{"mode": "on", "controller": "auto", **settings}
                )
            )
            for rank in range(ranks)
        ]
        self._decisions: list[Decision] = []
        self._rules: list[Gaps | None] = []
        self._paused = [0] * ranks
        self._durations: list[list[int]] = []
        self._floor_ns = 1 << 62
        self._work_ns = [0] * ranks
        self._shared: Slowest | None = None

    def before(self, step: int) -> Sequence[float]:
        """Every rank's decision; a published plan reaches all at once."""
        decisions = self._decisions = [pacer.decide(step) for pacer in self.pacers]
        for plan in [found.plan for found in decisions if found.plan is not None]:
            for pacer in self.pacers:
                pacer.adopt(plan)
        self._rules = [found.gaps for found in decisions]
        self._paused = [0] * len(decisions)
        self._durations = []
        return [found.delay_ns / UNIT_NS for found in decisions]

    def pauses(self, bucket: int, durations: Sequence[float]) -> Sequence[float]:
        """What each rank pauses by its own durations; the others wait for the longest."""
        took = [int(duration * UNIT_NS) for duration in durations]
        self._durations.append(took)
        found = [0.0] * len(took)
        for rank, rule in enumerate(self._rules):
            if rule is not None:
                pause = rule.after(bucket, took[rank], self._paused[rank])
                self._paused[rank] += pause
                found[rank] = pause / UNIT_NS
        return found

    def after(self, step: int, begin: float, end: float) -> None:
        """Tell every pacer what its rank has seen."""
        self._floor_ns = min(self._floor_ns, *(min(row) for row in self._durations))
        step_ns = int((end - begin) * UNIT_NS)
        first = self._durations[0]
        exchange_ns = sum(min(row) for row in self._durations) + max(self._paused)
        work = [step_ns - exchange_ns - found for found in self._held(first)]
        for rank, pacer in enumerate(self.pacers):
            pacer.observe(
                StepObservation(
                    step=step,
                    step_ns=step_ns,
                    work_ns=max(0, work[rank]),
                    wait_ns=max(0, first[rank] - self._floor_ns),
                    margin_ns=int(MARGIN * self._floor_ns),
                    in_flight_ns=first[rank],
                    floor_lower_ns=self._floor_ns,
                    delay_ns=self._decisions[rank].delay_ns,
                    world=len(self.pacers),
                    slowest=self._shared,
                    buckets_ns=tuple(row[rank] for row in self._durations),
                    gaps_ns=self._paused[rank],
                    serial=BUCKETS - 1,
                    ended_ns=int(end * UNIT_NS),
                )
            )
        if self.pacers[0].settings.sharing:  # what is shared arrives a step later
            held = [found.delay_ns for found in self._decisions]
            arrivals = [w + d for w, d in zip(work, held, strict=True)]
            self._shared = Slowest(step, step, max(work), max(arrivals), max(held))

    def _held(self, first: list[int]) -> list[int]:
        """Of each rank, what of the time before its first bucket left the link was not work."""
        last = min(first)
        return [
            took - last + found.delay_ns for took, found in zip(first, self._decisions, strict=True)
        ]


def paced(world: LinkWorld, steps: int, **settings: Any) -> Outcome:
    """The world with a pacer on every rank of the jobs that pace."""
    return run(world, drivers(world, **settings), steps)


def drivers(world: LinkWorld, **settings: Any) -> list[Driver]:
    """What holds each job of a world."""
    return [
        PacedRanks(job.ranks, run_id=f"link-{world.seed}-{index}", **settings)
        if job.paced
        else Free(job.ranks)
        for index, job in enumerate(world.jobs)
    ]
