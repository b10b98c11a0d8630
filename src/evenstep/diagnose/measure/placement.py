"""Which ranks share a node or a rack, and how often a ring over them leaves one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenstep.trace.trace import Trace


def node_of(trace: Trace, rank: int) -> str:
    """The rank's host; empty where unknown."""
    return trace.ranks[rank].node if rank in trace.ranks else ""


def rack_of(trace: Trace, rank: int) -> str:
    """The rank's rack, or leaf switch, where the run or the rank's own facts tell it."""
    if rank not in trace.ranks:
        return ""
    info = trace.ranks[rank]
    place: dict[str, Any] = info.facts.get("locality") or {}
    racks: dict[str, Any] = trace.run.get("racks") or {}
    told = place.get("rack") or info.identity.get("rack") or racks.get(info.node)
    return str(told) if told is not None else ""


def crossings(places: Sequence[str]) -> int:
    """Hops of a ring in this order that leave a place."""
    following = [*places[1:], *places[:1]]
    return sum(one != other for one, other in zip(places, following, strict=True))


def fewest_crossings(places: Sequence[str]) -> int:
    """Hops that leave a place when those of a place are neighbours."""
    distinct = len(set(places))
    return distinct if distinct > 1 else 0


def busiest(places: Sequence[str]) -> int:
    """The most hops of a ring in this order that leave any one place."""
    following = [*places[1:], *places[:1]]
    leaving = [one for one, other in zip(places, following, strict=True) if one != other]
    return max((leaving.count(place) for place in set(leaving)), default=0)


def grouped(ranks: Sequence[int], places: Sequence[str]) -> list[int]:
    """The ranks with those of a place as neighbours, places in order of their first rank."""
    order = {place: number for number, place in enumerate(dict.fromkeys(places))}
    pairs = sorted(zip(ranks, places, strict=True), key=lambda pair: order[pair[1]])
    return [rank for rank, _ in pairs]


def links(places: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of places that a ring in this order connects, each once, in order of their names."""
    following = [*places[1:], *places[:1]]
    pairs = [
        (min(one, other), max(one, other))
        for one, other in zip(places, following, strict=True)
        if one != other and one and other
    ]
    return list(dict.fromkeys(pairs))
