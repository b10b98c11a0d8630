"""When hosts launched the kernels of a profile; one launch of a CUDA graph, which stands for many
kernels, is replaced by a launch for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind, event_rows
from evenstep.importers.kineto.names import communicates
from evenstep.importers.merging import STAMP_NS
from evenstep.trace.columns import Array, Columns, key_numbers, rows_by_key, smallest_of

#: Devices begin what is queued so soon after what it follows: 99 % within 9 µs, on an H200.
QUEUED_NS = 10_000
LATEST_START_NS = 50_000  # after the call that launched it: an idle device begins sooner
UNLAUNCHED = (
    "launches of kernels are not in the profile: a device that idles for more than "
    f"{QUEUED_NS // 1000} µs, other than after communication, is taken to wait for its host"
)


def find_launches(file: KinetoFile, kernels: Columns) -> Columns:
    """Thread, start and end of the launch of each kernel; no end but its own start if unknown.

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
    """Thread, start and end of the launches that the file has, and which kernels have one; for
    others no thread, and their own start."""
    own = {name: kernels.start_ns.copy() for name in ("start_ns", "end_ns")}
    found = Columns({"thread": np.full(len(kernels), -1), **own})
    known = np.zeros(len(kernels), bool)
    for sources, key in ((file.host, "external"), (file.of(RowKind.LAUNCH), "correlation")):
        place = lookup(sources[key], kernels[key])
        there = place >= 0
        known |= there
        for column in found:
            found[column][there] = sources[column][place[there]]
    return found, known


def last_freed(file: KinetoFile, threads: Array, times_ns: Array) -> Array:
    """When one of these threads last was blocked in a call to the runtime before each of these
    times, or else the file began: calls that last longer than a launch wait for the device, for
    its work or for room in its queue. 0 where the file has none, not even that of its end."""
    calls = file.of(RowKind.LAUNCH)
    lasting = calls.end_ns - calls.start_ns > LATEST_START_NS
    ended = np.sort(calls.end_ns[lasting & np.isin(calls.thread, threads)])
    if not len(ended):
        return np.zeros(len(times_ns), np.int64)
    before = np.searchsorted(ended, times_ns, side="right")
    return np.append(file.rows.start_ns.min(), ended)[before]


def lookup(keys: Array, wanted: Array) -> Array:
    """Index of the last row with each wanted key; -1 for none, or a key below 0."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    row = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (wanted >= 0) & (keys[row] == wanted), row, -1)


def with_launches(files: Sequence[KinetoFile]) -> tuple[list[KinetoFile], set[Path]]:
    """The files with a launch of each kernel on streams that have none, and the paths of those
    that lack some."""
    silent = [_silent(file) for file in files]
    kernels = [
        in_order(file, rows, file.rows.device[rows] - file.rows.device.min())
        for file, rows in zip(files, silent, strict=True)
    ]
    found = []
    for file, mine in zip(files, with_least_places(kernels), strict=True):
        if len(mine):
            launches = event_rows(len(mine), row=int(RowKind.LAUNCH))
            file = with_launch_rows(file, mine.row, launches, _infer_launches(file, mine))
        found.append(file)
    return found, {file.path for file, rows in zip(files, silent, strict=True) if len(rows)}


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
    for mine in rows_by_key(kernels.of):
        mine = mine[np.lexsort([~kernels.moving[mine], kernels.place[mine]])]
        start, end = (file.rows[name][kernels.row[mine]] for name in ("start_ns", "end_ns"))
        ends = np.sort(rows.end_ns[rows.device == file.rows.device[kernels.row[mine[0]]]])
        last = np.searchsorted(ends, np.minimum(start + STAMP_NS, end - 1), side="right") - 1
        queued = (last >= 0) & (start - ends[last] <= QUEUED_NS)
        turn = np.arange(len(mine))
        found[mine] = np.maximum.accumulate(np.where(queued, start.min(), start) - turn) + turn
    return found


# -- graphs of CUDA --------------------------------------------------------------------------------


def unroll(files: Sequence[KinetoFile]) -> list[KinetoFile]:
    """The files with a launch for each kernel of a graph, one after the other within the graph's
    launch.

    Compute kernels are launched in order of their start. A communication kernel comes after those
    compute kernels that ended before it began in every launch of the graph on every rank: it
    depends on no others, and where it began later, its own stream delayed it.
    """
    found = with_least_places([_graph_kernels(file) for file in files])
    return [
        _launched_apart(file, kernels) if len(kernels) else file
        for file, kernels in zip(files, found, strict=True)
    ]


def with_least_places(files: Sequence[Columns]) -> list[Columns]:
    """These kernels of all ranks, with the least place of each that communicates."""
    if not files:
        return []
    kernels = Columns.concatenate([*files])
    same = key_numbers(kernels.graph, kernels.moving, kernels.turn)
    least = smallest_of(kernels.place, same)  # others' place is their turn
    parts = np.split(least[same], np.cumsum([len(each) for each in files])[:-1])
    return [each.with_column("place", part) for each, part in zip(files, parts, strict=True)]


def _graph_kernels(file: KinetoFile) -> Columns:
    """Kernels that share a launch, as `in_order` has them, with `launch`, a row of the file, and
    `size`, kernels of the launch."""
    rows = file.rows
    kernels, launches = (
        np.flatnonzero(rows.row == int(kind)) for kind in (RowKind.KERNEL, RowKind.LAUNCH)
    )
    of = lookup(rows.correlation[launches], rows.correlation[kernels])
    kernels, of = kernels[of >= 0], of[of >= 0]
    size = np.bincount(of, minlength=1)
    many = size[of] > 1
    found = in_order(file, kernels[many], of[many])
    return found.with_columns(launch=launches[found.of], size=size[found.of])


def in_order(file: KinetoFile, kernels: Array, of: Array) -> Columns:
    """These rows of kernels `of` one graph each, by graph and start.

    Columns: `row` of the file; `of`; `moving`, whether it communicates; `turn`, its index among the
    graph's kernels that communicate, or that do not; `place`, the number of compute kernels before
    it; `graph`, identity of the graph.
    """
    rows = file.rows
    order = np.lexsort([rows.start_ns[kernels], of])
    kernels, of = kernels[order], of[order]
    moving = file.by_name(communicates, rows.name[kernels])
    graph = np.zeros(int(of.max(initial=0)) + 1, np.int64)
    np.add.at(graph, of, file.by_name(lambda name: crc32(name.encode()), rows.name[kernels]))
    turn, place = np.zeros(len(kernels), np.int64), np.zeros(len(kernels), np.int64)
    edges = np.flatnonzero(np.diff(of, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(edges):
        mine = moving[low:high]
        start, end = (rows[name][kernels[low:high]] for name in ("start_ns", "end_ns"))
        place[low:high] = np.searchsorted(np.sort(end[~mine]), start + STAMP_NS, side="right")
        turn[low:high] = np.where(mine, np.cumsum(mine), np.cumsum(~mine)) - 1
    place = np.where(moving, place, turn)
    columns = {"row": kernels, "of": of, "moving": moving, "turn": turn, "place": place}
    return Columns({**columns, "graph": graph[of]})


def _launched_apart(file: KinetoFile, kernels: Columns) -> KinetoFile:
    ticks = 2 * kernels.size + 1
    launches = file.rows.select(kernels.launch)
    lasts = np.minimum(launches.end_ns - launches.start_ns, ticks)
    at = launches.start_ns + (2 * kernels.place + ~kernels.moving) * lasts // ticks
    return with_launch_rows(file, kernels.row, launches, at)


def with_launch_rows(file: KinetoFile, kernels: Array, launches: Columns, at: Array) -> KinetoFile:
    """The file with a launch of its own for each of these kernels, copied from `launches`."""
    own = int(file.rows.correlation.max()) + 1 + np.arange(len(kernels))
    correlation = file.rows.correlation.copy()
    correlation[kernels] = own
    launches = launches.with_columns(start_ns=at, end_ns=at, correlation=own)
    rows = [file.rows.with_columns(correlation=correlation), launches]
    return replace(file, rows=Columns.concatenate(rows))
