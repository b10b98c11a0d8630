"""What the fabric knows of each job: who has entered, which step it is, what its ranks shared."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.pacing import Plan, Slowest
from lab.fair.messages import Ask, Grant, Report
from lab.scenario import Job, Network

NS_PER_S = 1_000_000_000


def ring_bytes(nbytes: float, ranks: int) -> float:
    """What a ring all-reduce puts on each link it crosses: 2 (n-1)/n of the message."""
    return 2 * (ranks - 1) / ranks * nbytes


def leaf_of(rank: int, job: Job, network: Network) -> int:
    """The leaf of a rank: ranks are dealt out in runs of neighbours."""
    leaves = job.leaves or tuple(range(network.leaves))
    return int(leaves[rank * len(leaves) // job.ranks])


def links_of(job: Job, network: Network) -> tuple[int, ...]:
    """The shared links a job's exchange crosses: the single one, or the uplinks of its leaves.

    A job under one leaf of several crosses none.
    """
    if network.leaves == 1:
        return (0,)
    leaves = sorted({leaf_of(rank, job, network) for rank in range(job.ranks)})
    return tuple(leaves) if len(leaves) > 1 else ()


class JobState:
    """One job as the fabric sees it."""

    def __init__(self, job: Job, links: tuple[int, ...]) -> None:
        self.job = job
        self.links = links
        self.step = 0  # finished by all ranks
        self.started = False
        self._entered: dict[int, Ask] = {}  # of the exchange that is gathering
        self._reports: list[Report] = []
        self._plan: Plan | None = None  # not told yet

    def enter(self, rank: int, ask: Ask) -> bool:
        """A rank has entered its next exchange; whether it was the last of them."""
        self._entered[rank] = ask
        if ask.report.step >= 0:
            self._reports.append(ask.report)
        if ask.plan:
            self._plan = ask.plan
        return len(self._entered) == self.job.ranks

    @property
    def entered_ns(self) -> int:
        """When the last rank entered."""
        return max(ask.sent_ns for ask in self._entered.values())

    @property
    def nbytes(self) -> float:
        """What the exchange puts on each of its links."""
        return ring_bytes(max(ask.nbytes for ask in self._entered.values()), self.job.ranks)

    def leave(self, block: int) -> Grant:
        """The exchange is over; what all ranks are told."""
        last = any(ask.last for ask in self._entered.values())
        self._entered = {}
        self.started = True
        if not last:
            return Grant()
        self.step += 1
        plan, reports = self._plan, self._reports
        self._plan, self._reports = None, []
        return Grant(block, slowest_of(reports), plan)


def slowest_of(reports: Sequence[Report]) -> Slowest | None:
    """The step's slowest rank; None unless all speak of the same step."""
    if len({report.step for report in reports}) != 1:
        return None
    return Slowest(reports[0].step, reports[0].step, max(report.work_ns for report in reports))
