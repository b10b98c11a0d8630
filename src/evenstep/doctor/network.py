"""Network adapters: up, equally fast, with one MTU, without losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, Subject, listed, or_ok
from evenstep.doctor.host import Host
from evenstep.host.locality import locality
from evenstep.host.sources.infiniband import InfinibandSource, ports
from evenstep.host.sources.source import SourceUnavailable

_LINKS = Subject("network.links", "NCCL user guide, Networking Troubleshooting")
_SPEED = Subject("network.speed", "Linux kernel, sysfs-class-net and sysfs-class-infiniband")
_MTU = Subject("network.mtu", "RFC 894; NVIDIA, RDMA over Converged Ethernet (RoCE), MTU")
_ERRORS = Subject("network.errors", "Linux kernel, interface statistics")
_RDMA = Subject("network.rdma_counters", "NCCL user guide, RDMA protocol statistics")
_FAST_GBPS = 25.0  # from here on small packets cost cores noticeable time
_ETHERNET_MTU, _JUMBO_MTU = 1_500, 9_000
_LOST_SHARE = 1e-5  # of packets: TCP's throughput falls with the square root of the loss
#: Interfaces within the host: loopback, containers, virtual machines, queues.
_INTERNAL = (
    "lo", "docker", "veth", "virbr", "vnet", "br-", "cni", "flannel", "cali", "cilium", "kube",
    "ifb", "dummy", "tun", "tap",
)  # fmt: skip
_GLOO = Subject("network.gloo_address", "torch.distributed documentation, GLOO_SOCKET_IFNAME")
_FLAPS = 10  # changes of the carrier since the host started; a few are usual at boot

#: Counters of RDMA ports (evenstep's names), whether they tell of the link or of its use.
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
    """All of them."""
    facts = locality(None, str(host.root), affinity=host.cpus, environ=host.environ)
    found = interfaces(host, facts)
    down = [*_down(found), *_ports_down(host)]
    yield from or_ok(down, _LINKS.ok(_links(found, facts)))
    yield _speed(found, facts)
    yield from or_ok(_mtu(found), _MTU.ok(_mtus(found)))
    yield from or_ok(_errors(host, found), _ERRORS.ok("no losses to speak of since the start"))
    yield from _rdma(host)
    yield _gloo(host, found)


def _gloo(host: Host, found: list[Interface]) -> Check:
    """Whether this host's name leads gloo to an address that others can reach."""
    if "GLOO_SOCKET_IFNAME" in host.environ:
        return _GLOO.ok(f"gloo uses {host.environ['GLOO_SOCKET_IFNAME']}")
    lines = (line.partition("#")[0].split() for line in (host.text("etc/hosts") or "").splitlines())
    own = next((words[0] for words in lines if host.name in words[1:]), "")
    if not own.startswith("127.") and own != "::1":
        return _GLOO.ok(f"/etc/hosts does not keep {host.name} on the loopback")
    up = next((one.name for one in found if one.up), "…")
    return _GLOO.advice(
        f"/etc/hosts says that {host.name} is {own}",
        "gloo binds to the address of the host's name: ranks of other nodes cannot reach it",
        f"export GLOO_SOCKET_IFNAME={up}, on jobs of several nodes",
    )


def interfaces(host: Host, facts: dict[str, Any]) -> list[Interface]:
    """Interfaces that lead to other machines: no loopback, no bridge of containers."""
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
    return listed(names) + (" is up" if len(names) == 1 else " are up") if names else "none is down"


def _gbps(speed: float | None) -> str:
    return f"({speed:g} Gb/s)" if speed else "(speed not told)"


def _down(found: list[Interface]) -> Iterator[Check]:
    """Interfaces that are down beside others that are up and as fast, or RDMA's own."""
    for one in found:
        if not one.up and one.ib_device:
            yield _LINKS.warning(
                f"{one.name} ({one.ib_device}) is down",
                "its share of the bandwidth is missing, and GPUs near it take a longer way",
                f"ip link set {one.name} up; then look at cable and switch: ethtool {one.name}",
            )


def _ports_down(host: Host) -> Iterator[Check]:
    for device, port in ports(str(host.root)):
        state = host.text(f"sys/class/infiniband/{device}/ports/{port}/state")
        if state is not None and "ACTIVE" not in state:
            yield _LINKS.warning(
                f"{device} port {port} is {state.rpartition(': ')[2].lower()}",
                "NCCL leaves the port out: its share of the bandwidth is missing",
                f"ibstat {device} {port}; look at cable, switch and subnet manager (sminfo)",
            )


def _speed(found: list[Interface], facts: dict[str, Any]) -> Check:
    """Adapters of one kind that are not equally fast."""
    rates = {p["name"]: p["rate_gbps"] for p in facts["ib_ports"] if p["rate_gbps"]}
    plain = {one.name: one.speed_gbps for one in found if one.up and one.speed_gbps}
    by_device = {one.name for one in found if one.ib_device}
    compared = rates or {name: speed for name, speed in plain.items() if name not in by_device}
    if not compared:
        return _SPEED.skipped("no adapter tells its speed (usual for virtual ones)")
    best = max(compared.values())
    slower = {name: speed for name, speed in compared.items() if speed < best}
    if rates and slower:
        return _SPEED.problem(
            listed(f"{name} runs at {speed:g} Gb/s" for name, speed in slower.items())
            + f", the others at {best:g} Gb/s",
            "a collective over several adapters is as fast as the slowest",
            "reseat or change the cable; mlxlink -d DEVICE shows what the link negotiated",
        )
    if slower:
        return _SPEED.advice(
            listed(f"{name} {speed:g} Gb/s" for name, speed in compared.items()),
            "collectives go over what NCCL or gloo chooses, not always the fastest",
            f"export NCCL_SOCKET_IFNAME={_fastest(compared)} "
            f"GLOO_SOCKET_IFNAME={_fastest(compared)}",
        )
    return _SPEED.ok(f"{best:g} Gb/s")


def _fastest(speeds: dict[str, float]) -> str:
    return max(speeds, key=lambda name: speeds[name])


# -- packets ---------------------------------------------------------------------------------------


def _mtus(found: list[Interface]) -> str:
    sizes = sorted({one.mtu for one in found if one.mtu})
    return listed(sizes) if sizes else "no adapter tells one"


def _mtu(found: list[Interface]) -> Iterator[Check]:
    by_speed: dict[float | None, dict[str, int]] = defaultdict(dict)
    for one in found:
        if one.up and one.mtu:
            by_speed[one.speed_gbps][one.name] = one.mtu
    for sizes in by_speed.values():
        most = max(sizes.values())
        if min(sizes.values()) < most:
            yield _MTU.problem(
                listed(f"{name} has {size}" for name, size in sizes.items()),
                "large packets vanish or are cut on the way between adapters with different MTUs",
                f"ip link set {min(sizes, key=lambda n: sizes[n])} mtu {most}",
            )
    for one in found:
        fast = one.speed_gbps is not None and one.speed_gbps >= _FAST_GBPS
        if one.up and one.mtu == _ETHERNET_MTU and (fast or one.ib_device):
            yield _MTU.advice(
                f"{one.name} has {one.mtu} at {one.speed_gbps or 0:g} Gb/s",
                "RoCE then sends packets of 1,024 bytes instead of 4,096"
                if one.ib_device
                else "six times as many packets as with 9,000, and as many interrupts",
                f"ip link set {one.name} mtu {_JUMBO_MTU}, on all nodes and switches alike",
            )


def _errors(host: Host, found: list[Interface]) -> Iterator[Check]:
    for one in found:
        folder = f"sys/class/net/{one.name}"
        counts = {
            name: host.number(f"{folder}/statistics/{name}") or 0
            for name in ("rx_packets", "rx_errors", "rx_dropped", "rx_missed_errors", "tx_errors")
        }
        flaps = host.number(f"{folder}/carrier_changes") or 0
        lost = counts["rx_errors"] + counts["rx_missed_errors"] + counts["tx_errors"]
        if lost > _LOST_SHARE * max(counts["rx_packets"], 1) and lost > 1:
            yield _ERRORS.warning(
                f"{one.name}: {lost} of {counts['rx_packets']} packets lost or damaged",
                "each loss stalls a TCP connection, up to 200 ms where it ends in a timeout",
                f"ethtool -S {one.name} | grep -v ': 0$'; larger rings: ethtool -G {one.name} "
                "rx 4096",
            )
        if flaps > _FLAPS:
            yield _ERRORS.warning(
                f"{one.name} has lost or found its carrier {flaps} times",
                "a link that comes and goes stops every collective over it",
                f"change cable or transceiver; ethtool -m {one.name} shows its signal",
            )


def _rdma(host: Host) -> Iterator[Check]:
    source = InfinibandSource(sysroot=str(host.root))
    try:
        source.open()
    except SourceUnavailable as reason:
        yield _RDMA.skipped(str(reason))
        return
    names = [f"{device}/{port}" for device, port in ports(str(host.root))]
    seen: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, index, value in source.read():
        if value:
            seen[index][metric] = value
    yield from or_ok(
        (check for index, counts in sorted(seen.items()) for check in _port(names[index], counts)),
        _RDMA.ok(f"no errors on {listed(names)}"),
    )


def _port(name: str, counts: dict[str, float]) -> Iterator[Check]:
    link = {metric: counts[metric] for metric in _LINK_COUNTERS if metric in counts}
    loss = {metric: counts[metric] for metric in _LOSS_COUNTERS if metric in counts}
    if link:
        yield _RDMA.warning(
            f"{name}: {_counted(link)}",
            "the link itself is damaged: cable, transceiver or port",
            f"mlxlink -d {name.partition('/')[0]} -m; change the cable if the counts grow",
        )
    if loss:
        yield _RDMA.advice(
            f"{name}: {_counted(loss)}",
            "packets were lost or came late since the counters began; growing under load, they "
            "cost bandwidth and long tails",
            "watch them during a job: rdma statistic; on RoCE check PFC and ECN of the switches",
        )


def _counted(counts: dict[str, float]) -> str:
    words = (
        f"{int(value)} {metric.partition('.')[2].rpartition('_')[0].replace('_', ' ')}"
        for metric, value in counts.items()
    )
    return listed(words)
