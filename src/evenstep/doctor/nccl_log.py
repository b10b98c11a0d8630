"""What a log with NCCL_DEBUG=INFO says about how NCCL found this fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evenstep.doctor import contradictions, variables
from evenstep.doctor.check import Check, Subject, listed, or_ok
from evenstep.doctor.host import Host
from evenstep.errors import UsageError
from evenstep.importers.content import SourceFile, content
from evenstep.importers.nccl import debug as nccl_debug

_NETWORK = Subject("nccl_log.network", "NCCL user guide, Logging")
_DIRECT = Subject("nccl_log.gpu_direct_rdma", "NCCL user guide, GPU-to-NIC communication")
_WITHIN = Subject("nccl_log.within_node", "NCCL user guide, GPU-to-GPU communication")
_WARNINGS = Subject("nccl_log.warnings", "NCCL user guide, Troubleshooting")
_WHOLE = Subject("nccl_log.whole", "evenstep's reader of these logs")
_HEAD_BYTES = 65_536
_MOST_WARNINGS = 5
MOST_BYTES = 1_000_000_000


def load(path: Path) -> dict[str, Any]:
    """The facts in a log. Raises `UsageError` where NCCL says nothing in it."""
    try:
        head = content(path, MOST_BYTES)[:_HEAD_BYTES]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    read = nccl_debug.read([SourceFile(path, head)], lambda *_: None)
    facts: dict[str, Any] = read["nccl"]
    return facts


def checks(facts: Mapping[str, Any], place: str, host: Host) -> Iterator[Check]:
    """What is wrong in them."""
    yield _network(facts, place)
    yield _direct(facts, place)
    yield _within(facts, place)
    yield from or_ok(_warnings(facts, place), _WARNINGS.ok(f"none in {place}"))
    yield _whole(facts, place)
    yield from _settings(facts, place, host)


def _network(facts: Mapping[str, Any], place: str) -> Check:
    said = facts["network"] or next(
        (t.partition("/")[2] for t in facts["transports"] if t.startswith("NET/")), None
    )
    adapters = sorted({nic for nics in facts["nics"].values() for nic in nics})
    if said is None:
        return _NETWORK.skipped(f"{place} names no network (a job on one node needs none)")
    if said.lower().startswith("socket"):
        return _NETWORK.warning(
            f"NCCL used TCP sockets over {listed(adapters) or 'an interface'} in {place}",
            "no RDMA adapter or plugin was found or let: bandwidth costs cores, latency is tens "
            "of microseconds",
            "ibstat shows the adapters; libibverbs and a network plugin must be in the container",
        )
    return _NETWORK.ok(f"{said} over {listed(adapters) or 'adapters it does not name'} in {place}")


def _direct(facts: Mapping[str, Any], place: str) -> Check:
    direct = facts["gpu_direct_rdma"]
    if direct is None:
        return _DIRECT.skipped(f"{place} does not say whether it is used")
    if not direct:
        return _DIRECT.warning(
            f"not used in {place}",
            "every byte between nodes passes through host memory",
            "modprobe nvidia-peermem; NCCL_NET_GDR_LEVEL=SYS if GPUs and adapters are far apart",
        )
    return _DIRECT.ok(f"used in {place}")


def _within(facts: Mapping[str, Any], place: str) -> Check:
    ways = facts["transports"]
    near = sum(n for way, n in ways.items() if way.startswith("P2P"))
    shared = sum(n for way, n in ways.items() if way.startswith("SHM"))
    if not near and not shared:
        return _WITHIN.skipped(f"{place} shows no channel within a node")
    if shared:
        return _WITHIN.warning(
            f"{shared} of {near + shared} channels within nodes use shared memory in {place}",
            "these GPUs cannot, or may not, reach each other's memory directly",
            "nvidia-smi topo -p2p n; check NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and ACS",
        )
    return _WITHIN.ok(f"{near} channels, all GPU to GPU in {place}")


def _warnings(facts: Mapping[str, Any], place: str) -> Iterator[Check]:
    for one in facts["warnings"][:_MOST_WARNINGS]:
        times = f" ({one['times']} times)" if one["times"] > 1 else ""
        yield _WARNINGS.warning(
            f"{place}: {one['text']}{times}",
            "NCCL warns when a call has failed or it goes on with less",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET shows what came before it",
        )


def _whole(facts: Mapping[str, Any], place: str) -> Check:
    world, heard = facts["world"], len(facts["ranks"])
    if world and heard < world:
        return _WHOLE.advice(
            f"{place} has lines of {heard} of {world} ranks",
            "what is wrong on the others does not show",
            "NCCL_DEBUG_FILE=nccl.%h.%p.log on all ranks; give them joined: cat nccl.*.log",
        )
    return _WHOLE.ok(f"{heard} ranks, NCCL {facts['version'] or 'of a version it does not tell'}")


def _settings(facts: Mapping[str, Any], place: str, host: Host) -> Iterator[Check]:
    """The variables its processes had, judged like this host's."""
    there = host.elsewhere(facts["environment"])
    for check in (*variables.checks(there), *contradictions.checks(there)):
        if check.why:
            yield Subject(f"nccl_log.{check.name}", check.source).of(
                check.severity, f"{check.found} in {place}", check.why, check.mend
            )
