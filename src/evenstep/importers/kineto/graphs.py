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
from evenstep.trace.columns import Columns


def unrolled(files: Sequence[KinetoFile]) -> list[KinetoFile]:
    """The files with a launch for each kernel of a graph, one after the other within the graph's
    launch.

    Compute kernels are launched in order of their start. A communication kernel comes after those
    compute kernels that ended before it began in every launch of the graph on every rank: it
    depends on no others, and where it began later, its own stream delayed it.
    """
    found = [_graph_kernels(file) for file in files]
    least: dict[tuple[int, int], int] = {}
    for kernels in found:
        moving = kernels.select(kernels.moving)
        for key, before in zip(_keys(moving), moving.place.tolist(), strict=True):
            least[key] = min(least.get(key, before), before)
    return [
        _launched_apart(file, kernels, least) if len(kernels) else file
        for file, kernels in zip(files, found, strict=True)
    ]


def _keys(moving: Columns) -> list[tuple[int, int]]:
    """Keys that are equal for the same communication of the same graph."""
    return list(zip(moving.graph.tolist(), moving.turn.tolist(), strict=True))


def _graph_kernels(file: KinetoFile) -> Columns:
    """Kernels that share a launch, by launch and start.

    Columns: `row` of the file; `moving`, whether it communicates; `turn`, its index among the
    launch's kernels that communicate, or that do not; `place`, the number of compute kernels before
    it; `launch`, a row of the file; `size`, kernels of the launch; `graph`, identity of the graph.
    """
    rows = file.rows
    kernels = np.flatnonzero((rows.row == int(RowKind.KERNEL)) & (rows.correlation >= 0))
    launches = np.flatnonzero((rows.row == int(RowKind.LAUNCH)) & (rows.correlation >= 0))
    ids, launch = np.unique(rows.correlation[launches], return_index=True)
    of = np.searchsorted(ids, rows.correlation[kernels])
    known = np.append(ids, -1)[of] == rows.correlation[kernels]
    kernels, of = kernels[known], of[known]
    many = np.bincount(of, minlength=1)[of] > 1
    kernels, of = kernels[many], of[many]
    order = np.lexsort([rows.start_ns[kernels], of])
    kernels, of = kernels[order], of[order]
    names = np.array([communicates(name) for name in file.names] + [False])
    codes = np.array([crc32(name.encode()) for name in file.names] + [0], np.int64)
    moving = names[rows.name[kernels]]
    graph = np.zeros(len(ids), np.int64)
    np.add.at(graph, of, codes[rows.name[kernels]])
    turn, place = np.zeros(len(kernels), np.int64), np.zeros(len(kernels), np.int64)
    edges = np.flatnonzero(np.diff(of, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(edges):
        mine = moving[low:high]
        start, end = (rows[name][kernels[low:high]] for name in ("start_ns", "end_ns"))
        place[low:high] = np.searchsorted(np.sort(end[~mine]), start + STAMP_NS, side="right")
        turn[low:high] = np.where(mine, np.cumsum(mine), np.cumsum(~mine)) - 1
    return Columns(
        {
            "row": kernels,
            "moving": moving,
            "turn": turn,
            "place": np.where(moving, place, turn),
            "launch": launches[launch[of]],
            "size": np.bincount(of, minlength=1)[of],
            "graph": graph[of],
        }
    )


def _launched_apart(
    file: KinetoFile, kernels: Columns, least: dict[tuple[int, int], int]
) -> KinetoFile:
    place = kernels.place.copy()
    place[kernels.moving] = [least[key] for key in _keys(kernels.select(kernels.moving))]
    ticks = 2 * kernels.size + 1
    launches = file.rows.select(kernels.launch)
    lasts = np.minimum(launches.end_ns - launches.start_ns, ticks)
    at = launches.start_ns + (2 * place + ~kernels.moving) * lasts // ticks
    own = int(file.rows.correlation.max()) + 1 + np.arange(len(kernels))
    correlation = file.rows.correlation.copy()
    correlation[kernels.row] = own
    launches = launches.with_column("start_ns", at).with_column("end_ns", at)
    rows = [
        file.rows.with_column("correlation", correlation),
        launches.with_column("correlation", own),
    ]
    return replace(file, rows=Columns.concatenate(rows))
