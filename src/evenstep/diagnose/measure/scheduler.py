"""Whether ranks had to share cores: from the scheduler's own counters, not from step times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

RUN_DELAY_SHARE = 0.03  # of the time: below it a thread practically always got its core


class Contention(NamedTuple):
    """How much the training threads had to wait for a core."""

    run_delay_share: float  # of wall time, mean over ranks
    runnable: float  # tasks that wanted a core on the worst node, median over time
    cores: float  # that node may use
    node: str
    switches_per_step: float  # involuntary, mean over ranks
    ranks: int  # on that node

    @property
    def recoverable_share(self) -> float:
        """What enough cores would give back for certain, as a share of the time.

        With more ranks than cores, the time they waited for one. With a core for every rank they
        compete with the job's own helpers (transport, autograd), whose work has to be done anyway:
        then only what uneven delays cost the job is counted, elsewhere.
        """
        return self.run_delay_share if self.ranks > self.cores else 0.0

    @property
    def oversubscribed(self) -> bool:
        """More runnable tasks than cores, and threads that waited for one."""
        return self.runnable > self.cores and self.run_delay_share >= RUN_DELAY_SHARE


def contention(trace: Trace, grid: StepGrid) -> Contention | None:
    """The scheduler's view of a run; None where it was not sampled."""
    samples = trace.of_kind(Kind.SAMPLE)
    known = _shares(_of(samples, trace, "cpu.run_delay_ns"))
    cores, running = (
        _of(samples, trace, "cpu.allowed_cores"),
        _of(samples, trace, "cpu.running_tasks"),
    )
    if not known or not len(cores) or not len(running):
        return None
    worst, node, allowed, on_it = -np.inf, "", 0.0, 0
    for name in trace.nodes:
        ranks = [rank for rank, info in trace.ranks.items() if info.node == name]
        wanted = _values(running, ranks) - 1  # the thread that samples is running when it looks
        have = _values(cores, ranks)
        if len(wanted) and len(have) and np.median(wanted) / have[-1] > worst:
            worst, node, allowed = float(np.median(wanted) / have[-1]), name, float(have[-1])
            on_it = len(ranks)
    switches = float(grid.switches.mean()) if grid.switches.size else 0.0
    return Contention(float(np.mean(known)), worst * allowed, allowed, node, switches, on_it)


def _of(samples: Columns, trace: Trace, metric: str) -> Columns:
    number = trace.names.index(metric) if metric in trace.names else -1
    return samples.select(samples.name == number)


def _values(samples: Columns, ranks: list[int]) -> Array:
    """Sampled numbers of some ranks, in order of time."""
    rows = samples.select(np.isin(samples["rank"], ranks)).sorted_by("enter_ns")
    return np.ascontiguousarray(rows.bytes_in).view(np.float64)


def _shares(rows: Columns) -> list[float]:
    """Run-queue delay of each rank's training thread as a share of the time it was sampled in."""
    if not len(rows):
        return []
    if not (np.diff(rows["rank"]) >= 0).all():
        rows = rows.sorted_by("rank", "enter_ns")
    first = np.unique(rows["rank"], return_index=True)[1]
    last = np.append(first[1:], len(rows)) - 1
    values = np.ascontiguousarray(rows.bytes_in).view(np.float64)
    elapsed = (rows.enter_ns[last] - rows.enter_ns[first]).astype(float)
    known = elapsed > 0
    return list((values[last] - values[first])[known] / elapsed[known])
