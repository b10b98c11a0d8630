"""Which send belongs to which receive: the n-th of a tag on one side is the n-th on the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Op

Array = npt.NDArray[Any]

KEY = ("group", "source", "destination", "payload", "group_seq")


class Messages(NamedTuple):
    """Rows of a table of point-to-point records that belong together."""

    send: Array
    receive: Array


def matched(rows: Columns) -> Messages:
    """The pairs of a table; what has no other side, or is there twice, is left out."""
    ends = np.flatnonzero(np.isin(rows.op, [int(Op.SEND), int(Op.RECV)]) & (rows.peer_or_root >= 0))
    sending = rows.op[ends] == int(Op.SEND)
    own, peer = rows["rank"][ends].astype(np.int64), rows.peer_or_root[ends].astype(np.int64)
    key = {
        "group": rows.group[ends].astype(np.int64),
        "source": np.where(sending, own, peer),
        "destination": np.where(sending, peer, own),
        "payload": rows.payload[ends].astype(np.int64),
        "group_seq": rows.group_seq[ends].astype(np.int64),
    }
    order = np.lexsort([~sending, *(key[name] for name in reversed(KEY))])
    table = np.stack([key[name][order] for name in KEY])
    opens = np.ones(len(order), bool)
    opens[1:] = (np.diff(table, axis=1) != 0).any(axis=0)
    first = np.flatnonzero(opens)
    sizes = np.diff(np.append(first, len(order)))
    first = first[sizes == 2]
    if not len(first):
        return Messages(np.zeros(0, np.int64), np.zeros(0, np.int64))
    pair = sending[order[first]] & ~sending[order[first + 1]]
    first = first[pair]
    return Messages(ends[order[first]], ends[order[first + 1]])
