"""What the fabric carried: adapters by the counters their hosts kept, links of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.measure.places import node_of
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

#: Counters of bytes: the list in `locality` whose `index` is their device, its speed, what they say
COUNTERS = {
    "nic.sent_bytes": ("nics", "speed_gbps", "sent"),
    "nic.received_bytes": ("nics", "speed_gbps", "received"),
    "ib.sent_bytes": ("ib_ports", "rate_gbps", "sent"),
    "ib.received_bytes": ("ib_ports", "rate_gbps", "received"),
}
LISTED = 64
QUIET_GBPS = 1e-5  # GB/s: what an idle adapter hears is no load


class LinkMap(NamedTuple):
    """A simulated fabric with the load of its links, as `simulate.job.fabric_map` has it."""

    facts: Mapping[str, Any]
    bundles: Columns


class Load(NamedTuple):
    """What one link carried in one direction, in GB/s; None is unknown."""

    node: str  # "" for a link between nodes
    link: str
    mean_gBps: float  # noqa: N815
    peak_gBps: float  # noqa: N815 - between two samples; in the fullest moment of a simulation
    capacity_gBps: float | None  # noqa: N815
    others_share: float | None  # of what it carried, that of other jobs

    @property
    def share(self) -> float | None:
        """Of its capacity, on average."""
        return self.mean_gBps / self.capacity_gBps if self.capacity_gBps else None


def loads(trace: Trace) -> list[Load]:
    """Adapters that carried something, the busiest first; a host's counters are read once."""
    numbers = {trace.names.index(name): name for name in COUNTERS if name in trace.names}
    if not numbers:
        return []
    rows = trace.of_kind(Kind.SAMPLE)
    rows = rows.select(np.isin(rows.name, list(numbers)))
    found: list[Load] = []
    for rank in _witnesses(trace, rows):
        mine = rows.select(rows["rank"] == rank).sorted_by("name", "device", "enter_ns")
        found += _of_rank(trace, rank, mine, numbers)
    return _busiest(load for load in found if load.mean_gBps > QUIET_GBPS)


def simulated(links: Iterable[Mapping[str, Any]]) -> list[Load]:
    """The same of the links a simulation names, as its JSON has them."""
    return _busiest(
        Load(
            "",
            str(link["link"]),
            link["utilisation"] * link["capacity_gBps"],
            link["peak"] * link["capacity_gBps"],
            link["capacity_gBps"],
            link["others_bytes"] / link["bytes"] if link["bytes"] else None,
        )
        for link in links
    )


def _busiest(found: Iterable[Load]) -> list[Load]:
    """By share of the capacity, then by what was carried."""
    ordered = sorted(found, key=lambda load: (-(load.share or 0.0), -load.mean_gBps))
    return ordered[:LISTED]


def _witnesses(trace: Trace, rows: Columns) -> list[int]:
    """Of each node the rank with most samples."""
    ranks, counts = np.unique(rows["rank"], return_counts=True)
    most: dict[str, tuple[int, int]] = {}
    for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True):
        node = node_of(trace, rank)
        most[node] = max(most.get(node, (0, 0)), (count, -rank))
    return [-rank for _, rank in most.values()]


def _of_rank(trace: Trace, rank: int, rows: Columns, numbers: Mapping[int, str]) -> Iterator[Load]:
    changed = (np.diff(rows.name.astype(int), prepend=-1) != 0) | (
        np.diff(rows.device.astype(int), prepend=-9) != 0
    )
    known = trace.ranks[rank].facts.get("locality")
    locality: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    for first, last in pairwise(np.append(np.flatnonzero(changed), len(rows)).tolist()):
        if last - first < 2:
            continue
        part = rows.select(slice(first, last))
        listed, speed, way = COUNTERS[numbers[int(part.name[0])]]
        device = int(part.device[0])
        places: list[dict[str, Any]] = locality.get(listed) or []
        place = next((one for one in places if one["index"] == device), {})
        mean, peak = _rates(part)
        name = place.get("name") or f"{listed[:-1].replace('_', ' ')} {device}"
        capacity = place[speed] / 8 if place.get(speed) else None
        yield Load(node_of(trace, rank), f"{name} {way}", mean, peak, capacity, None)


def _rates(rows: Columns) -> tuple[float, float]:
    """Mean and highest rate in bytes a nanosecond; a counter that fell was reset."""
    values = np.ascontiguousarray(rows.bytes_in).view(np.float64)
    grown, took = np.maximum(np.diff(values), 0), np.maximum(np.diff(rows.enter_ns), 1)
    return float(grown.sum() / took.sum()), float((grown / took).max())
