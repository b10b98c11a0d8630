"""Rows of the graph: what each host thread and each stream did, in order.

Waits of host threads are recorded: as calls that block, and as phases of waiting. On devices, and
where no wait is recorded, waits are inferred from the order and times of entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.awaited import Awaited, infer_waits
from evenstep.diagnose.graph.entries import Entries
from evenstep.diagnose.graph.streams import in_order, kernels_before, with_rising_steps
from evenstep.diagnose.graph.structure import NEVER_NS, NO_ENTRY, TimeLine, grouped_order
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns, begins, finishes, run_numbers, running_maximum
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

NONE = -1
WORKED, ENTRY, CALL, WAIT, STEP_END = range(5)  # `order` of rows at one time
TELLING_NS = 20_000  # a wait at least this long ended because its operation did


class LaneExtent(NamedTuple):
    """The steps and ranks, ascending, whose rows are built; `device` (ranks,): device streams;
    `apart` (ranks,): streams whose clock is not their host's, whose steps end with their work."""

    trace: Trace
    clocks: Clocks
    steps: Array
    ranks: Array
    device: Array
    apart: Array

    def table(self, rows: Columns) -> Columns:
        """Records of these steps and ranks on the common time, but for those `apart`."""
        mine = np.isin(rows.step, self.steps) & np.isin(rows["rank"], self.ranks)
        rows = rows.select(mine & (rows.exit_ns > 0))
        enter, leave = self.clocks.placed(rows)
        table = Columns(
            {
                "lane": np.searchsorted(self.ranks, rows["rank"]),
                "step": rows.step.astype(np.int64),
                "enter_ns": enter,
                "leave_ns": leave,
                "seq": rows.seq.astype(np.int64),
                "parent": rows.parent.astype(np.int64),
            }
        )
        return table.select(~self.apart[table.lane]) if self.apart.any() else table

    def waits(self) -> Columns:
        """The recorded phases of waiting of host threads."""
        phases = self.trace.of_kind(Kind.PHASE)
        waits = self.table(phases.select(phases.op == int(Phase.SYNC)))
        return waits.select(~self.device[waits.lane])

    def step_ns(self, end: str) -> Array:
        """When each step began ("enter_ns") or ended: (steps, lanes), `NEVER_NS` unknown."""
        rows = self.table(self.trace.of_kind(Kind.STEP))
        found = np.full((len(self.steps), len(self.ranks)), NEVER_NS)
        found[np.searchsorted(self.steps, rows.step), rows.lane] = rows[end]
        return found


def rows_of(span: LaneExtent, found: Entries, operations: Columns) -> tuple[Columns, Columns]:
    """All rows, in order of lane and time: lane, step, at_ns, enter, wait, order; and all
    operations, with one more for each wait of which nothing else is known.

    Rows of one time are in the order in which they were recorded, where that is known.
    """
    over = operations.over_ns
    parts, unknown = _host_rows(span, found, operations)
    ended = over.copy()  # the end of an asynchronous one is stamped by another thread, maybe later
    for rows in parts:
        waited = rows.select(rows.order == WAIT)
        np.minimum.at(ended, waited.wait, waited.until_ns)
    operations = operations.with_column("over_ns", np.maximum(ended, operations.last_ns))
    if len(unknown):
        number = len(operations) + np.arange(len(unknown))  # each an operation of its own
        parts.append(_table(unknown, number, number, CALL))
        operations = Columns.concatenate([operations, single_operations(unknown, operations)])
    if span.device.any():
        more, operations = _device_rows(span, found, operations, over)
        parts += more
    rows = Columns.concatenate(parts)
    return rows.select(_in_order(rows)), operations


def _in_order(rows: Columns) -> Array:
    """The rows' order by lane, time, step (its end last), number, kind: mostly by the first two."""
    order = grouped_order(rows.lane, rows.at_ns)
    lane, at = rows.lane[order], rows.at_ns[order]
    same = ~begins(lane, at)
    tied = np.flatnonzero(same | np.append(same[1:], False))
    ties = rows.select(order[tied])
    last = ties.order == STEP_END
    keys = [ties.until_ns, ties.order, ties.seq, last, ties.step, ties.at_ns, ties.lane]
    order[tied] = order[tied][np.lexsort(keys)]
    return order


def single_operations(table: Columns, operations: Columns) -> Columns:
    """Operations of one member and no group, in queues of their lanes: those of a table with lane,
    step, and when they were entered (enter_ns) and over (leave_ns)."""
    columns = {name: np.zeros(len(table), operations[name].dtype) for name in operations}
    columns |= {
        "queue": int(operations.queue.max(initial=-1)) + 1 + table.lane,
        "sequence": np.arange(len(table)),
        "step": table.step,
        "group": np.full(len(table), NONE),
        "members": np.ones(len(table), np.int64),
        "last_ns": table.enter_ns,
        "over_ns": table.leave_ns,
    }
    return Columns(columns)


def _table(rows: Columns, enter: Array | None, wait: Array | None, order: Array | int) -> Columns:
    """Rows of the graph from a table with lane, step, enter_ns, leave_ns and seq."""
    nothing, small = np.full(len(rows), NONE), np.full(len(rows), NONE, np.int8)
    names = ("slack_ns", "behind_ns", "unblocked_ns", "inside", "after")
    told = dict.fromkeys(names, small) | {"idle": small > 0}
    if enter is not None:
        told |= {name: rows[name] for name in told if name in rows}
    return Columns({
        "lane": rows.lane.astype(np.int64), "step": rows.step,
        "at_ns": rows.enter_ns, "until_ns": rows.leave_ns, "seq": rows.seq,
        "enter": nothing if enter is None else enter, "wait": nothing if wait is None else wait,
        "order": np.broadcast_to(np.asarray(order, np.int8), len(rows)), **told,
    })  # fmt: skip


def _entry_rows(rows: Columns, waits: Array) -> Columns:
    """Rows of entries into operations that the entries decide on, and of waits in calls."""
    enter = np.where(rows.decides, rows.operation, NONE)
    wait = np.where(waits, rows.operation, NONE)
    kept = (enter >= 0) | (wait >= 0)
    if "after" in rows:
        rows = rows.with_column("after", np.where(rows.decides, rows.after, NONE))
    return _table(rows, enter, wait, np.where(wait >= 0, CALL, ENTRY)).select(kept)


# -- hosts -----------------------------------------------------------------------------------------


def _host_rows(
    span: LaneExtent, found: Entries, operations: Columns
) -> tuple[list[Columns], Columns]:
    """Entries and waits of host threads and ends of their steps; and waits for unknown ones."""
    over = operations.over_ns
    rows = found.rows.select(~found.rows.on_device) if span.device.any() else found.rows
    phases = span.trace.of_kind(Kind.PHASE)
    waits = span.waits()
    later = rows.select(rows.waits & ~rows.calls)
    blocked = rows.waits & rows.calls
    parts, named = _named_waits(waits, rows.select(~rows.calls))
    sure = np.unique(waits.lane[named])
    guessed = ~named & ((waits.parent == 0) | ~np.isin(waits.lane, sure))
    waits = _after_calls(waits.select(guessed), rows).sorted_by("lane", "enter_ns")
    later = later.select(~np.isin(later.lane, sure))
    known = np.zeros(len(waits), bool)
    if len(later) and not len(waits):
        rows = rows.sorted_by("lane", "enter_ns", "seq")
        waited = infer_waits(rows, found.operations, over)
        ahead = np.where(rows.waits & ~rows.calls, waited.ahead, 0)
        blocked = rows.waits & (rows.calls | ((ahead == 1) & ~waited.worked))
        parts += _deferred_waits(rows, waited._replace(ahead=ahead))
    elif len(later):
        more, known = _matched_waits(waits, later, operations)
        parts += more
    unknown = waits.select(~known & (waits.leave_ns - waits.enter_ns >= TELLING_NS))
    ends = span.table(span.trace.of_kind(Kind.STEP))
    ends = ends.select(~span.device[ends.lane])
    ends = ends.with_column("enter_ns", ends.leave_ns)
    parts += _send_waits(span, rows.select(~np.isin(rows.lane, sure)), phases, over)
    return [_entry_rows(rows, blocked), *parts, _table(ends, None, None, STEP_END)], unknown


def _send_waits(span: LaneExtent, rows: Columns, phases: Columns, over: Array) -> list[Columns]:
    """Unrecorded waits for sends: a thread whose next record mostly follows at once on the end of
    the last message it sent in a step waited for that message."""
    sends = rows.select(rows.sends & ~rows.waits & (rows.leave_ns > rows.enter_ns))
    if not len(sends):
        return []
    calls = rows.select(rows.calls)
    phases = span.table(phases)
    times = [rows.enter_ns, calls.leave_ns, phases.enter_ns, phases.leave_ns]
    lanes = [rows.lane, calls.lane, phases.lane, phases.lane]
    lane, done = np.concatenate(lanes), np.concatenate(times)
    order = np.lexsort([done, lane])
    lane, done = line = TimeLine(lane[order], done[order])
    sends = sends.sorted_by("lane", "step", "leave_ns")
    sends = sends.select(finishes(sends.lane, sends.step))
    following = line.before(sends.lane, sends.leave_ns - TELLING_NS - 1)  # ends are seen late
    next_lane = np.append(lane, NONE)[following]
    gap = np.append(done, 0)[following] - sends.leave_ns
    ended = over[sends.operation]
    sends = sends.with_column("late_ns", MINOR * (sends.leave_ns - sends.enter_ns))
    buffered = ended > sends.leave_ns + sends.late_ns + 2 * span.clocks.error_ns  # received later
    at_once = (next_lane == sends.lane) & (gap <= TELLING_NS) & ~buffered
    often = np.bincount(sends.lane, at_once) >= MOST * np.bincount(sends.lane)
    sends, ended = sends.select(often[sends.lane]), ended[often[sends.lane]]
    before = line.before(sends.lane, np.minimum(ended, sends.leave_ns) - TELLING_NS - 1) - 1
    blocked = ended >= sends.leave_ns - sends.late_ns
    since = np.where(blocked, np.maximum(done[np.maximum(before, 0)], sends.enter_ns), 2**62)
    sends = sends.with_column("enter_ns", np.minimum(since, sends.leave_ns))
    return [_table(sends, None, sends.operation, WAIT)]


def _after_calls(waits: Columns, rows: Columns) -> Columns:
    """The waits, begun at the last call that their thread made within them: until it returned from
    that call, it waited for something else."""
    if not len(rows):
        return waits
    rows = rows.select(grouped_order(rows.lane, rows.enter_ns, rows.seq))
    last = TimeLine(rows.lane, rows.enter_ns).before(waits.lane, waits.leave_ns - 1) - 1
    at = np.maximum(last, 0)
    inside = (last >= 0) & (rows.lane[at] == waits.lane) & (rows.enter_ns[at] >= waits.enter_ns)
    returned = np.where(rows.calls[at], rows.leave_ns[at], rows.enter_ns[at])
    since = np.where(inside, np.clip(returned, waits.enter_ns, waits.leave_ns), waits.enter_ns)
    return waits.with_column("enter_ns", since)


def _named_waits(waits: Columns, rows: Columns) -> tuple[list[Columns], Array]:
    """Rows of waits whose `parent` is the operation they were for, and a mask of them; the `parent`
    of the other waits is what they lie in."""
    if not len(waits) or not len(rows):
        return [], np.zeros(len(waits), bool)
    width = int(max(rows.seq.max(initial=0), waits.parent.max())) + 1
    key = rows.lane * width + rows.seq
    order = np.argsort(key, kind="stable")
    wanted = waits.lane * width + waits.parent
    at = np.minimum(np.searchsorted(key[order], wanted), len(rows) - 1)
    there = (waits.parent > 0) & (key[order][at] == wanted)
    return [_table(waits.select(there), None, rows.operation[order[at[there]]], WAIT)], there


def _matched_waits(
    waits: Columns, later: Columns, operations: Columns
) -> tuple[list[Columns], Array]:
    """Rows of waits for the last operation of the lane in every queue that was over when the wait
    ended, but for what an earlier wait waited for; and which waits are for any known operation."""
    queue = operations.queue[later.operation]
    queues = int(queue.max()) + 1
    pair = later.lane * queues + queue
    present = np.bincount(pair, minlength=1) > 0
    lanes, number = np.flatnonzero(present) // queues, (np.cumsum(present) - 1)[pair]
    ended = operations.over_ns[later.operation]
    ended = np.where(later.sends, np.maximum(ended, later.leave_ns), ended)  # their wait's end
    order = grouped_order(number, ended, later.enter_ns)
    number, ended, entered = number[order], ended[order], later.enter_ns[order]
    operation = later.operation[order]
    turn = np.arange(len(lanes)) - np.searchsorted(lanes, lanes)
    firsts = np.searchsorted(number, np.arange(len(lanes) + 1))
    by_lane = np.full((int(turn.max()) + 1, int(max(lanes.max(), waits.lane.max())) + 1), NONE)
    by_lane[turn, lanes] = np.arange(len(lanes))
    ends, entries_ = (
        TimeLine(number, ended),
        TimeLine(number, entered[grouped_order(number, entered)]),
    )
    parts, found_any = [], np.zeros(len(waits), bool)
    with_, told = ended_with(waits, later.lane[order], ended)
    until = np.where(told, np.maximum(ended[with_], waits.leave_ns), waits.leave_ns)
    for which in by_lane:
        pairs = which[waits.lane]
        mine = np.flatnonzero(pairs >= 0)
        chosen = pairs[mine]
        over_by = ends.before(chosen, until[mine])
        entered_by = entries_.before(chosen, waits.enter_ns[mine])
        last = np.minimum(over_by, entered_by) - 1
        earlier = _furthest_before(waits.lane[mine], last)
        found_any[mine] |= last >= firsts[chosen]
        new = (last >= firsts[chosen]) & (last > earlier)
        parts.append(_table(waits.select(mine[new]), None, operation[last[new]], WAIT))
    return parts, found_any


def ended_with(waits: Columns, lane: Array, ended_ns: Array) -> tuple[Array, Array]:
    """Which of these ends of lanes is nearest to the end of each wait, and whether it ended the
    wait: it is nearer to its end than to its beginning, as ends seen elsewhere may come later."""
    order = grouped_order(lane, ended_ns)
    line = TimeLine(lane[order], ended_ns[order])
    last = line.before(waits.lane, waits.leave_ns)
    near = order[np.clip([last - 1, last], 0, len(order) - 1)]
    apart = np.abs(ended_ns[near] - waits.leave_ns)
    apart = np.where(lane[near] == waits.lane, apart, np.iinfo(np.int64).max)
    nearest = np.where(apart[1] < apart[0], near[1], near[0])
    return nearest, apart.min(axis=0) <= (waits.leave_ns - waits.enter_ns) // 2


def _furthest_before(lane: Array, last: Array) -> Array:
    """The largest `last` of earlier waits of the same lane; -1 for the first."""
    return np.where(begins(lane), NONE, np.roll(running_maximum(last, lane), 1))


# -- streams ---------------------------------------------------------------------------------------


def _device_rows(
    span: LaneExtent, found: Entries, operations: Columns, over: Array
) -> tuple[list[Columns], Columns]:
    """Entries of streams, the waits of their compute, and the ends of their steps; and the
    operations, with the ends of kernels."""
    rows = found.rows.select(found.rows.on_device)
    rows = with_rising_steps(in_order(rows, found.operations))
    rows = rows.with_column("seq", np.arange(len(rows)))  # sends first on every rank of a ring
    waited = infer_waits(rows, found.operations, over)
    rows = rows.with_column("idle", waited.idle)
    step = run_numbers(rows.lane, rows.step)
    last = np.flatnonzero(finishes(step))
    left = _awaited_at_end(rows, found.operations, over, waited, last[step])
    at_once = (waited.ahead[last] == 1) & ~waited.worked[last]
    resumed = np.where(at_once, over[rows.operation[last]], rows.enter_ns[last])
    np.maximum.at(resumed, step[left], over[rows.operation[left]])
    resumed = np.maximum(resumed, rows.enter_ns[last])
    ended = span.step_ns("leave_ns")[np.searchsorted(span.steps, rows.step[last]), rows.lane[last]]
    resumed = np.maximum(resumed, ended)
    ends = rows.select(last).with_column("enter_ns", resumed).with_column("leave_ns", resumed)
    crosses = last[step] < np.arange(len(rows)) + waited.ahead
    since = np.maximum(waited.since_ns, np.where(crosses, resumed[step], 0))
    waited = waited._replace(since_ns=since)
    finals = rows.select(last[step[left]]).with_column("operation", rows.operation[left])
    rows, kernels, operations = _with_kernel_ends(rows, operations)
    return [
        _entry_rows(rows, (waited.ahead == 1) & ~waited.worked),
        *_deferred_waits(rows, waited),
        _table(finals, None, finals.operation, WAIT),
        _table(ends, None, None, STEP_END),
        kernels,
    ], operations


def _with_kernel_ends(rows: Columns, operations: Columns) -> tuple[Columns, Columns, Columns]:
    """The entries of streams; rows and operations with one more for each kernel of several messages
    that others come `after`: it is over when all of them are."""
    kernel, before = rows.kernel, kernels_before(rows)
    several = np.bincount(kernel, minlength=1) > 1
    named = several & (np.bincount(before + 1, minlength=len(several) + 1)[1:] > 0)
    number = np.append(np.where(named, len(operations) + np.cumsum(named) - 1, NONE), NONE)
    members = np.flatnonzero(named[kernel])
    table = rows.select(members).only("lane", "step", "enter_ns", "leave_ns", "seq")
    _, heads, of = np.unique(kernel[members], return_index=True, return_inverse=True)
    over = np.zeros(len(heads), np.int64)
    np.maximum.at(over, of, operations.over_ns[rows.operation[members]])
    ends = single_operations(table.select(heads).with_column("leave_ns", over), operations)
    slack = np.full(len(members), NO_ENTRY)
    table = table.with_columns(after=rows.operation[members], slack_ns=slack)
    after = np.where(number[before] >= 0, number[before], rows.after)
    return (
        rows.with_column("after", after),
        _table(table, number[kernel[members]], None, ENTRY),
        Columns.concatenate([operations, ends]) if len(ends) else operations,
    )


def _awaited_at_end(
    rows: Columns, operations: Columns, over: Array, waited: Awaited, last: Array
) -> Array:
    """Entries that a step waits for at its end: in each queue the last one without a wait, if
    entries mostly are over before the next step begins."""
    following = np.roll(rows.enter_ns, -1)[last]
    ended = over[rows.operation]
    soon = MINOR * (ended - rows.enter_ns)
    after = finishes(rows.lane)[last] | (following >= ended - soon)
    open_ = np.flatnonzero((waited.ahead == 0) & ~rows.sends & after)
    if not len(open_) or np.count_nonzero(after) < NEARLY_ALL * len(after):
        return np.zeros(0, np.int64)
    queue = operations.queue[rows.operation[open_]]
    order = np.lexsort([open_, queue, last[open_]])
    final = finishes(last[open_][order], queue[order])
    return np.asarray(open_[order[final]])


def _deferred_waits(rows: Columns, waited: Awaited) -> list[Columns]:
    """Waits some entries after that of their operation: before the work that follows, or after;
    until the next entry at the latest."""
    parts, last = [], finishes(rows.lane)
    until = np.where(last, 2**62, np.roll(rows.enter_ns, -1))
    for worked, order in ((False, WAIT), (True, WORKED)):
        waiting = np.flatnonzero((waited.ahead > 1 - worked) & (waited.worked == worked))
        since = waiting + waited.ahead[waiting] - (not worked)
        told = {"operation": rows.operation[waiting], "leave_ns": until[since]}
        table = rows.select(since).with_columns(**told)
        if worked:
            table = table.with_column("enter_ns", waited.since_ns[waiting])
        parts.append(_table(table, None, table.operation, order))
    return parts
