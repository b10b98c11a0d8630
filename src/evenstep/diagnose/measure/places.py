"""Places of ranks: nodes, racks, hops of rings between them, and the layout within a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from evenstep.diagnose.levels import SEVERAL
from evenstep.trace.ranks import parse_ranks
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


def fewest_crossings(places: Sequence[str]) -> int:
    """Hops between places when the ranks of each place are neighbours."""
    distinct = len(set(places))
    return distinct if distinct > 1 else 0


def busiest(places: Sequence[str]) -> int:
    """The most hops of a ring in this order that leave any one place."""
    return max(Counter(place for place, _ in hops(places)).values(), default=0)


def grouped(ranks: Sequence[int], places: Sequence[str]) -> list[int]:
    """The ranks by place, places in order of their first rank."""
    order = {place: number for number, place in enumerate(dict.fromkeys(places))}
    pairs = sorted(zip(ranks, places, strict=True), key=lambda pair: order[pair[1]])
    return [rank for rank, _ in pairs]


def links(places: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of places that a ring in this order connects, each once, in order of their names."""
    pairs = [(min(pair), max(pair)) for pair in hops(places) if all(pair)]
    return list(dict.fromkeys(pairs))


# -- layout within a node --------------------------------------------------------------------------


#: Levels of `nvidia-smi topo -m`, from near to far.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


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
        if self.nearest and usual.nearest and _level(self.nearest) > _level(usual.nearest):
            found.append(
                f"its GPU reaches its nearest adapter over {self.nearest}, others over "
                f"{usual.nearest}"
            )
        if self.sharing and usual.sharing and self.sharing > usual.sharing:
            found.append(f"{self.sharing} GPUs share its adapter, elsewhere {usual.sharing}")
        if self.far_cores and usual.far_cores is False:
            found.append("it runs on cores of another NUMA node than its GPU's")
        if self.lanes and usual.lanes and self.lanes[0] < usual.lanes[0]:
            found.append(f"its GPU has {self.lanes[0]} PCIe lanes, others {usual.lanes[0]}")
        return found


def _level(name: str) -> int:
    return LEVELS.index(name) if name in LEVELS else len(LEVELS)


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


def cores_of(trace: Trace, ranks: Sequence[int]) -> set[int]:
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
        nearest=_nearest(levels.get(own) or {})[0],
        sharing=_sharing(levels, own) if own in levels else None,
        far_cores=_far(facts, gpu.get("numa_node")),
        lanes=(int(lanes[0]), int(lanes[1])) if lanes[0] and lanes[1] else None,
    )  # fmt: skip


def _nearest(levels: Mapping[str, str]) -> tuple[str | None, frozenset[str]]:
    """The nearest level, and the adapters at it."""
    if not levels:
        return None, frozenset()
    best = min(levels.values(), key=_level)
    return best, frozenset(name for name, level in levels.items() if level == best)


def _sharing(levels: Mapping[str, Mapping[str, str]], own: Any) -> int:
    """GPUs per adapter among GPUs with the same nearest adapters."""
    _, adapters = _nearest(levels[own])
    same = sum(_nearest(other)[1] == adapters for other in levels.values())
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
    by_local: dict[Any, list[Layout]] = {}
    by_hardware: dict[Any, list[Layout]] = {}
    for place in places.values():
        by_local.setdefault((place.hardware, place.local), []).append(place)
        by_hardware.setdefault(place.hardware, []).append(place)
    found = {}
    for rank, place in places.items():
        near = by_local[place.hardware, place.local]
        found[rank] = _commonest(near if len(near) >= SEVERAL else by_hardware[place.hardware])
    return found


def _commonest(places: list[Layout]) -> Layout:
    count = Counter(place._replace(local=-1) for place in places)
    return min(count, key=lambda place: (-count[place], _badness(place)))


def _badness(place: Layout) -> tuple[int, int, bool, int]:
    lanes = place.lanes[0] if place.lanes else 0
    return _level(place.nearest or ""), place.sharing or 0, bool(place.far_cores), -lanes
