"""Network adapters. Interfaces: bytes, drops, errors, and signs of congestion in TCP and IP.
Ports of InfiniBand, RoCE and EFA: bytes, time spent waiting to send, losses, congestion marks.

Counters of ports have the names of the Linux drivers: sysfs-class-infiniband of the kernel's ABI
for `counters`, mlx5, bnxt_re and efa for `hw_counters`. Several drivers' names belong to one
metric; the first that exists is read.
"""

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
    """Names in the order of their readings' devices: the loopback and all physical interfaces, or
    all virtual ones where none is physical, as in a container."""
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
            (metric, HOST_DEVICE, int(value))
            for metric, file, protocol, counter in _PROTOCOLS
            if (value := tables[file].get(protocol, {}).get(counter, "")).isdecimal()
        ]


def protocol_counters(text: str) -> dict[str, dict[str, str]]:
    """Counters of `/proc/net/snmp` or `netstat` as text, by protocol: a line of names, then a line
    of their values."""
    lines = [line.split() for line in text.splitlines()]
    return {
        names[0].rstrip(":"): dict(zip(names, values, strict=False))
        for names, values in zip(lines[::2], lines[1::2], strict=False)
        if names
    }


# -- ports -----------------------------------------------------------------------------------------

_WORD_BYTES = 4  # port_*_data count 32-bit words

_COUNTERS = (  # metric, files of which the first that exists is read
    ("ib.sent_bytes", ("counters/port_xmit_data", "hw_counters/tx_bytes")),
    ("ib.received_bytes", ("counters/port_rcv_data", "hw_counters/rx_bytes")),
    ("ib.transmit_wait_ticks", ("counters/port_xmit_wait",)),  # had data and could not send
    ("ib.send_discarded_packets", ("counters/port_xmit_discards",)),
    ("ib.receive_error_packets", ("counters/port_rcv_errors", "hw_counters/rx_drops")),
    ("ib.symbol_errors_count", ("counters/symbol_error",)),
    ("ib.link_downed_count", ("counters/link_downed",)),
    ("ib.link_recovered_count", ("counters/link_error_recovery",)),
    ("ib.out_of_sequence_packets", ("hw_counters/out_of_sequence", "hw_counters/oos_drop_count")),
    ("ib.sequence_errors_count", ("hw_counters/packet_seq_err", "hw_counters/seq_err_naks_rcvd")),
    ("ib.acknowledge_timeouts_count", ("hw_counters/local_ack_timeout_err",)),
    ("ib.adaptive_retransmissions_count", ("hw_counters/roce_adp_retrans",)),
    ("ib.retransmitted_packets", ("hw_counters/retrans_pkts", "hw_counters/to_retransmits")),
    ("ib.receiver_not_ready_count", ("hw_counters/rnr_nak_retry_err", "hw_counters/rnr_naks_rcvd")),
    ("ib.out_of_buffer_packets", ("hw_counters/out_of_buffer",)),
    ("ib.congestion_notices_sent_packets", ("hw_counters/np_cnp_sent", "hw_counters/tx_cnp_pkts")),
    (
        "ib.congestion_notices_handled_packets",
        ("hw_counters/rp_cnp_handled", "hw_counters/rx_cnp_pkts"),
    ),
    ("ib.congestion_notices_ignored_packets", ("hw_counters/rp_cnp_ignored",)),
    (
        "ib.received_marked_packets",
        ("hw_counters/np_ecn_marked_roce_packets", "hw_counters/rx_ecn_marked_pkts"),
    ),
)


def ports(sysroot: str = "/") -> list[tuple[str, str]]:
    """(Device, port) pairs in the order of their readings' devices."""
    base = Path(sysroot) / "sys/class/infiniband"
    return [(d, port) for d in children(str(base)) for port in children(str(base / d / "ports"))]


class InfinibandSource(FileSource):
    """`ib.*` per port; the reading's device is the port's place in `ports`."""

    name = "infiniband"

    def open(self) -> None:
        found = ports(str(self._sysroot))
        if not found:
            raise SourceUnavailable("this host has no InfiniBand, RoCE or EFA device")
        for index, (device, port) in enumerate(found):
            folder = self._sysroot / "sys/class/infiniband" / device / "ports" / port
            for metric, names in _COUNTERS:
                words = (_WORD_BYTES if name.endswith("_data") else 1 for name in names)
                self.add(metric, index, zip((folder / name for name in names), words, strict=True))
        if not self._files:
            raise SourceUnavailable("the InfiniBand devices of this host show no counters")
