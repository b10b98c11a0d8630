"""Messages between two ranks: how long the receiver waits for the sender.

Until its message is sent a receiver waits; after that it is transfer. A sender waits for nobody,
unless its record says that its thread was blocked (a rendezvous): then it waits for the receiver.
On devices only durations compare: both ends of a message leave it together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.messages import matched
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

_DEVICE, _BLOCKED = int(Flag.ON_DEVICE), int(Flag.HOST_BLOCKED)


def received(trace: Trace, clocks: Clocks) -> Columns:
    """The ends of all messages that their rank may wait in: every receive, and blocked sends.

    Beside the record's columns: partner (its row's rank), here_ns and leave_ns (on the line of time
    that the rank's steps are on; 0 open), wait_ns until the other end was entered (0 where that
    cannot be told).
    """
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    pairs = matched(rows)
    rows = _placed(rows, trace, clocks)
    waits = np.zeros(len(rows), np.int64)
    for own, other in ((pairs.receive, pairs.send), (pairs.send, pairs.receive)):
        waits[own] = _waits(rows, own, other, clocks)
    rows = rows.with_column("wait_ns", waits).with_column("partner", rows.peer_or_root)
    sending = rows.op == int(Op.SEND)
    return rows.select(~sending | ((rows.flags & _BLOCKED) != 0))


def exchanged(trace: Trace, clocks: Clocks) -> Columns:
    """Both ends of every message between hosts, as of a broadcast of two from the sender.

    The columns are those of `Arrivals.rows` that a replay uses, and `receives`.
    """
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    rows = rows.select((rows.flags & _DEVICE) == 0)
    pairs = matched(rows)
    here = clocks.common(rows["rank"], rows.enter_ns)
    leave = np.where(rows.exit_ns > 0, clocks.common(rows["rank"], rows.exit_ns), 0)
    placed = ~np.isin(rows["rank"], list(clocks.unplaced))
    known = placed[pairs.send] & placed[pairs.receive] & (leave[pairs.receive] > 0)
    send, receive = pairs.send[known], pairs.receive[known]
    both = np.concatenate([send, receive])
    sender = rows["rank"][send].astype(np.int64)
    return Columns(
        {
            "rank": rows["rank"][both],
            "step": rows.step[both],
            "instance": np.tile(np.arange(len(send)), 2),
            "op": np.full(len(both), int(Op.BROADCAST), np.uint8),
            "group": rows.group[both],
            "bytes_in": rows.bytes_in[both],
            "peer_or_root": np.tile(sender, 2),
            "here_ns": here[both],
            "arrival_ns": here[both],
            "leave_ns": leave[both],
            "relative": np.zeros(len(both), bool),
            "waits_for_last": np.zeros(len(both), bool),
            "receives": np.repeat([False, True], len(send)),
        }
    )


def device_clock_is_hosts(trace: Trace) -> list[int]:
    """Ranks whose device stamps are on the clock of their host."""
    return [rank for rank, info in trace.ranks.items() if info.facts.get("device_clock") == "host"]


def _placed(rows: Columns, trace: Trace, clocks: Clocks) -> Columns:
    """Begin and end on the common time: of kernels on the host's clock, the kernel's own."""
    on_device = (rows.flags & _DEVICE) != 0
    own = on_device & np.isin(rows["rank"], device_clock_is_hosts(trace))
    own &= rows.device_exit_ns > 0
    enter = np.where(own, rows.device_enter_ns, rows.enter_ns)
    leave = np.where(own, rows.device_exit_ns, np.where(on_device, 0, rows.exit_ns))
    here = clocks.common(rows["rank"], enter)
    left = np.where(leave > 0, clocks.common(rows["rank"], leave), 0)
    return rows.with_column("here_ns", here).with_column("leave_ns", left)


def _waits(rows: Columns, own: Array, other: Array, clocks: Clocks) -> Array:
    """What one end of each pair waits for the other, at most as long as it took itself."""
    apart = rows.here_ns[other] - rows.here_ns[own]
    placed = ~np.isin(rows["rank"], list(clocks.unplaced))
    known = placed[own] & placed[other]
    device_ns = np.where(
        rows.device_exit_ns > 0, rows.device_exit_ns - rows.device_enter_ns, 0
    ).astype(np.int64)
    both = (rows.flags[own] & rows.flags[other] & _DEVICE) != 0
    apart = np.where(both, device_ns[own] - device_ns[other], np.where(known, apart, 0))
    took = np.where(rows.leave_ns[own] > 0, rows.leave_ns[own] - rows.here_ns[own], apart)
    took = np.where(both, device_ns[own], took)
    return np.asarray(np.clip(apart, 0, np.maximum(took, 0)))
