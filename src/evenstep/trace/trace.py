"""The trace of a run: every rank's records as columns, whatever wrote them.

A live job, a simulation and an importer all end here; diagnosis and reports begin here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError
from evenstep.trace.columns import Columns
from evenstep.trace.numbering import renumbered, step_shifts
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.reader import RECORD, SUMMARY, SpoolContents
from evenstep.trace.spool import layout
from evenstep.trace.spooled import (
    EVENT_COLUMNS,
    ByKind,
    OnDisk,
    Part,
    Spooled,
    empty,
    mapped,
)
from evenstep.trace.spools import LARGE_RECORDS, Spools, read_spools
from evenstep.trace.store.layout import is_store
from evenstep.trace.survey import Survey

Array = npt.NDArray[Any]

MESH = "mesh_"  # what torch puts before the name of a mesh's dimension


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
    rank's own monotonic clock in ns: see `evenstep.trace.clocks.clocks` before comparing hosts.
    `summaries` has one row per step or per merged steps of a rank (dtype `SUMMARY`), with
    `summary_rank` beside it. `limits` says in words what is missing or damaged. The events of a
    large run stay on disk: ask for the kinds and the rows that are needed.
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
    operations: Columns | None = None  # of an operation table: see `evenstep.trace.operations`

    def of_kind(self, *kinds: layout.Kind) -> Columns:
        """The rows of these kinds."""
        if isinstance(self.events, (ByKind, OnDisk)):
            return self.events.of_kind(*kinds)
        return self.events.select(np.isin(self.events.kind, [int(kind) for kind in kinds]))

    def window(self, first: int, last: int, wanted: Mapping[layout.Kind, Sequence[str]]) -> Trace:
        """The trace of the steps from `first`, before `last`: of each kind at least some columns.

        Only the kinds in `wanted` can be asked for.
        """
        if isinstance(self.events, OnDisk):
            return replace(self, events=self.events.window(first, last, wanted))
        step = self.events.step
        inside = self.events.select((step >= first) & (step < last))
        tables = {kind: inside.select(inside.kind == int(kind)) for kind in wanted}
        return replace(self, events=ByKind(tables))

    @property
    def records_per_step(self) -> float:
        """How many records a step has, all ranks together: about."""
        if isinstance(self.events, OnDisk):
            return self.events.per_step()
        return len(self.events) / max(len(np.unique(self.events.step)), 1)

    def oldest_steps(self) -> dict[int, int]:
        """Step of the first record each rank still has."""
        if isinstance(self.events, OnDisk):
            return self.events.oldest_steps()
        ranks, first = np.unique(self.events["rank"], return_index=True)
        return dict(zip(ranks.tolist(), self.events.step[first].tolist(), strict=True))

    def step_numbers(self) -> Array:
        """Every step there is a record of, ascending."""
        if isinstance(self.events, OnDisk):
            return self.events.step_numbers()
        return np.unique(self.events.step).astype(np.int64)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that left no usable trace."""
        return tuple(rank for rank in range(self.world) if rank not in self.ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Hosts in order of their lowest rank."""
        return tuple(dict.fromkeys(self.ranks[rank].node for rank in sorted(self.ranks)))


def load(path: str | Path, *, attempt: int | None = None) -> Trace:
    """Read a run folder, an attempt folder, a single spool or a store.

    Of a folder with several attempts the last one is read unless `attempt` names another. Ranks
    that are missing, damaged or foreign are left out and named in `limits`; raises `TraceError`
    when nothing usable is left.
    """
    root = Path(path)
    if not root.exists():
        raise TraceError(f"{root} does not exist; give a run folder or a .spool file")
    if is_store(root):
        from evenstep.trace.store.reading import load_store

        return load_store(root, attempt=attempt)
    return _assemble(read_spools(root, attempt))


def _assemble(spools: Spools) -> Trace:
    contents, surveys = spools.contents, spools.surveys
    groups, group_maps = _shared_groups(contents)
    names, name_maps = _shared_names(contents)
    ranks = {
        int(item.identity["rank"]): RankInfo(
            int(item.identity["rank"]), item.identity, item.facts, item.closed, item.dropped
        )
        for item in contents
    }
    world = max([int(item.identity.get("world", 1)) for item in contents] + [max(ranks) + 1])
    maps = list(zip(group_maps, name_maps, strict=True))
    events, shifts = _left_on_disk(surveys, maps) if surveys else _in_memory(contents, maps)
    trace = Trace(
        run=spools.run or _run_from_identity(contents[0].identity),
        world=world,
        attempt=spools.attempt,
        ranks=ranks,
        events=events,
        groups=groups,
        names=names,
        summaries=np.concatenate([_shifted(item, shifts) for item in contents]),
        summary_rank=np.concatenate(
            [np.full(len(item.summaries), item.identity["rank"], np.int32) for item in contents]
        ),
        limits=spools.limits,
    )
    trace.limits += _missing(trace) + [item.damage for item in contents if item.damage]
    trace.limits += [
        f"rank {rank} began to count {shift} steps after the others; its steps were renumbered"
        for rank, shift in shifts.items()
    ]
    return trace


def _in_memory(
    contents: list[SpoolContents], maps: list[tuple[Array, Array]]
) -> tuple[Columns, dict[int, int]]:
    """All records, and what was added to the ranks' step numbers."""
    tables = [_columns(item, *both) for item, both in zip(contents, maps, strict=True)]
    return renumbered(Columns.concatenate(tables))


def _left_on_disk(
    surveys: list[Survey], maps: list[tuple[Array, Array]]
) -> tuple[Columns, dict[int, int]]:
    """The same without the bulk of the records, unless they turn out to be few."""
    parts = [
        Part(int(item.contents.identity["rank"]), item.ring, item.index, item.counts, *both, 0)
        for item, both in zip(surveys, maps, strict=True)
    ]
    shifts: dict[int, int] = {}
    if sum(int(item.counts.sum()) for item in surveys) > LARGE_RECORDS:
        evidence = [
            part.table(item.matched, EVENT_COLUMNS)
            for part, item in zip(parts, surveys, strict=True)
        ]
        shifts = {rank: by for rank, by in step_shifts(Columns.concatenate(evidence)).items() if by}
        parts = [part._replace(shift=shifts.get(part.rank, 0)) for part in parts]
    rare = []
    for part, item in zip(parts, surveys, strict=True):
        rare.append(part.table(item.contents.records, EVENT_COLUMNS))
        item.contents.records = item.matched = np.empty(0, RECORD)  # both are in tables now
    held = Columns.concatenate([empty(EVENT_COLUMNS), *rare])
    on_device = any(item.on_device for item in surveys)
    table = Spooled(parts, held, np.ones(256, bool), on_device=on_device)
    if len(table) > LARGE_RECORDS:
        return table, shifts
    return renumbered(table.select(slice(None)))


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
                        str(described.get("name", "")).removeprefix(MESH),
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
    arrays["group"] = mapped(group_map, arrays["group"], missing=-1)
    arrays["name"] = mapped(name_map, arrays["name"], missing=0)
    return Columns(arrays)
