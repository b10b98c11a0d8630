"""What every rank did inside the steps that can be looked at one by one.

A page cannot hold a whole run, so it holds the last steps and the slowest, up to a number of
records. Times are microseconds since the step began anywhere, on the common clock; a rank that has
no place on it begins at its own zero.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.stretches import WINDOW_RECORDS
from evenstep.diagnose.measure.transfer import arrivals
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import EVENT_COLUMNS, ByKind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

RECORD_BUDGET = 120_000
LATEST_STEPS = 64
SLOWEST_STEPS = 8
UNFINISHED = 4  # steps after the last finished one that ranks may have begun

SHOWN = (
    Kind.COLLECTIVE,
    Kind.POINT_TO_POINT,
    Kind.PHASE,
    Kind.SPAN,
    Kind.PAUSE,
    Kind.PACING,
)


@dataclass(slots=True, frozen=True)
class Timeline:
    """Records of the kept steps, and those steps.

    `records`: rank, step, kind, op, flags, name, group, bytes, enter_us, exit_us (NaN: still
    open), wait_us (the part of a collective spent until the last rank entered; NaN: cannot be
    told), held_us. `steps`: step, longest_us (NaN: no rank ended it).
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
    """The latest and the slowest steps in full; of very many ranks some, the culprits always.

    Of a trace with more records than `most_at_hand` only those of likely steps are read.
    """
    if len(trace.events) > most_at_hand and len(steps):
        trace = _likely(trace, steps, budget)
    shown = trace.of_kind(*SHOWN)
    ranks = _kept_ranks(shown, culprits, budget)
    kept = _kept_steps(shown.select(np.isin(shown.rank, ranks)), steps, budget)
    shown = _with_waits(shown.select(np.isin(shown.step, kept)), trace, clocks)
    shown = _on_common_time(shown.select(np.isin(shown.rank, ranks)), clocks)
    return _since_step_start(shown, steps.select(np.isin(steps.step, kept)), kept, clocks)


def _likely(trace: Trace, steps: Columns, budget: int) -> Trace:
    """The records of as many steps as the budget has room for, in the order of `_kept_steps`.

    And of those after the last that any rank finished: somebody may hang there.
    """
    most = int(budget / max(trace.records_per_step, 1)) + 1
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
    """All ranks, or every n-th when one step alone would exceed the budget."""
    ranks = np.unique(records.rank)
    _, counts = np.unique(records.step, return_counts=True)
    every = -(-int(counts.max(initial=1)) // budget)
    chosen = np.isin(ranks, list(culprits))
    chosen[::every] = True
    kept: Array = ranks[chosen]
    return kept


def _kept_steps(records: Columns, steps: Columns, budget: int) -> Array:
    """Steps within the budget: the last first, then the slowest, then back in time."""
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
    """Steps that took any rank longest, longest first."""
    time_ns = steps.end_ns - steps.start_ns
    order = np.argsort(time_ns, kind="stable")[::-1]
    return list(dict.fromkeys(steps.step[order].tolist()))[:most]


def _on_common_time(records: Columns, clocks: Clocks) -> Columns:
    """Entry and exit moved to the clock that all placed ranks share; an open exit stays 0."""
    enter, leave = records.enter_ns.copy(), records.exit_ns.copy()
    for rank, offset in clocks.by_rank.items():
        if offset is not None and offset.offset_ns.any():
            mine = records.rank == rank
            enter[mine] = offset.shift(enter[mine])
            leave[mine] = np.where(leave[mine] > 0, offset.shift(leave[mine]), 0)
    return records.with_column("enter_ns", enter).with_column("exit_ns", leave)


def _with_waits(records: Columns, trace: Trace, clocks: Clocks) -> Columns:
    """The wait of every collective; NaN where a member of its group left no trace."""
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
    """Of every kept step: where its first placed rank begins, and how long it took any rank."""
    steps_placed = steps.select(~np.isin(steps.rank, clocks.unplaced))
    records_placed = records.select(~np.isin(records.rank, clocks.unplaced))
    origin = np.full(kept.size, np.iinfo(np.int64).max)
    longest_us = np.full(kept.size, np.nan, np.float32)
    np.minimum.at(
        origin, np.searchsorted(kept, steps_placed.step), steps_placed.start_ns.astype(np.int64)
    )
    time_us = ((steps.end_ns - steps.start_ns) / 1e3).astype(np.float32)
    np.fmax.at(longest_us, np.searchsorted(kept, steps.step), time_us)
    unknown = origin[np.searchsorted(kept, records_placed.step)] == np.iinfo(np.int64).max
    never_ended = records_placed.select(unknown)
    np.minimum.at(origin, np.searchsorted(kept, never_ended.step), never_ended.enter_ns)
    return origin, longest_us


def _own_start(records: Columns, steps: Columns) -> Array:
    """The start of its own step for every record, its own entry where that is unknown."""
    keys, of = np.unique(_key(steps), return_index=True)
    if not keys.size:
        return np.asarray(records.enter_ns)
    place = np.minimum(np.searchsorted(keys, _key(records)), keys.size - 1)
    starts = steps.start_ns[of][place]
    return np.where(keys[place] == _key(records), starts, records.enter_ns)


def _key(rows: Columns) -> Array:
    """One number for a rank's step."""
    key: Array = (rows.rank.astype(np.int64) << 32) | rows.step.astype(np.int64)
    return key


def _microseconds(value_ns: Array) -> Array:
    return (np.asarray(value_ns, np.float64) / 1e3).astype(np.float32)
