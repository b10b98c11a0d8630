"""The rank, world and host of each file, and which files are windows of one rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.file_ranks import APART_NS, misfits, rank_of, ranks_by_paths
from evenstep.importers.kineto.calls import groups_of, ranks_of
from evenstep.importers.kineto.file import KinetoFile
from evenstep.importers.kineto.names import CALL, COMMS, OPTIMIZER_STEP, annotation, step_number
from evenstep.trace.ranks import natural

#: tensorboard_trace_handler, unless told otherwise: HOST_PID.STAMP.pt.trace.json
_WORKER = re.compile(r"^(?P<host>.+)_(?P<process>\d+)(?:\.\d+)?\.pt\.trace\.json")
_BY_NAME = "the file does not say which rank it is: its name does"
_IN_ORDER = (
    "neither the files nor their names say which rank is which: they are numbered in the order of "
    "their names"
)


class FilePlace(NamedTuple):
    """A file's place in its run."""

    rank: int
    world: int
    host: str  # "" unknown
    limits: list[str]


def places_of(files: Sequence[KinetoFile]) -> tuple[dict[Path, FilePlace], list[str]]:
    """The place of every file that is used, and why other files are left out.

    Used are files of the run to which most belong, one per rank.
    """
    strange, main = misfits({file.path: (_world(file), _start(file)) for file in files})
    places: dict[Path, FilePlace] = {}
    taken: dict[int, Path] = {}
    limits = list(strange.values())
    known = _known_ranks(files)
    silent = sorted((f for f in files if f.path not in known), key=lambda file: natural(file.path))
    for file in [*(file for file in files if file.path in known), *silent]:
        if file.path in strange:
            continue
        rank, said = known.get(file.path), [_BY_NAME] if _stated_rank(file) is None else []
        if rank is None:
            rank, said = next(n for n in range(len(files) + 1) if n not in taken), [_IN_ORDER]
        if rank in taken:
            second = f"is a second trace of rank {rank}, after {taken[rank]}"
            limits.append(f"left out: {file.path} {second}")
            continue
        taken[rank] = file.path
        places[file.path] = FilePlace(rank, main, _host(file), said)
    world = max([main, *(rank + 1 for rank in taken)])
    for file in [] if main else files:  # the least that its groups imply
        members = [key.ranks for key in groups_of(file.header).values()]
        members += [ranks_of(args.group_ranks) for args in file.calls]
        world = max([world, *(ranks[-1] + 1 for ranks in members if ranks)])
    return {path: place._replace(world=world) for path, place in places.items()}, limits


def join_windows(files: Sequence[KinetoFile]) -> list[KinetoFile]:
    """The files with windows of one rank of a run, whose steps have ever larger numbers, as one
    file, named as the first. The rank is that of the file or its name; else a process is one."""
    windows: dict[tuple[Any, int], KinetoFile] = {}
    found: list[KinetoFile] = []
    known = _known_ranks(files)
    for file in sorted(files, key=_start):
        rank, worker = known.get(file.path), _WORKER.match(file.path.name)
        key = worker and worker.groups() if rank is None else rank, _world(file)
        first = None if key[0] is None else windows.get(key)
        if first and _goes_on(first, file):
            found[found.index(first)] = file = first.followed_by(file)
        else:
            found.append(file)
        windows[key] = file
    return found


def _goes_on(first: KinetoFile, file: KinetoFile) -> bool:
    """Whether a file has later steps of the same run."""
    numbers = (map(step_number, each.names) for each in (first, file))
    ended, begun = ([one for one in those if one >= 0] for those in numbers)
    soon = int(first.rows.end_ns.max()) <= _start(file) <= _start(first) + APART_NS
    return soon and bool(ended and begun) and max(ended) < min(begun)


def _known_ranks(files: Sequence[KinetoFile]) -> dict[Path, int]:
    """The ranks that files state, or else their paths."""
    stated = {file.path: rank for file in files if (rank := _stated_rank(file)) is not None}
    return stated | ranks_by_paths([file.path for file in files if file.path not in stated])


def _start(file: KinetoFile) -> int:
    return int(file.rows.start_ns.min())


def _world(file: KinetoFile) -> int:
    """The number of ranks that a file states; 0 if it states none."""
    return rank_of(info_of(file).get("world_size")) or 0


def info_of(file: KinetoFile) -> dict[str, Any]:
    """The `distributedInfo` of a file; empty if it has none."""
    info = file.header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _stated_rank(file: KinetoFile) -> int | None:
    return rank_of(info_of(file).get("rank"))


def _host(file: KinetoFile) -> str:
    """The host from the file, or from a file name as the profiler chooses it; else ""."""
    stated = file.header.get("host_name")
    if isinstance(stated, str):
        return stated
    worker = _WORKER.match(file.path.name)
    processes = {str(process) for process, _ in file.threads}
    return worker["host"] if worker and worker["process"] in processes else ""


def check_one_process(file: KinetoFile) -> None:
    """Raise `TraceError` where steps, optimizers or collectives of several processes are marked:
    somebody has merged their files."""

    def marks(name: str) -> bool:
        told = name == COMMS or name.startswith((CALL, OPTIMIZER_STEP))
        return told or step_number(name) >= 0 or annotation(name) is not None

    threads = np.unique(file.host.thread[file.by_name(marks, file.host.name)])
    processes = {file.threads[thread][0] for thread in threads.tolist()}
    if len(processes) > 1:
        raise TraceError(
            f"{file.path} holds {len(processes)} processes that train; give one file per process"
        )
