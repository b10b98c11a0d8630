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

from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Flag, Kind, Op
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

FROM_ROOT = frozenset({Op.BROADCAST, Op.SCATTER})  # the others wait for the root
TO_ROOT = frozenset({Op.REDUCE, Op.GATHER})  # the root waits for the others

#: A root that waits for the others though it need not, is told by so many broadcasts into which the
#: last came this much later than it, and nearly all of which it left only then.
TELLING_NS, FEWEST_MEETINGS, MOSTLY = 100_000, 8, 0.95


class Arrivals(NamedTuple):
    """Rows of all complete instances, and per instance who came last.

    `rows` has, beside the record's columns: instance; here_ns, the arrival on the line of time
    that the rank's steps are on; arrival_ns and leave_ns, comparable within the instance, on the
    common time unless `relative` to its end (where only durations compare); wait_ns until the last
    of those it depends on has entered; waits_for_last, whether that is everybody.
    """

    rows: Columns
    last_rank: Array  # per instance
    last_ns: Array  # per instance: arrival of the last
    incomplete: int  # instances that not every traced member took part in
    left_out: Array = np.zeros(0, np.int64)  # their steps


def arrivals(trace: Trace, clocks: Clocks) -> Arrivals:
    """Match the collectives of all ranks. Groups of one rank are left out: nobody waits there."""
    events = trace.of_kind(Kind.COLLECTIVE)
    if not (events.group >= 0).all():
        events = events.select(events.group >= 0)
    if not len(events):
        return _none(events)
    events = _in_order(_placed(events, clocks))
    instance = numbered(events)
    traced = np.array([sum(rank in trace.ranks for rank in group.ranks) for group in trace.groups])
    members = np.bincount(instance)
    first = np.searchsorted(instance, np.arange(len(members)))
    expected = traced[events.group[first]]
    whole = (members == expected) & (members > 1) & _comparable(events, instance, clocks)
    left_out = events.step[first[~whole & (expected > 1)]].astype(np.int64)
    if not whole.all():
        events, instance = events.select(whole[instance]), instance[whole[instance]]
        instance = (np.cumsum(whole) - 1)[instance]
    if not len(events):
        return _none(events, left_out)
    one_clock = np.isin(events["rank"], device_clock_is_hosts(trace))
    return _with_waits(_common_times(events, instance, clocks, one_clock), left_out)


def device_clock_is_hosts(trace: Trace) -> list[int]:
    """Ranks whose device stamps are on the clock of their host."""
    return [rank for rank, info in trace.ranks.items() if info.facts.get("device_clock") == "host"]


def _in_order(events: Columns) -> Columns:
    """Rows by group, sequence and rank.

    Where all ranks have taken part in the same collectives, a transposition does what sorting does.
    """
    ranks = np.count_nonzero(np.diff(events["rank"])) + 1
    places = len(events) // ranks
    if places * ranks == len(events):
        tables = [events[name].reshape(ranks, places) for name in ("rank", "group", "group_seq")]
        rank, group, sequence = tables
        step_on = (np.diff(group[0]) > 0) | (
            (np.diff(group[0]) == 0) & (sequence[0, 1:] >= sequence[0, :-1])
        )
        alike = (group == group[0]).all() and (sequence == sequence[0]).all() and step_on.all()
        if alike and (rank == rank[:, :1]).all() and (np.diff(rank[:, 0]) > 0).all():
            return Columns(
                {name: events[name].reshape(ranks, places).T.reshape(-1) for name in events}
            )
    return events.sorted_by("group", "group_seq", "rank")


def _placed(events: Columns, clocks: Clocks) -> Columns:
    """The events with arrival_ns and leave_ns on the common time; an open end stays 0."""
    ended = events.exit_ns > 0
    leave = np.where(ended, clocks.common(events["rank"], events.exit_ns), 0)
    arrival = clocks.common(events["rank"], events.enter_ns)
    return events.with_column("arrival_ns", arrival).with_column("leave_ns", leave)


def _by_duration(events: Columns, clocks: Clocks) -> Array:
    """Rows of which only the time in flight counts: on a device, or on a clock of their own."""
    on_device = np.asarray((events.flags & int(Flag.ON_DEVICE)) != 0)
    if not clocks.unplaced:
        return on_device
    return np.asarray(on_device | np.isin(events["rank"], list(clocks.unplaced)))


def _comparable(events: Columns, instance: Array, clocks: Clocks) -> Array:
    """Instances whose arrivals can be compared: one that only durations compare needs them all."""
    rows = _by_duration(events, clocks)
    if not rows.any():
        return np.ones(int(instance[-1]) + 1, bool)
    on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
    endless = np.where(on_device, events.device_exit_ns, events.exit_ns) <= 0
    by_duration = np.bincount(instance, weights=rows) > 0
    return np.asarray(~by_duration | (np.bincount(instance, weights=endless) == 0))


def _none(events: Columns, left_out: Array | None = None) -> Arrivals:
    empty = np.zeros(0, np.int64)
    left_out = empty if left_out is None else left_out
    rows = events.select(np.zeros(len(events), bool))
    for name in ("instance", "here_ns", "arrival_ns", "leave_ns", "wait_ns"):
        rows = rows.with_column(name, empty)
    for name in ("relative", "waits_for_last"):
        rows = rows.with_column(name, np.zeros(0, bool))
    return Arrivals(rows, empty, empty, len(left_out), left_out)


def numbered(events: Columns) -> Array:
    """Number of each row's instance, for rows in order of group and sequence."""
    if not len(events):
        return np.zeros(0, np.int64)
    changes = (np.diff(events.group) != 0) | (np.diff(events.group_seq.astype(np.int64)) != 0)
    return np.cumsum(np.concatenate([[0], changes]))


def _common_times(events: Columns, instance: Array, clocks: Clocks, one_clock: Array) -> Columns:
    """The events with times comparable within their instance, and on the rank's own line.

    `one_clock`: the device's stamps are on the host's clock.
    """
    arrival, leave = events.arrival_ns, events.leave_ns
    on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
    here = arrival
    if on_device.any():
        started = clocks.common(events["rank"], events.device_enter_ns)
        issued = np.where(one_clock, started, _issued(events, on_device))
        here = np.where(on_device, issued, arrival)
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
    step = np.unique(
        np.stack([events["rank"], events.step.astype(np.int64)]), axis=1, return_inverse=True
    )[1].reshape(-1)
    ahead = np.where(on_device, events.arrival_ns - events.device_enter_ns, np.iinfo(np.int64).min)
    shift = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(shift, step, ahead)
    return np.asarray(events.device_enter_ns + shift[step])


def _with_waits(rows: Columns, left_out: Array) -> Arrivals:
    instance, arrival, leave = rows.instance, rows.arrival_ns, rows.leave_ns
    count = int(instance[-1]) + 1
    edges = np.searchsorted(instance, np.arange(count))
    last_ns = np.maximum.reduceat(arrival, edges)
    is_last = arrival == last_ns[instance]
    last_rank = np.full(count, -1, np.int64)
    last_rank[instance[is_last][::-1]] = rows["rank"][is_last][::-1]
    waits_for_last = _waits_for_last(rows, instance, last_ns)
    waited_for = _waited_for(rows, instance, arrival, last_ns, waits_for_last)
    wait = np.maximum(waited_for - arrival, 0)
    known_end = leave > 0
    wait = np.where(known_end, np.minimum(wait, np.maximum(leave - arrival, 0)), wait)
    rows = rows.with_column("wait_ns", wait).with_column("waits_for_last", waits_for_last)
    return Arrivals(rows, last_rank, last_ns, len(left_out), left_out)


def _waits_for_last(events: Columns, instance: Array, last_ns: Array) -> Array:
    """Rows that wait until everybody has entered, by what the operation means, or by what is seen.

    The root of a broadcast need not, but with some libraries it does: its thread is blocked in the
    call, and leaves after the last has come, time and again.
    """
    synchronizing = np.isin(events.op, [int(op) for op in SYNCHRONIZING_OPS])
    is_root = events.rank == events.peer_or_root
    to_root = np.isin(events.op, [int(op) for op in TO_ROOT]) & is_root
    from_root = np.isin(events.op, [int(op) for op in FROM_ROOT]) & is_root
    blocked = (events.flags & int(Flag.HOST_BLOCKED)) != 0
    root = from_root & blocked & ~events.relative & (events.leave_ns > 0)
    if not root.any():
        return np.asarray(synchronizing | to_root)
    early = root & (last_ns[instance] - events.arrival_ns >= TELLING_NS)
    stayed = early & (events.leave_ns >= last_ns[instance])
    kind = np.unique(events.group.astype(np.int64) * 256 + events.op, return_inverse=True)[1]
    number, held = np.bincount(kind, early), np.bincount(kind, stayed)
    meets = (number >= FEWEST_MEETINGS) & (held >= MOSTLY * number)
    return np.asarray(synchronizing | to_root | (root & meets[kind]))


def _waited_for(
    events: Columns, instance: Array, arrival: Array, last_ns: Array, for_last: Array
) -> Array:
    """The arrival that each row depends on; its own where it depends on nobody."""
    is_root = events.rank == events.peer_or_root
    root_ns = np.full(len(last_ns), np.iinfo(np.int64).min)
    root_ns[instance[is_root]] = arrival[is_root]
    from_root = np.isin(events.op, [int(op) for op in FROM_ROOT]) & ~is_root
    return np.where(for_last, last_ns[instance], np.where(from_root, root_ns[instance], arrival))
