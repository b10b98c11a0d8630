"""Collectives and messages of one profile as a table, whatever carried them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.importers.kineto.names import Annotation
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

UNKNOWN_NS = int(np.iinfo(np.int64).min)  # a device time that the file does not say
NOT_SET = -1

#: Columns as in a record: entered when issued, left when carried out (the profiler puts a device's
#: times on the host's clock). But `thread` indexes the file's threads, `name` its names, and `args`
#: and `asked` the arguments that came with the call, and with the operator that issued it
#: (-1: none).
COLUMNS = (
    *("op", "enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns", "thread", "device"),
    *("stream", "name", "args", "asked", "flags", "peer_or_root"),
)


def call_table(**columns: Any) -> Columns:
    """Calls with these columns; those not given hold what stands for nothing."""
    length = len(columns["op"])
    nothing = {"device_enter_ns": UNKNOWN_NS, "device_exit_ns": UNKNOWN_NS, "stream": 0}
    given = {name: columns.get(name, nothing.get(name, NOT_SET)) for name in COLUMNS}
    return Columns(
        {
            name: np.broadcast_to(np.asarray(values, np.int64), length)
            for name, values in given.items()
        }
    )


def announced_peers(announced: Sequence[Annotation | None], notes: Columns) -> Array:
    """The peer that each annotation names."""
    peers = np.array([told.peer if told else NOT_SET for told in announced] + [NOT_SET])
    return np.asarray(peers[notes.name])


def announced_ops(announced: Sequence[Annotation | None], backends: frozenset[str]) -> Array:
    """The operation that each name announces for one of these backends; -1 for other names."""
    return np.array(
        [int(told.op) if told and told.backend in backends else NOT_SET for told in announced]
        + [NOT_SET]
    )
