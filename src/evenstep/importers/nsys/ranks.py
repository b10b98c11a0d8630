"""Which rank a device of a process is, in exports of Nsight Systems that do not say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.importers.file_ranks import last_number, ranks_by_paths
from evenstep.importers.nsys.process import (
    Membership,
    memberships,
)
from evenstep.importers.nsys.tables import Export
from evenstep.trace.ranks import MOST_RANKS

MOST_DEVICES = 1_024  # of one file: beyond it the table is damaged


@dataclass(slots=True)
class ProcessDevice:
    """One device of each process."""

    export: Export
    process: int
    device: int
    members: list[Membership]
    rank: int = -1

    @property
    def clock(self) -> str:
        """Ranks with the same value share a clock."""
        if self.export.host and self.export.began_ns:
            return f"clock of {self.export.host}"
        return f"session {self.export.path}"


def ranks_of(exports: Sequence[Export], limits: list[str]) -> list[ProcessDevice]:
    """The devices of all exports, numbered; what is found twice is left out and told."""
    ranks = [rank for export in exports for rank in _devices(export, limits)]
    _number(ranks, limits)
    return _without_doubles(ranks, limits)


def _devices(export: Export, limits: list[str]) -> list[ProcessDevice]:
    """The devices that ran kernels, process by process."""
    pairs = np.unique(np.stack([export.kernels.process, export.kernels.device]), axis=1).T
    if len(pairs) > MOST_DEVICES:
        limits.append(f"left out: {export.path} has kernels of {len(pairs)} devices, on one node")
        return []
    return [
        ProcessDevice(export, process, device, memberships(export, process))
        for process, device in pairs.tolist()
    ]


def _number(ranks: list[ProcessDevice], limits: list[str]) -> None:
    """Give each its rank: NCCL's in the largest communicator, else by file name, else in order."""
    largest = [max(each.members, key=lambda member: member.size, default=None) for each in ranks]
    said = [member.rank if member and member.size <= MOST_RANKS else None for member in largest]
    files = {each.export.path for each in ranks}
    paths = [each.export.path for each in ranks]
    by_path = ranks_by_paths(list(dict.fromkeys(paths)))
    named = [by_path.get(path, last_number(path)) for path in paths]
    if None not in said and len(set(said)) == len(said):
        numbers = said
    elif None not in named and len(files) == len(ranks):
        numbers = named
    else:
        numbers = list(range(len(ranks)))
        if len(ranks) > 1:
            limits.append(
                "neither NCCL's ranges nor the file names say which rank is which: they are "
                "numbered in order of files, processes and devices"
            )
    for each, number in zip(ranks, numbers, strict=True):
        each.rank = number or 0


def _without_doubles(ranks: Sequence[ProcessDevice], limits: list[str]) -> list[ProcessDevice]:
    kept: dict[int, ProcessDevice] = {}
    for each in ranks:
        if each.rank in kept:
            limits.append(
                f"left out: {each.export.path} is a second trace of rank {each.rank}, besides "
                f"{kept[each.rank].export.path}"
            )
        else:
            kept[each.rank] = each
    return [kept[rank] for rank in sorted(kept)]
