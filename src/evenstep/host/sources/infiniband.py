"""InfiniBand, RoCE and EFA ports: bytes, time spent waiting to send, losses, congestion marks.

Counter names are those of the Linux drivers: sysfs-class-infiniband of the kernel's ABI for
`counters`, mlx5, bnxt_re and efa for `hw_counters`. Several drivers' names lead to one metric; the
first that exists is taken.
"""

from __future__ import annotations

from pathlib import Path

from evenstep.host.sources.source import FileSource, SourceUnavailable
from evenstep.host.sysfs import children

_WORD_BYTES = 4  # port_*_data count 32-bit words

_COUNTERS = (  # metric, files of which the first that exists is read
    ("ib.sent_bytes", ("counters/port_xmit_data", "hw_counters/tx_bytes")),
    ("ib.received_bytes", ("counters/port_rcv_data", "hw_counters/rx_bytes")),
    ("ib.transmit_wait_ticks", ("counters/port_xmit_wait",)),  # had data, was not let to send
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
    (
        "ib.receiver_not_ready_count",
        ("hw_counters/rnr_nak_retry_err", "hw_counters/rnr_naks_rcvd"),
    ),
    ("ib.out_of_buffer_packets", ("hw_counters/out_of_buffer",)),
    (
        "ib.congestion_notices_sent_packets",
        ("hw_counters/np_cnp_sent", "hw_counters/tx_cnp_pkts"),
    ),
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
    """(Device, port) pairs in the order their readings are numbered."""
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
