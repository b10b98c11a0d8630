"""Timelines of single steps: the records of the last and the slowest steps, up to a budget.

Times are microseconds since the first rank began the step, on the common clock; times of a rank
whose clock is not aligned start at the rank's own step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from evenstep.diagnose.measure.grid import WINDOW_RECORDS
from evenstep.diagnose.measure.transfers import arrivals
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import ByKind, Trace

RECORD_BUDGET = 120_000
LATEST_STEPS = 64
SLOWEST_STEPS = 8
UNFINISHED = 4  # steps after the last finished one that are read too

SHOWN = (Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.PHASE, Kind.SPAN, Kind.PAUSE, Kind.PACING)


@dataclass(slots=True, frozen=True)
class Timeline:
    """The kept steps and their records.

    `records`: rank, step, kind, op, flags, name, group, bytes, enter_us, exit_us (NaN: open),
    wait_us (time in a collective until the last rank entered; NaN: unknown), held_us. `steps`:
    step, longest_us (NaN: no rank finished it).
    """

    records: Columns
    steps: Columns


def timeline(
    trace: Trace,
    steps: Columns,
    clocks: Clocks,
    *,
    culprits: Collection[int] = (),
    budget: int = RECORD_BUDGET,
    most_at_hand: int = WINDOW_RECORDS,
) -> Timeline:
    """Return the latest and slowest steps; with very many ranks, culprits and every n-th rank.
    Beyond `most_at_hand` records only those of candidate steps are read."""
    if len(trace.events) > most_at_hand and len(steps):
        trace = _candidates(trace, steps, budget)
    shown = trace.of_kind(*SHOWN)
    ranks = _kept_ranks(shown, culprits, budget)
    kept = _kept_steps(shown.select(np.isin(shown.rank, ranks)), steps, budget)
    shown = _with_waits(shown.select(np.isin(shown.step, kept)), trace, clocks)
    shown = shown.select(np.isin(shown.rank, ranks))
    enter, leave = clocks.placed(shown)
    shown = shown.with_column("enter_ns", enter).with_column("exit_ns", leave)
    return _since_step_start(shown, steps.select(np.isin(steps.step, kept)), kept, clocks)


def _candidates(trace: Trace, steps: Columns, budget: int) -> Trace:
    """Read the steps that fit in the budget, in the order of `_kept_steps`, and unfinished ones."""
    most = int(budget / max(trace.table.per_step(), 1)) + 1
    finished = np.unique(steps.step)[::-1].tolist()
    latest = finished[:LATEST_STEPS]
    order = dict.fromkeys([*latest[:1], *slowest(steps, SLOWEST_STEPS), *latest])
    wanted = dict.fromkeys(SHOWN, EVENT_COLUMNS[1:])
    spans = [(step, step + 1) for step in sorted(list(order)[:most])]
    spans.append((finished[0] + 1, finished[0] + 1 + UNFINISHED))
    windows = [trace.window(first, last, wanted) for first, last in spans]
    tables = {kind: Columns.concatenate([w.of_kind(kind) for w in windows]) for kind in SHOWN}
    return replace(trace, events=ByKind(tables))


def _kept_ranks(records: Columns, culprits: Collection[int], budget: int) -> Array:
    """Return all ranks, or culprits and every n-th if one step exceeds the budget."""
    ranks = np.unique(records.rank)
    _, counts = np.unique(records.step, return_counts=True)
    every = -(-int(counts.max(initial=1)) // budget)
    chosen = np.isin(ranks, list(culprits))
    chosen[::every] = True
    return np.asarray(ranks[chosen])


def _kept_steps(records: Columns, steps: Columns, budget: int) -> Array:
    """Choose steps within the budget: the last, then the slowest, then back in time."""
    numbers, counts = np.unique(records.step, return_counts=True)
    size = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    latest = numbers[::-1][:LATEST_STEPS].tolist()
    order = dict.fromkeys([*latest[:1], *slowest(steps, SLOWEST_STEPS), *latest])
    kept: list[int] = []
    for step in order:
        if step in size and (not kept or size[step] <= budget):
            kept.append(step)
            budget -= size[step]
    return np.array(sorted(kept), np.int64)


def slowest(steps: Columns, most: int) -> list[int]:
    """Return the slowest steps by their slowest rank, slowest first."""
    time_ns = steps.end_ns - steps.start_ns
    order = np.argsort(time_ns, kind="stable")[::-1]
    return list(dict.fromkeys(steps.step[order].tolist()))[:most]


def _with_waits(records: Columns, trace: Trace, clocks: Clocks) -> Columns:
    """Add the wait of every collective; NaN if a member of its group has no trace."""
    numbered = records.with_column("seq", np.arange(len(records)))
    rows = arrivals(replace(trace, events=numbered), clocks)
    wait = np.full(len(records), np.nan)
    traced = [all(rank in trace.ranks for rank in group.ranks) for group in trace.groups]
    known = rows.select(np.isin(rows.group, np.flatnonzero(traced)))
    wait[known.seq] = known.wait_ns
    return records.with_column("wait_ns", wait)


def _since_step_start(records: Columns, steps: Columns, kept: Array, clocks: Clocks) -> Timeline:
    origin, longest_us = _origins(records, steps, kept, clocks)
    place = np.searchsorted(kept, records.step)
    unplaced = np.isin(records.rank, clocks.unplaced)
    zero = np.where(unplaced, _own_start(records, steps), origin[place])
    order = np.lexsort([-records.exit_ns, records.enter_ns, records.rank, records.step])
    columns: dict[str, Array] = {
        "rank": records.rank.astype(np.int32),
        "step": records.step.astype(np.int32),
        "kind": records.kind.astype(np.uint8),
        "op": records.op.astype(np.uint8),
        "flags": records.flags.astype(np.uint16),
        "name": records.name.astype(np.int32),
        "group": records.group.astype(np.int32),
        "bytes": np.maximum(records.bytes_in, records.bytes_out).astype(np.float64),
        "enter_us": _microseconds(records.enter_ns - zero),
        "exit_us": _microseconds(np.where(records.exit_ns > 0, records.exit_ns - zero, np.nan)),
        "wait_us": _microseconds(records.wait_ns),
        "held_us": _microseconds(records.held_ns),
    }
    table = Columns({"step": kept.astype(np.int32), "longest_us": longest_us})
    return Timeline(Columns(columns).select(order), table)


def _origins(records: Columns, steps: Columns, kept: Array, clocks: Clocks) -> tuple[Array, Array]:
    """Return the start of each kept step on its first rank, and its longest time over ranks."""
    steps_placed = steps.select(~np.isin(steps.rank, clocks.unplaced))
    records_placed = records.select(~np.isin(records.rank, clocks.unplaced))
    origin = np.full(kept.size, np.iinfo(np.int64).max)
    longest_us = np.full(kept.size, np.nan, np.float32)
    place = np.searchsorted(kept, steps_placed.step)
    np.minimum.at(origin, place, steps_placed.start_ns.astype(np.int64))
    time_us = ((steps.end_ns - steps.start_ns) / 1e3).astype(np.float32)
    np.fmax.at(longest_us, np.searchsorted(kept, steps.step), time_us)
    unknown = origin[np.searchsorted(kept, records_placed.step)] == np.iinfo(np.int64).max
    never_ended = records_placed.select(unknown)
    np.minimum.at(origin, np.searchsorted(kept, never_ended.step), never_ended.enter_ns)
    return origin, longest_us


def _own_start(records: Columns, steps: Columns) -> Array:
    """Return the start of each record's step on its rank, or its own entry if unknown."""
    keys, of = np.unique(_key(steps), return_index=True)
    if not keys.size:
        return np.asarray(records.enter_ns)
    place = np.minimum(np.searchsorted(keys, _key(records)), keys.size - 1)
    return np.where(keys[place] == _key(records), steps.start_ns[of][place], records.enter_ns)


def _key(rows: Columns) -> Array:
    return np.asarray((rows.rank.astype(np.int64) << 32) | rows.step.astype(np.int64))


def _microseconds(value_ns: Array) -> Array:
    return (np.asarray(value_ns, np.float64) / 1e3).astype(np.float32)
