"""Rows of the graph: what each host thread and each stream did, one after the other.

Where the thread of a host waited is recorded: calls that block, and phases of waiting. On devices,
and where no wait was recorded, it follows from how operations follow one another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph import streams
from evenstep.diagnose.graph.entries import Entries
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

NONE = -1
ENTRY, CALL, WAIT, STEP_END = range(4)  # `order` of rows at one time: who entered went on first
BETWEEN_NS = 200_000  # by which an end seen elsewhere may come after the wait it ended


class Span(NamedTuple):
    """What is laid out: steps and ranks by number, ascending; `device` (ranks,) are streams."""

    trace: Trace
    clocks: Clocks
    steps: Array
    ranks: Array
    device: Array

    def table(self, rows: Columns) -> Columns:
        """Records of these steps and of the hosts among these ranks, on the common time."""
        mine = np.isin(rows.step, self.steps) & np.isin(rows["rank"], self.ranks)
        rows = rows.select(mine & (rows.exit_ns > 0))
        table = Columns(
            {
                "lane": np.searchsorted(self.ranks, rows["rank"]),
                "step": rows.step.astype(np.int64),
                "enter_ns": self.clocks.common(rows["rank"], rows.enter_ns),
                "leave_ns": self.clocks.common(rows["rank"], rows.exit_ns),
            }
        )
        return table.select(~self.device[table.lane]) if self.device.any() else table

    def begun_ns(self) -> Array:
        """When each step began on each host: (steps, lanes), -1 unknown."""
        rows = self.table(self.trace.of_kind(Kind.STEP))
        found = np.full((len(self.steps), len(self.ranks)), NONE, np.int64)
        found[np.searchsorted(self.steps, rows.step), rows.lane] = rows.enter_ns
        return found


def rows_of(span: Span, found: Entries, over: Array) -> Columns:
    """All rows, in order of lane and time: lane, step, at_ns, enter, wait, order."""
    parts = _host_rows(span, found, over)
    if span.device.any():
        parts += _device_rows(found, over)
    rows = Columns.concatenate(parts)
    return rows.select(np.lexsort([rows.until_ns, rows.order, rows.step, rows.at_ns, rows.lane]))


def _table(rows: Columns, enter: Array | None, wait: Array | None, order: Array | int) -> Columns:
    """Rows of the graph from anything with lane, step, enter_ns and leave_ns."""
    nothing = np.full(len(rows), NONE)
    return Columns(
        {
            "lane": rows.lane.astype(np.int64),
            "step": rows.step,
            "at_ns": rows.enter_ns,
            "until_ns": rows.leave_ns,
            "enter": nothing if enter is None else enter,
            "wait": nothing if wait is None else wait,
            "order": np.broadcast_to(np.asarray(order, np.int8), len(rows)),
        }
    )


def _entered(rows: Columns, waits: Array) -> Columns:
    """Rows of entries: into operations that they decide on, waiting for them or not."""
    enter = np.where(rows.decides, rows.operation, NONE)
    wait = np.where(waits, rows.operation, NONE)
    kept = (enter >= 0) | (wait >= 0)
    table = _table(rows, enter, wait, np.where(wait >= 0, CALL, ENTRY))
    return table if kept.all() else table.select(kept)


# -- hosts -----------------------------------------------------------------------------------------


def _host_rows(span: Span, found: Entries, over: Array) -> list[Columns]:
    """Entries and waits of host threads, and the ends of their steps."""
    rows = found.rows.select(~found.rows.on_device) if span.device.any() else found.rows
    phases = span.trace.of_kind(Kind.PHASE)
    waits = span.table(phases.select(phases.op == int(Phase.SYNC)))
    behind = rows.select(rows.waits & ~rows.calls)
    blocked = rows.waits & rows.calls
    parts = []
    if len(behind) and not len(waits):
        rows = rows.sorted_by("lane", "enter_ns")
        ahead = np.where(rows.waits, streams.awaited(rows, found.operations, over), 0)
        blocked = rows.waits & (rows.calls | (ahead == 1))
        parts = _later(rows, np.where(rows.calls, 0, ahead))
    elif len(behind):
        parts = _awaited(waits, behind, found, over)
    ends = span.table(span.trace.of_kind(Kind.STEP))
    ends = ends.with_column("enter_ns", ends.leave_ns)
    return [_entered(rows, blocked), *parts, _table(ends, None, None, STEP_END)]


def _awaited(waits: Columns, behind: Columns, found: Entries, over: Array) -> list[Columns]:
    """Rows of waits: of every queue the last operation of the lane that was over when one ended.

    What an earlier wait has waited for is not waited for again.
    """
    waits = waits.sorted_by("lane", "enter_ns")
    queue = found.operations.queue[behind.operation]
    queues = int(queue.max()) + 1
    pair = behind.lane * queues + queue
    present = np.bincount(pair, minlength=1) > 0
    lanes, number = np.flatnonzero(present) // queues, (np.cumsum(present) - 1)[pair]
    ended = over[behind.operation]
    order = np.lexsort([behind.enter_ns, ended, number])
    number, ended, entered = number[order], ended[order], behind.enter_ns[order]
    operation = behind.operation[order]
    turn = np.arange(len(lanes)) - np.searchsorted(lanes, lanes)
    firsts = np.searchsorted(number, np.arange(len(lanes) + 1))
    by_lane = np.full((int(turn.max()) + 1, int(waits.lane.max(initial=0)) + 1), NONE)
    inside = lanes < by_lane.shape[1]
    by_lane[turn[inside], lanes[inside]] = np.flatnonzero(inside)
    ends, entries_ = _Line(number, ended), _Line(number, entered[np.lexsort([entered, number])])
    parts = []
    for which in by_lane:
        pairs = which[waits.lane]
        mine = np.flatnonzero(pairs >= 0)
        chosen = pairs[mine]
        over_by = ends.before(chosen, waits.leave_ns[mine] + BETWEEN_NS)
        last = np.minimum(over_by, entries_.before(chosen, waits.enter_ns[mine])) - 1
        earlier = _before_in_lane(waits.lane[mine], last)
        new = (last >= firsts[chosen]) & (last > earlier)
        mine, last = mine[new], last[new]
        rows = waits.select(mine)
        parts.append(_table(rows, None, operation[last], WAIT))
    return parts


class _Line(NamedTuple):
    """Values in order within each number, side by side on one line."""

    number: Array
    values: Array

    def before(self, number: Array, value: Array) -> Array:
        """How many there are, of this and smaller numbers, with at most this value."""
        low = int(min(self.values.min(), value.min(initial=2**62)))
        width = int(max(self.values.max(), value.max(initial=0))) - low + 2
        line = self.number * width + (self.values - low)
        return np.asarray(np.searchsorted(line, number * width + (value - low), side="right"))


def _before_in_lane(lane: Array, last: Array) -> Array:
    """The furthest that earlier waits of the same lane have come; -1 for the first."""
    opens = np.diff(lane, prepend=-1) != 0
    number = np.cumsum(opens)
    width = int(last.max(initial=0)) + 2
    furthest = np.maximum.accumulate(number * width + last + 1) - number * width - 1
    found = np.full(len(last), NONE)
    found[1:] = np.where(opens[1:], NONE, furthest[:-1])
    return found


# -- streams ---------------------------------------------------------------------------------------


def _device_rows(found: Entries, over: Array) -> list[Columns]:
    """Entries of streams, what their compute waits for, and steps that end with the last of it."""
    rows = found.rows.select(found.rows.on_device)
    rows = rows.select(np.lexsort([~rows.sends, rows.enter_ns, rows.lane]))
    ahead = streams.awaited(rows, found.operations, over)
    waits = ahead == 1
    changes = (np.diff(rows.lane, append=-1) != 0) | (np.diff(rows.step, append=-1) != 0)
    last = np.flatnonzero(changes)
    resumed = np.where(waits[last], over[rows.operation[last]], rows.enter_ns[last])
    resumed = np.maximum(resumed, rows.enter_ns[last])
    ends = rows.select(last).with_column("enter_ns", resumed).with_column("leave_ns", resumed)
    return [_entered(rows, waits), *_later(rows, ahead), _table(ends, None, None, STEP_END)]


def _later(rows: Columns, ahead: Array) -> list[Columns]:
    """Waits for operations that were entered some entries before."""
    waiting = np.flatnonzero(ahead > 1)
    before = waiting + ahead[waiting] - 1  # the last entry that did not wait for it
    since = rows.select(before)
    chosen = since.with_column("operation", rows.operation[waiting])
    return [_table(chosen, None, chosen.operation, WAIT)] if len(waiting) else []
