"""The token and pacing in simulated worlds nobody has tuned on: what is gained, and lost at worst.

Hand-made worlds of the kind where coordination can help, random worlds as they come, one job with
bursts on its link, jobs that have everything to themselves, and a shared start. Beside the token:
itself without its trial, the paper's rule as it is stated, and MLTCP's weights in the network. The
token was tuned on random worlds 1000 to 1099 and looked at once on 20000 to 20099; here seeds begin
at `--seed`. Nothing is timed but the last row.

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
from functools import partial
from typing import Any, NamedTuple

from benchmarks.measure import Row, spread
from evenstep.pacing import Pacer, PacerSettings, Slowest, StepObservation, WaitEstimator
from evenstep.pacing.token import TOKEN
from evenstep.reproduce import link_worlds
from evenstep.reproduce.link_pacing import paced
from evenstep.reproduce.link_worlds import PROGRESS, Free, LinkJob, LinkWorld, Outcome, unpaced

COMMAND = "python -m benchmarks pacing_worlds"
PAPER = {"controller": "paper", "guarded": False, "max_delay": 0.05}
MS = 1_000_000
PERIOD = 1.5  # of a random world's mean job: compute and exchange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--seed", type=int, default=894_000, help="of the first world")
    parser.add_argument("--worlds", type=int, default=100, help="random ones")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--long", type=int, default=25, help="of them also run four times as long")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))


def run(args: argparse.Namespace) -> list[Row]:
    """All rows; some twenty minutes of one core."""
    return [row for name in args.only for row in PARTS[name](args)]


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

    @property
    def below(self) -> int:
        """Jobs that lost more than .5 %."""
        return sum(gain < -0.005 for world in self.worlds for gain in world)

    @property
    def average(self) -> str:
        """The mean, and where 95 % of means over as many worlds drawn from these lie."""
        means = [statistics.fmean(world) for world in self.worlds]
        draw = random.Random(1)
        drawn = sorted(statistics.fmean(draw.choices(means, k=len(means))) for _ in range(2000))
        low, high = drawn[50], drawn[-50]
        return f"{100 * self.mean:+.2f} % ({100 * low:+.1f} to {100 * high:+.1f} over worlds)"

    def text(self) -> str:
        """As it stands in the table."""
        jobs = sum(map(len, self.worlds))
        worst = f"worst job {100 * self.worst:+.2f} %"
        return f"mean {self.average}, {worst}, {self.below} of {jobs} jobs below -.5 %"


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
    for ranks in (1, 3):
        gains, cuts, removed = [], [], []
        for index, (count, exchange, goodput) in enumerate(HAND_MADE):
            jobs = _jobs(count, exchange, ranks=ranks)
            world = LinkWorld(jobs=jobs, goodput=goodput, seed=args.seed + index)
            before, after = unpaced(world, args.steps), paced(world, args.steps)
            gains.append(_gains(world, before, after))
            cuts.append(statistics.fmean(after.cv(i) / before.cv(i) for i in range(count)))
            removed.append(_removed(world, before, after, args.steps))
        found = Gains(gains)
        each = ", ".join(f"{100 * statistics.fmean(world):+.1f}" for world in gains)
        measured = f"{found.text()}; each {each}; CV times {max(cuts):.2f} at most"
        measured += f", {100 * min(removed):.0f} % or more of what contention adds to it is gone"
        met = found.mean >= 0.10 and found.worst >= -0.004 and max(cuts) <= 0.5
        rows.append(
            Row(f"5 hand-made multi-job worlds, the token, ranks a job: {ranks}",
                "mean ≥ +10 %, worst ≥ -.4 %, CV halved", measured, met, COMMAND)
        )  # fmt: skip
    return rows


def _bursts(args: argparse.Namespace) -> list[Row]:
    """One job, and on its link traffic that does not yield: there is nothing to be won."""
    gains = []
    for index in range(32):
        draw = random.Random(args.seed + index)
        job = LinkJob(compute=1.0, exchange=draw.uniform(0.1, 0.8), jitter=0.02, noise=0.05)
        world = LinkWorld(
            jobs=(job,), flows=draw.choice([1.0, 2.0]), on=draw.uniform(0.1, 5.0),
            off=draw.uniform(1.0, 20.0), seed=args.seed + index,
        )  # fmt: skip
        gains.append(_gains(world, unpaced(world, args.steps), paced(world, args.steps)))
    found = Gains(gains)
    return [
        Row(f"32 worlds of one job with bursts on its link, {args.steps} steps: the token",
            "worst ≥ -.15 %", found.text(), found.worst >= -0.0015,
            f"{COMMAND} --seed {args.seed} --only bursts")
    ]  # fmt: skip


def _removed(world: LinkWorld, before: Outcome, after: Outcome, steps: int) -> float:
    """Share of the CV above what each job has alone on the link that is gone, over all jobs."""
    alone = [unpaced(replace(world, jobs=(job,)), steps).cv(0) for job in world.jobs]
    return statistics.fmean(
        (before.cv(i) - after.cv(i)) / (before.cv(i) - own) for i, own in enumerate(alone)
    )


def near_equal(seed: int) -> bool:
    """Whether the jobs of a random world have nearly the same period."""
    draw = random.Random(seed)
    draw.randint(1, 6)
    return draw.random() < 0.5


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


Arm = Callable[[LinkWorld, int], Outcome]

#: Ways to hold the jobs of a world; what the token is judged by, and what it is compared with.
CHANCE = "nobody paced, one step nudged"
JUDGED: dict[str, Arm] = {TOKEN: paced, CHANCE: _nudged}
RULES: dict[str, Arm] = {
    "the token without its trial": partial(paced, guarded=False),
    "slack pacing": partial(paced, controller="slack"),
    "the paper's rule, bound 5 %": partial(paced, **PAPER),
    "MLTCP weights": lambda world, steps: unpaced(replace(world, weights=PROGRESS), steps),
}


def _measured(seeds: range, steps: int, arms: dict[str, Arm]) -> dict[str, Gains]:
    """What each arm gains in the random worlds of these seeds."""
    worlds = [random_world(seed) for seed in seeds]
    before = [unpaced(world, steps) for world in worlds]
    return {
        name: Gains([_gains(w, b, arm(w, steps)) for w, b in zip(worlds, before, strict=True)])
        for name, arm in arms.items()
    }


def _random(args: argparse.Namespace, arms: dict[str, Arm]) -> list[Row]:
    seeds = range(args.seed, args.seed + args.worlds)
    found = _measured(seeds, args.steps, arms)
    rows = []
    for name, gains in found.items():
        near = Gains([each for s, each in zip(seeds, gains.worlds, strict=True) if near_equal(s)])
        what = f"{args.worlds} random worlds from {args.seed}, {args.steps} steps: {name}"
        text = f"{gains.text()}; near-equal periods ({len(near.worlds)}) {near.average}"
        bar, met = "none", None
        if name == TOKEN:
            bar = "mean ≥ +4.5 %, near-equal ≥ +7 %, below -.5 % as by chance"
            chance = found[CHANCE].below
            met = gains.mean >= 0.045 and near.mean >= 0.07 and gains.below <= chance
        rows.append(Row(what, bar, text, met, f"{COMMAND} --seed {args.seed} --only random rules"))
    return rows


def _long(args: argparse.Namespace) -> list[Row]:
    seeds, steps = range(args.seed, args.seed + args.long), 4 * args.steps
    found = _measured(seeds, steps, JUDGED)
    what = f"{args.long} of them from {args.seed}, {steps} steps: "
    ours, chance = found[TOKEN], found[CHANCE]
    command = f"{COMMAND} --seed {args.seed} --only long --long {args.long}"
    return [
        Row(what + TOKEN, "below -.5 % as by chance", ours.text(), ours.below <= chance.below,
            command),
        Row(what + CHANCE, "none", chance.text(), None, command),
    ]  # fmt: skip


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
    """Gain of pacing with sharing off, and on."""
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
    named = {"mode": "on", "controller": "slack", "run_id": f"lone-{seed}", "world": ranks}
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
        took = [last - arrival + 2.0 for arrival in arrivals]  # of the first of 8 buckets
        whole = last + 16.0
        total += whole
        own = [arrivals[rank] - held[rank] for rank in range(ranks)]
        for rank, pacer in enumerate(pacers):
            first = int(took[rank] * MS)
            pacer.observe(
                StepObservation(
                    step, int(whole * MS), int(own[rank] * MS), first - 2 * MS, MS // 10, first,
                    2 * MS, decisions[rank].delay_ns, slowest=shared,
                )
            )  # fmt: skip
        if chosen.get("sharing"):
            shared = Slowest(step, step, int(max(own) * MS))
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
    """What a rank's pacer and its wait estimate take a step; best of several runs."""
    costs = []
    for _ in range(7):
        pacer = Pacer(PacerSettings(mode="on", run_id="cost", world=4))
        waits, draw = WaitEstimator(), random.Random(1)
        steps = [
            [(1, 1, 1 << 20, n * 100 * MS + b * 3 * MS,
              n * 100 * MS + b * 3 * MS + int(draw.gauss(2, 0.1) * MS), False) for b in range(8)]
            for n in range(3000)
        ]  # fmt: skip
        begin = time.process_time_ns()
        for step, collectives in enumerate(steps):
            wait = waits.step(collectives)
            pacer.decide(step)
            pacer.observe(
                StepObservation(
                    step, 100 * MS, 80 * MS, wait.first_ns, wait.margin_ns, wait.in_flight_ns,
                    wait.floor_lower_ns,
                )
            )  # fmt: skip
        costs.append((time.process_time_ns() - begin) / len(steps) / 1e3)
    return Row("decision of a live rank and its wait estimate, a step of 8 buckets", "<= 10 µs",
               spread(costs).text("µs", 2), spread(costs).median <= 10, COMMAND)  # fmt: skip


#: What of the table is made.
PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "hand-made": _hand_made,
    "random": lambda args: _random(args, JUDGED),
    "rules": lambda args: _random(args, RULES),
    "long": _long,
    "bursts": _bursts,
    "alone": lambda args: [*_lone(args), _shared_start(args), _incast(args)],
    "cost": lambda _: [_decision_cost()],
}
