"""A run too large for memory, cut into stretches of steps; and a sample of its steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import OnDisk
from evenstep.trace.spools import LARGE_RECORDS
from evenstep.trace.trace import ByKind, Trace

Array = npt.NDArray[Any]

WINDOW_RECORDS = LARGE_RECORDS  # of a run that is read as a whole; a larger one is read in pieces
SAMPLE_RECORDS = WINDOW_RECORDS // 2  # of a larger run that are kept in memory

#: Columns that the grid is made of, by kind; for collectives on devices also the device's times.
NEEDED: dict[Kind, tuple[str, ...]] = {
    Kind.STEP: (
        *("seq", "step", "enter_ns", "exit_ns", "held_ns", "group_seq"),
        *("peer_or_root", "parent", "payload"),
    ),
    Kind.PHASE: ("seq", "step", "parent", "op", "enter_ns", "exit_ns", "group_seq"),
    Kind.PAUSE: ("step", "enter_ns", "exit_ns"),
    Kind.COLLECTIVE: (
        *("seq", "step", "op", "dtype", "flags", "thread", "group", "group_seq"),
        *("bytes_in", "bytes_out", "peer_or_root", "enter_ns", "exit_ns"),
    ),
    Kind.POINT_TO_POINT: (
        *("seq", "step", "op", "dtype", "flags", "thread", "group", "group_seq", "payload"),
        *("bytes_in", "bytes_out", "peer_or_root", "enter_ns", "exit_ns"),
        *("device_enter_ns", "device_exit_ns"),
    ),
    Kind.SPAN: (
        *("step", "name", "flags", "device", "enter_ns", "exit_ns"),
        *("device_enter_ns", "device_exit_ns"),
    ),
}


def pieces(trace: Trace, steps: int) -> list[tuple[int, int]]:
    """Stretches of steps, as half-open ranges of indices: one, or in a large run several of a third
    of `WINDOW_RECORDS`, as some are read in parallel."""
    if len(trace.events) <= WINDOW_RECORDS or not steps:
        return [(0, steps)]
    most = max(int(WINDOW_RECORDS / 3 / trace.records_per_step), 1)
    edges = np.linspace(0, steps, -(-steps // most) + 1).astype(int)
    return [(int(first), int(last)) for first, last in pairwise(edges)]


def around(trace: Trace, numbers: Array) -> Trace:
    """The records of these neighbouring steps and of the step on either side: a collective at the
    edge of a step may be in the next one on some ranks."""
    return trace.window(int(numbers[0]) - 1, int(numbers[-1]) + 2, _wanted(trace))


def _wanted(trace: Trace) -> dict[Kind, tuple[str, ...]]:
    """The columns that the grid is made of, as far as recorded."""
    if isinstance(trace.events, OnDisk) and not trace.events.on_device:
        return NEEDED
    of_devices = (*NEEDED[Kind.COLLECTIVE], "device_enter_ns", "device_exit_ns")
    return {**NEEDED, Kind.COLLECTIVE: of_devices}


def sample(trace: Trace, numbers: Array) -> tuple[Trace, Array]:
    """The records of stretches of steps all over the run, in order of rank, and a mask of these
    steps."""
    most = max(int(SAMPLE_RECORDS / trace.records_per_step), 1)
    each_of = max(2, min(BLOCK_STEPS, most // 16))
    starts = np.unique(np.linspace(0, len(numbers) - each_of, max(most // each_of, 2)).astype(int))
    sampled = np.zeros(len(numbers), bool)
    for start in starts:
        sampled[start : start + each_of] = True
    edges = np.flatnonzero(np.diff(sampled.astype(int), prepend=0, append=0)).reshape(-1, 2)
    wanted = _wanted(trace)
    windows = [
        trace.window(int(numbers[first]), int(numbers[last - 1]) + 1, wanted)
        for first, last in edges
    ]
    tables = {kind: Columns.concatenate([w.of_kind(kind) for w in windows]) for kind in wanted}
    order = {kind: np.argsort(table["rank"], kind="stable") for kind, table in tables.items()}
    tables = {kind: table.select(order[kind]) for kind, table in tables.items()}
    return replace(trace, events=ByKind(tables)), sampled
