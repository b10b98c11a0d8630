"""Whether a late rank's own machine is slow, from the probe inside the job (`--probe-every`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import TERMINAL, Evidence, Finding
from evenstep.diagnose.measure.places import layouts, node_of
from evenstep.diagnose.measure.samples import sampled
from evenstep.statistics.outliers import Series, standing
from evenstep.trace.trace import Trace

MEASURED = {
    "compute": "computes",
    "memory": "copies memory",
    "host_copy": "copies between host and device",
}
LEAST = 0.05  # slower by less is not named
FEWEST = 3  # probes of a rank, below which nothing follows from them
RANKS_TOLD = 8


class SlowMachine(NamedTuple):
    """A rank whose machine stands out in one measurement, ns."""

    rank: int
    measured: str
    median_ns: float
    usual_ns: float

    @property
    def slower(self) -> float:
        """By what share of the usual time it takes longer."""
        return self.median_ns / self.usual_ns - 1


def with_probe(trace: Trace, finding: Finding) -> Finding:
    """The finding with what the probe says of its culprits' machines while they were late."""
    ranks = finding.where.ranks
    if not ranks or finding.mode in TERMINAL or not finding.when.steps:
        return finding
    slow = slow_machines(trace, (finding.when.steps[0][0], finding.when.steps[-1][1]))
    late = [one for one in slow if one.rank in ranks[:RANKS_TOLD]]
    if not late:
        return finding
    evidence = [
        Evidence(
            f"probe_{one.measured}_of_rank_{one.rank}",
            round(one.median_ns), round(one.usual_ns), "ns",
        )
        for one in late
    ]  # fmt: skip
    cause = finding.cause + _sentence(trace, late[0], [one.rank for one in slow], len(ranks))
    return replace(finding, cause=cause, evidence=[*finding.evidence, *evidence])


def slow_machines(trace: Trace, steps: tuple[int, int]) -> list[SlowMachine]:
    """Ranks slower in a probe between two steps than peers of the same hardware, slowest first."""
    hardware = {rank: place.hardware[0] for rank, place in layouts(trace).items()}
    found = []
    for measured in MEASURED:
        series = _probed(trace, f"probe.{measured}_ns", steps)
        for name in sorted({hardware.get(rank, "") for rank in series}):
            peers = {rank: one for rank, one in series.items() if hardware.get(rank, "") == name}
            outliers = standing(peers, least=LEAST)
            found += [
                SlowMachine(rank, measured, peers[rank].median_ns, outliers.usual_ns)
                for rank in outliers.factors
            ]
    return sorted(found, key=lambda one: -one.slower)


def _probed(trace: Trace, metric: str, steps: tuple[int, int]) -> Mapping[int, Series]:
    """What each rank's probes measured in these steps, where they are enough."""
    numbers = sampled(trace, metric)
    inside = (numbers.step >= steps[0]) & (numbers.step <= steps[1])
    found = {}
    for rank in np.unique(numbers.rank[inside]).tolist():
        values = numbers.value[inside & (numbers.rank == rank)].tolist()
        if len(values) >= FEWEST:
            found[rank] = Series(tuple(values))
    return found


def _sentence(trace: Trace, first: SlowMachine, slow: list[int], culprits: int) -> str:
    """That the machine is slow, and whether its whole host is."""
    node = node_of(trace, first.rank)
    who = "its own machine" if culprits == 1 else f"rank {first.rank}'s own machine"
    on_it = [rank for rank, info in trace.ranks.items() if info.node == node]
    whole = len(on_it) > 1 and len(trace.nodes) > 1 and set(on_it) <= set(slow)
    host = f" (as all {len(on_it)} ranks of {node})" if whole else f" ({node})" if node else ""
    does, by = MEASURED[first.measured], words.percent(first.slower)
    return f"; {who}{host} {does} {by} slower than its peers in the probe"
