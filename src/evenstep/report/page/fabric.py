"""Load of adapters (from host counters) or simulated links, places of ranks, errors of clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evenstep.diagnose.measure.hosts import by_device, node_of, rack_of, rates, records_named
from evenstep.trace.clocks.bounds import OffsetLine
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.facts import LEVELS, nearest
from evenstep.trace.spool.layout import Kind
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
