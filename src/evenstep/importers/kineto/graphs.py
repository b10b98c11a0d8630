"""CUDA graphs: one launch of many kernels is replaced by a launch for each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import communicates
from evenstep.importers.merging import STAMP_NS
from evenstep.trace.columns import Array, Columns


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
    least: dict[tuple[int, int], int] = {}
    found = []
    for kernels in files:
        moving = kernels.select(kernels.moving)
        for key, before in zip(_keys(moving), moving.place.tolist(), strict=True):
            least[key] = min(least.get(key, before), before)
    for kernels in files:
        place = kernels.place.copy()
        place[kernels.moving] = [least[key] for key in _keys(kernels.select(kernels.moving))]
        found.append(kernels.with_column("place", place))
    return found


def _keys(moving: Columns) -> list[tuple[int, int]]:
    """Keys that are equal for the same communication of the same graph."""
    return list(zip(moving.graph.tolist(), moving.turn.tolist(), strict=True))


def _graph_kernels(file: KinetoFile) -> Columns:
    """Kernels that share a launch, as `in_order` has them, with `launch`, a row of the file, and
    `size`, kernels of the launch."""
    rows = file.rows
    kernels = np.flatnonzero((rows.row == int(RowKind.KERNEL)) & (rows.correlation >= 0))
    launches = np.flatnonzero((rows.row == int(RowKind.LAUNCH)) & (rows.correlation >= 0))
    ids, launch = np.unique(rows.correlation[launches], return_index=True)
    of = np.searchsorted(ids, rows.correlation[kernels])
    known = np.append(ids, -1)[of] == rows.correlation[kernels]
    kernels, of = kernels[known], of[known]
    size = np.bincount(of, minlength=1)
    many = size[of] > 1
    found = in_order(file, kernels[many], of[many])
    found = found.with_column("launch", launches[launch[found.of]])
    return found.with_column("size", size[found.of])


def in_order(file: KinetoFile, kernels: Array, of: Array) -> Columns:
    """These rows of kernels `of` one graph each, by graph and start.

    Columns: `row` of the file; `of`; `moving`, whether it communicates; `turn`, its index among the
    graph's kernels that communicate, or that do not; `place`, the number of compute kernels before
    it; `graph`, identity of the graph.
    """
    rows = file.rows
    order = np.lexsort([rows.start_ns[kernels], of])
    kernels, of = kernels[order], of[order]
    names = np.array([communicates(name) for name in file.names] + [False])
    codes = np.array([crc32(name.encode()) for name in file.names] + [0], np.int64)
    moving = names[rows.name[kernels]]
    graph = np.zeros(int(of.max(initial=0)) + 1, np.int64)
    np.add.at(graph, of, codes[rows.name[kernels]])
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
    """The file with a launch of its own for each of these kernels: a copy of `launches` at a
    time."""
    own = int(file.rows.correlation.max()) + 1 + np.arange(len(kernels))
    correlation = file.rows.correlation.copy()
    correlation[kernels] = own
    launches = launches.with_column("start_ns", at).with_column("end_ns", at)
    rows = [
        file.rows.with_column("correlation", correlation),
        launches.with_column("correlation", own),
    ]
    return replace(file, rows=Columns.concatenate(rows))
