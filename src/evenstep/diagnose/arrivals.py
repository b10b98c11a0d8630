"""Who entered each collective when: arrivals, lateness and waits, instance by instance.

An instance is one collective of one group, identified by (group, sequence); it has a row per rank.
What a rank waits is not its in-flight time less a floor but the time until the last has entered,
which needs no exit at all: an exit seen by a callback is only an upper bound, and on a rank that
collects garbage a very loose one. Where clocks cannot be compared (devices, hosts that could not
be placed) everybody is taken to leave together, and lateness follows from the in-flight times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.trace.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.layout import SYNCHRONIZING_OPS, Flag, Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

FROM_ROOT = frozenset({Op.BROADCAST, Op.SCATTER})  # the others wait for the root
TO_ROOT = frozenset({Op.REDUCE, Op.GATHER})  # the root waits for the others


class Arrivals(NamedTuple):
    """Rows of all complete instances, and per instance who came last.

    `rows` has, beside the record's columns: instance; here_ns, the arrival on the line of time
    that the rank's steps are on; arrival_ns and leave_ns, comparable within the instance, on the
    common time unless `relative` to its end (where only durations compare); wait_ns until the last
    of those it depends on has entered.
    """

    rows: Columns
    last_rank: Array  # per instance
    last_ns: Array  # per instance: arrival of the last
    incomplete: int  # instances that not every traced member took part in


def arrivals(trace: Trace, clocks: Clocks) -> Arrivals:
    """Match the collectives of all ranks. Groups of one rank are left out: nobody waits there."""
    events = trace.of_kind(Kind.COLLECTIVE)
    events = events.select(events.group >= 0).sorted_by("group", "group_seq", "rank")
    if not len(events):
        return _none(events)
    instance = numbered(events)
    traced = np.array([sum(rank in trace.ranks for rank in group.ranks) for group in trace.groups])
    members = np.bincount(instance)
    first = np.unique(instance, return_index=True)[1]
    expected = traced[events.group[first]]
    whole = (members == expected) & (members > 1) & _comparable(events, instance, clocks)
    incomplete = int(np.count_nonzero(~whole & (expected > 1)))
    events, instance = events.select(whole[instance]), instance[whole[instance]]
    if not len(events):
        return _none(events)
    instance = np.unique(instance, return_inverse=True)[1]
    return _with_waits(_common_times(events, instance, clocks), incomplete)


def _by_duration(events: Columns, clocks: Clocks) -> Array:
    """Rows of which only the time in flight counts: on a device, or on a clock of their own."""
    on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
    return np.asarray(on_device | np.isin(events["rank"], list(clocks.unplaced)))


def _comparable(events: Columns, instance: Array, clocks: Clocks) -> Array:
    """Instances whose arrivals can be compared: one that only durations compare needs them all."""
    on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
    endless = np.where(on_device, events.device_exit_ns, events.exit_ns) <= 0
    by_duration = np.bincount(instance, weights=_by_duration(events, clocks)) > 0
    return np.asarray(~by_duration | (np.bincount(instance, weights=endless) == 0))


def _none(events: Columns) -> Arrivals:
    empty = np.zeros(0, np.int64)
    rows = events.select(np.zeros(len(events), bool))
    for name in ("instance", "here_ns", "arrival_ns", "leave_ns", "wait_ns"):
        rows = rows.with_column(name, empty)
    rows = rows.with_column("relative", np.zeros(0, bool))
    return Arrivals(rows, empty, empty, 0)


def numbered(events: Columns) -> Array:
    """Number of each row's instance, for rows in order of group and sequence."""
    if not len(events):
        return np.zeros(0, np.int64)
    changes = (np.diff(events.group) != 0) | (np.diff(events.group_seq.astype(np.int64)) != 0)
    return np.cumsum(np.concatenate([[0], changes]))


def _common_times(events: Columns, instance: Array, clocks: Clocks) -> Columns:
    """The events with times comparable within their instance, and on the rank's own line."""
    arrival, leave = events.enter_ns.copy(), events.exit_ns.copy()
    for rank, offset in clocks.by_rank.items():
        if offset is not None and offset.offset_ns.any():
            mine = events.rank == rank
            arrival[mine] = offset.shift(arrival[mine])
            leave[mine] = np.where(leave[mine] > 0, offset.shift(leave[mine]), 0)
    on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
    here = np.where(on_device, _issued(events, on_device), arrival)
    relative = np.zeros(int(instance[-1]) + 1, bool)
    relative[instance[_by_duration(events, clocks)]] = True
    mask = relative[instance]
    if mask.any():
        device_flight = events.device_exit_ns - events.device_enter_ns
        flight = np.maximum(np.where(on_device, device_flight, leave - arrival), 0)
        base = np.zeros(len(relative), np.int64)
        np.maximum.at(base, instance[mask], arrival[mask])
        arrival = np.where(mask, base[instance] - flight, arrival)
        leave = np.where(mask, base[instance], leave)
    return (
        events.with_column("instance", instance)
        .with_column("here_ns", here)
        .with_column("arrival_ns", arrival)
        .with_column("leave_ns", leave)
        .with_column("relative", mask)
    )


def _issued(events: Columns, on_device: Array) -> Array:
    """Device entries on the host's clock: as early as nothing of a step runs before it is issued.

    The two clocks have no common zero and drift, so each step of a rank is placed by itself.
    """
    if not on_device.any():
        return events.enter_ns
    step = np.unique(
        np.stack([events["rank"], events.step.astype(np.int64)]), axis=1, return_inverse=True
    )[1].reshape(-1)
    ahead = np.where(on_device, events.enter_ns - events.device_enter_ns, np.iinfo(np.int64).min)
    shift = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(shift, step, ahead)
    return np.asarray(events.device_enter_ns + shift[step])


def _with_waits(rows: Columns, incomplete: int) -> Arrivals:
    instance, arrival, leave = rows.instance, rows.arrival_ns, rows.leave_ns
    count = int(instance[-1]) + 1
    edges = np.searchsorted(instance, np.arange(count))
    last_ns = np.maximum.reduceat(arrival, edges)
    is_last = arrival == last_ns[instance]
    last_rank = np.full(count, -1, np.int64)
    last_rank[instance[is_last][::-1]] = rows["rank"][is_last][::-1]
    waited_for = _waited_for(rows, instance, arrival, last_ns)
    wait = np.maximum(waited_for - arrival, 0)
    known_end = leave > 0
    wait = np.where(known_end, np.minimum(wait, np.maximum(leave - arrival, 0)), wait)
    return Arrivals(rows.with_column("wait_ns", wait), last_rank, last_ns, incomplete)


def _waited_for(events: Columns, instance: Array, arrival: Array, last_ns: Array) -> Array:
    """The arrival that each row depends on; its own where it depends on nobody."""
    synchronizing = np.isin(events.op, [int(op) for op in SYNCHRONIZING_OPS])
    is_root = events.rank == events.peer_or_root
    root_ns = np.full(len(last_ns), np.iinfo(np.int64).min)
    root_ns[instance[is_root]] = arrival[is_root]
    from_root = np.isin(events.op, [int(op) for op in FROM_ROOT]) & ~is_root
    to_root = np.isin(events.op, [int(op) for op in TO_ROOT]) & is_root
    return np.where(
        synchronizing | to_root,
        last_ns[instance],
        np.where(from_root, root_ns[instance], arrival),
    )
