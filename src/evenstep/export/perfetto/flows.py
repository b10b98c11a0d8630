"""Arrows of a Perfetto trace: from the rank a collective waited for to those who waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

SEEN_NS = 1_000  # waits below a microsecond get no arrow


@dataclass(slots=True, frozen=True)
class Flows:
    """Rows grouped by how many arrows begin at them, those arrows, and the one that ends at each.

    `into` is (n,): 0 where none ends.
    """

    groups: list[Array]
    out: list[Array | None]
    into: Array


def arrows(rows: Columns) -> Flows:
    """An arrow from the awaited rank to everyone who was still there and had waited for it."""
    order = np.lexsort([~rows.awaited, rows.instance])
    instance, source_row = rows.instance[order], rows.awaited[order]
    head = np.flatnonzero(source_row & (instance >= 0) & (np.diff(instance, prepend=-2) != 0))
    source = np.full(int(instance.max(initial=-1)) + 2, -1, np.int64)
    source[instance[head]] = order[head]
    of = source[rows.instance]
    waited = (rows.wait_ns >= SEEN_NS) & (rows.instance >= 0) & (of >= 0) & ~rows.awaited
    begins = rows.start_ns + rows.wait_ns
    waited &= (begins >= rows.start_ns[of]) & ((rows.end_ns == 0) | (begins < rows.end_ns))
    into = np.zeros(len(rows), np.int64)
    into[waited] = 1 + np.arange(np.count_nonzero(waited))
    count = np.bincount(of[waited], minlength=len(rows))
    targets = np.flatnonzero(waited)[np.argsort(of[waited], kind="stable")]
    first = np.cumsum(count) - count
    groups, out = [], []
    for size in np.unique(count):
        mask = count == size
        groups.append(mask)
        begun = first[mask][:, None] + np.arange(size)
        out.append(into[targets[begun]] if size else None)
    return Flows(groups, out, into)
