"""Load of adapters (from host counters) or simulated links, places of ranks, errors of clocks, and
transfer times by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Link
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.hosts import by_device, node_of, rack_of, rates, records_named
from evenstep.diagnose.measure.transfers import RINGS, Shape, reference
from evenstep.diagnose.modes.placement import hierarchical
from evenstep.report.page.sheet import Chart
from evenstep.trace.clocks.bounds import OffsetLine
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns
from evenstep.trace.facts import LEVELS, nearest
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Trace
from evenstep.words import ranks as named

#: Byte counters: list of their devices in `locality`, key of the speed there, direction.
COUNTERS = {
    "nic.sent_bytes": ("nics", "speed_gbps", "sent"),
    "nic.received_bytes": ("nics", "speed_gbps", "received"),
    "ib.sent_bytes": ("ib_ports", "rate_gbps", "sent"),
    "ib.received_bytes": ("ib_ports", "rate_gbps", "received"),
}
LISTED = 64
QUIET_GBPS = 1e-5  # GB/s: below this an adapter is idle


class Load(NamedTuple):
    """The load of a link in one direction, in GB/s; None is unknown."""

    node: str  # "" for a link between nodes
    link: str
    mean_gBps: float  # noqa: N815
    peak_gBps: float  # noqa: N815 - between two samples; in the fullest moment of a simulation
    capacity_gBps: float | None  # noqa: N815
    others_share: float | None  # share of other jobs in the bytes it carried

    @property
    def share(self) -> float | None:
        return self.mean_gBps / self.capacity_gBps if self.capacity_gBps else None


def loads(trace: Trace) -> list[Load]:
    """Load of adapters that were not idle, busiest first; of the ranks that read an adapter, the
    one with most samples counts."""
    read: dict[tuple[str, str, int], tuple[int, Columns]] = {}
    for counter in COUNTERS:
        for rank, device, rows in by_device(records_named(trace, Kind.SAMPLE, counter)):
            place = node_of(trace, rank), counter, device
            if place not in read or len(rows) > len(read[place][1]):
                read[place] = rank, rows
    found = []
    for (node, counter, device), (rank, rows) in read.items():
        used, (listed, speed, way) = rates(rows), COUNTERS[counter]
        if not used or used[0] <= QUIET_GBPS:
            continue
        known: dict[str, Any] = trace.ranks[rank].facts.get("locality") or {}
        adapters: list[dict[str, Any]] = known.get(listed) or []
        adapter = next((one for one in adapters if one.get("index") == device), {})
        name = adapter.get("name") or f"{listed[:-1].replace('_', ' ')} {device}"
        capacity = adapter[speed] / 8 if adapter.get(speed) else None
        found.append(Load(node, f"{name} {way}", *used, capacity, None))
    return _busiest(found)


def simulated_load(links: Iterable[Mapping[str, Any]]) -> list[Load]:
    """Return the load of simulated links, given as in the JSON of a simulation."""
    found = []
    for link in links:
        most = link["capacity_gBps"]
        others = link["others_bytes"] / link["bytes"] if link["bytes"] else None
        used = link["utilisation"] * most, link["peak"] * most
        found.append(Load("", str(link["link"]), *used, most, others))
    return _busiest(found)


def _busiest(found: Iterable[Load]) -> list[Load]:
    return sorted(found, key=lambda load: (-(load.share or 0.0), -load.mean_gBps))[:LISTED]


# -- places ----------------------------------------------------------------------------------------


def places(trace: Trace) -> dict[int, dict[str, str]]:
    """Return `node` and, if known, `rack`, `gpu`, `nic`, `numa` and `cpus` of each rank."""
    found = {}
    for rank in sorted(trace.ranks):
        known: dict[str, Any] = trace.ranks[rank].facts.get("locality") or {}
        place = {
            "node": node_of(trace, rank),
            "rack": rack_of(trace, rank),
            "gpu": gpu(known),
            "nic": nearest_nic(known),
            "numa": numa(known),
            "cpus": str((known.get("cpu") or {}).get("allowed") or ""),
        }
        found[rank] = {name: text for name, text in place.items() if text}
    return found


def gpu(known: Mapping[str, Any]) -> str:
    """Describe the rank's GPU by number, name and PCI address, as far as known."""
    index, address = known.get("device"), known.get("gpu")
    names = {one.get("pci"): one.get("name") for one in known.get("gpus") or []}
    parts = [f"GPU {index}"] if index is not None else []
    parts += [str(part) for part in (names.get(address), address) if part]
    return " ".join(parts)


def nearest_nic(known: Mapping[str, Any]) -> str:
    """Describe the adapter nearest to the rank's GPU; without a GPU, the only adapter."""
    level, names = nearest((known.get("gpu_nic") or {}).get(known.get("gpu")) or {})
    if level in LEVELS:
        return f"{min(names)} ({level})"
    real = [nic["name"] for nic in known.get("nics") or [] if nic.get("pci")]
    return str(real[0]) if len(real) == 1 else ""


def numa(known: Mapping[str, Any]) -> str:
    """Return the NUMA node of the rank's GPU, or the only NUMA node of the host."""
    nodes = {one.get("pci"): one.get("numa_node") for one in known.get("gpus") or []}
    own = nodes.get(known.get("gpu")) if known.get("gpu") else None
    if own is not None and own >= 0:
        return str(own)
    there = known.get("numa") or []
    return str(there[0].get("node")) if len(there) == 1 else ""


# -- clocks ----------------------------------------------------------------------------------------


def hosts(trace: Trace, clocks: Clocks) -> list[dict[str, Any]]:
    """Each clock: `host`, `ranks`, `reference`, `offset_ns` to add to its times in the middle of
    the run, largest `error_ns` and `drift_ppm` (None with a single point)."""
    members: dict[str, list[int]] = {}
    for rank, info in sorted(trace.ranks.items()):
        members.setdefault(info.clock, []).append(rank)
    rows: list[dict[str, Any]] = [
        {
            "host": trace.ranks[ranks[0]].node,
            "ranks": named(ranks).partition(" ")[2],
            "reference": clock == clocks.reference,
            **_bars(clocks.by_rank.get(ranks[0])),
        }
        for clock, ranks in members.items()
    ]
    widest = max((row["error_ns"] or 0.0 for row in rows), default=0.0) or 1.0
    for row in rows:  # the length of an error bar relative to the widest
        row["of_widest"] = None if row["error_ns"] is None else row["error_ns"] / widest
    return rows


def _bars(offset: OffsetLine | None) -> dict[str, float | None]:
    if offset is None:
        return {"offset_ns": None, "error_ns": None, "drift_ppm": None}
    middle = len(offset.offset_ns) // 2
    lasted = float(offset.at_ns[-1] - offset.at_ns[0])
    change = float(offset.offset_ns[-1] - offset.offset_ns[0])
    return {
        "offset_ns": float(offset.offset_ns[middle]),
        "error_ns": float(offset.error_ns.max()),
        "drift_ppm": 1e6 * change / lasted if lasted > 0 else None,
    }


# -- sizes -----------------------------------------------------------------------------------------
# The curves use the latency of the measured floors (as a ring's) and the best known bandwidth: of
# nccl-tests, of the adapters, else of the run itself.

SHAPES = 6  # those with the longest transfers
POINTS = 4000  # per shape
CURVE_POINTS = 48
MARGIN = 4.0  # factor of the curves beyond the measured sizes
_NO_LATENCY = "zero latency, since sizes this similar do not show it"
ALGORITHMS = ("ring", "tree", "hierarchical")


def sizes(case: Case) -> Chart | None:
    """Return the data of the chart; None if transfers cannot be told from waits.

    `points`: shape, size_bytes, time_us. `floors`: the same for the floor of each size. `curves`:
    shape, algorithm (index into `algorithms`), size_bytes, time_us. `sizes`: the name of each
    shape, and bandwidth and latency of its curves in words.
    """
    if not len(case.grid.steps) or not case.transfers_known:
        return None
    shown = [shape for shape in case.shapes if _drawable(case, shape).any()][:SHAPES]
    if not shown:
        return None
    expected = [_curves(case, number, shape) for number, shape in enumerate(shown)]
    tables = {
        "points": [_points(case, *item) for item in enumerate(shown)],
        "floors": [_table(n, s.sizes, s.floors_ns) for n, s in enumerate(shown)],
        "curves": [table for table, _ in expected],
    }
    names = (shape.name.replace("_", "-") for shape in shown)
    words = (text for _, text in expected)
    named = [{"name": n, "rests_on": text} for n, text in zip(names, words, strict=True)]
    joined = {name: Columns.concatenate(parts) for name, parts in tables.items()}
    return Chart(joined, {"sizes": named, "algorithms": ALGORITHMS})


def _drawable(case: Case, shape: Shape) -> Array:
    """Return the mask of transfers that fit on logarithmic axes."""
    rows = case.transfers.rows
    return np.asarray(shape.rows & (rows.size_bytes > 0) & (rows.transfer_ns > 0))


def _points(case: Case, number: int, shape: Shape) -> Columns:
    """Return the transfers of a shape, or every n-th if there are too many."""
    rows = np.flatnonzero(_drawable(case, shape))
    rows = rows[:: -(-len(rows) // POINTS)]
    table = case.transfers.rows
    return _table(number, table.size_bytes[rows], table.transfer_ns[rows])


def _table(number: int, size_bytes: Array, time_ns: Array) -> Columns:
    return Columns(
        {
            "shape": np.full(len(size_bytes), number, np.uint8),
            "size_bytes": np.asarray(size_bytes, np.float64),
            "time_us": (np.asarray(time_ns, np.float64) / 1e3).astype(np.float32),
        }
    )


def _curves(case: Case, number: int, shape: Shape) -> tuple[Columns, str]:
    """Return expected times over the measured sizes, and their bandwidth and latency in words."""
    measured = case.transfers.rows.size_bytes[_drawable(case, shape)]
    low, high = float(measured.min()) / MARGIN, float(measured.max()) * MARGIN
    size = np.geomspace(max(low, 1.0), high, CURVE_POINTS)
    known = reference(case.trace, shape, case.shapes)
    if shape.op not in RINGS or shape.members < 2 or max(shape.busbw_gBps, 0) <= 0:
        none = _table(0, size[:0], size[:0]).with_column("algorithm", np.zeros(0, np.uint8))
        return none, "no closed form for this operation"
    gBps = max(known.gBps, shape.busbw_gBps) if known else shape.busbw_gBps  # noqa: N806
    passes = 2 if shape.op == int(Op.ALL_REDUCE) else 1
    latency = shape.line.alpha_ns if shape.line is not None else 0.0
    alpha = latency / (passes * (shape.members - 1))
    parts = [
        _table(number, size, time).with_column("algorithm", np.full(len(size), at, np.uint8))
        for at, time in enumerate(_expected_times(case, shape, size, alpha, gBps))
        if time is not None
    ]
    source = known.source if known and known.gBps > shape.busbw_gBps else "the best of this run"
    delay = f"{alpha / 1e3:.3g} µs a message" if shape.line is not None else _NO_LATENCY
    return Columns.concatenate(parts), f"{gBps:.3g} GB/s ({source}) and {delay}"


def _expected_times(
    case: Case,
    shape: Shape,
    size: Array,
    alpha_ns: float,
    gBps: float,  # noqa: N803
) -> list[Array | None]:
    """Return the times of `ALGORITHMS`; None where one does not apply."""
    n, link = shape.members, Link(gBps, alpha_ns)
    ring = allreduce.ring(1.0, n, link).grown(size)
    if shape.op != int(Op.ALL_REDUCE):
        return [ring / 2, None, None]  # half of an all-reduce, for which alone others have forms
    layers = shape.nodes > 1 and n >= 2 * shape.nodes
    layered = hierarchical(case, shape, 1.0, link).grown(size) if layers else None
    return [ring, allreduce.double_tree(1.0, n, link).grown(size), layered]
