"""Closed forms, before anybody simulates: what failures leave of the time, and a step's parts.

Failures are independent and come at constant rates: a job that needs every part fails at the sum of
their rates. Counts observed on one cluster become rates, and rates give the mean time to failure of
a job of any size.

Goodput is the share of time left for training after checkpoints, failures and slow nodes.
One job on a fixed number of nodes works for `interval_ns`, then writes a checkpoint for `write_ns`.
Failures come at random; each loses the work since the last complete checkpoint, is detected after
`detect_ns`, and the job restarts within `restart_ns`. A share of failures takes a node out for
`repair_ns`; without a spare the job waits for its repair. Slow nodes also come at random: each
slows the job by `slowdown` for `notice_ns`, then is replaced, which costs a restart but no work.

`expected_goodput` is the closed form; the tests hold it against the same job event by event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenstep import checkpoints
from evenstep.scenario.parts import Part

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS


def observed_parts(
    counts: Mapping[str, int], *, nodes: int, days: float,
    per_node: Mapping[str, float] | None = None, software: Sequence[str] = (),
) -> tuple[Part, ...]:  # fmt: skip
    """Parts with the rates that these counts of failures in `days` on `nodes` nodes show."""

    def part(name: str, count: int) -> Part:
        each = (per_node or {}).get(name, 1.0)
        rate = count / (nodes * each * days * 24) * 1e6
        return Part(name=name, failures_per_million_hours=rate, per_node=each,
                    hardware=name not in software)  # fmt: skip

    return tuple(part(name, count) for name, count in counts.items())


def _per_node_day(part: Part) -> float:
    return part.failures_per_million_hours * 24e-6 * part.per_node


def failures_per_day(parts: Sequence[Part], nodes: int) -> float:
    """Interruptions a day of a job on this many nodes."""
    return nodes * math.fsum(_per_node_day(part) for part in parts)


def mtbf_ns(parts: Sequence[Part], nodes: int) -> float:
    """Mean time between interruptions of a job on this many nodes; infinite without failures."""
    return interval_ns(failures_per_day(parts, nodes))


def interval_ns(per_day: float) -> float:
    """Mean time between events of which there are this many a day."""
    return DAY_NS / per_day if per_day > 0 else math.inf


def mttf_ns(per_1000_node_days: float, *, gpus: int, gpus_per_node: int = 8) -> float:
    """Mean time to failure of a job of so many GPUs: 1000/(r N) days (Kokolis et al. 2025).

    The job takes whole nodes.
    """
    return interval_ns(per_1000_node_days / 1000 * math.ceil(gpus / gpus_per_node))


def by_cause(parts: Sequence[Part]) -> dict[str, float]:
    """Share of interruptions by part, largest first."""
    total = failures_per_day(parts, 1) or 1.0
    rates = {part.name: _per_node_day(part) / total for part in parts}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))


@dataclass(slots=True, frozen=True, kw_only=True)
class OperatingConditions:
    """Checkpoints, failures, repairs and slow nodes of a job. Times in nanoseconds."""

    interval_ns: float
    write_ns: float
    mtbf_ns: float
    detect_ns: float = 0.0  # from a failure to its detection
    restart_ns: float = 0.0  # scheduling, starting, loading the checkpoint
    node_share: float = 0.0  # of the failures take a node out; 0 to 1
    repair_ns: float = 0.0
    spares: int = 0
    slow_every_ns: float = math.inf  # mean time between nodes turning slow
    slowdown: float = 1.0  # step time with a slow node ÷ without
    notice_ns: float = 0.0  # from turning slow to being replaced


class Goodput(NamedTuple):
    """Shares of wall time; the six sum to 1. `useful` is the goodput."""

    useful: float
    writing: float  # completed checkpoints
    lost: float  # work and unfinished checkpoints lost to failures
    restarting: float  # including detection
    waiting: float  # for a node, without a spare
    slowed: float  # added by slow nodes
    interruptions_per_day: float

    @property
    def reruns(self) -> float:
        """Share of all work that is repeated."""
        return self.lost / (self.lost + self.useful) if self.useful else 1.0


def expected_goodput(job: OperatingConditions) -> Goodput:
    """Long-run shares by closed form.

    Cycle and restarts as Daly (2006), exact for exponential failures; waiting for a node by
    Erlang's loss formula with spares + 1 repairs at a time (insensitive to how repair times are
    distributed); slow spells as the busy periods of an M/D/∞ queue. The three are put together as
    if they were independent, which holds while each is small.
    """
    waiting = erlang_b(job.spares + 1, job.node_share * job.repair_ns / job.mtbf_ns)
    slow = -math.expm1(-job.notice_ns / job.slow_every_ns) if job.slowdown > 1 else 0.0
    stretch = 1 + slow * (job.slowdown - 1) / (slow + (1 - slow) * job.slowdown)
    base = checkpoints.shares(
        job.write_ns, job.mtbf_ns, interval=job.interval_ns * stretch,
        restart=job.detect_ns + job.restart_ns,
    )  # fmt: skip
    swaps = (1 - slow) / job.slow_every_ns if job.slowdown > 1 else 0.0
    planned = swaps * job.restart_ns / (1 + swaps * job.restart_ns)
    running = (1 - waiting) * (1 - planned)
    return Goodput(
        useful=base.useful / stretch * running,
        writing=base.writing * running,
        lost=base.lost * running,
        restarting=base.down * running + planned * (1 - waiting),
        waiting=waiting,
        slowed=base.useful * (1 - 1 / stretch) * running,
        interruptions_per_day=DAY_NS / job.mtbf_ns * (1 - waiting),
    )


def erlang_b(servers: int, load: float) -> float:
    """Erlang's loss formula: the share of time in which all servers are busy (Erlang 1917)."""
    blocked, server = 1.0, 0
    while blocked and server < servers:  # nobody waits for servers beyond those that are ever busy
        server += 1
        blocked = load * blocked / (server + load * blocked)
    return blocked


# -- one training step -----------------------------------------------------------------------------
# Overlap, exposed communication, scaling efficiency; and the slowest of n, what a synchronous step
# waits for: n ranks draw independently from one distribution. Any one unit of time.

#: Half-width and step of the quadrature, in standard deviations: the trapezoidal rule converges
#: exponentially for such integrands, and beyond 12 there is nothing even for 10^9 ranks.
_REACH, _STEP = 12.0, 1 / 64


class Step(NamedTuple):
    """A step and what of its communication nothing hides."""

    time: float
    exposed: float

    @property
    def efficiency(self) -> float:
        """Share of the step that is compute."""
        return 1 - self.exposed / self.time


def overlapped_step(*, forward: float, backward: float, transfer: float, buckets: int) -> Step:
    """A data-parallel step whose gradients leave in equal buckets as backward produces them.

    Bucket i of b is ready at i·B/b and the transfers queue, so the last ends at
    max(B + m/b, B/b + m) after backward began (Li et al. 2020, section 3.2.3, with equal buckets).
    """
    end = max(backward + transfer / buckets, backward / buckets + transfer)
    return Step(forward + end, forward + end - (forward + backward))


def serial(*, compute: float, transfer: float, hidden: float = 0.0) -> Step:
    """A step whose communication follows compute; `hidden` of it, a share, is overlapped."""
    exposed = transfer * (1 - hidden)
    return Step(compute + exposed, exposed)


def transformer_flops(parameters: float, tokens: float, *, recomputed: bool = False) -> float:
    """6PD, 8PD where activations are recomputed (Kaplan et al. 2020; Narayanan et al. 2021)."""
    return (8 if recomputed else 6) * parameters * tokens


def megatron_flops(
    tokens: float, *, layers: int, hidden: int, sequence: int, vocabulary: int,
    recomputed: bool = False,
) -> float:  # fmt: skip
    """24 p t l h² (1 + s/(6h) + V/(4plh)) of p passes, a backward pass being two: 3, or 4 where
    layers recompute their activations, as the source counts (Narayanan et al. 2021)."""
    passes = 4 if recomputed else 3
    ratio = 1 + sequence / (6 * hidden) + vocabulary / (4 * passes * layers * hidden)
    return 24 * passes * tokens * layers * hidden**2 * ratio


def pipeline(
    micro_batches: int, *, stages: int, interleaved: int = 1, per_micro_batch: float
) -> float:
    """Time of a 1F1B pipeline: (m + (p−1)/v) t (Narayanan et al. 2021, section 2.2)."""
    return (micro_batches + (stages - 1) / interleaved) * per_micro_batch


def normal_exact(n: int) -> float:
    """E[X_(n)], the largest of n standard normal draws: ∫ x n Φ^(n−1) φ dx by quadrature."""
    total = 0.0
    for index in range(int(2 * _REACH / _STEP) + 1):
        x = index * _STEP - _REACH
        log_density = math.log(n) - x * x / 2 - math.log(math.sqrt(2 * math.pi))
        total += x * math.exp(log_density + (n - 1) * _log_below(x)) * _STEP
    return total


def _log_below(x: float) -> float:
    """log Φ(x), accurate in both tails."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    return math.log(math.erfc(-x / math.sqrt(2)) / 2)


class RareHit(NamedTuple):
    """A step of n ranks, each of which is delayed by D with probability p."""

    chance: float  # q: at least one rank is hit
    mean: float  # c + D q
    cv: float  # population standard deviation ÷ mean


def rare_hit(n: int, *, compute: float, delay: float, probability: float) -> RareHit:
    """The step time: c + D(1−(1−p)^n), CV = D√(q(1−q))/(c+Dq) with q = 1−(1−p)^n (Bernoulli)."""
    q = 1.0 if probability == 1 else -math.expm1(n * math.log1p(-probability))
    mean = compute + delay * q
    return RareHit(q, mean, delay * math.sqrt(q * (1 - q)) / mean)
