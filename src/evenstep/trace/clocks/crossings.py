"""Entries and exits of shared operations that bound the offsets between clocks.

No rank leaves an all-reduce before all have entered, nor a broadcast before its root has; the root
of a reduce leaves after all have entered; a message is received after it was sent. Of each
operation and clock, only the latest entry that others depend on and the earliest exit that depends
on others matter, however many ranks share the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns, begins, run_numbers
from evenstep.trace.spool.layout import FROM_ROOT, SYNCHRONIZING_OPS, TO_ROOT, Flag, Kind
from evenstep.trace.trace import Trace, match_messages

MOST_ROWS = 3_000_000  # of a larger trace, one in so many collectives of each group is used


class Crossings(NamedTuple):
    """Per operation and clock, in order of operation; times in ns on the clock itself.

    `entry` is the latest one that others depend on (-inf: none), `exit` the earliest that depended
    on others' entries (inf: none), `shortest` the shortest time in flight. Times count from `base`
    of their clock, so that doubles hold them exactly.
    """

    operation: Array
    clock: Array  # number of the clock
    entry: Array
    exit: Array
    shortest: Array
    base: Array  # (clocks,) int64

    def of_operation(self, reduce: np.ufunc, values: Array) -> Array:
        """Reduce values over the rows of each operation; the result stands in each of them."""
        first = np.flatnonzero(begins(self.operation))
        return np.asarray(reduce.reduceat(values, first)[run_numbers(self.operation)])

    def rows_by_clock(self) -> list[Array]:
        order = np.argsort(self.clock, kind="stable")
        return np.split(order, np.searchsorted(self.clock[order], np.arange(1, len(self.base))))


class _Rows(NamedTuple):
    """Records of single ranks; `sends` and `waits` say whether entry and exit bound clocks."""

    operation: Array
    rank: Array
    enter: Array
    exit: Array
    sends: Array  # others depend on its entry
    waits: Array  # its exit depends on others


def crossings(trace: Trace, clock_of: Mapping[int, int], *, together: bool = False) -> Crossings:
    """All bounds of a trace; with `together`, of operations that all ranks leave together only."""
    rows = _collectives(trace, together=together)
    if not together:
        messages = _messages(trace, after=len(rows.operation))
        rows = _Rows(*(np.concatenate(pair) for pair in zip(rows, messages, strict=True)))
    number = np.full(int(max(clock_of, default=0)) + 1, -1)
    number[list(clock_of)] = list(clock_of.values())
    clock = own = number[rows.rank]
    clocks = int(number.max()) + 1
    base = np.zeros(clocks, np.int64)
    for one in range(clocks):
        mine = rows.enter[clock == one]
        base[one] = mine.min() if len(mine) else 0
    order = np.lexsort([clock, rows.operation])
    operation, clock = rows.operation[order], clock[order]
    first = np.flatnonzero(begins(operation, clock))
    entry = np.where(rows.sends, rows.enter - base[own], -np.inf)[order]
    leave = np.where(rows.waits, rows.exit - base[own], np.inf)[order]
    latest, earliest = np.maximum.reduceat(entry, first), np.minimum.reduceat(leave, first)
    shortest = np.minimum.reduceat((rows.exit - rows.enter)[order].astype(float), first)
    return Crossings(operation[first], clock[first], latest, earliest, shortest, base)


def _collectives(trace: Trace, *, together: bool) -> _Rows:
    """Collectives that have ended and whose stamps are those of their entry and end."""
    events = trace.of_kind(Kind.COLLECTIVE)
    ops = SYNCHRONIZING_OPS if together else SYNCHRONIZING_OPS + FROM_ROOT + TO_ROOT
    usable = np.isin(events.op, ops) & (events.group >= 0)
    if len(events) > MOST_ROWS:
        usable &= events.group_seq % np.uint64(-(-len(events) // MOST_ROWS)) == 0
    events = _select_stamped(trace, events.select(usable), loosely=not together)
    events = events.sorted_by("group", "group_seq")
    is_root = events["rank"] == events.peer_or_root
    from_root, to_root = np.isin(events.op, FROM_ROOT), np.isin(events.op, TO_ROOT)
    operation, rank = run_numbers(events.group, events.group_seq), events["rank"].astype(np.int64)
    sends, waits = ~from_root | is_root, np.where(from_root, ~is_root, ~to_root | is_root)
    return _Rows(operation, rank, events.enter_ns, events.exit_ns, sends, waits)


def _messages(trace: Trace, *, after: int) -> _Rows:
    """Received messages, numbered from `after`: an exit depends on the sender's entry."""
    events = trace.of_kind(Kind.POINT_TO_POINT)
    if len(events) > MOST_ROWS:
        every = np.uint64(-(-len(events) // MOST_ROWS))
        events = events.select(events.group_seq % every == 0)
    pairs = match_messages(events)
    events = events.select(np.concatenate([pairs.send, pairs.receive]))
    operation = np.tile(np.arange(len(pairs.send)), 2) + after
    receiving = np.repeat([False, True], len(pairs.send))
    events = events.with_columns(operation=operation, receiving=receiving)
    events = _select_stamped(trace, events, ended=receiving)
    rank, received = events["rank"].astype(np.int64), events.receiving
    return _Rows(events.operation, rank, events.enter_ns, events.exit_ns, ~received, received)


def _select_stamped(
    trace: Trace, events: Columns, ended: Array | None = None, *, loosely: bool = True
) -> Columns:
    """Select events with entry and end on the host's clock.

    Host stamps of an operation on a device are those of issuing it: usable are an end that a
    callback saw later (`loosely`; then it took no less than on the device), and the device's stamps
    where they are on the host's clock. Rows of the mask `ended` (None: all) must have an end.
    """
    flags = events.flags
    on_device = (flags & int(Flag.ON_DEVICE)) != 0
    must_end = np.ones(len(events), bool) if ended is None else ended
    if on_device.any():
        there_ns = events.device_exit_ns - events.device_enter_ns
        issued = must_end & (events.exit_ns - events.enter_ns < there_ns)
        one_clock = np.isin(events["rank"], trace.host_clock_ranks)
        own = on_device & one_clock & (events.device_exit_ns > 0)
        for name in ("enter_ns", "exit_ns"):
            stamps = np.where(own, events[f"device_{name}"], events[name])
            events = events.with_column(name, stamps)
        seen = (flags & int(Flag.EXIT_UPPER_BOUND | Flag.HOST_BLOCKED)) != 0
        on_device &= ~own & ~(seen & loosely & ~issued)
    usable = ~on_device & ((flags & int(Flag.FAILED)) == 0)
    usable &= np.isin(events["rank"], list(trace.ranks))
    return events.select(usable & ((events.exit_ns > 0) | ~must_end))
