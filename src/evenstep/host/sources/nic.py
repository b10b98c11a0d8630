"""Network interfaces: bytes, drops, errors, and what TCP and IP noticed of congestion."""

from __future__ import annotations

from pathlib import Path

from evenstep.host.sources.source import FileSource, Reading, SourceUnavailable
from evenstep.host.sysfs import children, read_text
from evenstep.trace.spool.layout import HOST_DEVICE

_STATISTICS = (  # of the kernel's sysfs-class-net-statistics
    ("nic.received_bytes", "rx_bytes"),
    ("nic.sent_bytes", "tx_bytes"),
    ("nic.receive_dropped_packets", "rx_dropped"),
    ("nic.send_dropped_packets", "tx_dropped"),
    ("nic.receive_missed_packets", "rx_missed_errors"),
    ("nic.receive_error_packets", "rx_errors"),
    ("nic.send_error_packets", "tx_errors"),
)
_PROTOCOLS = (  # of the kernel's snmp_counter.rst; one network namespace, all its interfaces
    ("tcp.sent_segments", "snmp", "Tcp", "OutSegs"),
    ("tcp.retransmitted_segments", "snmp", "Tcp", "RetransSegs"),
    ("tcp.timeouts_count", "netstat", "TcpExt", "TCPTimeouts"),
    ("tcp.delivered_marked_segments", "netstat", "TcpExt", "TCPDeliveredCE"),
    ("ip.received_marked_packets", "netstat", "IpExt", "InCEPkts"),
)
_MOST_INTERFACES = 32  # a Kubernetes node has a virtual one per pod


def interfaces(sysroot: str = "/") -> list[str]:
    """Names in the order their readings are numbered: the loopback and every physical interface.

    Where none is physical, as in a container, all virtual ones instead.
    """
    folder = Path(sysroot) / "sys/class/net"
    names = [name for name in children(str(folder)) if (folder / name / "statistics").exists()]
    physical = [name for name in names if name == "lo" or (folder / name / "device").exists()]
    return (physical if physical not in ([], ["lo"]) else names)[:_MOST_INTERFACES]


class NicSource(FileSource):
    """`nic.*` per interface (device: its place in `interfaces`), `tcp.*` and `ip.*` of the host."""

    name = "nic"
    held = True  # the kernel keeps an interface's statistics itself

    def open(self) -> None:
        found = interfaces(str(self._sysroot))
        if not found:
            raise SourceUnavailable("/sys/class/net lists no network interface")
        for device, name in enumerate(found):
            for metric, file in _STATISTICS:
                folder = self._sysroot / "sys/class/net" / name / "statistics"
                self.add(metric, device, [(folder / file, 1)])

    def read(self) -> list[Reading]:
        tables = {
            file: protocol_counters(read_text(f"{self._sysroot}/proc/net/{file}", held=True) or "")
            for file in ("snmp", "netstat")
        }
        return super().read() + [
            (metric, HOST_DEVICE, tables[file][protocol, counter])
            for metric, file, protocol, counter in _PROTOCOLS
            if (protocol, counter) in tables[file]
        ]


def protocol_counters(text: str) -> dict[tuple[str, str], int]:
    """Counters of `/proc/net/snmp` or `netstat`: a line of names, then a line of their values."""
    counters: dict[tuple[str, str], int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        protocol, _, heads = names.partition(":")
        for name, value in zip(heads.split(), values.partition(":")[2].split(), strict=False):
            if value.lstrip("-").isdigit():
                counters[protocol, name] = int(value)
    return counters
