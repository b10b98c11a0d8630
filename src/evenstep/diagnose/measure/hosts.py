"""The hosts of a run: where its ranks are, and what was sampled there.

Places are nodes and racks with the hops of rings between them, and the layout within a node;
samples are metrics, counters of congestion and traffic, waits for a core, and logged numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence
from evenstep.diagnose.levels import SEVERAL
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.columns import Array, Columns, finishes, key_numbers, rows_by_key
from evenstep.trace.facts import level_order, nearest
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace


def node_of(trace: Trace, rank: int) -> str:
    """The rank's host; empty where unknown."""
    return trace.ranks[rank].node if rank in trace.ranks else ""


def rack_of(trace: Trace, rank: int) -> str:
    """The rank's rack or leaf switch, by its own facts or the run's; empty where unknown."""
    if rank not in trace.ranks:
        return ""
    info = trace.ranks[rank]
    place: dict[str, Any] = info.facts.get("locality") or {}
    racks: dict[str, Any] = trace.run.get("racks") or {}
    rack = place.get("rack") or info.identity.get("rack") or racks.get(info.node)
    return str(rack) if rack is not None else ""


def hops(places: Sequence[str]) -> list[tuple[str, str]]:
    """Hops of a ring in this order between different places: from where, and to where."""
    following = [*places[1:], *places[:1]]
    return [pair for pair in zip(places, following, strict=True) if pair[0] != pair[1]]


def busiest(places: Sequence[str]) -> int:
    """The most hops of a ring in this order that leave any one place."""
    return max(Counter(place for place, _ in hops(places)).values(), default=0)


def group_by_place(ranks: Sequence[int], places: Sequence[str]) -> list[int]:
    """The ranks by place, places in order of their first rank."""
    order = list(dict.fromkeys(places))
    pairs = sorted(zip(ranks, places, strict=True), key=lambda pair: order.index(pair[1]))
    return [rank for rank, _ in pairs]


# -- layout within a node --------------------------------------------------------------------------


class Layout(NamedTuple):
    """Layout of one rank's GPU, adapters and cores. None is unknown."""

    #: GPU's name (without one the processor's), and how many GPUs and adapters its node has
    hardware: tuple[str, int, int]
    local: int  # rank on its node; -1 unknown
    nearest: str | None  # level from its GPU to the nearest adapter
    sharing: int | None  # GPUs of the node per nearest adapter
    far_cores: bool | None  # whether it only runs on cores of another NUMA node than its GPU's
    lanes: tuple[int, int] | None  # PCIe lanes in use, and those there are

    def defects(self, usual: Layout) -> list[str]:
        """What is worse than in the usual layout of the same hardware, in words."""
        found = []
        mine, theirs = self.nearest, usual.nearest
        if mine and theirs and level_order(mine) > level_order(theirs):
            found.append(f"its GPU reaches its nearest adapter over {mine}, others over {theirs}")
        if self.sharing and usual.sharing and self.sharing > usual.sharing:
            found.append(f"{self.sharing} GPUs share its adapter, elsewhere {usual.sharing}")
        if self.far_cores and usual.far_cores is False:
            found.append("it runs on cores of another NUMA node than its GPU's")
        if self.lanes and usual.lanes and self.lanes[0] < usual.lanes[0]:
            found.append(f"its GPU has {self.lanes[0]} PCIe lanes, others {usual.lanes[0]}")
        return found


def layouts(trace: Trace) -> dict[int, Layout]:
    """Layouts of the ranks whose agents recorded them."""
    found = {}
    for rank, info in trace.ranks.items():
        facts = info.facts.get("locality")
        local = info.identity.get("local_rank")
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # facts of another shape
            if isinstance(facts, Mapping):
                found[rank] = _layout(facts, local if isinstance(local, int) else -1)
    return found


def hardware(trace: Trace) -> dict[int, str]:
    """Name of the GPU of each rank, or without one of the processor, where recorded."""
    return {rank: place.hardware[0] for rank, place in layouts(trace).items()}


def _cores_of(trace: Trace, ranks: Sequence[int]) -> set[int]:
    """All cores that any of these ranks of a node may use; empty where unknown."""
    found: set[int] = set()
    for rank in ranks:
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # facts of another shape
            found.update(parse_ranks(trace.ranks[rank].facts["locality"]["cpu"]["allowed"]))
    return found


def _layout(facts: Mapping[str, Any], local: int) -> Layout:
    gpus = {gpu["pci"]: gpu for gpu in facts.get("gpus") or [] if gpu.get("pci")}
    nics = [nic for nic in facts.get("nics") or [] if nic.get("pci")]
    own = facts.get("gpu")
    gpu = gpus.get(own) or {}
    levels = facts.get("gpu_nic") or {}
    lanes = gpu.get("pcie_lanes"), gpu.get("pcie_lanes_max")
    name = str(gpu.get("name") or (facts.get("cpu") or {}).get("model") or "")
    return Layout(
        hardware=(name, len(gpus), len(nics)), local=local,
        nearest=nearest(levels.get(own) or {})[0],
        sharing=_sharing(levels, own) if own in levels else None,
        far_cores=_far(facts, gpu.get("numa_node")),
        lanes=(int(lanes[0]), int(lanes[1])) if lanes[0] and lanes[1] else None,
    )  # fmt: skip


def _sharing(levels: Mapping[str, Mapping[str, str]], own: Any) -> int:
    """GPUs per adapter among GPUs with the same nearest adapters."""
    adapters = set(nearest(levels[own])[1])
    same = sum(set(nearest(other)[1]) == adapters for other in levels.values())
    return -(-same // max(len(adapters), 1))


def _far(facts: Mapping[str, Any], node: Any) -> bool | None:
    """Whether none of the allowed cores is at the NUMA node of the GPU, or without one of the
    adapters; None where the firmware does not tell it or there is only one NUMA node."""
    numa = {entry["node"]: str(entry.get("cpus") or "") for entry in facts.get("numa") or []}
    allowed = (facts.get("cpu") or {}).get("allowed")
    if node is None:
        near = {nic.get("numa_node") for nic in facts.get("nics") or [] if nic.get("pci")}
        node = next(iter(near)) if len(near) == 1 else None
    if node not in numa or len(numa) < 2 or not allowed:
        return None
    return not set(parse_ranks(str(allowed))) & set(parse_ranks(numa[node]))


def usual(places: Mapping[int, Layout]) -> dict[int, Layout]:
    """For each rank the most frequent layout of its peers, the best of equally frequent ones.

    Peers have the same hardware and local rank, or, where these are few, the same hardware.
    """
    alike: dict[Any, list[Layout]] = defaultdict(list)
    for place in places.values():
        alike[place.hardware].append(place)
        alike[place.hardware, place.local].append(place)
    found = {}
    for rank, place in places.items():
        near = alike[place.hardware, place.local]
        found[rank] = _commonest(near if len(near) >= SEVERAL else alike[place.hardware])
    return found


def _commonest(places: list[Layout]) -> Layout:
    count = Counter(place._replace(local=-1) for place in places)

    def order(place: Layout) -> tuple[int, int, int, bool, int]:
        lanes = place.lanes[0] if place.lanes else 0
        distance = level_order(place.nearest or "")
        return -count[place], distance, place.sharing or 0, bool(place.far_cores), -lanes

    return min(count, key=order)


# -- samples and logged numbers --------------------------------------------------------------------


def metric_samples(trace: Trace, metric: str, kind: Kind = Kind.SAMPLE) -> Columns:
    """A metric of all ranks in order of time: rank, step, at_ns (of the rank itself) and value; of
    markers what `evenstep.log(name=value)` recorded."""
    rows = records_named(trace, kind, metric).sorted_by("enter_ns")
    whole = {name: rows[name].astype(np.int64) for name in ("rank", "step")}
    return Columns({**whole, "at_ns": rows.enter_ns, "value": values(rows)})


def records_named(trace: Trace, kind: Kind, name: str) -> Columns:
    rows = trace.of_kind(kind)
    return rows.select(rows.name == (trace.names.index(name) if name in trace.names else -1))


def values(rows: Columns) -> Array:
    """The values that records hold."""
    return np.ascontiguousarray(rows.bytes_in, np.uint64).view(np.float64)


# -- counters --------------------------------------------------------------------------------------

#: Counters of lost, repeated and marked packets: any growth is a sign of congestion.
_CONGESTION = (
    *("tcp.retransmitted_segments", "tcp.timeouts_count", "tcp.delivered_marked_segments"),
    *("ip.received_marked_packets", "nic.receive_dropped_packets", "nic.send_dropped_packets"),
    *("nic.receive_missed_packets", "ib.transmit_wait_ticks", "ib.send_discarded_packets"),
    *("ib.out_of_sequence_packets", "ib.sequence_errors_count", "ib.acknowledge_timeouts_count"),
    *("ib.adaptive_retransmissions_count", "ib.retransmitted_packets"),
    *("ib.receiver_not_ready_count", "ib.out_of_buffer_packets"),
    *("ib.congestion_notices_sent_packets", "ib.congestion_notices_handled_packets"),
    "ib.received_marked_packets",
)


#: Counters of bytes sent and received; the first pair that was sampled is used.
_PORTS = (("ib.sent_bytes", "ib.received_bytes"), ("nic.sent_bytes", "nic.received_bytes"))
MOST_PORTS = 512  # that a summary lists: those of 64 hosts with 8 adapters


def growth(trace: Trace, grid: StepGrid, metric: str) -> Array:
    """Growth of a counter in each step, summed over its devices. (steps, ranks).

    Growth between two samples counts as even; a counter that fell was reset or wrapped and did not
    grow.
    """
    found = np.zeros(grid.shape)
    rows = records_named(trace, Kind.SAMPLE, metric)
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
    parts = map(rows.select, rows_by_key(key_numbers(rows["rank"], rows.device)))
    return [(int(part["rank"][0]), int(part.device[0]), part) for part in parts]


def congestion(trace: Trace, grid: StepGrid, late: Array) -> list[Evidence]:
    """Congestion counters of all ranks that grow more than twice as fast in the `late` steps."""
    seconds = np.maximum([grid.step_ns[part].sum() / 1e9 for part in (late, ~late)], 1e-9)
    found = []
    for metric in (metric for metric in _CONGESTION if metric in trace.names):
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
    names = next((pair for pair in _PORTS if set(pair) & set(trace.names)), ())
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for metric, word in zip(names, ("sent", "received"), strict=False):
        for rank, port, mine in by_device(records_named(trace, Kind.SAMPLE, metric)):
            node = node_of(trace, rank)
            entry = found.setdefault((node, port), {"node": node, "port": port})
            if entry.get(f"{word}_gBps") is None:
                told = rates(mine)
                entry[f"{word}_gBps"] = round(told[0], 6) if told else None
    return [found[key] for key in sorted(found)][:MOST_PORTS]


def rates(rows: Columns) -> tuple[float, float] | None:
    """Mean and highest growth of a counter in bytes per ns, which is GB/s; one that fell was reset.
    None without samples at two times; of those at one time the last counts."""
    rows = rows.select(finishes(rows.enter_ns))
    if len(rows) < 2:
        return None
    grown, took = np.maximum(np.diff(values(rows)), 0), np.diff(rows.enter_ns)
    return float(grown.sum() / took.sum()), float((grown / took).max())


# -- the scheduler ---------------------------------------------------------------------------------

RUN_DELAY_SHARE = 0.03  # of the time: with less, a thread practically always had its core


class Contention(NamedTuple):
    """Waits of training threads for a core."""

    run_delay_share: float  # of the time in steps, that more than half of the ranks wait
    runnable: float  # tasks that wanted a core on the worst node, median over time
    cores: float  # that the worst node may use
    node: str  # the worst
    switches_per_step: float  # involuntary, mean over ranks
    ranks: int  # on the worst node
    own: float  # cores that its ranks there use or wait for; ∞ unknown
    together: float  # the same while they wait for no other rank: then they compute side by side
    children: float  # the same of processes that these started, such as DataLoader workers

    @property
    def due_to(self) -> str:
        """Who takes the cores: the ranks themselves, so that "fewer" would do, "loaders" and other
        processes that they started, or "others" on the node."""
        rest = self.runnable - self.own
        if self.together > self.cores and self.together >= rest:
            return "fewer"
        enough = self.own + self.children <= self.cores
        return "others" if enough or 2 * self.children < rest else "loaders"

    @property
    def oversubscribed(self) -> bool:
        """Whether cores were short for most ranks, however many tasks a few looks saw."""
        return self.run_delay_share >= RUN_DELAY_SHARE


def contention(trace: Trace, grid: StepGrid) -> Contention | None:
    """The contention of a run; None where it was not sampled."""
    spent_ns = grid.duration_ns.sum(axis=0)
    cores, running = (
        metric_samples(trace, f"cpu.{name}") for name in ("allowed_cores", "running_tasks")
    )
    if not spent_ns.all() or not cores or not running:
        return None
    worst, node, allowed, there = -np.inf, "", 0.0, []
    for name in trace.nodes:
        ranks = [rank for rank, info in trace.ranks.items() if info.node == name]
        wanted = running.value[np.isin(running.rank, ranks)] - 1  # but for the thread that samples
        sampled_cores = cores.value[np.isin(cores.rank, ranks)]
        if not len(wanted) or not len(sampled_cores):
            continue
        have = max(float(sampled_cores[-1]), float(len(_cores_of(trace, ranks))))
        if np.median(wanted) / have > worst:
            worst, node, allowed, there = float(np.median(wanted) / have), name, have, ranks
    mine = np.isin(grid.ranks, there)
    wanted_ns = (grid.cpu_ns + grid.run_delay_ns)[:, mine].sum()
    theirs_ns = growth(trace, grid, "cpu.children_ns")[:, mine].sum()
    spent, blocked = (float(ns[:, mine].sum()) for ns in (grid.duration_ns, grid.blocked_ns))
    own, children = (len(there) * float(ns) / spent for ns in (wanted_ns, theirs_ns))
    own = own if grid.cpu_ns.any() else np.inf
    shares = grid.run_delay_ns.sum(axis=0) / spent_ns
    return Contention(
        run_delay_share=float(np.quantile(shares, 0.5, method="lower")), runnable=worst * allowed,
        cores=allowed, node=node, switches_per_step=float(grid.switches.mean()), ranks=len(there),
        own=own, together=own * spent / max(spent - blocked, 1.0), children=children,
    )  # fmt: skip
