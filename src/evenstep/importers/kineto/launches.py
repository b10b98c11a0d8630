"""When hosts launched the kernels of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.graphs import in_order, with_launch_rows, with_least_places
from evenstep.importers.merging import STAMP_NS
from evenstep.trace.columns import Array, Columns, key_numbers

#: Devices begin what is queued so soon after what it follows: 99 % within 9 µs, on an H200.
QUEUED_NS = 10_000
UNLAUNCHED = (
    "launches of kernels are not in the profile: a device that idles for more than "
    f"{QUEUED_NS // 1000} µs, other than after communication, is taken to wait for its host"
)


def find_launches(file: KinetoFile, kernels: Columns) -> Columns:
    """Thread and start of the launch of each kernel.

    The launch with its correlation; else the host's event with its external id; else, on no thread,
    that of the kernel before it on its stream, which keeps the order of launches. Kernels of a
    stream before its first one with a known launch were launched before anything in the file.
    """
    found, known = _recorded_launches(file, kernels)
    if known.all():
        return found
    stream = key_numbers(kernels.device, kernels.stream)
    order = np.lexsort([kernels.start_ns, stream])
    before = np.maximum.accumulate(np.where(known[order], np.arange(len(order)), -1))
    follows = (before >= 0) & (stream[order[before]] == stream[order])
    found.start_ns[order[follows]] = found.start_ns[order[before[follows]]]
    early = ~follows & np.isin(stream[order], stream[known])
    earlier = np.sort(order[early])
    earlier = earlier[np.argsort(kernels.start_ns[earlier], kind="stable")]
    found.start_ns[earlier] = file.rows.start_ns.min() - np.arange(len(earlier), 0, -1)
    return found


def _recorded_launches(file: KinetoFile, kernels: Columns) -> tuple[Columns, Array]:
    """Thread and start of the launches that the file has, and which kernels have one; for others
    no thread, and their own start."""
    found = Columns({"thread": np.full(len(kernels), -1), "start_ns": kernels.start_ns.copy()})
    known = np.zeros(len(kernels), bool)
    for sources, key in ((file.host, "external"), (file.of(RowKind.LAUNCH), "correlation")):
        place = lookup(sources[key], kernels[key])
        there = place >= 0
        known |= there
        for column in found:
            found[column][there] = sources[column][place[there]]
    return found, known


def lookup(keys: Array, wanted: Array) -> Array:
    """Index of the last row with each wanted key; -1 for none, or a key below 0."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    row = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (wanted >= 0) & (keys[row] == wanted), row, -1)


def with_launches(files: Sequence[KinetoFile]) -> tuple[list[KinetoFile], set[tuple[Path, str]]]:
    """The files with a launch of each kernel on streams that have none, and the keys of those files
    that lack some."""
    silent = [_silent(file) for file in files]
    kernels = [
        in_order(file, rows, file.rows.device[rows] - file.rows.device.min())
        for file, rows in zip(files, silent, strict=True)
    ]
    found = []
    for file, mine in zip(files, with_least_places(kernels), strict=True):
        if len(mine):
            nothing = {"row": int(RowKind.LAUNCH), **dict.fromkeys(("thread", "device"), -1)}
            types = {name: file.rows[name].dtype for name in file.rows}
            nothing |= dict.fromkeys(("correlation", "external", "stream", "args"), -1)
            launches = Columns.filled(nothing, types, len(mine))
            file = with_launch_rows(file, mine.row, launches, _infer_launches(file, mine))
        found.append(file)
    return found, {file.key for file, rows in zip(files, silent, strict=True) if len(rows)}


def _silent(file: KinetoFile) -> Array:
    """Rows of kernels and copies on streams without any known launch."""
    rows = np.flatnonzero(np.isin(file.rows.row, [int(RowKind.KERNEL), int(RowKind.COPY)]))
    kernels = file.rows.select(rows)
    stream = key_numbers(kernels.device, kernels.stream)
    return np.asarray(rows[~np.isin(stream, stream[_recorded_launches(file, kernels)[1]])])


def _infer_launches(file: KinetoFile, kernels: Columns) -> Array:
    """When these kernels were launched, in the order of their places.

    Those that begin as soon as another of their device ended were queued; others were launched as
    they began.
    """
    rows = file.rows.select(np.isin(file.rows.row, [int(RowKind.KERNEL), int(RowKind.COPY)]))
    found = np.zeros(len(kernels), np.int64)
    for of in np.unique(kernels.of):
        mine = np.flatnonzero(kernels.of == of)
        mine = mine[np.lexsort([~kernels.moving[mine], kernels.place[mine]])]
        start, end = (file.rows[name][kernels.row[mine]] for name in ("start_ns", "end_ns"))
        ends = np.sort(rows.end_ns[rows.device == file.rows.device[kernels.row[mine[0]]]])
        last = np.searchsorted(ends, np.minimum(start + STAMP_NS, end - 1), side="right") - 1
        queued = (last >= 0) & (start - ends[last] <= QUEUED_NS)
        turn = np.arange(len(mine))
        found[mine] = np.maximum.accumulate(np.where(queued, start.min(), start) - turn) + turn
    return found
