"""Checks of a log of NCCL_DEBUG=INFO: network, transports and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenstep.doctor import variables
from evenstep.doctor.check import Check, fine, or_ok, skip, wrong
from evenstep.doctor.host import Host
from evenstep.importers.compression import read_head
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import debug as nccl_debug
from evenstep.words import some

_MOST_WARNINGS = 5


def checks(path: Path, host: Host) -> Iterator[Check]:
    """Check what a log tells. Raises `TraceError` where it cannot be read, or has no line of
    NCCL."""
    facts, place = nccl_debug.read([SourceFile(path, read_head(path))])["nccl"], str(path)
    yield _network(facts, place)
    yield _direct(facts, place)
    yield _check_within(facts, place)
    warned = []
    for one in facts["warnings"][:_MOST_WARNINGS]:
        times = f" ({one['times']} times)" if one["times"] > 1 else ""
        warned.append(wrong("nccl_log.warnings.warned", place=place, text=one["text"], times=times))
    yield from or_ok(warned, fine("nccl_log.warnings", f"none in {place}"))
    yield _whole(facts, place)
    there = host.elsewhere(facts["environment"])
    for check in variables.checks(there):
        if check.why:
            yield replace(check, name=f"nccl_log.{check.name}", found=f"{check.found} in {place}")


def _network(facts: Mapping[str, Any], place: str) -> Check:
    seen = (t.partition("/")[2] for t in facts["transports"] if t.startswith("NET/"))
    said = facts["network"] or next(seen, None)
    adapters = sorted({nic for nics in facts["nics"].values() for nic in nics})
    if said is None:
        why = f"{place} names no network (a job on one node needs none)"
        return skip("nccl_log.network", why)
    if said.lower().startswith("socket"):
        names = adapters or "an interface"
        return wrong("nccl_log.network.sockets", adapters=names, place=place)
    names = some(adapters) or "unnamed adapters"
    return fine("nccl_log.network", f"{said} over {names} in {place}")


def _direct(facts: Mapping[str, Any], place: str) -> Check:
    direct = facts["gpu_direct_rdma"]
    if direct is None:
        return skip("nccl_log.gpu_direct_rdma", f"{place} does not say whether it is used")
    if not direct:
        return wrong("nccl_log.gpu_direct_rdma.off", place=place)
    return fine("nccl_log.gpu_direct_rdma", f"used in {place}")


def _check_within(facts: Mapping[str, Any], place: str) -> Check:
    ways = facts["transports"]
    near = sum(n for way, n in ways.items() if way.startswith("P2P"))
    shared = sum(n for way, n in ways.items() if way.startswith("SHM"))
    if not near and not shared:
        return skip("nccl_log.within_node", f"{place} shows no channel within a node")
    if shared:
        counts = {"shared": shared, "channels": near + shared}
        return wrong("nccl_log.within_node.shared", place=place, **counts)
    return fine("nccl_log.within_node", f"{near} channels, all GPU to GPU in {place}")


def _whole(facts: Mapping[str, Any], place: str) -> Check:
    world, heard = facts["world"], len(facts["ranks"])
    if world and heard < world:
        return wrong("nccl_log.whole.part", place=place, heard=heard, world=world)
    return fine("nccl_log.whole", f"{heard} ranks, NCCL {facts['version'] or 'of unknown version'}")
