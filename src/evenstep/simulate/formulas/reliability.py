"""How often a job is interrupted, from how often its parts fail, and what time that leaves.

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
