"""Find the spools of a run, one for each rank, and read or survey them.

A survey reads a spool once and keeps an index of its steps, counts by kind, and the records of rare
kinds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import TraceError, nothing_read
from evenstep.trace import reader
from evenstep.trace.columns import Array
from evenstep.trace.cores import iterate_on_cores
from evenstep.trace.pack import SUFFIX, Extent, extents
from evenstep.trace.ranks import format_ranks
from evenstep.trace.reports import report_file
from evenstep.trace.spool import layout
from evenstep.trace.spool.folder import is_closed, read_facts
from evenstep.trace.spool.layout import Kind

#: Frequent kinds: their records stay on disk in a large run.
BULK = frozenset({Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.PHASE, Kind.SPAN})

LARGE_RECORDS = 2_000_000  # a run with more records leaves them on disk: `evenstep.trace.spooled`
COMPARED = 64  # one collective in so many is kept of a large run, to align step numbers of ranks
SUMMARY_ROWS = 256  # most summaries kept of each rank of a large run: more are merged
_RARE = ~np.isin(np.arange(256), [int(kind) for kind in BULK])


class StepIndex(NamedTuple):
    """Where a rank's steps lie: records of `steps[i]` have sequence numbers [first[i], end[i])."""

    steps: Array  # ascending
    first: Array
    end: Array

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Range of sequence numbers that contains all records of steps [first, last)."""
        begin, stop = np.searchsorted(self.steps, [first, last])
        return (int(self.first[begin]), int(self.end[stop - 1])) if begin < stop else (0, 0)


NO_STEPS = StepIndex(*np.zeros((3, 0), np.int64))


def step_index(seq: Array, step: Array) -> StepIndex:
    """Index records given in order of sequence; steps need not ascend."""
    steps = np.unique(step).astype(np.int64)
    reached = np.maximum.accumulate(step)
    to_come = np.minimum.accumulate(step[::-1])[::-1]
    first = np.searchsorted(reached, steps, side="left")
    last = np.searchsorted(to_come, steps, side="right") - 1
    return StepIndex(steps, seq[first].astype(np.int64), seq[last].astype(np.int64) + 1)


@dataclass(slots=True)
class Survey:
    """One spool whose frequent records stay on disk: `contents.records` has the rare kinds."""

    contents: reader.SpoolContents
    ring: reader.Ring
    index: StepIndex
    counts: Array  # records of each kind, by its code
    matched: Array  # a sample of collectives, the same on every rank, to align step numbers
    flags: Array  # union of the flags of a kind's records, by its code


def survey(contents: reader.SpoolContents, ring: reader.Ring) -> Survey:
    contents.summaries = reader.coarsen(contents.summaries, SUMMARY_ROWS)
    light, rare, matched = [], [], []
    flags = np.zeros(256, np.uint16)
    for chunk in ring.chunks(reader.CHUNK):
        kind = chunk["kind"]
        light.append([chunk[name].copy() for name in ("seq", "step", "kind", *reader.TIMES)])
        rare.append(chunk[_RARE[kind]])
        collective = kind == int(Kind.COLLECTIVE)
        np.bitwise_or.at(flags, kind, chunk["flags"])
        place = np.flatnonzero(collective)
        matched.append(chunk[place[chunk["group_seq"][place] % np.uint64(COMPARED) == 0]])
    if not light:
        none = np.empty(0, reader.RECORD)
        return Survey(contents, ring, NO_STEPS, np.zeros(256, np.int64), none, flags)
    seq, step, kinds, *times = (np.concatenate(parts) for parts in zip(*light, strict=True))
    if not ring.damaged:
        sound = reader.timely(contents, dict(zip(reader.TIMES, times, strict=True)))
        if not sound.all():  # again, without them
            return survey(contents, ring._replace(damaged=frozenset(seq[~sound].tolist())))
    order = np.argsort(seq, kind="stable")
    contents.records = reader.in_order(rare)
    contents.dropped = max(0, int(seq[order[-1]]) - len(seq))
    index = step_index(seq[order], step[order])
    counts = np.bincount(kinds, minlength=256)
    return Survey(contents, ring, index, counts, reader.in_order(matched), flags)


@dataclass(slots=True)
class Spools:
    """The spools of an attempt, in order of rank. `surveys` is empty unless the run is large."""

    contents: list[reader.SpoolContents]
    surveys: list[Survey]
    run: dict[str, Any]  # contents of run.json
    attempt: int
    limits: list[str]
    unread: Collection[str]  # names of files that are left out


def read_spools(root: Path, attempt: int | None) -> Spools:
    """Read the spools of a folder or file. Raises `TraceError` when none is usable."""
    files, number, limits = _spool_files(root, attempt)
    large = sum(_capacity(file) for file in files) > LARGE_RECORDS

    def read(file: Extent) -> Survey | reader.SpoolContents | TraceError:
        try:
            return survey(*reader.open_spool(file)) if large else reader.read_spool(file)
        except TraceError as error:
            return error

    for file in files:
        report_file(file.file, file.name, file.size, read=False)
    found = []
    for file, item in zip(files, (iterate_on_cores if large else map)(read, files), strict=True):
        found.append(item)
        report_file(file.file, file.name, file.size, read=True)
    both = zip(files, found, strict=True)
    unread = {file.path.name: error for file, error in both if isinstance(error, TraceError)}
    limits += [f"left out: {error}" for error in unread.values()]
    usable = [item for item in found if not isinstance(item, TraceError)]
    if not usable:
        raise nothing_read(limits, f"no rank has attached: there is no rank-*.spool in {root}")
    contents = [item.contents if isinstance(item, Survey) else item for item in usable]
    kept = _one_run(contents, limits)
    surveys = [item for at in kept if isinstance(item := usable[at], Survey)]
    contents = [contents[at] for at in kept]
    return Spools(contents, surveys, _run_json(root, limits), number, limits, unread)


def _capacity(place: Extent) -> int:
    """Number of records a spool has room for."""
    try:
        size = place.file.stat().st_size if place.size is None else place.size
    except OSError:
        return 0
    return size // layout.RECORD_BYTES


def _spool_files(root: Path, attempt: int | None) -> tuple[list[Extent], int, list[str]]:
    """The spools to read, the attempt's number, and limits in words."""
    if root.is_file():
        found = extents(root) if root.suffix == SUFFIX else [Extent(root)]
        return found, _attempt_number(root.parent), []
    if holds_spools(root):
        found, limits = spools_in(root)
        return found, _attempt_number(root), limits
    named = sorted(root.glob("attempt-*"), reverse=True)  # a number wins over any other name
    folders = {_attempt_number(folder): folder for folder in named if holds_spools(folder)}
    if not folders:
        return [], 0, []
    if attempt is not None and attempt not in folders:
        known = ", ".join(str(number) for number in sorted(folders))
        raise TraceError(f"{root} has no attempt {attempt}; there are {known}")
    number = max(folders) if attempt is None else attempt
    found, limits = spools_in(folders[number])
    if len(folders) > 1:
        limits.append(f"the run has {len(folders)} attempts; this is attempt {number}")
    if lost := [each for each in range(min(folders), max(folders)) if each not in folders]:
        which = f"{'attempts' if len(lost) > 1 else 'attempt'} {format_ranks(lost)}"
        limits.append(f"{which} left no trace here: no rank attached, or it lies elsewhere")
    return found, number, limits


def holds_spools(folder: Path) -> bool:
    """Whether a folder has spools, as files or in packs, or may have any that we must not see."""
    return is_closed(folder) or any(
        any(folder.glob(place)) for place in ("rank-*.spool", f"node-*{SUFFIX}")
    )


def spools_in(folder: Path) -> tuple[list[Extent], list[str]]:
    """The spools of an attempt's folder in order of name, and which packs cannot be read. Of a
    spool that is both, the file is read."""
    found = {path.name: Extent(path) for path in folder.glob("rank-*.spool")}
    damaged = [f"left out: no permission to read {folder}"] if is_closed(folder) else []
    for pack in sorted(folder.glob(f"node-*{SUFFIX}")):
        try:
            for extent in extents(pack):
                found.setdefault(extent.name, extent)
        except TraceError as error:
            damaged.append(f"left out: {error}")
    return [found[name] for name in sorted(found)], damaged


def _attempt_number(folder: Path) -> int:
    digits = folder.name.removeprefix("attempt-")
    return int(digits) if digits.isdecimal() else 0


def _one_run(contents: list[reader.SpoolContents], limits: list[str]) -> list[int]:
    """Indices of one spool per rank, of the run most spools belong to."""
    run_ids = [str(item.identity.get("run_id", "")) for item in contents]
    main = max(dict.fromkeys(run_ids), key=run_ids.count)  # a tie goes to the first file's run
    kept: dict[int, int] = {}
    for at, (item, run_id) in enumerate(zip(contents, run_ids, strict=True)):
        if run_id != main:
            limits.append(f"left out: {item.path} belongs to run {run_id!r}, not {main!r}")
        elif item.rank in kept:
            limits.append(f"left out: {item.path} is a second trace of rank {item.rank}")
        else:
            kept[item.rank] = at
    return [kept[rank] for rank in sorted(kept)]


def _run_json(root: Path, limits: list[str]) -> dict[str, Any]:
    folder = root if root.is_dir() else root.parent
    files = (place / "run.json" for place in (folder, folder.parent))
    file = next((file for file in files if file.is_file()), None)
    try:
        return read_facts(file) if file else {}
    except TraceError as error:
        limits.append(f"{error}; the spools' own headers are used")
        return {}
