"""Sampled metrics, counters and logged numbers: congestion, traffic of ports, waits for a core."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Evidence
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.places import cores_of
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]


class Numbers(NamedTuple):
    """Values with their rank and step, and the rank's own time."""

    rank: Array
    step: Array
    at_ns: Array
    value: Array

    def __bool__(self) -> bool:
        """Whether there are any values."""
        return len(self.value) > 0


def sampled(trace: Trace, metric: str) -> Numbers:
    """A metric of all ranks, in order of time."""
    return _numbers(named(trace, Kind.SAMPLE, metric))


def marked(trace: Trace, name: str) -> Numbers:
    """The values that `evenstep.log(name=value)` recorded, in order of time."""
    return _numbers(named(trace, Kind.MARKER, name))


def named(trace: Trace, kind: Kind, name: str) -> Columns:
    """The records of a kind with this name."""
    rows = trace.of_kind(kind)
    return rows.select(rows.name == (trace.names.index(name) if name in trace.names else -1))


def _numbers(rows: Columns) -> Numbers:
    rows = rows.sorted_by("enter_ns")
    rank, step = rows["rank"].astype(np.int64), rows.step.astype(np.int64)
    return Numbers(rank, step, rows.enter_ns, values(rows))


def values(rows: Columns) -> Array:
    """The values that records hold."""
    return np.ascontiguousarray(rows.bytes_in, np.uint64).view(np.float64)


# -- counters --------------------------------------------------------------------------------------

#: Counters of lost, repeated and marked packets: any growth is a sign of congestion.
CONGESTION = (
    "tcp.retransmitted_segments",
    "tcp.timeouts_count",
    "tcp.delivered_marked_segments",
    "ip.received_marked_packets",
    "nic.receive_dropped_packets",
    "nic.send_dropped_packets",
    "nic.receive_missed_packets",
    "ib.transmit_wait_ticks",
    "ib.send_discarded_packets",
    "ib.out_of_sequence_packets",
    "ib.sequence_errors_count",
    "ib.acknowledge_timeouts_count",
    "ib.adaptive_retransmissions_count",
    "ib.retransmitted_packets",
    "ib.receiver_not_ready_count",
    "ib.out_of_buffer_packets",
    "ib.congestion_notices_sent_packets",
    "ib.congestion_notices_handled_packets",
    "ib.received_marked_packets",
)


#: Counters of bytes sent and received; the first pair that was sampled is used.
PORTS = (("ib.sent_bytes", "ib.received_bytes"), ("nic.sent_bytes", "nic.received_bytes"))
MOST_PORTS = 512


def growth(trace: Trace, grid: StepGrid, metric: str) -> Array:
    """Growth of a counter in each step, summed over its devices. (steps, ranks).

    Growth between two samples counts as even; a counter that fell was reset or wrapped and did not
    grow.
    """
    found = np.zeros(grid.shape)
    rows = named(trace, Kind.SAMPLE, metric)
    rows = rows.select(np.isin(rows["rank"], grid.ranks))
    for rank, _, mine in by_device(rows):
        column = int(np.searchsorted(grid.ranks, rank))
        grown = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(values(mine)), 0))])
        at = grid.clocks.common(mine["rank"], mine.enter_ns)
        ends = np.interp(grid.end_ns[:, column], at, grown)
        found[:, column] += ends - np.interp(grid.start_ns[:, column], at, grown)
    return found


def by_device(rows: Columns) -> list[tuple[int, int, Columns]]:
    """Rank, device and rows of each, in order of time."""
    rows = rows.sorted_by("rank", "device", "enter_ns")
    changed = (np.diff(rows["rank"], prepend=-1) != 0) | (np.diff(rows.device, prepend=-9) != 0)
    edges = np.append(np.flatnonzero(changed), len(rows)).tolist()
    parts = [rows.select(slice(first, last)) for first, last in pairwise(edges)]
    return [(int(part["rank"][0]), int(part.device[0]), part) for part in parts]


def congestion(trace: Trace, grid: StepGrid, late: Array) -> list[Evidence]:
    """Congestion counters of all ranks that grow more than twice as fast in the `late` steps."""
    seconds = np.maximum([grid.step_ns[part].sum() / 1e9 for part in (late, ~late)], 1e-9)
    found = []
    for metric in (metric for metric in CONGESTION if metric in trace.names):
        grown = growth(trace, grid, metric).sum(axis=1)
        rate, calm = np.array([grown[late].sum(), grown[~late].sum()]) / seconds
        if rate > 2 * calm:
            name = f"{metric}_per_second"
            found.append(Evidence(name, float(rate), float(calm), "1/s"))
    return found


def ports(trace: Trace) -> list[dict[str, Any]]:
    """Bytes per second of each port of each node's adapters, where counters were sampled.

    Ports have the numbers of `host.sources`; of several ranks that sample one, the first that has
    done so twice counts.
    """
    names = next((pair for pair in PORTS if set(pair) & set(trace.names)), ())
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for metric, word in zip(names, ("sent", "received"), strict=False):
        for rank, port, mine in by_device(named(trace, Kind.SAMPLE, metric)):
            node = trace.ranks[rank].node if rank in trace.ranks else ""
            entry = found.setdefault((node, port), {"node": node, "port": port})
            if entry.get(f"{word}_gBps") is None:
                entry[f"{word}_gBps"] = _rate(mine)
    return [found[key] for key in sorted(found)][:MOST_PORTS]


def _rate(rows: Columns) -> float | None:
    """Growth of a counter in bytes per ns, which is GB/s; None for one sample; resets count as
    0."""
    if len(rows) < 2 or rows.enter_ns[-1] <= rows.enter_ns[0]:
        return None
    grown = float(np.maximum(np.diff(values(rows)), 0).sum())
    return round(grown / int(rows.enter_ns[-1] - rows.enter_ns[0]), 6)


# -- the scheduler ---------------------------------------------------------------------------------

RUN_DELAY_SHARE = 0.03  # of the time: with less, a thread practically always had its core


class Contention(NamedTuple):
    """Waits of training threads for a core."""

    run_delay_share: float  # of the time in steps, mean over ranks
    runnable: float  # tasks that wanted a core on the worst node, median over time
    cores: float  # that the worst node may use
    node: str  # the worst
    switches_per_step: float  # involuntary, mean over ranks
    ranks: int  # on the worst node
    own: float  # cores that the job's own processes there use or wait for; ∞ unknown

    @property
    def by_others(self) -> bool:
        """Whether the cores would be enough for the job alone."""
        return self.own <= self.cores

    @property
    def recoverable(self) -> bool:
        """Whether enough cores would give back all the time that threads waited for one.

        Where a job has a core for every rank and no other load, ranks compete with the job's own
        helper threads (transport, autograd), whose work remains: then only the cost of uneven
        delays counts, elsewhere.
        """
        return self.by_others or self.ranks > self.cores

    @property
    def oversubscribed(self) -> bool:
        """Whether there were more runnable tasks than cores, and threads waited for one."""
        return self.runnable > self.cores and self.run_delay_share >= RUN_DELAY_SHARE


def contention(trace: Trace, grid: StepGrid) -> Contention | None:
    """The contention of a run; None where it was not sampled."""
    spent_ns = float(grid.duration_ns.sum())
    cores, running = (sampled(trace, f"cpu.{name}") for name in ("allowed_cores", "running_tasks"))
    if not spent_ns or not cores or not running:
        return None
    worst, node, allowed, there = -np.inf, "", 0.0, []
    for name in trace.nodes:
        ranks = [rank for rank, info in trace.ranks.items() if info.node == name]
        wanted = running.value[np.isin(running.rank, ranks)] - 1  # but for the thread that samples
        sampled_cores = cores.value[np.isin(cores.rank, ranks)]
        if not len(wanted) or not len(sampled_cores):
            continue
        have = max(float(sampled_cores[-1]), float(len(cores_of(trace, ranks))))
        if np.median(wanted) / have > worst:
            worst, node, allowed, there = float(np.median(wanted) / have), name, have, ranks
    mine = np.isin(grid.ranks, there)
    wanted_ns = (grid.cpu_ns + grid.run_delay_ns)[:, mine].sum()
    own = len(there) * float(wanted_ns) / float(grid.duration_ns[:, mine].sum())
    return Contention(
        run_delay_share=float(grid.run_delay_ns.sum()) / spent_ns, runnable=worst * allowed,
        cores=allowed, node=node, switches_per_step=float(grid.switches.mean()), ranks=len(there),
        own=own if grid.cpu_ns.any() else np.inf,
    )  # fmt: skip
