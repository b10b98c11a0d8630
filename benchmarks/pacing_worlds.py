"""Pacing in simulated worlds nobody has tuned on: what is gained, and what it costs at worst.

Hand-made worlds of the kind where pacing can help, random worlds as they come, jobs that have
everything to themselves, and a shared start. Beside `auto`: the paper's rule as it is stated, and
MLTCP's weights in the network. Rules were tuned on random worlds 1000 to 1299; those from 880000,
881000 and 890000 on were looked at and changed decisions, those from 891000 and 892000 on were
looked at once; here seeds begin at `--seed`. Nothing is timed but the last row.

Where exchanges meet, a trajectory is chaotic: one step that begins a little later changes who meets
whom from then on, and with it the mean over thousands of steps. How far apart two runs come that
way, with nobody paced, stands beside the random worlds: less than that is not told from chance.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.measure import Row, spread
from evenstep.pacing import Pacer, PacerSettings, Slowest, StepObservation
from evenstep.reproduce import link_worlds
from evenstep.reproduce.link_pacing import paced
from evenstep.reproduce.link_worlds import PROGRESS, Free, LinkJob, LinkWorld, Outcome, unpaced

COMMAND = "python -m benchmarks pacing_worlds"
PAPER = {"controller": "paper", "guarded": False, "max_delay": 0.05}
MS = 1_000_000
PERIOD = 1.5  # of a random world's mean job: compute and exchange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--seed", type=int, default=893_000, help="of the first world")
    parser.add_argument("--worlds", type=int, default=100, help="random ones")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--long", type=int, default=25, help="of them also run four times as long")


def run(args: argparse.Namespace) -> list[Row]:
    """All rows; a few minutes of one core."""
    rows = [*_hand_made(args), *_random(args), *_lone(args)]
    return [*rows, _shared_start(args), _incast(args), _decision_cost()]


class Gains(NamedTuple):
    """Changes of throughput of the jobs that pace, world by world."""

    worlds: list[list[float]]

    @property
    def mean(self) -> float:
        """Over worlds, each counting once."""
        return statistics.fmean(statistics.fmean(world) for world in self.worlds)

    @property
    def worst(self) -> float:
        """Of any job."""
        return min(min(world) for world in self.worlds)

    def text(self) -> str:
        """As it stands in the table."""
        below = sum(min(world) < -0.005 for world in self.worlds)
        jobs = statistics.fmean(gain for world in self.worlds for gain in world)
        return (
            f"mean {100 * self.mean:+.2f} % (over jobs {100 * jobs:+.2f} %), worst job "
            f"{100 * self.worst:+.2f} %, {below} of {len(self.worlds)} worlds below -.5 %"
        )


def _gains(world: LinkWorld, before: Outcome, after: Outcome) -> list[float]:
    return [
        before.mean(index) / after.mean(index) - 1
        for index, job in enumerate(world.jobs)
        if job.paced
    ]


def _jobs(count: int, exchange: float, apart: float = 0.02, ranks: int = 1) -> tuple[LinkJob, ...]:
    return tuple(
        LinkJob(compute=1 + apart * index, exchange=exchange, jitter=0.01, ranks=ranks)
        for index in range(count)
    )


#: Jobs, exchange over compute, goodput kept: worlds whose contention is periodic.
HAND_MADE = ((2, 0.6, 1.0), (3, 0.4, 1.0), (4, 0.25, 1.0), (4, 0.25, 0.8), (4, 0.4, 1.0))


def _hand_made(args: argparse.Namespace) -> list[Row]:
    rows = []
    for ranks, settings in ((1, {}), (3, {}), (3, {"sharing": True})):
        gains, cuts, removed = [], [], []
        for index, (count, exchange, goodput) in enumerate(HAND_MADE):
            jobs = _jobs(count, exchange, ranks=ranks)
            world = LinkWorld(jobs=jobs, goodput=goodput, seed=args.seed + index)
            before, after = unpaced(world, args.steps), paced(world, args.steps, **settings)
            gains.append(_gains(world, before, after))
            cuts.append(statistics.fmean(after.cv(i) / before.cv(i) for i in range(count)))
            removed.append(_removed(world, before, after, args.steps))
        found = Gains(gains)
        who = "one rank's view" if ranks == 1 else f"{ranks} ranks a job, each deciding alone"
        who = f"{ranks} ranks a job, sharing on" if settings else who
        each = ", ".join(f"{100 * statistics.fmean(world):+.1f}" for world in gains)
        measured = f"{found.text()}; each {each}; CV times {max(cuts):.2f} at most"
        measured += f", {100 * min(removed):.0f} % or more of what contention adds to it is gone"
        met = found.mean >= 0.10 and found.worst >= -0.004 and max(cuts) <= 0.5
        rows.append(
            Row(f"5 hand-made multi-job worlds, {who}", "mean ≥ +10 %, worst ≥ -.4 %, CV halved",
                measured, met, COMMAND)
        )  # fmt: skip
    return rows


def _removed(world: LinkWorld, before: Outcome, after: Outcome, steps: int) -> float:
    """Share of the CV above what each job has alone on the link that is gone, over all jobs."""
    alone = [unpaced(replace(world, jobs=(job,)), steps).cv(0) for job in world.jobs]
    return statistics.fmean(
        (before.cv(i) - after.cv(i)) / (before.cv(i) - own) for i, own in enumerate(alone)
    )


def random_world(seed: int) -> LinkWorld:
    """1 to 6 jobs; half of the worlds have near-equal periods; some of the jobs pace."""
    draw = random.Random(seed)
    count, near = draw.randint(1, 6), draw.random() < 0.5
    pacing, background = draw.randint(1, count), draw.random() < 0.5
    jobs = []
    for index in range(count):
        exchange = draw.uniform(0.05, 1.0)
        factor = draw.uniform(0.975, 1.025) if near else draw.uniform(0.7, 1.4)
        jobs.append(
            LinkJob(
                compute=max(0.1, PERIOD * factor - exchange),
                exchange=exchange,
                jitter=draw.uniform(0.0, 0.05),
                noise=draw.uniform(0.0, 0.10),
                paced=index < pacing,
            )
        )
    return LinkWorld(
        jobs=tuple(jobs), goodput=draw.uniform(0.7, 1.0), seed=seed,
        flows=draw.choice([1.0, 2.0]) if background else 0.0,
        on=draw.uniform(0.05, 2.0), off=draw.uniform(1.0, 20.0),
    )  # fmt: skip


NUDGED_STEP, NUDGE = 100, 0.01  # the first job's, in the time of a world: under 1 % of one step


class _Nudged(Free):
    """Nobody is held, but for a moment once."""

    def before(self, step: int) -> Sequence[float]:
        """No delay in any step but one."""
        return [NUDGE] * len(self._none) if step == NUDGED_STEP else self._none


def _nudged(world: LinkWorld, steps: int) -> Outcome:
    """The world unpaced, but for one moment of its first job."""
    first, *others = world.jobs
    return link_worlds.run(
        world, [_Nudged(first.ranks), *(Free(job.ranks) for job in others)], steps
    )


def _random(args: argparse.Namespace) -> list[Row]:
    worlds = [random_world(args.seed + index) for index in range(args.worlds)]
    before = [unpaced(world, args.steps) for world in worlds]
    arms: list[tuple[str, Callable[[LinkWorld], Outcome]]] = [
        ("auto", lambda world: paced(world, args.steps)),
        ("auto, sharing on", lambda world: paced(world, args.steps, sharing=True)),
        ("the paper's rule, bound 5 %", lambda world: paced(world, args.steps, **PAPER)),
        ("MLTCP weights", lambda w: unpaced(replace(w, weights=PROGRESS), args.steps)),
        ("nobody paced, one step nudged", lambda world: _nudged(world, args.steps)),
    ]
    rows = []
    for name, arm in arms:
        found = Gains([_gains(w, b, arm(w)) for w, b in zip(worlds, before, strict=True)])
        ours = name.startswith("auto")
        met = found.mean >= 0.025 and found.worst >= -0.01 if ours else None
        bar = "mean ≥ +2.5 %, worst ≥ -1.0 %" if ours else "none"
        what = f"{args.worlds} random worlds, {args.steps} steps: {name}"
        rows.append(Row(what, bar, found.text(), met, COMMAND))
    rows.append(_several_ranks(worlds, args.steps))
    steps = 4 * args.steps
    long = worlds[: args.long]
    if long:
        before = [unpaced(world, steps) for world in long]
        auto, chance = (
            Gains([_gains(w, b, arm(w, steps)) for w, b in zip(long, before, strict=True)])
            for arm in (paced, _nudged)
        )
        what = f"{len(long)} of them, {steps} steps: "
        met = auto.worst >= -0.003
        rows.append(Row(what + "auto", "worst ≥ -.3 %", auto.text(), met, COMMAND))
        rows.append(
            Row(what + "nobody paced, one step nudged", "none", chance.text(), None, COMMAND)
        )
    return rows


def _several_ranks(worlds: Sequence[LinkWorld], steps: int) -> Row:
    """The same worlds with three ranks a job, each deciding alone."""
    gains = []
    for each in worlds:
        world = replace(each, jobs=tuple(replace(job, ranks=3) for job in each.jobs))
        gains.append(_gains(world, unpaced(world, steps), paced(world, steps)))
    found = Gains(gains)
    what = f"{len(worlds)} random worlds, {steps} steps: auto, 3 ranks a job, each deciding alone"
    met = found.mean >= 0.025 and found.worst >= -0.01
    return Row(what, "mean ≥ +2.5 %, worst ≥ -1.0 %", found.text(), met, COMMAND)


Work = Callable[[random.Random, int, int], float]

#: A rank's compute of a step (draw, step, rank), in milliseconds.
LONE: dict[str, Work] = {
    "independent": lambda draw, step, rank: 100 * draw.lognormvariate(0, 0.1),
    "heavy-tailed": lambda draw, step, rank: 80 * min(10.0, draw.paretovariate(3)),
    "rare": lambda draw, step, rank: 200 if draw.random() < 0.01 else 100,
    "chronic": lambda draw, step, rank: (150 if rank == 3 else 100) * draw.gauss(1, 0.02),
    "rotating": lambda draw, step, rank: 100 + 30 * (rank == step // 50 % 8) + draw.gauss(0, 1),
    "sequence imbalance": lambda draw, step, rank: 60 + 80 * draw.betavariate(2, 5),
}  # fmt: skip


def _lone(args: argparse.Namespace) -> list[Row]:
    """Jobs whose links are their own: nothing can be gained (Lemma 1), so what is lost counts."""
    found = {}
    for name, work in LONE.items():
        for sharing in (False, True):
            key = f"{name}{', sharing' if sharing else ''}"
            before = _job(work, args.seed, args.steps, mode="off")
            found[key] = before / _job(work, args.seed, args.steps, sharing=sharing) - 1
    worst = min(found, key=found.__getitem__)
    measured = f"worst {100 * found[worst]:+.2f} % ({worst}); mean " + (
        f"{100 * statistics.fmean(found.values()):+.2f} %"
    )
    return [
        Row("6 worlds of a lone job of 8 ranks, sharing off and on", "worst ≥ -.2 %", measured,
            found[worst] >= -0.002, COMMAND)
    ]  # fmt: skip


def _shared_start(args: argparse.Namespace) -> Row:
    """Half of 16 ranks compute 20 % longer; all read 4 ms from one storage at the start."""

    def work(draw: random.Random, step: int, rank: int) -> float:
        del step
        return (120 if rank % 2 else 100) * draw.gauss(1, 0.01)

    gains = _off_and_on(work, args, ranks=16, read_ms=4)
    measured = f"{100 * gains[0]:+.1f} % alone, {100 * gains[1]:+.1f} % with sharing"
    return Row("shared start, 16 ranks, half of them 20 % slower", "≥ +7 %", measured,
               min(gains) >= 0.07, COMMAND)  # fmt: skip


def _incast(args: argparse.Namespace) -> Row:
    """16 ranks whose arrivals lie 1.5 ms apart send through a buffer that holds half of them.

    Those within `INCAST_MS` of each other are aligned; from half of the ranks on they overflow it,
    up to nine times the transfer when all are (as measured with 64 senders).
    """

    def work(draw: random.Random, step: int, rank: int) -> float:
        del step
        return 100 + 1.5 * rank + draw.gauss(0, 0.2)

    gains = _off_and_on(work, args, ranks=16, incast=True)
    measured = f"{100 * gains[0]:+.2f} % alone, {100 * gains[1]:+.2f} % with sharing"
    return Row("incast: 16 ranks whose skew protects a small buffer", "≥ -.5 %", measured,
               min(gains) >= -0.005, COMMAND)  # fmt: skip


INCAST_MS, MOST_INCAST = 4.0, 8.0


def _incast_ms(arrivals: Sequence[float]) -> float:
    """What the overflow of a small buffer adds to a transfer of 2 ms."""
    aligned = max(sum(0 <= other - first <= INCAST_MS for other in arrivals) for first in arrivals)
    return 2.0 * MOST_INCAST * max(0.0, 2 * aligned / len(arrivals) - 1)


def _off_and_on(work: Work, args: argparse.Namespace, **job: Any) -> tuple[float, float]:
    """Gain of `auto` with sharing off, and on."""
    before = _job(work, args.seed, args.steps, mode="off", **job)
    alone, shared = (
        before / _job(work, args.seed, args.steps, sharing=sharing, **job) - 1
        for sharing in (False, True)
    )
    return alone, shared


def _job(
    work: Work, seed: int, steps: int, *, ranks: int = 8, read_ms: float = 0.0,
    incast: bool = False, **settings: Any,
) -> float:  # fmt: skip
    """Mean step, in ms, of ranks that read, compute, and meet in 8 buckets of 2 ms each."""
    named = {"mode": "on", "controller": "auto", "run_id": f"lone-{seed}", "world": ranks}
    chosen = {**named, **settings}
    pacers = [Pacer(PacerSettings(rank=rank, **chosen)) for rank in range(ranks)]
    shared: Slowest | None = None
    total = 0.0
    for step in range(steps):
        decisions = [pacer.decide(step) for pacer in pacers]
        for plan in [found.plan for found in decisions if found.plan is not None]:
            for pacer in pacers:
                pacer.adopt(plan)
        held = [found.delay_ns / MS for found in decisions]
        ready = _read(held, read_ms)
        arrivals = [
            ready[rank] + work(random.Random(f"{seed}/{step}/{rank}"), step, rank)
            for rank in range(ranks)
        ]
        last = max(arrivals) + (_incast_ms(arrivals) if incast else 0.0)
        pauses, now = [0.0] * ranks, 0.0
        took = [[last - arrival + 2.0 for arrival in arrivals]]
        for bucket in range(7):
            step_pauses = [
                0.0 if found.gaps is None
                else found.gaps.after(bucket, int(took[-1][rank] * MS), int(pauses[rank] * MS)) / MS
                for rank, found in enumerate(decisions)
            ]  # fmt: skip
            longest = max(step_pauses)
            took.append([longest - pause + 2.0 for pause in step_pauses])
            pauses = [a + b for a, b in zip(pauses, step_pauses, strict=True)]
            now += longest
        whole = last + 16.0 + now
        total += whole
        own = [arrivals[rank] - held[rank] for rank in range(ranks)]
        for rank, pacer in enumerate(pacers):
            first = int(took[0][rank] * MS)
            pacer.observe(
                StepObservation(
                    step, int(whole * MS), int(own[rank] * MS), first - 2 * MS, MS // 10, first,
                    2 * MS, decisions[rank].delay_ns, world=ranks, slowest=shared, serial=7,
                    buckets_ns=tuple(int(row[rank] * MS) for row in took),
                    gaps_ns=int(pauses[rank] * MS),
                )
            )  # fmt: skip
        if chosen.get("sharing"):
            shared = Slowest(step, step, int(max(own) * MS), int(last * MS), int(max(held) * MS))
    return total / steps


def _read(starts: Sequence[float], size: float) -> list[float]:
    """When each rank has read its input, all sharing one storage by processor sharing."""
    if size <= 0:
        return list(starts)
    order = sorted(range(len(starts)), key=lambda rank: starts[rank])
    left: dict[int, float] = {}  # what each still has to read
    ends, now, at = list(starts), 0.0, 0
    while at < len(order) or left:
        if not left:
            now = max(now, starts[order[at]])
        until = starts[order[at]] if at < len(order) else float("inf")
        done = now + min(left.values()) * len(left) if left else float("inf")
        moved = (min(until, done) - now) / len(left) if left else 0.0
        now = min(until, done)
        for rank in list(left):
            left[rank] -= moved
            if left[rank] <= 1e-9:
                ends[rank] = now
                del left[rank]
        if at < len(order) and until <= now:
            left[order[at]] = size
            at += 1
    return ends


def _decision_cost() -> Row:
    """What a rank's pacer takes a step, told and asked, at eight buckets; best of several runs."""
    costs = []
    for _ in range(7):
        pacer = Pacer(PacerSettings(mode="on", controller="auto", run_id="cost", world=4))
        draw = random.Random(1)
        seen = [
            StepObservation(
                step, 100 * MS, 80 * MS, 5 * MS, MS, 7 * MS, 2 * MS, world=4, serial=7,
                buckets_ns=tuple(int(draw.gauss(2, 0.05) * MS) for _ in range(8)),
            )
            for step in range(3000)
        ]  # fmt: skip
        begin = time.process_time_ns()
        for step, observation in enumerate(seen):
            pacer.decide(step)
            pacer.observe(observation)
        costs.append((time.process_time_ns() - begin) / len(seen) / 1e3)
    return Row("decision of a live rank, a step of 8 buckets: auto", "< 5 µs",
               spread(costs).text("µs", 2), spread(costs).median < 5, COMMAND)  # fmt: skip
