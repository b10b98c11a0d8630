"""Where every rank runs: its node, GPU, nearest network adapter and NUMA node, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.diagnose.measure.places import node_of, rack_of
from evenstep.trace.trace import Trace

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
