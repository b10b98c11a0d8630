"""Where every rank runs, in words, and how well the hosts' clocks are known against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.diagnose.measure.places import node_of, rack_of
from evenstep.trace.clocks.clocks import ClockOffset, Clocks
from evenstep.trace.trace import Trace
from evenstep.words import some_ranks

#: Levels of `evenstep.host.pci`, from near to far.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def places(trace: Trace) -> dict[int, dict[str, str]]:
    """By rank: `node`, and what is known of `rack`, `gpu`, `nic`, `numa` and `cpus`."""
    return {rank: _place(trace, rank) for rank in sorted(trace.ranks)}


def _place(trace: Trace, rank: int) -> dict[str, str]:
    facts = trace.ranks[rank].facts.get("locality")
    known: Mapping[str, Any] = facts if isinstance(facts, Mapping) else {}
    found = {
        "node": node_of(trace, rank),
        "rack": rack_of(trace, rank),
        "gpu": gpu(known),
        "nic": nearest_nic(known),
        "numa": numa(known),
        "cpus": str((known.get("cpu") or {}).get("allowed") or ""),
    }
    return {name: text for name, text in found.items() if text}


def gpu(known: Mapping[str, Any]) -> str:
    """The rank's own GPU: its number, name and address, as far as they are known."""
    index, address = known.get("device"), known.get("gpu")
    names = {one.get("pci"): one.get("name") for one in known.get("gpus") or []}
    parts = [f"GPU {index}"] if index is not None else []
    parts += [str(part) for part in (names.get(address), address) if part]
    return " ".join(parts)


def nearest_nic(known: Mapping[str, Any]) -> str:
    """The adapter nearest to the rank's GPU, and how near; a lone adapter without a GPU."""
    levels = (known.get("gpu_nic") or {}).get(known.get("gpu")) or {}
    near = [name for name in levels if levels[name] in LEVELS]
    if near:
        best = min(near, key=lambda name: (LEVELS.index(levels[name]), name))
        return f"{best} ({levels[best]})"
    real = [nic["name"] for nic in known.get("nics") or [] if nic.get("pci")]
    return str(real[0]) if len(real) == 1 else ""


def numa(known: Mapping[str, Any]) -> str:
    """NUMA node of the rank's GPU; of a host with a single one, that."""
    nodes = {one.get("pci"): one.get("numa_node") for one in known.get("gpus") or []}
    own = nodes.get(known.get("gpu")) if known.get("gpu") else None
    if own is not None and own >= 0:
        return str(own)
    there = known.get("numa") or []
    return str(there[0].get("node")) if len(there) == 1 else ""


# -- clocks ----------------------------------------------------------------------------------------


def hosts(trace: Trace, clocks: Clocks) -> list[dict[str, Any]]:
    """Each clock: `host`, `ranks`, `reference`, and offset, drift and error where it was placed.

    `offset_ns` is that of the middle of the run, to be added to the host's own times;
    `error_ns` the widest the error bar gets; `drift_ppm` None where one point is all there is.
    """
    members: dict[str, list[int]] = {}
    for rank, info in sorted(trace.ranks.items()):
        members.setdefault(info.clock, []).append(rank)
    rows: list[dict[str, Any]] = [
        {
            "host": trace.ranks[ranks[0]].node,
            "ranks": some_ranks(ranks),
            "reference": clock == clocks.reference,
            **_bars(clocks.by_rank.get(ranks[0])),
        }
        for clock, ranks in members.items()
    ]
    widest = max((row["error_ns"] or 0.0 for row in rows), default=0.0)
    return [{**row, "of_widest": _share(row["error_ns"], widest)} for row in rows]


def _share(error_ns: float | None, widest_ns: float) -> float | None:
    """Length of an error bar beside the widest."""
    return None if error_ns is None else error_ns / widest_ns if widest_ns > 0 else 0.0


def _bars(offset: ClockOffset | None) -> dict[str, float | None]:
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
