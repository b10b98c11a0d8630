"""One look through a spool: where each step lies, how many records it has, the rare ones kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.pack import Extent
from evenstep.trace.reader import RECORD, Ring, SpoolContents, coarsened, open_spool
from evenstep.trace.spool.layout import Flag, Kind

Array = npt.NDArray[Any]

#: Kinds of which a run may have so many that they stay on disk.
BULK = frozenset({Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.PHASE, Kind.SPAN})

CHUNK = 16_384  # records read at a time: what the processor's cache holds
_RARE = ~np.isin(np.arange(256), [int(kind) for kind in BULK])


class StepIndex(NamedTuple):
    """Where a rank's steps lie: every record of `steps[i]` has a number in [first[i], end[i])."""

    steps: Array  # ascending
    first: Array
    end: Array

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Sequence numbers that hold all records of the steps from `first`, before `last`."""
        begin, stop = np.searchsorted(self.steps, [first, last])
        if begin >= stop:
            return 0, 0
        return int(self.first[begin]), int(self.end[stop - 1])


def step_index(seq: Array, step: Array) -> StepIndex:
    """The index of records in order of their sequence; steps need not ascend."""
    steps = np.unique(step).astype(np.int64)
    reached = np.maximum.accumulate(step)
    to_come = np.minimum.accumulate(step[::-1])[::-1]
    first = np.searchsorted(reached, steps, side="left")
    last = np.searchsorted(to_come, steps, side="right") - 1
    return StepIndex(steps, seq[first].astype(np.int64), seq[last].astype(np.int64) + 1)


@dataclass(slots=True)
class Survey:
    """One spool without its bulk: `contents.records` are those of rare kinds."""

    contents: SpoolContents
    ring: Ring
    index: StepIndex
    counts: Array  # records of each kind, by its code
    matched: Array  # collectives that all ranks keep alike: to compare their counts of steps
    on_device: bool


def survey(path: Path | Extent, *, every: int, summary_rows: int) -> Survey:
    """Read a spool once. Of the collectives, those at every `every`-th place of a group stay."""
    contents, ring = open_spool(path)
    contents.summaries = coarsened(contents.summaries, summary_rows)
    light, rare, matched = [], [], []
    on_device = False
    for chunk in ring.chunks(CHUNK):
        kind = chunk["kind"]
        light.append((chunk["seq"].copy(), chunk["step"].copy(), kind.copy()))
        rare.append(chunk[_RARE[kind]])
        collective = kind == int(Kind.COLLECTIVE)
        on_device |= bool((chunk["flags"][collective] & int(Flag.ON_DEVICE)).any())
        place = np.flatnonzero(collective)
        matched.append(chunk[place[chunk["group_seq"][place] % np.uint64(every) == 0]])
    if not light:
        empty = np.zeros(0, np.int64)
        none = np.empty(0, RECORD)
        index = StepIndex(empty, empty, empty)
        return Survey(contents, ring, index, np.zeros(256, np.int64), none, on_device=False)
    seq, step, kinds = (np.concatenate(parts) for parts in zip(*light, strict=True))
    order = np.argsort(seq, kind="stable")
    contents.records = _in_order(rare)
    contents.dropped = max(0, int(seq[order[-1]]) - len(seq))
    index = step_index(seq[order], step[order])
    counts = np.bincount(kinds, minlength=256)
    return Survey(contents, ring, index, counts, _in_order(matched), on_device)


def _in_order(parts: Sequence[Array]) -> Array:
    records = np.concatenate(parts)
    return np.asarray(records[np.argsort(records["seq"], kind="stable")])
