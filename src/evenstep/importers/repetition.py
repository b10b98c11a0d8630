"""Steps where nobody recorded any: training repeats its collectives, and a repetition is a step.

Taken as steps only where the duration of every collective is known: without it there is nothing
that tells waiting, and steps would promise what the trace cannot give.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.importers.draft import Draft
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

FEWEST_STEPS = 6  # repetitions that are no coincidence
LONGEST = 4_096  # collectives of a step
EVEN = 0.2  # deviation of pauses between collectives, over their mean: less is all the same pause
NOTHING_ELSE = "what lies within a step besides them is not recorded"
MOST_PAUSES = FEWEST_STEPS * LONGEST  # looked at: enough for the longest step
ALIKE = 0.25  # of that deviation is left where pauses are compared with those one step earlier


def with_steps(trace: Trace) -> tuple[Trace, str]:
    """The trace with a record per step, and what was taken as one; the same and "" without.

    Steps that it has already are replaced.
    """
    table = _common(trace)
    if table is None:
        return trace, ""
    reference = table.select(table["rank"] == table["rank"][0])
    began = _begun(table, trace).reshape(-1, len(reference))
    period = _period(_signature(reference))
    if not period:
        return trace, ""
    period *= _repeated(began, period)
    edges = _edges(table, trace, began, period)
    draft = Draft()
    for rank, times in edges.items():
        draft.rows(
            rank,
            {
                "kind": int(Kind.STEP), "step": np.arange(len(times) - 1) + 1,
                "enter_ns": times[:-1], "exit_ns": times[1:], "peer_or_root": 0,
                "flags": int(Flag.INFERRED),
            },
        )  # fmt: skip
    events = trace.events.select(trace.events.kind != int(Kind.STEP))
    step, begun = events.step.astype(np.int64), _begun(events, trace)
    for rank, times in edges.items():
        mine = events["rank"] == rank
        step[mine] = np.searchsorted(times, begun[mine], side="right")
    events = events.with_column("step", step.astype(np.uint32))
    repeated = len(next(iter(edges.values()))) - 1
    text = f"steps were inferred: {period} collectives that come again {repeated} times"
    return replace(trace, events=draft.appended(events)), text


def in_one_step(trace: Trace) -> Trace:
    """The trace with one step of all ranks: all that was recorded, where nothing repeats."""
    begun = _begun(trace.events, trace)
    ended = np.maximum(trace.events.exit_ns, begun + 1)
    draft = Draft()
    ranks, place = np.unique(trace.events["rank"], return_inverse=True)
    first, last = np.full(len(ranks), np.iinfo(np.int64).max), np.zeros(len(ranks), np.int64)
    np.minimum.at(first, place, begun)
    np.maximum.at(last, place, ended)
    draft.rows(
        ranks,
        {
            "kind": int(Kind.STEP), "step": 1, "flags": int(Flag.INFERRED),
            "enter_ns": first, "exit_ns": last,
        },
    )  # fmt: skip
    events = trace.events.with_column("step", np.ones(len(trace.events), np.uint32))
    return replace(trace, events=draft.appended(events))


def _begun(rows: Columns, trace: Trace) -> Array:
    """When each row began: on the device, where that has the host's clock."""
    return np.where(_on_host_clock(rows, trace), rows.device_enter_ns, rows.enter_ns)


def _on_host_clock(rows: Columns, trace: Trace) -> Array:
    """Rows with times of a device that are on the clock of its host."""
    known = [rank for rank, info in trace.ranks.items() if info.facts.get("device_clock") == "host"]
    there = ((rows.flags & int(Flag.ON_DEVICE)) != 0) & (rows.device_enter_ns > 0)
    return np.asarray(there & np.isin(rows["rank"], known))


def _common(trace: Trace) -> Columns | None:
    """The collectives of the largest group that all ranks have, timed; in order of rank and place.

    None where there is no such group, or not every duration is known.
    """
    rows = trace.of_kind(Kind.COLLECTIVE)
    whole = [
        number
        for number, group in enumerate(trace.groups)
        if set(group.ranks) == set(trace.ranks) and len(group.ranks) > 1
    ]
    if len(rows) == 0 or not whole:
        return None
    counts = np.bincount(rows.group[rows.group >= 0], minlength=len(trace.groups))
    rows = rows.select(rows.group == max(whole, key=lambda number: counts[number]))
    first = max((_bound(rows, rank, np.min) for rank in trace.ranks), default=0)
    last = min((_bound(rows, rank, np.max) for rank in trace.ranks), default=-1)
    place = rows.group_seq.astype(np.int64)
    rows = rows.select((place >= first) & (place <= last)).sorted_by("rank", "group_seq")
    ended = rows.device_exit_ns > 0
    if first < 0 or last - first < FEWEST_STEPS or not ended[:-1].all():
        return None
    return rows if len(rows) == (last - first + 1) * len(trace.ranks) else None


def _bound(rows: Columns, rank: int, which: Any) -> int:
    mine = rows.group_seq[rows["rank"] == rank]
    return int(which(mine)) if len(mine) else -1


def _signature(rows: Columns) -> Array:
    """What tells one collective of a step from another: `payload` is its tensor, if it is known."""
    columns = [rows.op, rows.bytes_in, rows.dtype, rows.payload]
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def _period(signature: Array) -> int:
    """After how many rows a table repeats, in all but its first quarter; 0 for never.

    The first quarter may hold start-up.
    """
    settled = signature[len(signature) // 4 :]
    for period in range(1, min(len(settled) // FEWEST_STEPS, LONGEST) + 1):
        if (settled[period:] == settled[:-period]).all():
            return period
    return 0


def _repeated(began: Array, period: int) -> int:
    """How many repetitions of collectives that are alike make a step: pauses repeat, too."""
    first = began.shape[1] // 4
    settled = began[:, first : first + MOST_PAUSES + 1]
    pauses = np.median(np.diff(settled, axis=1), axis=0)
    most = len(pauses) // FEWEST_STEPS // period
    alone = _deviation(pauses, period)
    if alone <= EVEN * pauses.mean():
        return 1
    fits = (n for n in range(2, most + 1) if _deviation(pauses, n * period) <= ALIKE * alone)
    return next(fits, 1)


def _deviation(pauses: Array, period: int) -> float:
    """Mean distance of pauses from what is usual at their place in a period."""
    whole = pauses[: len(pauses) // period * period].reshape(-1, period)
    return float(np.abs(whole - np.median(whole, axis=0)).mean())


def _edges(table: Columns, trace: Trace, began: Array, period: int) -> dict[int, Array]:
    """When each rank began its steps: at the collective that follows the longest usual pause.

    Where ends are known, at the end of the one before the pause: ranks leave it together.
    """
    settled = slice(began.shape[1] // 4, None)
    begun = began[:, settled]
    usual = [np.median(np.diff(begun, axis=1)[:, place::period]) for place in range(period)]
    last = int(np.argmax(usual))
    times = begun[:, (last + 1) % period :: period]
    if _on_host_clock(table, trace).all():
        times = table.device_exit_ns.reshape(began.shape)[:, settled][:, last::period]
    ranks = table["rank"].reshape(began.shape)[:, 0]
    return dict(zip(ranks.tolist(), times, strict=True))
