"""A brute-force job in twenty lines: ranks work, are held, wait for the last one, transfer.

Independent of the code under test. A world maps (step, delays) to the arrivals of all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from evenstep.pacing import Pacer, PacerSettings, Slowest, StepObservation

MS = 1_000_000
TRANSFER_NS = 5 * MS

World = Callable[[int, list[int]], list[int]]


class Outcome(NamedTuple):
    times_ns: list[int]
    lost_ns: int  # sum over steps of M2 - M1
    held_ns: int
    steps_held: int
    most_over_ns: float  # the largest loss beyond share * elapsed + credit at any moment

    @property
    def mean_ns(self) -> float:
        return sum(self.times_ns) / len(self.times_ns)


def job(world: int, **settings: object) -> list[Pacer]:
    settings = {"mode": "on", "run_id": "seeded", **settings}
    return [Pacer(PacerSettings(rank=rank, world=world, **settings)) for rank in range(world)]


def run(world: World, pacers: list[Pacer], steps: int, *, share: bool = False) -> Outcome:
    n, shared, lost, held, steps_held = len(pacers), None, 0, 0, 0
    times: list[int] = []
    over, elapsed, credit = 0.0, 0, 0
    for step in range(steps):
        decisions = [pacer.decide(step) for pacer in pacers]
        for plan in [decision.plan for decision in decisions if decision.plan]:
            for pacer in pacers:
                pacer.adopt(plan)
        delays = [decision.delay_ns for decision in decisions]
        assert all(d <= pacer.bound_ns for d, pacer in zip(delays, pacers, strict=True))
        arrivals = world(step, delays)
        work = [arrivals[i] - delays[i] for i in range(n)]
        last = max(arrivals)
        times.append(last + TRANSFER_NS)
        lost, held, steps_held = (
            lost + last - max(work),
            held + sum(delays),
            steps_held + any(delays),
        )
        for i, pacer in enumerate(pacers):
            wait = last - arrivals[i]
            seen = (step, times[-1], work[i], wait, 100_000, wait + TRANSFER_NS, TRANSFER_NS)
            pacer.observe(StepObservation(*seen, delay_ns=delays[i], slowest=shared))
        if share:  # what is shared arrives one step late
            shared = Slowest(step, step, max(work))
        credit = credit or 2 * max(pacer.bound_ns for pacer in pacers)
        elapsed += times[-1]
        over = max(over, lost - 0.005 * elapsed - credit)
    return Outcome(times, lost, held, steps_held, over)


def lone(work: Callable[[int, int], int]) -> World:
    """Ranks that share nothing: no delay can help (Lemma 1)."""
    return lambda step, delays: [d + work(step, rank) for rank, d in enumerate(delays)]


def shared_start(compute: Callable[[int, int], int], read_ns: int) -> World:
    """All ranks first read `read_ns` worth of input each from one fairly shared storage (H1)."""

    def arrivals(step: int, delays: list[int]) -> list[int]:
        ready = fair_share(delays, read_ns)
        return [ready[rank] + compute(step, rank) for rank in range(len(delays))]

    return arrivals


def fair_share(starts: list[int], size: int) -> list[int]:
    """When each transfer ends if those under way share a link of capacity 1 equally."""
    left = dict.fromkeys(range(len(starts)), float(size))
    ends, now = [0] * len(starts), float(min(starts))
    while left:
        active = [i for i in left if starts[i] <= now]
        later = [starts[i] for i in left if starts[i] > now]
        span = min(left[i] for i in active) * len(active) if active else float("inf")
        span = min([span, *(start - now for start in later)])
        for i in active:
            left[i] -= span / len(active)
            if left[i] <= 1e-3:
                ends[i] = int(now + span)
                del left[i]
        now += span
    return ends


def jitter(seed: int, deviation: float) -> Callable[[int, int], float]:
    """Independent factors around 1, the same for the same step and rank whatever else happens."""
    return lambda step, rank: _factor(seed, deviation, step, rank)


@cache
def _factor(seed: int, deviation: float, step: int, rank: int) -> float:
    return random.Random(f"{seed}/{step}/{rank}").gauss(1.0, deviation)
