"""Checks of network adapters: up, equally fast, with one MTU, without losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, fine, or_ok, skip, wrong
from evenstep.doctor.host import Host
from evenstep.host.locality import locality
from evenstep.host.sources.nic import InfinibandSource, ports
from evenstep.host.sources.source import SourceUnavailable
from evenstep.words import some

_FAST_GBPS = 25.0  # from here on small packets cost noticeable CPU time
_ETHERNET_MTU, _JUMBO_MTU = 1_500, 9_000
_LOST_SHARE = 1e-5  # of packets: TCP's throughput falls with the square root of the loss
#: Interfaces within the host: loopback, containers, virtual machines, queues.
_INTERNAL = (
    "lo", "docker", "veth", "virbr", "vnet", "br-", "cni", "flannel", "cali", "cilium", "kube",
    "ifb", "dummy", "tun", "tap",
)  # fmt: skip

#: Counters of RDMA ports (evenstep's names) for errors of the link, and for losses.
_LINK_COUNTERS = (
    "ib.symbol_errors_count", "ib.link_downed_count", "ib.link_recovered_count",
    "ib.receive_error_packets",
)  # fmt: skip
_LOSS_COUNTERS = (
    "ib.out_of_sequence_packets", "ib.sequence_errors_count", "ib.acknowledge_timeouts_count",
    "ib.adaptive_retransmissions_count", "ib.retransmitted_packets",
    "ib.receiver_not_ready_count", "ib.out_of_buffer_packets", "ib.send_discarded_packets",
)  # fmt: skip


class Interface(NamedTuple):
    """A physical network interface."""

    name: str
    up: bool
    speed_gbps: float | None
    mtu: int | None
    ib_device: str | None


def checks(host: Host) -> Iterator[Check]:
    facts = locality(None, str(host.root), affinity=host.cpus, environ=host.environ)
    found = interfaces(host, facts)
    yield from or_ok(_down(host, found), fine("network.links", _links(found, facts)))
    yield _speed(found, facts)
    sizes = sorted({one.mtu for one in found if one.mtu})
    yield from or_ok(
        _mtu(found), fine("network.mtu", some([*map(str, sizes)]) or "no adapter reports one")
    )
    none = fine("network.errors", "no notable losses since the start")
    yield from or_ok(_errors(host, found), none)
    yield from _rdma(host)
    yield _gloo(host, found)


def _gloo(host: Host, found: list[Interface]) -> Check:
    """Check that the host name resolves to an address that other nodes can reach with gloo."""
    if "GLOO_SOCKET_IFNAME" in host.environ:
        return fine("network.gloo_address", f"gloo uses {host.environ['GLOO_SOCKET_IFNAME']}")
    lines = (line.partition("#")[0].split() for line in (host.text("etc/hosts") or "").splitlines())
    own = next((words[0] for words in lines if host.name in words[1:]), "")
    if not own.startswith("127.") and own != "::1":
        return fine("network.gloo_address", f"/etc/hosts does not map {host.name} to loopback")
    up = next((one.name for one in found if one.up), "…")
    return wrong("network.gloo_address.loopback", name=host.name, own=own, up=up)


def interfaces(host: Host, facts: dict[str, Any]) -> list[Interface]:
    """Return interfaces to other machines, without loopback and container bridges."""
    return [
        Interface(
            name=nic["name"],
            up=host.text(f"sys/class/net/{nic['name']}/operstate") in ("up", "unknown", None),
            speed_gbps=nic["speed_gbps"],
            mtu=host.number(f"sys/class/net/{nic['name']}/mtu"),
            ib_device=nic["ib_device"],
        )
        for nic in facts["nics"]
        if nic["index"] is not None and not nic["name"].startswith(_INTERNAL)
    ]


def _links(found: list[Interface], facts: dict[str, Any]) -> str:
    rates = {port["name"]: port["rate_gbps"] for port in facts["ib_ports"]}
    names = [f"{one.name} {_gbps(one.speed_gbps)}" for one in found if one.up]
    names += [f"{name} {_gbps(rate)}" for name, rate in rates.items()]
    return some(names) + (" is up" if len(names) == 1 else " are up") if names else "none is down"


def _gbps(speed: float | None) -> str:
    return f"({speed:g} Gb/s)" if speed else "(speed unknown)"


def _down(host: Host, found: list[Interface]) -> Iterator[Check]:
    for one in found:
        if not one.up and one.ib_device:
            yield wrong("network.links.down", name=one.name, ib_device=one.ib_device)
    for device, port in ports(str(host.root)):
        state = host.text(f"sys/class/infiniband/{device}/ports/{port}/state")
        if state is not None and "ACTIVE" not in state:
            state = state.rpartition(": ")[2].lower()
            yield wrong("network.links.port_down", device=device, port=port, state=state)


def _speed(found: list[Interface], facts: dict[str, Any]) -> Check:
    rates = {p["name"]: p["rate_gbps"] for p in facts["ib_ports"] if p["rate_gbps"]}
    plain = {one.name: one.speed_gbps for one in found if one.up and one.speed_gbps}
    by_device = {one.name for one in found if one.ib_device}
    compared = rates or {name: speed for name, speed in plain.items() if name not in by_device}
    if not compared:
        return skip("network.speed", "no adapter reports its speed (usual for virtual ones)")
    best = max(compared.values())
    slower = {name: speed for name, speed in compared.items() if speed < best}
    if rates and slower:
        runs = [f"{name} runs at {speed:g} Gb/s" for name, speed in slower.items()]
        return wrong("network.speed.slower", slower=runs, best=best)
    if slower:
        speeds = [f"{name} {speed:g} Gb/s" for name, speed in compared.items()]
        fastest = max(compared, key=lambda name: compared[name])
        return wrong("network.speed.differ", adapters=speeds, fastest=fastest)
    return fine("network.speed", f"{best:g} Gb/s")


# -- packets ---------------------------------------------------------------------------------------


def _mtu(found: list[Interface]) -> Iterator[Check]:
    by_speed: dict[float | None, dict[str, int]] = defaultdict(dict)
    for one in found:
        if one.up and one.mtu:
            by_speed[one.speed_gbps][one.name] = one.mtu
    for sizes in by_speed.values():
        most = max(sizes.values())
        if min(sizes.values()) < most:
            each = [f"{name} has {size}" for name, size in sizes.items()]
            smallest = min(sizes, key=lambda name: sizes[name])
            yield wrong("network.mtu.differ", sizes=each, smallest=smallest, most=most)
    for one in found:
        fast = one.speed_gbps is not None and one.speed_gbps >= _FAST_GBPS
        if one.up and one.mtu == _ETHERNET_MTU and (fast or one.ib_device):
            what = "rdma_small" if one.ib_device else "small"
            yield wrong(f"network.mtu.{what}", one=one, gbps=one.speed_gbps or 0, jumbo=_JUMBO_MTU)


def _errors(host: Host, found: list[Interface]) -> Iterator[Check]:
    for one in found:
        folder = f"sys/class/net/{one.name}"
        counts = {
            name: host.number(f"{folder}/statistics/{name}") or 0
            for name in ("rx_packets", "rx_errors", "rx_dropped", "rx_missed_errors", "tx_errors")
        }
        lost = counts["rx_errors"] + counts["rx_missed_errors"] + counts["tx_errors"]
        if lost > _LOST_SHARE * max(counts["rx_packets"], 1) and lost > 1:
            yield wrong("network.errors.lost", name=one.name, lost=lost, of=counts["rx_packets"])


def _rdma(host: Host) -> Iterator[Check]:
    source = InfinibandSource(sysroot=str(host.root))
    try:
        source.open()
    except SourceUnavailable as reason:
        yield skip("network.rdma_counters", str(reason))
        return
    names = [f"{device}/{port}" for device, port in ports(str(host.root))]
    seen: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, index, value in source.read():
        if value:
            seen[index][metric] = value
    yield from or_ok(
        (check for index, counts in sorted(seen.items()) for check in _port(names[index], counts)),
        fine("network.rdma_counters", f"no errors on {some(names)}"),
    )


def _port(name: str, counts: dict[str, float]) -> Iterator[Check]:
    device = name.partition("/")[0]
    for what, metrics in (("link", _LINK_COUNTERS), ("loss", _LOSS_COUNTERS)):
        words = {m: m.partition(".")[2].rpartition("_")[0].replace("_", " ") for m in metrics}
        if seen := [f"{int(counts[m])} {word}" for m, word in words.items() if m in counts]:
            yield wrong(f"network.rdma_counters.{what}", name=name, counts=seen, device=device)
