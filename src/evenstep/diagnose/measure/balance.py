"""How evenly all-to-alls load the ranks, and traffic the ports of the nodes' network adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

EVEN = 1.01  # fullest rank over the mean: sizes are the same but for rounding
#: Counters of bytes, sent and received, of which the first that was sampled is taken.
COUNTERS = (("ib.sent_bytes", "ib.received_bytes"), ("nic.sent_bytes", "nic.received_bytes"))
MOST_PORTS = 512


def tokens(grid: StepGrid) -> dict[str, Any] | None:
    """What ranks receive in all-to-alls: tokens, where experts are on the ranks.

    `imbalance` is the mean, over calls, of the fullest rank's bytes over the members' mean (experts
    on it have so much more to compute, and the others wait); `fullest` the ranks that were it, with
    their share of the calls. None where sizes are not recorded or all alike.
    """
    rows = grid.arrivals.rows
    rows = rows.select((rows.op == int(Op.ALL_TO_ALL)) & (rows.bytes_out > 0))
    if not len(rows):
        return None
    calls, place, members = np.unique(rows.instance, return_inverse=True, return_counts=True)
    received = rows.bytes_out.astype(float)
    most = np.zeros(len(calls))
    np.maximum.at(most, place, received)
    ratio = most / (np.bincount(place, received) / members)
    ratio = ratio[members > 1]
    if not len(ratio) or ratio.mean() < EVEN:
        return None
    fullest = rows["rank"][(received == most[place]) & (members[place] > 1)]
    ranks, counts = np.unique(fullest, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:4]
    return {
        "calls": len(ratio),
        "imbalance": round(float(ratio.mean()), 4),
        "fullest": [
            {"rank": int(ranks[at]), "share": round(float(counts[at] / counts.sum()), 4)}
            for at in order
        ],
    }


def ports(trace: Trace) -> list[dict[str, Any]]:
    """Bytes per second of each port of each node's adapters, where their counters were sampled.

    A port is numbered as `host.sources` numbers it; several ranks of a node sample the same one.
    """
    names = next((pair for pair in COUNTERS if set(pair) & set(trace.names)), None)
    if names is None:
        return []
    samples = trace.of_kind(Kind.SAMPLE)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for metric, word in zip(names, ("sent", "received"), strict=True):
        if metric not in trace.names:
            continue
        rows = samples.select(samples.name == trace.names.index(metric))
        for rank, port in np.unique(np.stack([rows["rank"], rows.device]), axis=1).T.tolist():
            mine = rows.select((rows["rank"] == rank) & (rows.device == port))
            node = trace.ranks[rank].node if rank in trace.ranks else ""
            entry = found.setdefault((node, port), {"node": node, "port": port})
            entry.setdefault(f"{word}_gBps", _rate(mine.sorted_by("enter_ns")))
    return [found[key] for key in sorted(found)][:MOST_PORTS]


def _rate(rows: Columns) -> float | None:
    """Growth of a counter in bytes per ns, which is GB/s; None of one sample. A reset is none."""
    if len(rows) < 2 or rows.enter_ns[-1] <= rows.enter_ns[0]:
        return None
    values = np.ascontiguousarray(rows.bytes_in, np.uint64).view(np.float64)
    grown = float(np.maximum(np.diff(values), 0).sum())
    return round(grown / int(rows.enter_ns[-1] - rows.enter_ns[0]), 6)
