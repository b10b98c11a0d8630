"""A trace of steps and their parts: each worker's own time, and a barrier at the end of each step.

Such a source has the time of each worker but no collectives. Where several workers are timed, a
step is taken to last until the slowest is done: the others' wait for it, entered as an inferred
barrier, is what synchronous training makes of their times. That is wrong for workers that do not
synchronize, and `limits` says so. Loops that time the parts of a step include the wait in the part
that exchanges gradients, or outside of all parts: then the steps of all workers are equally long
although their other parts are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.draft import LATEST_NS, ORIGIN_NS, Draft
from evenstep.trace.columns import Array, Columns, begins, largest_of, positions_by_key, smallest_of
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import UNKNOWN, Trace

WHOLE = -1  # in place of a phase: the step itself
SYNCHRONIZED = (
    "only each worker's own time of a step is known: it is taken to end when the slowest is done, "
    "and the others to wait; workers that do not synchronize every step do not. Where that time "
    "holds its waits for others, as in steps that all workers end together, it does not tell who "
    "is slow"
)
WAITING = (
    "all workers' steps are equally long: what one's {} took longer than the shortest is taken to "
    "be waiting"
)
UNTOLD = "all workers' steps are equally long: whether the wait is in {} or in {} cannot be told"
AT_LEAST = "; by how much the slowest's own work in it is longer is not known: it costs at least"
#: Parts that may include the wait for other workers, and their names; WHOLE: what no part tells.
_EXCHANGING: dict[int, str] = {
    Phase.SYNC: "communication", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer",
    Phase.OTHER: "rest", WHOLE: "time outside of these parts",
}  # fmt: skip
WORK = (WHOLE, Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)  # without any, parts make no step
_SURE = 2.0  # standard errors by which the part that waits differs more than others
_EVEN = 0.5  # steps are equally long if they differ by less than this share of their own times


class Timed(NamedTuple):
    """One row per worker, step and part of the step, in order of the source."""

    rank: Array
    number: Array  # of the step
    start_s: Array  # on one clock; nan unknown
    seconds: Array
    phase: Array  # a `Phase`, or WHOLE


def trace_of(rows: Timed, draft: Draft, run: Mapping[str, Any], names: Mapping[int, str]) -> Trace:
    """The trace of these rows; `names` are the source's names of workers.

    Of a repeated step (after a restart) the last time counts. Raises `TraceError` where no row is
    usable.
    """
    table = _sound(rows, draft.limits)
    table, lost_s = _last_time(table, draft.limits)
    whole, table, known = _own(_whole_steps(table), table, draft.limits)
    for rank in np.unique(table["rank"]).tolist():
        place: dict[str, Any] = {"place": names[rank]} if rank in names else {}
        draft.rank(rank, boot_id="one table", **place)
    begin_ns, length_ns, numbers = _line(whole)
    _enter(draft, whole, table, begin_ns, length_ns, numbers)
    told = {**run, **({"lost_work_s": lost_s} if lost_s else {})}
    return draft.trace(told if known or len(draft.ranks) < 2 else {**told, "waits": UNKNOWN})


def _sound(rows: Timed, limits: list[str]) -> Columns:
    """Keep rows with a valid rank, step and duration, in whole ns: parts end where steps do."""
    rows = rows._replace(seconds=np.rint(rows.seconds * 1e9) / 1e9)
    table = Columns(rows._asdict())
    good = (rows.rank >= 0) & (rows.rank < MOST_RANKS) & (rows.number >= 0) & (rows.number < 2**31)
    good &= (rows.seconds > 0) & (rows.seconds < LATEST_NS / 1e9 / max(len(rows.rank), 1))
    if not good.any():
        raise TraceError("it has no row with a worker, a step and seconds (with a decimal point)")
    if not np.isin(rows.phase, [int(part) for part in WORK]).any():
        names = ", ".join(Phase(part).name.lower() for part in np.unique(rows.phase).tolist())
        raise TraceError(f"it has parts of steps only ({names}): add the seconds of whole steps")
    if not good.all():
        limits.append(f"{int((~good).sum())} rows have no worker, step or seconds: left out")
    return table.select(good)


def _last_time(table: Columns, limits: list[str]) -> tuple[Columns, float]:
    """The last time of each part of a step, and the seconds per rank of the earlier times."""
    table = table.with_column("row", np.arange(len(table)))
    table = table.sorted_by("rank", "number", "phase", "row")
    again = ~np.append(begins(table["rank"], table.number, table.phase), True)[1:]
    ranks = len(np.unique(table["rank"]))
    lost_s = float(table.seconds[again & (table.phase == WHOLE)].sum()) / ranks
    if again.any():
        count = len(np.unique(table.number[again]))
        limits.append(f"{count} steps came again: the last time of each was used")
    return table.select(~again), lost_s


def _whole_steps(table: Columns) -> Columns:
    """A row per rank and step, by step and rank: the stated time, or the sum of its parts."""
    stated = table.select(table.phase == WHOLE)
    parts = table.select(table.phase != WHOLE)
    parts = parts.select(~np.isin(_cell(parts), _cell(stated)))
    cells, first, place = np.unique(_cell(parts), return_index=True, return_inverse=True)
    seconds = np.bincount(place, parts.seconds, minlength=len(cells))
    summed = parts.select(first).with_column("seconds", seconds)
    return Columns.concatenate([stated, summed]).sorted_by("number", "rank")


def _own(whole: Columns, table: Columns, limits: list[str]) -> tuple[Columns, Columns, bool]:
    """Steps and parts without the wait for other workers, if a part includes it; and whether that
    part holds nothing else.

    Where steps are equally long, the wait makes up for all that workers do not have in common: of
    the parts, it is in the one that differs most between them, if that is more than chance.
    """
    _, first, step = np.unique(whole.number, return_index=True, return_inverse=True)
    parts = {one: part for one in _EXCHANGING if len(part := _part(whole, table, one))}
    apart = {one: _apart(part, first) for one, part in parts.items()}
    even = [one for one in apart if _even(_apart(whole.seconds, first), apart[one])]
    may = [Phase.SYNC] if Phase.SYNC in parts else sorted(even, key=lambda one: -apart[one].mean())
    if not may or len(whole) == len(first):
        return whole, table, False
    phase = may[0]
    for other in may[1:]:
        more = apart[phase] - apart[other]
        if more.mean() * (len(more) - 1) ** 0.5 <= _SURE * more.std():
            limits.append(UNTOLD.format(_EXCHANGING[phase], _EXCHANGING[other]))
            return whole, table, False
    waited = parts[phase] - np.minimum.reduceat(parts[phase], first)[step]
    alone = phase in (Phase.SYNC, WHOLE)
    limits.append(WAITING.format(_EXCHANGING[phase]) + ("" if alone else AT_LEAST))
    rows = np.flatnonzero((table.phase == int(phase)) & (phase != WHOLE))
    seconds = table.seconds.copy()
    seconds[rows] -= waited[np.searchsorted(_cell(whole), _cell(table)[rows])]
    own = np.maximum(whole.seconds - waited, 0.0)
    return whole.with_column("seconds", own), table.with_column("seconds", seconds), alone


def _part(whole: Columns, table: Columns, phase: int) -> Array:
    """Seconds of a part of each step, of what no part tells for WHOLE; none if some lack it."""
    cells = _cell(whole)
    stated = phase != WHOLE or np.count_nonzero(table.phase == WHOLE) == len(cells)
    rows = table.select(table.phase != WHOLE if phase == WHOLE else table.phase == phase)
    seconds = np.bincount(np.searchsorted(cells, _cell(rows)), rows.seconds, len(cells))
    if not stated or not np.isin(cells, _cell(rows)).all():
        return np.empty(0)
    return np.asarray(whole.seconds - seconds if phase == WHOLE else seconds)


def _apart(seconds: Array, first: Array) -> Array:
    """Seconds between the slowest and the fastest worker of each step; `first`: its first row."""
    return np.asarray(np.maximum.reduceat(seconds, first) - np.minimum.reduceat(seconds, first))


def _even(whole: Array, part: Array) -> bool:
    """Whether most steps in which workers differ are equally long, as against a part of them."""
    differ = np.maximum(whole, part) > 0.5e-9  # times are whole ns
    return not differ.any() or bool(np.mean(whole[differ] <= _EVEN * part[differ]) >= 0.5)


def _cell(table: Columns) -> Array:
    return np.asarray(table.number.astype(np.int64) * (1 << 21) + table["rank"])


def _line(whole: Columns) -> tuple[Array, Array, Array]:
    """Start and length of each step on one time line, and its number.

    A step begins at the source's time, but not before the previous one is over.
    """
    numbers, place = np.unique(whole.number, return_inverse=True)
    length = largest_of(whole.seconds, place, len(numbers), least=0.0)
    stated = smallest_of(whole.start_s, place, len(numbers), most=np.inf)
    known = np.isfinite(stated)
    stated = np.where(known, stated - (stated[known].min() if known.any() else 0.0), 0.0)
    before = np.cumsum(length) - length
    begin = before + np.maximum.accumulate(stated - before)
    begin_ns = ORIGIN_NS + np.rint(begin * 1e9).astype(np.int64)
    return begin_ns, np.maximum(np.rint(length * 1e9).astype(np.int64), 1), numbers


def _enter(
    draft: Draft, whole: Columns, table: Columns, begin_ns: Array, length_ns: Array, numbers: Array
) -> None:
    """Enter steps, their parts, and the barriers that end them."""
    ranks = sorted(draft.ranks)
    at = np.searchsorted(numbers, whole.number)
    enter, leave = begin_ns[at], begin_ns[at] + length_ns[at]
    draft.rows(whole["rank"], kind=int(Kind.STEP), step=whole.number, enter_ns=enter, exit_ns=leave)
    _enter_parts(draft, table.select(table.phase != WHOLE), numbers, begin_ns)
    if len(ranks) < 2:
        return
    met = (np.bincount(at) == len(ranks))[at]
    done = np.minimum(enter + np.rint(whole.seconds * 1e9).astype(np.int64), leave)
    draft.rows(
        whole["rank"][met],
        kind=int(Kind.COLLECTIVE), op=int(Op.BARRIER),
        group=draft.group("world", ranks), group_seq=at[met],
        step=whole.number[met], enter_ns=done[met], exit_ns=leave[met] + 1,
        flags=int(Flag.INFERRED | Flag.HOST_BLOCKED),
    )  # fmt: skip
    draft.limits.append(SYNCHRONIZED)


def _enter_parts(draft: Draft, parts: Columns, numbers: Array, begin_ns: Array) -> None:
    """Enter the parts of each rank's steps, one after the other from the step's beginning."""
    parts = parts.sorted_by("rank", "number", "row")
    length = np.rint(parts.seconds * 1e9).astype(np.int64)
    before = np.cumsum(length) - length
    before -= before[np.arange(len(parts)) - positions_by_key(parts["rank"], parts.number)]
    enter = begin_ns[np.searchsorted(numbers, parts.number)] + before
    draft.rows(
        parts["rank"],
        kind=int(Kind.PHASE), op=parts.phase, step=parts.number,
        enter_ns=enter, exit_ns=enter + length, group_seq=length,
    )  # fmt: skip
