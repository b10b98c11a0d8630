"""When calls of known duration ran: a ring has when each was issued and how long its kernel ran.

A kernel starts when its rank's compute reaches it, or its stream is free, and all members leave
together: a rank's wait is exact, and the end is bounded from below by the issue and the duration of
every member and by the call before it. Hosts run ahead of their devices, so that ends may be later;
by how much, the watchdog's rounds tell: a call had not ended when the round before the one that
noticed its end passed over it. Rounds are rarer than calls, but meet steps in all their places: the
delay of a place is the one that contradicts fewest rounds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from evenstep.importers.draft import FIRST_NS
from evenstep.trace.columns import (
    Array,
    Columns,
    begins,
    key_numbers,
    largest_of,
    medians_of,
    positions_by_key,
    rows_by_key,
    run_numbers,
    running_maximum,
    smallest_of,
)
from evenstep.trace.repetition import with_steps
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import Trace

_ROUNDS = 64  # of moving the clocks of ranks that share calls, each half of the way
MOST = 0.5  # share of a ring's kernels that send and receive
#: Between kernels of ranks whose queues were free at one moment: a launch takes some µs, and their
#: durations, by two events each, are known to about one; with room, as work between is of ms.
AT_ONCE_NS = 100_000
ROUND_NS = 20_000_000  # a watchdog sleeps for 100 ms, and passes over what has ended in a few


def place_calls(trace: Trace) -> tuple[Trace, str]:
    """The trace with device times, on the hosts' clocks, of all calls whose duration is known; and
    its inferred steps in words, as `with_steps` has them."""
    events = trace.events
    rows = np.flatnonzero(events.device_exit_ns > 0)
    mine = events.select(rows)
    rank = np.searchsorted(np.array(list(trace.ranks)), mine["rank"])
    length = mine.device_exit_ns - mine.device_enter_ns
    ring, sends, peers = in_rings(mine), mine.op == int(Op.SEND), mine.peer_or_root
    own = np.where(mine.kind == int(Kind.POINT_TO_POINT), mine["rank"].astype(np.int64), -1)
    first, second = np.where(sends, [own, peers], [peers, own])
    lane = key_numbers(mine.group, np.where(ring, own, first), np.where(ring, sends, second))
    call = key_numbers(lane, mine.group_seq)
    origin = int(mine.enter_ns.min())
    after, until = _bounds_of_ends(mine)
    clock = _ahead(rank, call, np.maximum(after, mine.enter_ns + length), until)[rank] + origin
    lanes = largest_of(lane, call)
    longest = largest_of(length, call)
    end = largest_of(mine.enter_ns - clock + length, call, least=0)
    end = _in_turn(lanes, end, longest)

    def at(end: Array, step: Array) -> tuple[Trace, str]:
        """The trace with these ends of calls, whose steps are known or all 0."""
        begun = end[call] - length
        reached = _reach_in_order(mine, begun)
        if step.any():
            reached = _without_queue(mine, call, reached, end[call], step, mine.enter_ns - clock)
        times = (begun + clock, end[call] + clock, reached + clock)
        return with_steps(_with_times(trace, rows, times), events.enter_ns)

    found, inferred = at(end, np.zeros(len(rows), np.int64))
    if not inferred:
        return found, inferred
    step = found.events.select(found.events.kind != int(Kind.STEP)).step[rows]
    after = largest_of(after - clock, call)
    until = smallest_of(until - clock, call)
    late = _delays(lanes, largest_of(step, call), end, after, until)
    return at(_in_turn(lanes, end + late, longest), step)


def in_rings(events: Columns) -> Array:
    """Which rows are messages of groups in which every rank sends to one rank and receives from
    another by one kernel, which ends with the later of both: its duration is that of either."""
    message, found = events.kind == int(Kind.POINT_TO_POINT), np.zeros(len(events), bool)
    length, sends = events.device_exit_ns - events.device_enter_ns, events.op == int(Op.SEND)
    for group in np.unique(events.group[message]).tolist():
        mine, ring = message & (events.group == group), True
        for rank in np.unique(events["rank"][mine]).tolist():
            rows = [
                np.flatnonzero(mine & way & (events["rank"] == rank)) for way in (sends, ~sends)
            ]
            to, of = (np.unique(events.peer_or_root[way]) for way in rows)
            alike = len(rows[0]) == len(rows[1]) and (length[rows[0]] == length[rows[1]]).mean()
            ring &= len(to) == len(of) == 1 and bool(to != of) and alike > MOST
        found[mine] = ring
    return found


def _with_times(trace: Trace, rows: Array, placed: tuple[Array, Array, Array]) -> Trace:
    """The trace with these beginnings and ends of rows, and when compute reached them; and the
    first of all issued at `FIRST_NS`."""
    events, (begun, end, reached) = trace.events, placed
    base = int(events.enter_ns[rows].min()) - FIRST_NS
    flags = events.flags[rows] & ~np.uint16(Flag.EXIT_UPPER_BOUND)
    times = dict.fromkeys(("exit_ns", "device_exit_ns"), end)
    times |= {"enter_ns": reached, "device_enter_ns": begun}
    for name, values in times.items():
        found = events[name].copy()
        found[rows] = values
        events = events.with_column(name, np.where(found > 0, found - base, found))
    column = events.flags.copy()
    column[rows] = flags
    ranks = {}
    for rank, info in trace.ranks.items():
        written = info.facts["dump"]["written_ns"]
        told = {**info.facts["dump"], "written_ns": written and written - base}
        facts = {**info.facts, "device_clock": "host", "entered": "device", "dump": told}
        ranks[rank] = replace(info, facts=facts)
    return replace(trace, ranks=ranks, events=events.with_column("flags", column))


def _reach_in_order(calls: Columns, begun: Array) -> Array:
    """When compute reached each call: in the order of issue, though streams may be busy."""
    order = np.lexsort([calls.enter_ns, calls["rank"]])[::-1]
    found = begun.copy()
    found[order] = -running_maximum(-begun[order], calls["rank"][order])
    return found


def _without_queue(
    calls: Columns, call: Array, reached: Array, end: Array, step: Array, issued: Array
) -> Array:
    """When compute reached each call; an all-reduce of which several ranks' kernels began at once
    as the one before it ended, as of buckets of gradients, as ranks that came later show the work
    between the two: in proportion to the work before a step's first call, but for what its host
    issued that late, as after a slow loader. Compute waits for the last call of a step."""
    order, found = np.lexsort([calls.enter_ns, calls["rank"]]), reached.copy()
    rank, group = (calls[name][order].astype(np.int64) for name in ("rank", "group"))
    at, step, call, issued = (each[order] for each in (reached, step, call, issued))
    same, reduces = np.diff(rank, prepend=-1) == 0, calls.op[order] == int(Op.ALL_REDUCE)
    opens, place = begins(rank, step), positions_by_key(run_numbers(rank, step))
    since, gap = at - np.append(0, end[order][:-1]), np.diff(at, prepend=0)
    work = _medians(since, rank, opens & same)
    if work[np.unique(rank)].min() <= AT_ONCE_NS:  # it waits for none, or for one before
        return found
    between = reduces & np.append(False, reduces[:-1]) & ~opens & (np.diff(group, prepend=-1) == 0)
    held = between & (at - smallest_of(at, call)[call] <= AT_ONCE_NS)
    held &= (np.bincount(call, held)[call] > 1) & (since <= MOST * gap)
    first = smallest_of(issued, step)[step]
    late = _medians(issued - first, rank, opens & same)
    late -= np.median(late[np.unique(rank)])
    work -= np.clip(late, 0, work - work[np.unique(rank)].min())
    seen = between & ~held & ~np.append(False, held[:-1])
    usual = _medians(gap / np.maximum(work, 1)[rank], place, seen)
    for one in np.unique(place[held & (usual[place] > 0)]).tolist():
        mine = np.flatnonzero(held & (place == one))
        sooner = at[mine - 1] + usual[one] * work[rank[mine]]
        at[mine] = np.clip(sooner, at[mine - 1], at[mine]).astype(np.int64)
    found[order] = at
    return found


def _medians(values: Array, number: Array, chosen: Array) -> Array:
    """The median of the chosen values of each number; 0 without any."""
    return medians_of(values[chosen], number[chosen], int(number.max()) + 1)


def _ahead(rank: Array, call: Array, after: Array, until: Array) -> Array:
    """How much each rank's clock is ahead: as little as lets each call end at one time, between
    `after` and `until` of all its members."""
    found = np.zeros(int(rank.max()) + 1, np.int64)
    for _ in range(_ROUNDS):
        first, last = largest_of(after - found[rank], call), smallest_of(until - found[rank], call)
        low = largest_of(after - last[call], rank, len(found), least=-(2**62))
        high = smallest_of(until - first[call], rank, len(found), most=2**62)
        known = np.where(low <= high, np.clip(found, low, high), (low + high) // 2)
        found += (known - found) // 2
    return found


def _in_turn(lanes: Array, end: Array, longest: Array) -> Array:
    """The ends of calls, none before that of its lane's call before and the longest duration."""
    end = end.copy()
    for low, high in pairwise(np.searchsorted(lanes, np.arange(lanes[-1] + 2))):
        busy = np.cumsum(longest[low:high])
        end[low:high] = np.maximum.accumulate(end[low:high] - busy) + busy
    return end


def _bounds_of_ends(mine: Columns) -> tuple[Array, Array]:
    """Between which times of its rank's clock each call ended: when the watchdog's round before
    passed over it, and when it was noticed."""
    order = np.lexsort([mine.exit_ns, mine["rank"]])
    noticed = mine.exit_ns[order]
    opens = np.diff(noticed, prepend=-(2**61)) > ROUND_NS
    opens |= np.diff(mine["rank"][order], prepend=-1) != 0
    last = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0)) - 1
    same = (last >= 0) & (mine["rank"][order][last] == mine["rank"][order])
    before = np.zeros(len(order), np.int64)
    before[order] = np.where(same, noticed[last], 0)
    return before, mine.exit_ns


def _delays(lanes: Array, step: Array, end: Array, after: Array, until: Array) -> Array:
    """How much later than `end` each call ended, as it lies between `after` and `until`, by its
    place in a step.

    As many rounds contradict a delay from below as from above at the median of all bounds. A place
    keeps the delay of the place before it in its lane if it is between the two middle ones.
    """
    place = key_numbers(lanes, positions_by_key(lanes, step))
    found = np.zeros(len(end), np.int64)
    delay, lane = 0, -1
    placed = np.flatnonzero(step > 0)
    for mine in [placed[rows] for rows in rows_by_key(place[placed])]:
        bounds = np.sort(np.concatenate([after[mine] - end[mine], until[mine] - end[mine]]))
        low, high = bounds[len(mine) - 1 : len(mine) + 1].tolist()
        delay = delay if lanes[mine[0]] == lane else 0
        lane = lanes[mine[0]]
        delay = delay if low <= delay <= high else max((low + high) // 2, 0)
        found[mine] = delay
    return found
