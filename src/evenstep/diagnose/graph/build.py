"""From a trace to its graph: every record placed once, and what waits for what.

A row is the end of own work: its rank then enters an operation, waits for one, both, or ends a
step. An operation takes what passes from when it could begin until the first who waited has left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph import streams
from evenstep.diagnose.graph.entries import Entries, entered_on_device, entries
from evenstep.diagnose.graph.lanes import BETWEEN_NS, LaneExtent, TimeLine, rows_of
from evenstep.diagnose.graph.segments import segments
from evenstep.diagnose.graph.streams import COMPUTE
from evenstep.diagnose.graph.structure import (
    Graph,
    Intervals,
    in_order,
    length_before,
    mixed,
    quantiles,
)
from evenstep.diagnose.levels import LOW, NEARLY_ALL
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

NO_HOST = -1  # of slack: what a host does itself it issues to nobody
SURE_NS = 200_000  # by which hosts' clocks are one: else each is told by its own devices alone


def graph(trace: Trace, clocks: Clocks, steps: Array, ranks: Array) -> Graph:
    """The graph of these steps (numbers, ascending) and ranks."""
    found = entries(trace, clocks, ranks)
    found = _only(found, np.isin(found.rows.step, steps))
    device = _device_lanes(found.rows, len(ranks))
    found = found._replace(rows=_computed(trace, ranks, found.rows))
    ahead = np.zeros(len(ranks), np.int64)
    if device.any():
        found = _only(found, device[found.rows.lane] == found.rows.on_device)
        clock = _clocks_read(trace, clocks, ranks)
        rows, ahead = _aligned(found.rows, len(ranks), clock)
        found = found._replace(rows=rows)
    lost = np.isin(ranks, list(clocks.unplaced)) & ~device
    found = _only(found, ~lost[found.rows.lane]) if lost.any() else found
    found = found._replace(rows=_decided(found.rows))
    found = found._replace(rows=streams.behind(found.rows, found.operations))
    apart = device & ~np.isin(ranks, trace.host_clock_ranks)
    span = LaneExtent(trace, clocks, steps, ranks, device, apart)
    over, queues = _over(span, found, _ended(found))
    operations = found.operations.with_column("over_ns", over).with_column("queues", queues)
    operations = operations.with_column("last_ns", _begin(found))
    rows, operations = rows_of(span, found, operations)
    begun, ended = span.step_ns("enter_ns"), span.step_ns("leave_ns")
    ended = np.full_like(ended, -1) if device.any() else ended  # streams work between steps, too
    made = segments(rows, operations, steps, ranks, (begun, ended))
    return replace(made, device=device, host_ahead_ns=ahead)


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


def _computed(trace: Trace, ranks: Array, rows: Columns) -> Columns:
    """The entries with how long their device has computed before, nan where nothing tells it; how
    long it was idle until the operation was over and it went on; and had computed by then."""
    told = np.isin(ranks, entered_on_device(trace))[rows.lane] & rows.on_device
    unknown, never = np.full(len(rows), np.nan, np.float16), np.zeros(len(rows), np.int8)
    found: dict[str, Array] = {"computed_ns": unknown, "idled_ns": never, "freed_ns": never}
    if told.any():
        spans = trace.of_kind(Kind.SPAN)
        named = np.array([name == COMPUTE for name in trace.names], bool)
        spans = spans.select(named[spans.name] & np.isin(spans["rank"], ranks))
        lane = np.searchsorted(ranks, spans["rank"])
        computes = Intervals(lane, spans.device_enter_ns, spans.device_exit_ns)
        told &= np.isin(rows.lane, lane)
        own, enter, leave = rows.lane[told], rows.enter_ns[told], rows.leave_ns[told]
        values = (
            length_before(computes, own, enter),
            streams.idled(computes, own, enter, leave),
            length_before(computes, own, leave),
        )
        for name, value in zip(found, values, strict=True):
            found[name] = found[name].astype(float)
            found[name][told] = value
    return Columns({**{name: rows[name] for name in rows}, **found})


def _aligned(rows: Columns, lanes: int, clock: Array) -> tuple[Columns, Array]:
    """Entries with those of devices on the time of the first hosts' clock, and by how much each
    lane's host is ahead of that. `clock` numbers the clock that each lane's host reads."""
    chosen = np.flatnonzero(rows.on_device)
    moved = streams.together(rows.select(chosen), lanes)
    number = clock[moved.lane]
    lines = {
        int(one): streams.issued(moved.enter_ns[number == one], moved.issued_ns[number == one])
        for one in np.unique(number)
    }
    first = lines[min(lines)]
    ahead = np.zeros(lanes, np.int64)
    slack = np.full(len(rows), NO_HOST, np.int64)
    for one, line in lines.items():
        mine = number == one
        begun = moved.enter_ns[mine] + np.rint(line.at(moved.enter_ns[mine])).astype(np.int64)
        slack[chosen[mine]] = begun - moved.issued_ns[mine]
        middle = float(moved.enter_ns[number == one].mean())
        ahead[clock == one] = int(line.at(np.array(middle)) - first.at(np.array(middle)))
    for name in ("enter_ns", "leave_ns"):
        column = rows[name].copy()
        column[chosen] = moved[name] + np.rint(first.at(moved[name])).astype(np.int64)
        rows = rows.with_column(name, column)
    return rows.with_column("slack_ns", slack), ahead


def _clocks_read(trace: Trace, clocks: Clocks, ranks: Array) -> Array:
    """A number for each lane's host clock: 0 where it is on the common time, to within what devices
    tell better."""
    number: dict[str, int] = {}
    found = np.zeros(len(ranks), np.int64)
    for lane, rank in enumerate(ranks.tolist()):
        offset = clocks.by_rank[rank]
        if offset is None or np.median(offset.error_ns) > SURE_NS:
            found[lane] = number.setdefault(trace.ranks[rank].clock, 1 + len(number))
    return found


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


def _over(span: LaneExtent, found: Entries, ended: Array) -> tuple[Array, Array]:
    """End of each operation, and whether it queues behind the one before it.

    A message that came before anybody waited for it took no longer than others of its size.
    """
    operations = found.operations
    over = _arrived(found, ended, _noticed(span, found)) if operations.message.any() else ended
    follows = (np.diff(operations.queue, prepend=-1) == 0) & ~operations.message
    if not follows.any():
        return over, follows
    in_order = np.diff(over, prepend=0) >= 0
    queue = operations.queue
    serial = np.bincount(queue, follows & in_order) >= NEARLY_ALL * np.bincount(queue, follows)
    follows &= serial[queue]
    return _accumulated(over, follows) if (follows & ~in_order).any() else over, follows


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


def _noticed(span: LaneExtent, found: Entries) -> Array:
    """Of each row, whether its end may be that of a wait: some wait of its thread ended while the
    operation was in flight. Where no waits are on record, any may be."""
    rows, waits = found.rows, span.waits()
    if not len(waits):
        return np.ones(len(rows), bool)
    ended = waits.leave_ns[in_order(waits.lane, waits.leave_ns)]
    line = TimeLine(np.sort(waits.lane), ended)
    during = line.before(rows.lane, rows.leave_ns + BETWEEN_NS)
    during -= line.before(rows.lane, _begin(found)[rows.operation])
    return np.asarray((during > 0) | rows.calls | rows.on_device | ~np.isin(rows.lane, waits.lane))


def _arrived(found: Entries, ended: Array, noticed: Array) -> Array:
    """Ends of operations, those of messages nobody waited for brought down to what is usual: of
    their size, on their channel where anybody waited for one there."""
    rows, operations = found.rows, found.operations
    begin = _begin(found)
    receiving = operations.message[rows.operation] & ~rows.sends
    entered = _last(found, rows.enter_ns, receiving, np.maximum, -(2**62))
    took = np.maximum(ended - begin, 0).astype(float)
    seen = np.bincount(rows.operation, receiving & noticed, len(operations)) > 0
    late = operations.message & ((entered > begin) | ~seen)
    size = np.unique(operations.size_bytes, return_inverse=True)[1].reshape(-1)
    channel = np.unique(mixed([operations.queue, size]), return_inverse=True)[1].reshape(-1)
    awaited = operations.message & ~late
    usual = _quiet(took, size, operations.message, took)
    for kind in (size, channel):
        usual = _quiet(took, kind, awaited, usual)
    return np.where(late, begin + np.minimum(took, usual), ended).astype(np.int64)


def _quiet(took: Array, kind: Array, chosen: Array, otherwise: Array) -> Array:
    """How long the quick ones among those chosen of its kind took, for each; where none is chosen,
    what it is otherwise."""
    count = int(kind.max()) + 1
    there = np.bincount(kind[chosen], minlength=count) > 0
    quiet = quantiles(took[chosen], kind[chosen], LOW, count)
    return np.asarray(np.where(there[kind], quiet[kind], otherwise))
