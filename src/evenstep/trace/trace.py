"""The trace of a run: every rank's records as columns, whatever wrote them.

A live job, a simulation and an importer all end here; diagnosis and reports begin here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError
from evenstep.trace import layout
from evenstep.trace.columns import Columns
from evenstep.trace.numbering import renumbered
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.reader import SUMMARY, SpoolContents, read_spool

Array = npt.NDArray[Any]

#: Columns of `Trace.events`: the record's own (see `layout.RECORD_FIELDS`) and the rank.
EVENT_COLUMNS: tuple[str, ...] = ("rank", *(name for name, _ in layout.RECORD_FIELDS))


@dataclass(slots=True, frozen=True)
class Group:
    """A process group: who takes part in its collectives."""

    uid: str  # hash of the sorted global ranks and the name
    name: str
    ranks: tuple[int, ...]
    backend: str = ""


@dataclass(slots=True)
class RankInfo:
    """What is known of one rank besides its records."""

    rank: int
    identity: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    closed: bool = True  # ended its trace itself; False: still alive, or killed
    dropped: int = 0  # records its ring has overwritten

    @property
    def node(self) -> str:
        """Name of the host."""
        return str(self.identity.get("hostname", ""))

    @property
    def clock(self) -> str:
        """Ranks with the same value read the same monotonic clock."""
        return str(self.identity.get("boot_id") or f"rank {self.rank}")


@dataclass(slots=True)
class Trace:
    """All ranks of one attempt of a run.

    `events` holds one row per record, in order of rank and sequence; `group` and `name` index
    `groups` and `names` here (not the rank's own tables), -1 and 0 being none. Times are the
    rank's own monotonic clock in ns: see `evenstep.trace.clocks` before comparing hosts.
    `summaries` has one row per step or per merged steps of a rank (dtype `SUMMARY`), with
    `summary_rank` beside it. `limits` says in words what is missing or damaged.
    """

    run: dict[str, Any]
    world: int
    attempt: int
    ranks: dict[int, RankInfo]
    events: Columns
    groups: tuple[Group, ...] = ()
    names: tuple[str, ...] = ("",)
    summaries: Array = field(default_factory=lambda: np.empty(0, SUMMARY))
    summary_rank: Array = field(default_factory=lambda: np.empty(0, np.int32))
    limits: list[str] = field(default_factory=list)

    def of_kind(self, *kinds: layout.Kind) -> Columns:
        """The rows of these kinds."""
        return self.events.select(np.isin(self.events.kind, [int(kind) for kind in kinds]))

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that left no usable trace."""
        return tuple(rank for rank in range(self.world) if rank not in self.ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Hosts in order of their lowest rank."""
        return tuple(dict.fromkeys(self.ranks[rank].node for rank in sorted(self.ranks)))


def load(path: str | Path, *, attempt: int | None = None) -> Trace:
    """Read a run folder, an attempt folder or a single spool.

    Of a folder with several attempts the last one is read unless `attempt` names another. Ranks
    that are missing, damaged or foreign are left out and named in `limits`; raises `TraceError`
    when nothing usable is left.
    """
    root = Path(path)
    if not root.exists():
        raise TraceError(f"{root} does not exist; give a run folder or a .spool file")
    files, number, limits = _spool_files(root, attempt)
    contents: list[SpoolContents] = []
    for file in files:
        try:
            contents.append(read_spool(file))
        except TraceError as error:
            limits.append(f"left out: {error}")
    if not contents:
        reasons = "; ".join(limits) or "there is no rank-*.spool in it"
        raise TraceError(f"nothing to read in {root}: {reasons}")
    contents, dropped = _one_run(contents)
    limits += dropped
    run = _run_json(root, limits)
    return _assemble(contents, run=run, attempt=number, limits=limits)


def _spool_files(root: Path, attempt: int | None) -> tuple[list[Path], int, list[str]]:
    """Spools to read, the attempt's number and what is left aside."""
    if root.is_file():
        return [root], _attempt_number(root.parent), []
    here = sorted(root.glob("rank-*.spool"))
    if here:
        return here, _attempt_number(root), []
    folders = {
        _attempt_number(folder): folder
        for folder in root.glob("attempt-*")
        if any(folder.glob("rank-*.spool"))
    }
    if not folders:
        return [], 0, []
    if attempt is not None and attempt not in folders:
        known = ", ".join(str(number) for number in sorted(folders))
        raise TraceError(f"{root} has no attempt {attempt}; there are {known}")
    number = max(folders) if attempt is None else attempt
    limits = []
    if len(folders) > 1:
        limits.append(f"the run has {len(folders)} attempts; this is attempt {number}")
    return sorted(folders[number].glob("rank-*.spool")), number, limits


def _attempt_number(folder: Path) -> int:
    digits = folder.name.removeprefix("attempt-")
    return int(digits) if digits.isdecimal() else 0


def _one_run(contents: list[SpoolContents]) -> tuple[list[SpoolContents], list[str]]:
    """Keep one spool per rank, of the run most spools belong to."""
    run_ids = [str(item.identity.get("run_id", "")) for item in contents]
    main = max(dict.fromkeys(run_ids), key=run_ids.count)  # of as many, the first file's
    kept: dict[int, SpoolContents] = {}
    limits = []
    for item, run_id in zip(contents, run_ids, strict=True):
        rank = int(item.identity.get("rank", -1))
        if run_id != main:
            limits.append(f"left out: {item.path} belongs to run {run_id!r}, not {main!r}")
        elif rank in kept:
            limits.append(f"left out: {item.path} is a second trace of rank {rank}")
        else:
            kept[rank] = item
    return [kept[rank] for rank in sorted(kept)], limits


def _run_json(root: Path, limits: list[str]) -> dict[str, Any]:
    folder = root if root.is_dir() else root.parent
    for place in (folder, folder.parent):
        file = place / "run.json"
        if file.is_file():
            try:
                run = json.loads(file.read_text())
            except (OSError, ValueError) as error:
                limits.append(f"{file} cannot be read ({error}); the spools' own headers are used")
                return {}
            if isinstance(run, dict):
                return run
            limits.append(f"{file} is not a JSON object; the spools' own headers are used")
            return {}
    return {}


def _assemble(
    contents: list[SpoolContents], *, run: dict[str, Any], attempt: int, limits: list[str]
) -> Trace:
    groups, group_maps = _shared_groups(contents)
    names, name_maps = _shared_names(contents)
    tables = [
        _columns(item, group_maps[index], name_maps[index]) for index, item in enumerate(contents)
    ]
    ranks = {
        int(item.identity["rank"]): RankInfo(
            int(item.identity["rank"]), item.identity, item.facts, item.closed, item.dropped
        )
        for item in contents
    }
    world = max([int(item.identity.get("world", 1)) for item in contents] + [max(ranks) + 1])
    events, shifts = renumbered(Columns.concatenate(tables))
    trace = Trace(
        run=run or _run_from_identity(contents[0].identity),
        world=world,
        attempt=attempt,
        ranks=ranks,
        events=events,
        groups=groups,
        names=names,
        summaries=np.concatenate([_shifted(item, shifts) for item in contents]),
        summary_rank=np.concatenate(
            [np.full(len(item.summaries), item.identity["rank"], np.int32) for item in contents]
        ),
        limits=limits,
    )
    trace.limits += _missing(trace) + [item.damage for item in contents if item.damage]
    trace.limits += [
        f"rank {rank} began to count {shift} steps after the others; its steps were renumbered"
        for rank, shift in shifts.items()
    ]
    return trace


def _shifted(item: SpoolContents, shifts: Mapping[int, int]) -> Array:
    """A rank's summaries in the common numbering of steps."""
    shift = shifts.get(int(item.identity["rank"]), 0)
    for column in ("first_step", "last_step"):
        item.summaries[column] += np.uint32(shift)
    return item.summaries


def _run_from_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"run_id": identity.get("run_id", ""), "world": identity.get("world")}


def _missing(trace: Trace) -> list[str]:
    missing = trace.missing_ranks
    if not missing:
        return []
    shown = ", ".join(str(rank) for rank in missing[:8]) + (" …" if len(missing) > 8 else "")
    word = "rank" if len(missing) == 1 else "ranks"
    return [f"{word} {shown} of {trace.world} left no trace here: not attached, or on another node"]


def _shared_groups(contents: Iterable[SpoolContents]) -> tuple[tuple[Group, ...], list[Array]]:
    """One table of groups for all ranks, and each rank's index into it (index 0 is none: -1)."""
    numbers: dict[str, int] = {}
    groups: list[Group] = []
    maps = []
    for item in contents:
        mapping = np.full(max(item.groups, default=0) + 1, -1, np.int32)
        for index, described in item.groups.items():
            uid = str(described["uid"])
            if uid not in numbers:
                numbers[uid] = len(groups)
                groups.append(
                    Group(
                        uid,
                        str(described.get("name", "")),
                        parse_ranks(str(described.get("ranks", ""))),
                        str(described.get("backend", "")),
                    )
                )
            mapping[index] = numbers[uid]
        maps.append(mapping)
    return tuple(groups), maps


def _shared_names(contents: Iterable[SpoolContents]) -> tuple[tuple[str, ...], list[Array]]:
    numbers: dict[str, int] = {"": 0}
    maps = []
    for item in contents:
        mapping = np.zeros(max(item.names, default=0) + 1, np.int32)
        for index, name in item.names.items():
            mapping[index] = numbers.setdefault(name, len(numbers))
        maps.append(mapping)
    return tuple(numbers), maps


def _columns(item: SpoolContents, group_map: Array, name_map: Array) -> Columns:
    records = item.records
    arrays: dict[str, Array] = {"rank": np.full(records.size, int(item.identity["rank"]), np.int32)}
    for name, _ in layout.RECORD_FIELDS:
        arrays[name] = np.ascontiguousarray(records[name])
    arrays["group"] = _mapped(group_map, arrays["group"], missing=-1)
    arrays["name"] = _mapped(name_map, arrays["name"], missing=0)
    return Columns(arrays)


def _mapped(table: Array, index: Array, *, missing: int) -> Array:
    known = index < len(table)
    return np.where(known, table[np.where(known, index, 0)], missing)
