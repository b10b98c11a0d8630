"""From a trace to its graph: one row per rank and event, in order, each placed once.

A row is the end of own work: its rank then enters an operation, waits for one, both, or ends a
step. Where the thread of a host waited is recorded (calls that block, and phases of waiting); on
devices it follows from how operations follow one another. Whatever else passes is own work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph import streams
from evenstep.diagnose.graph.entries import Entries, entries
from evenstep.diagnose.graph.segments import segments
from evenstep.diagnose.graph.structure import Graph
from evenstep.trace.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

NONE = -1
BETWEEN_NS = 200_000  # by which an end seen elsewhere may come after the wait it ended
SERIAL = 0.9  # of a group's operations end in order: then they queue
QUIET_MESSAGE = 0.10  # quantile of messages somebody waited for: one nobody did took no longer


def graph(trace: Trace, clocks: Clocks, steps: Array, ranks: Array) -> Graph:
    """The graph of these steps (numbers, ascending) and ranks."""
    found = entries(trace, clocks, ranks)
    inside = np.isin(found.rows.step, steps)
    found = _only(found, inside)
    device = _device_lanes(found.rows, len(ranks))
    if device.any():
        found = _only(found, device[found.rows.lane] == found.rows.on_device)
        on_device = np.flatnonzero(found.rows.on_device)
        found = found._replace(rows=_aligned(found.rows, on_device, len(ranks)))
    found = found._replace(rows=_decided(found.rows))
    ended = _ended(found)
    over, queues = _over(found, ended)
    took_from = _begin(found)
    rows = _host_rows(trace, clocks, found, over, steps, ranks, device)
    if device.any():
        rows = Columns.concatenate([rows, _device_rows(found, over, device)])
    order = np.lexsort([rows.order, rows.step, rows.at_ns, rows.lane])
    rows = rows.select(order)
    operations = found.operations.with_column("over_ns", over).with_column("last_ns", took_from)
    begun = _begun(trace, clocks, steps, ranks)
    begun[:, device] = NONE
    return segments(rows, operations.with_column("queues", queues), steps, ranks, begun)


def _begun(trace: Trace, clocks: Clocks, steps: Array, ranks: Array) -> Array:
    """When each step began on each host: (steps, lanes), -1 unknown."""
    rows = trace.of_kind(Kind.STEP)
    rows = rows.select(np.isin(rows.step, steps) & np.isin(rows["rank"], ranks))
    found = np.full((len(steps), len(ranks)), NONE, np.int64)
    place = np.searchsorted(steps, rows.step), np.searchsorted(ranks, rows["rank"])
    found[place] = clocks.common(rows["rank"], rows.enter_ns)
    return found


def _only(found: Entries, kept: Array) -> Entries:
    """These rows, and the operations somebody still takes part in."""
    if kept.all():
        return found
    rows = found.rows.select(kept)
    present = np.bincount(rows.operation, minlength=len(found.operations)) > 0
    number = np.cumsum(present) - 1
    return Entries(
        rows.with_column("operation", number[rows.operation]), found.operations.select(present)
    )


def _decided(rows: Columns) -> Columns:
    """The rows with somebody deciding on every operation: everyone there is, if need be."""
    nobody = np.bincount(rows.operation, rows.decides) == 0
    return rows.with_column("decides", rows.decides | nobody[rows.operation])


def _device_lanes(rows: Columns, lanes: int) -> Array:
    """Ranks most of whose operations ran on a device."""
    count = np.bincount(rows.lane, minlength=lanes)
    return np.asarray(2 * np.bincount(rows.lane, rows.on_device, lanes) > count)


def _aligned(rows: Columns, chosen: Array, lanes: int) -> Columns:
    moved = streams.together(rows.select(chosen), lanes)
    for name in ("enter_ns", "leave_ns"):
        column = rows[name].copy()
        column[chosen] = moved[name]
        rows = rows.with_column(name, column)
    return rows


# -- when operations were over ---------------------------------------------------------------------


def _last(found: Entries, values: Array, where: Array, reduce: Any, empty: int) -> Array:
    """A reduction of a row's values over each operation; rows are in order of operation."""
    rows = found.rows
    if not len(rows):
        return np.zeros(0, np.int64)
    first = np.flatnonzero(np.diff(rows.operation, prepend=-1))
    return np.asarray(reduce.reduceat(np.where(where, values, empty), first))


def _begin(found: Entries) -> Array:
    """The last entry each operation needs; of one that nobody decides, the first entry."""
    rows = found.rows
    last = _last(found, rows.enter_ns, rows.decides, np.maximum, -(2**62))
    first = _last(found, rows.enter_ns, np.ones(len(rows), bool), np.minimum, 2**62)
    return np.where(last > -(2**62), last, first)


def _ended(found: Entries) -> Array:
    """The earliest end that anybody saw who waited for it: every end seen is an upper bound.

    Of one gathered at a root, the root's.
    """
    rows = found.rows
    seen = rows.leave_ns > 0
    soonest = _last(found, rows.leave_ns, seen & rows.waits, np.minimum, 2**62)
    anyhow = _last(found, rows.leave_ns, seen, np.minimum, 2**62)
    begin = _begin(found)
    ended = np.where(soonest < 2**62, soonest, anyhow)
    return np.where(ended < 2**62, np.maximum(ended, begin), begin)


def _over(found: Entries, ended: Array) -> tuple[Array, Array]:
    """End of each operation, and whether it queues behind the one before it.

    A message that came before anybody waited for it took no longer than others of its size.
    """
    operations = found.operations
    over = _arrived(found, ended) if operations.message.any() else ended
    follows = (np.diff(operations.queue, prepend=-1) == 0) & ~operations.message
    if not follows.any():
        return over, follows
    in_order = np.diff(over, prepend=0) >= 0
    queue = operations.queue
    serial = np.bincount(queue, follows & in_order) >= SERIAL * np.bincount(queue, follows)
    follows &= serial[queue]
    raised = over.copy()
    for first, last in _runs(follows & ~in_order):
        raised[first - 1 : last] = np.maximum.accumulate(over[first - 1 : last])
    if (follows & (np.diff(raised, prepend=0) < 0)).any():
        raised = _accumulated(over, follows)
    return raised, follows


def _runs(mask: Array) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(mask.astype(int), prepend=0, append=0)).reshape(-1, 2)
    return [(int(a), int(b)) for a, b in edges[:64]]


def _accumulated(over: Array, follows: Array) -> Array:
    """The running maximum of each queue."""
    number = np.cumsum(~follows)
    low = int(over.min())
    width = int(over.max()) - low + 1
    if width * (int(number[-1]) + 1) < 2**62:
        line = over - low + number * width
        return np.asarray(np.maximum.accumulate(line) - number * width + low)
    return np.concatenate(
        [np.maximum.accumulate(part) for part in np.split(over, np.flatnonzero(~follows)[1:])]
    )


def _arrived(found: Entries, ended: Array) -> Array:
    """Ends of operations, those of messages nobody waited for brought down to what is usual."""
    rows, operations = found.rows, found.operations
    begin = _begin(found)
    receiving = operations.message[rows.operation] & ~rows.sends
    entered = _last(found, rows.enter_ns, receiving, np.maximum, -(2**62))
    took = np.maximum(ended - begin, 0).astype(float)
    size = np.unique(operations.size_bytes, return_inverse=True)[1].reshape(-1)
    late = operations.message & (entered > begin)
    awaited = operations.message & ~late
    usual = np.full(int(size.max()) + 1, np.inf)
    for kind in np.unique(size[operations.message]):
        mine = operations.message & (size == kind)
        known = mine & awaited if (mine & awaited).any() else mine
        usual[kind] = np.quantile(took[known], QUIET_MESSAGE)
    return np.where(late, begin + np.minimum(took, usual[size]), ended).astype(np.int64)


# -- rows ------------------------------------------------------------------------------------------


def _table(lane: Array, step: Array, at: Array, enter: Array, wait: Array, order: int) -> Columns:
    return Columns(
        {
            "lane": lane.astype(np.int64),
            "step": step.astype(np.int64),
            "at_ns": at.astype(np.int64),
            "enter": enter.astype(np.int64),
            "wait": wait.astype(np.int64),
            "order": np.full(len(lane), order, np.int8),
        }
    )


def _host_rows(
    trace: Trace,
    clocks: Clocks,
    found: Entries,
    over: Array,
    steps: Array,
    ranks: Array,
    device: Array,
) -> Columns:
    """Entries and waits of host threads, and the ends of their steps."""
    table = found.rows.select(~found.rows.on_device) if device.any() else found.rows
    enter = np.where(table.decides, table.operation, NONE)
    wait = np.where(table.waits & table.calls, table.operation, NONE)
    kept = (enter >= 0) | (wait >= 0)
    parts = [_table(*(c[kept] for c in (table.lane, table.step, table.enter_ns, enter, wait)), 1)]
    waits = _phases(trace, clocks, steps, ranks, device)
    behind = table.select(table.waits & ~table.calls)
    if len(behind) and not len(waits):
        parts = [_inferred(table, found, over)]
    elif len(behind):
        parts += _awaited(waits, behind, found, over)
    ends = trace.of_kind(Kind.STEP)
    ends = ends.select(np.isin(ends.step, steps) & np.isin(ends["rank"], ranks))
    lane = np.searchsorted(ranks, ends["rank"])
    mine = ~device[lane]
    at = clocks.common(ends["rank"], ends.exit_ns)
    nothing = np.full(len(ends), NONE)
    parts.append(
        _table(*(c[mine] for c in (lane, ends.step, at, nothing, nothing)), STEP_END)
    )
    return Columns.concatenate(parts)


STEP_END = 9  # of `order`: a row that ends its step


def _phases(
    trace: Trace, clocks: Clocks, steps: Array, ranks: Array, device: Array
) -> Columns:
    """Waits that were recorded, on the common time."""
    rows = trace.of_kind(Kind.PHASE)
    mine = (rows.op == int(Phase.SYNC)) & (rows.exit_ns > 0)
    mine &= np.isin(rows.step, steps) & np.isin(rows["rank"], ranks)
    rows = rows.select(mine)
    lane = np.searchsorted(ranks, rows["rank"])
    table = Columns(
        {
            "lane": lane,
            "step": rows.step.astype(np.int64),
            "enter_ns": clocks.common(rows["rank"], rows.enter_ns),
            "leave_ns": clocks.common(rows["rank"], rows.exit_ns),
        }
    )
    return table.select(~device[lane])


def _awaited(waits: Columns, behind: Columns, found: Entries, over: Array) -> list[Columns]:
    """Rows of waits: of every queue the last operation of the lane that was over when one ended.

    What an earlier wait has waited for is not waited for again.
    """
    waits = waits.sorted_by("lane", "enter_ns")
    queue = found.operations.queue[behind.operation]
    pair = np.unique(np.stack([behind.lane, queue]), axis=1, return_inverse=True)
    lanes, number = pair[0][0], pair[1].reshape(-1)
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
        parts.append(
            _table(
                rows.lane,
                rows.step,
                rows.enter_ns,
                np.full(len(rows), NONE),
                operation[last],
                2,
            )
        )
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
        return np.searchsorted(line, number * width + (value - low), side="right")


def _before_in_lane(lane: Array, last: Array) -> Array:
    """The furthest that earlier waits of the same lane have come; -1 for the first."""
    opens = np.diff(lane, prepend=-1) != 0
    number = np.cumsum(opens)
    width = int(last.max(initial=0)) + 2
    furthest = np.maximum.accumulate(number * width + last + 1) - number * width - 1
    found = np.full(len(last), NONE)
    found[1:] = np.where(opens[1:], NONE, furthest[:-1])
    return found


def _inferred(table: Columns, found: Entries, over: Array) -> Columns:
    """Entries of hosts that recorded no wait: those that do not block are judged like a stream's."""
    rows = table.sorted_by("lane", "enter_ns")
    waits = streams.waited(rows, found.operations, over) & rows.waits
    waits = np.where(rows.calls, rows.waits, waits)
    enter = np.where(rows.decides, rows.operation, NONE)
    return _table(
        rows.lane, rows.step, rows.enter_ns, enter, np.where(waits, rows.operation, NONE), 1
    )


def _device_rows(found: Entries, over: Array, device: Array) -> Columns:
    """Entries of streams, what their compute waits for, and steps that end with the last of it."""
    rows = found.rows.select(found.rows.on_device & device[found.rows.lane])
    rows = rows.sorted_by("lane", "enter_ns")
    waits = streams.waited(rows, found.operations, over)
    enter = np.where(rows.decides, rows.operation, NONE)
    parts = [
        _table(
            rows.lane, rows.step, rows.enter_ns, enter, np.where(waits, rows.operation, NONE), 1
        )
    ]
    last = np.flatnonzero((np.diff(rows.lane, append=-1) != 0) | (np.diff(rows.step, append=-1) != 0))
    ends = rows.select(last)
    resumed = np.where(waits[last], over[ends.operation], ends.enter_ns)
    resumed = np.maximum(resumed, ends.enter_ns)
    nothing = np.full(len(ends), NONE)
    parts.append(_table(ends.lane, ends.step, resumed, nothing, nothing, STEP_END))
    return Columns.concatenate(parts)

