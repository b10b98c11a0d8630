"""When calls of known duration ran: a ring has when each was issued and how long its kernel ran.

A kernel starts when its rank's compute reaches it, or its stream is free, and all members leave
together: a rank's wait is exact, and the end is bounded from below by the issue and the duration of
every member and by the call before it. Calls are placed at that bound, which is reached once a step
in jobs whose hosts wait for their devices, and else is early by as much as the hosts are ahead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from evenstep.importers.draft import FIRST_NS
from evenstep.trace.columns import Array, key_numbers
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import Trace

_ROUNDS = 32  # of averaging between the clocks of ranks that share calls


def placed(trace: Trace) -> Trace:
    """The trace with device times, on the hosts' clocks, of all calls whose duration is known."""
    events = trace.events
    rows = np.flatnonzero(events.device_exit_ns > 0)
    mine = events.select(rows)
    rank = np.searchsorted(np.array(list(trace.ranks)), mine["rank"])
    length = mine.device_exit_ns - mine.device_enter_ns
    message = mine.kind == int(Kind.POINT_TO_POINT)
    sends = mine.op == int(Op.SEND)
    peers = np.where(message, mine.peer_or_root, -1)
    own = np.where(message, mine["rank"].astype(np.int64), -1)
    lane = key_numbers(mine.group, np.where(sends, own, peers), np.where(sends, peers, own))
    call = key_numbers(lane, mine.group_seq)
    origin = int(mine.enter_ns.min())
    issued = mine.enter_ns - origin
    ahead = _ahead(rank, call, issued)
    end = _ends(lane, call, issued - ahead[rank], length)[call] + ahead[rank] + origin
    times = {
        "enter_ns": end - length, "exit_ns": end,
        "device_enter_ns": end - length, "device_exit_ns": end,
        "flags": mine.flags & np.uint16(0xFFFF - int(Flag.EXIT_UPPER_BOUND)),
    }  # fmt: skip
    for name, values in times.items():
        found = events[name].copy()
        found[rows] = values
        events = events.with_column(name, found)
    base = origin - FIRST_NS
    for name in ("enter_ns", "exit_ns", "device_enter_ns", "device_exit_ns"):
        found = events[name]
        events = events.with_column(name, np.where(found > 0, found - base, found))
    for info in trace.ranks.values():
        info.facts |= {"device_clock": "host", "entered": "device"}
        if written := info.facts["dump"]["written_ns"]:
            info.facts["dump"]["written_ns"] = written - base
    return replace(trace, events=events)


def _ahead(rank: Array, call: Array, issued: Array) -> Array:
    """How much each rank's clock is ahead, as far as the issues of common calls tell."""
    found = np.zeros(int(rank.max()) + 1)
    order = np.argsort(rank, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(rank[order])) + 1)
    members = np.bincount(call)[call]
    for _ in range(_ROUNDS):
        late = issued - found[rank]
        late = np.where(members > 1, late - (np.bincount(call, late) / np.bincount(call))[call], 0)
        found[rank[[part[0] for part in parts]]] += [np.median(late[part]) for part in parts]
    return np.rint(found).astype(np.int64)


def _ends(lane: Array, call: Array, issued: Array, length: Array) -> Array:
    """The earliest end of each call: after every member's issue and duration, and after the call
    before it in its lane and the longest duration."""
    count = int(call.max()) + 1
    end, longest = np.zeros((2, count), np.int64)
    np.maximum.at(end, call, issued + length)
    np.maximum.at(longest, call, length)
    lanes = np.zeros(count, np.int64)
    lanes[call] = lane
    for low, high in pairwise(np.searchsorted(lanes, np.arange(lanes[-1] + 2))):
        busy = np.cumsum(longest[low:high])
        end[low:high] = np.maximum.accumulate(end[low:high] - busy) + busy
    return end
