"""Read a run's spools or its store as a trace, with the same step numbers on all ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from evenstep.errors import TraceError
from evenstep.trace.columns import Array, Columns, run_numbers
from evenstep.trace.cores import map_on_cores
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.reader import RECORD, SpoolContents, in_windows
from evenstep.trace.repetition import with_shared_steps, with_steps
from evenstep.trace.spool import layout
from evenstep.trace.spool.folder import spool_name
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import EVENT_COLUMNS, OnDisk, RankRows, Spooled, empty
from evenstep.trace.spools import LARGE_RECORDS, Spools, Survey, read_spools, survey
from evenstep.trace.store.layout import is_store
from evenstep.trace.store.reading import load_store
from evenstep.trace.trace import Group, RankInfo, Trace

MESH = "mesh_"  # torch's prefix of a mesh dimension's name


def load(path: str | Path, *, attempt: int | None = None) -> Trace:
    """Read a run folder (its last attempt, or `attempt`), an attempt folder, a single spool or a
    store; `limits` names ranks that are left out. Raises `TraceError` when none is left."""
    root = Path(path)
    if not root.exists():
        raise TraceError(f"{root} does not exist; give a run folder or a .spool file")
    if is_store(root):
        return load_store(root, attempt=attempt)
    trace = _assemble(read_spools(root, attempt))
    keep_recorded(trace)
    trace = with_shared_steps(trace)
    steps = trace.of_kind(layout.Kind.STEP)
    if not (steps.flags & int(layout.Flag.INFERRED)).all():
        return trace
    found, inferred = with_steps(trace)  # from all calls: the rank had only those so far
    if inferred:
        found.limits.append(f"{inferred}; evenstep.step() at the end of the loop marks them")
        found.summaries, found.summary_rank = trace.summaries[:0], trace.summary_rank[:0]
        for info in found.ranks.values():
            info.facts.pop("steps", None)  # as the rank inferred them
    return found


def _assemble(spools: Spools) -> Trace:
    contents, surveys = spools.contents, spools.surveys
    groups, group_maps = _shared_groups(contents)
    names, name_maps = _numbered((item.names for item in contents), {"": 0}, none=0)
    ranks = {
        item.rank: RankInfo(item.rank, item.identity, item.facts, item.closed, item.dropped)
        for item in contents
    }
    world = max([int(item.identity.get("world", 1)) for item in contents] + [max(ranks) + 1])
    maps = list(zip(group_maps, name_maps, strict=True))
    if surveys:
        events, shifts = _left_on_disk(surveys, maps)
    else:
        tables = [
            RankRows(item.rank, *both).table(item.records, EVENT_COLUMNS)
            for item, both in zip(contents, maps, strict=True)
        ]
        events, shifts = renumber(Columns.concatenate(tables))
    for item in contents:
        for column in ("first_step", "last_step"):
            item.summaries[column] += np.uint32(shifts.get(item.rank, 0))
    first = contents[0].identity
    trace = Trace(
        run=spools.run or {"run_id": first.get("run_id", ""), "world": first.get("world")},
        world=world,
        attempt=spools.attempt,
        ranks=ranks,
        events=events,
        groups=groups,
        names=tuple(names),
        summaries=np.concatenate([item.summaries for item in contents]),
        summary_rank=np.concatenate(
            [np.full(len(item.summaries), item.rank, np.int32) for item in contents]
        ),
        limits=spools.limits,
    )
    damaged = [f"read in part: {item.damage}" for item in contents if item.damage]
    trace.limits += _missing(trace, spools.unread) + damaged
    trace.limits += shifts_in_words(shifts)
    return trace


def keep_recorded(trace: Trace) -> None:
    """Keep the steps that all ranks recorded, where some recorded only every n-th window."""
    every = _every(trace.ranks.values())
    if every == 1:
        return
    events = trace.events
    if not isinstance(events, OnDisk):  # of which only these are read
        trace.events = events.select(in_windows(events.kind, events.step, every))
    trace.limits.append(
        f"to cost little, collectives were recorded in {layout.WINDOW_STEPS} of every "
        f"{every * layout.WINDOW_STEPS} steps: what they show is told from those"
    )


def _every(ranks: Iterable[RankInfo | SpoolContents]) -> int:
    """Of so many windows of steps, the rank that spared most has recorded one."""
    hooks = [rank.facts.get("hooks") or {} for rank in ranks]
    return max((known.get("every", 1) for known in hooks), default=1)


def _left_on_disk(
    surveys: list[Survey], maps: list[tuple[Array, Array]]
) -> tuple[Columns, dict[int, int]]:
    """All records, frequent ones on disk unless all are few, and each renumbered rank's shift."""
    if (every := _every(item.contents for item in surveys)) > 1:
        rings = [(item.contents, item.ring._replace(every=every)) for item in surveys]
        surveys = map_on_cores(lambda at: survey(*rings[at]), range(len(rings)))
    parts = [
        RankRows(item.contents.rank, *both, item.ring, item.index, item.counts)
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
    flags = np.bitwise_or.reduce([item.flags for item in surveys])
    rare_table = Columns.concatenate([empty(EVENT_COLUMNS), *rare])
    table = Spooled(parts, rare_table, np.ones(256, bool), flags)
    return (table, shifts) if len(table) > LARGE_RECORDS else renumber(table.in_memory())


def _missing(trace: Trace, unread: Collection[str]) -> list[str]:
    missing = [rank for rank in trace.missing_ranks if spool_name(rank) not in unread]
    if not missing:
        return []
    shown = ", ".join(str(rank) for rank in missing[:8]) + (" …" if len(missing) > 8 else "")
    word = "rank" if len(missing) == 1 else "ranks"
    return [f"{word} {shown} of {trace.world} left no trace here: not attached, or on another node"]


def _shared_groups(contents: Sequence[SpoolContents]) -> tuple[tuple[Group, ...], list[Array]]:
    """One table of groups for all ranks, and each rank's map of its indices (0, none, to -1)."""
    uids = [{at: str(group["uid"]) for at, group in item.groups.items()} for item in contents]
    numbers, maps = _numbered(uids, {}, none=-1)
    groups: dict[str, Group] = {}
    for item in contents:
        for described in item.groups.values():
            name, ranks, backend = (str(described.get(k, "")) for k in ("name", "ranks", "backend"))
            if (uid := str(described["uid"])) not in groups:
                groups[uid] = Group(uid, name.removeprefix(MESH), parse_ranks(ranks), backend)
    return tuple(groups[uid] for uid in numbers), maps


def _numbered(
    tables: Iterable[Mapping[int, str]], numbers: dict[str, int], *, none: int
) -> tuple[dict[str, int], list[Array]]:
    """Numbers of all texts in the ranks' tables, and each rank's map of its indices to them."""
    maps = []
    for table in tables:
        maps.append(np.full(max(table, default=0) + 1, none, np.int32))
        for index, text in table.items():
            maps[-1][index] = numbers.setdefault(text, len(numbers))
    return numbers, maps


# -- one numbering of the steps --------------------------------------------------------------------
#
# A rank counts its steps from when it attached. The identity of a collective does not depend on
# that: collectives that two ranks share show by how many steps their counts differ.


def step_shifts(events: Columns) -> dict[int, int]:
    """Return what to add to each rank's step numbers so that they agree; 0 without evidence.

    A shift is the median, over common collectives, of the difference to the lowest rank that shares
    any: a single collective at the edge of a step does no harm. Among ranks that share collectives,
    the one that began first keeps its count, so shifts are never negative.
    """
    rows = events.select((events.kind == int(Kind.COLLECTIVE)) & (events.group >= 0))
    rows = rows.sorted_by("group", "group_seq", "rank")
    shifts = dict.fromkeys((int(rank) for rank in np.unique(events["rank"])), 0)
    if not len(rows):
        return shifts
    instance = run_numbers(rows.group, rows.group_seq)
    first = np.searchsorted(instance, np.arange(int(instance[-1]) + 1))
    lead_rank, step = rows["rank"][first][instance], rows.step.astype(np.int64)
    ahead = step[first][instance] - step
    kin = {rank: rank for rank in shifts}  # lowest rank it can be compared with, over others too
    for rank in sorted(shifts):
        mine = (rows["rank"] == rank) & (lead_rank != rank)
        for lead in np.unique(lead_rank[mine])[:1]:
            shifts[rank] = shifts[int(lead)] + int(np.median(ahead[mine & (lead_rank == lead)]))
            kin[rank] = kin[int(lead)]
    lowest = {root: min(shifts[r] for r in kin if kin[r] == root) for root in set(kin.values())}
    return {rank: shift - lowest[kin[rank]] for rank, shift in shifts.items()}


def renumber(events: Columns) -> tuple[Columns, dict[int, int]]:
    """The events with common step numbers, and the shifts that were needed (empty if none); not of
    ranks that mark no steps beside some that do."""
    marking = set(np.unique(events["rank"][events.kind == int(Kind.STEP)]).tolist())
    shifts = step_shifts(events)
    shifts = {rank: by for rank, by in shifts.items() if by and rank in (marking or shifts)}
    if not shifts:
        return events, {}
    step = events.step.astype(np.int64)
    for rank, shift in shifts.items():
        step[events["rank"] == rank] += shift
    return events.with_column("step", step.astype(np.uint32)), shifts


def shifts_in_words(shifts: Mapping[int, int]) -> list[str]:
    """One sentence for each rank whose steps were renumbered."""
    return [
        f"rank {rank} began to count {shift} steps after the others; its steps were renumbered"
        for rank, shift in shifts.items()
    ]
