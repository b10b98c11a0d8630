"""When compute reached entries whose kernels began only as another operation was over: the one
before in the queue of their group, or on their stream."""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.graph.awaited import entered_kinds, on_all_lanes, places_of, shares_of
from evenstep.diagnose.graph.gaps import Gaps, clearly, gaps_between
from evenstep.diagnose.graph.streams import CROSSING_NS, LAUNCH_NS, move_sooner, with_rising_steps
from evenstep.diagnose.graph.structure import (
    NEVER_NS,
    NO_HOST,
    TimeLine,
    grouped_order,
    means,
    row_numbers,
)
from evenstep.diagnose.levels import FEWEST, MINOR
from evenstep.trace.columns import Array, Columns, begins, running_maximum

REACHED_ROUNDS = 2  # of usual work and entries held by their queue in turn


def with_reached(rows: Columns, operations: Columns) -> Columns:
    """The entries, with those whose kernels began as soon as the queue of their group was free
    moved to when compute reached them, as far as other lanes and steps tell how long that takes;
    and those that always begin as what was issued before them in another queue is over, which then
    is what they come `after`, as where scattered gradients are reduced between replicas.

    `rows` in any order. Entries that are stamped when compute reaches them stay: some come while
    the operation before is in flight, none out of the order of issue. So do those that no host is
    known to have issued, as in dumps, whose times between are estimates.
    """
    rows = _with_limited_issues(rows, operations)
    mine = _as_issued(rows)
    some = rows.select(mine)
    queue, op = (operations[name][some.operation] for name in ("queue", "op"))
    stream = row_numbers(some.lane, queue, op, operations.members[some.operation])
    queued = _held(some, operations, row_numbers(some.lane, queue))
    crossing = running_maximum(some.enter_ns, some.lane) > some.enter_ns + CROSSING_NS
    streamed = _held(some, operations, stream) & (np.count_nonzero(crossing) >= FEWEST)
    at_once = np.abs(some.enter_ns - np.append(0, some.leave_ns[:-1])) <= CROSSING_NS
    chained = at_once & ~begins(some.lane) & (np.diff(queue, prepend=-1) != 0)
    chained &= ~operations.message[some.operation]  # as what was issued before elsewhere ends
    if not (queued | streamed | chained).any():
        return rows
    came = _beside_compute(some, operations, stream, streamed)
    order = np.lexsort([np.arange(len(came)), came])
    stamps, beside = some.enter_ns[order], (streamed & (came != np.arange(len(came))))[order]
    some = move_sooner(some, slice(None), some.enter_ns - some.enter_ns[came])
    some = with_rising_steps(some.select(order))
    mine, held, chained = mine[order], (queued | streamed)[order], chained[order] & ~beside
    soonest = -running_maximum(-some.enter_ns[::-1], some.lane[::-1])[::-1]  # from each row on
    some = move_sooner(some, slice(None), np.where(held, some.enter_ns - soonest, 0))
    entered = entered_kinds(some, operations)
    place = places_of(some, entered)

    def gaps_of(rows: Columns) -> Gaps:
        found = gaps_between(rows, rows.leave_ns, place, entered)
        none = beside[found.row]  # of compute
        computed, over = np.where(none, 0.0, np.nan), np.where(none, -np.inf, found.over)
        return found._replace(computed=computed, over=over)

    gaps = gaps_of(some)
    always = (held | chained)[gaps.row] & ~(gaps.opens | beside[gaps.row])
    always &= on_all_lanes(some, gaps.row, always, gaps.kind)[gaps.kind]
    held[gaps.row[always]] = False
    first = _since_issued(some, gaps.row[always])
    tried = gaps_of(move_sooner(some, slice(None), first))
    first[gaps.row[always & ~_fits_better(some, operations, (gaps, tried), always)]] = 0
    some = move_sooner(some, slice(None), first)
    chained = np.flatnonzero(chained & (first > 0))
    after = rows.after.copy()
    after[mine[chained]] = some.operation[chained - 1]
    rows = rows.with_column("after", after)
    stamped = gaps_of(some)
    sooner = np.zeros(len(some), np.int64)
    for _ in range(REACHED_ROUNDS if held.any() else 0):
        gaps = gaps_of(move_sooner(some, slice(None), sooner))
        work, share = _usual_work(some, operations, gaps, held[gaps.row])
        sooner[gaps.row] = np.rint(_held_ns(stamped, share, work, held[gaps.row]))
    return move_sooner(rows, mine, stamps - some.enter_ns + sooner)


def _as_issued(rows: Columns) -> Array:
    """Entries of devices whose hosts are known to have issued them, by lane and order of issue."""
    mine = np.flatnonzero(rows.on_device & np.isnan(rows.computed_ns) & (rows.slack_ns >= 0))
    return mine[np.lexsort([rows.seq[mine], rows.lane[mine]])]


def issued_beside(rows: Columns, operations: Columns) -> Array:
    """Entries of streams beside compute that begin as soon as they are issued, which so tell
    nothing of it: of kinds that come before it has reached what was issued earlier."""
    mine, found = _as_issued(rows), np.zeros(len(rows), bool)
    some = rows.select(mine)
    kind = row_numbers(*(operations[name][some.operation] for name in ("queue", "op", "message")))
    at_once = some.slack_ns <= LAUNCH_NS
    early = at_once & _reached_later(some, ~at_once)
    found[mine] = at_once & (np.bincount(kind, early) >= FEWEST)[kind]
    return found


def _with_limited_issues(rows: Columns, operations: Columns) -> Columns:
    """The entries of streams beside compute, moved to when they were issued where their hosts wait
    for compute before each, which then tells when compute got there, and nothing of the host: as
    fully sharded modules free what they gathered before they gather more (`limit_all_gathers`)."""
    mine = _as_issued(rows)
    some = rows.select(mine)
    number, issued = some.operation, some.enter_ns - some.slack_ns
    own = row_numbers(some.lane, operations.queue[number], operations.op[number])
    order, ended = grouped_order(own, np.arange(len(own))), _ends_before(some, own)
    free = (some.slack_ns > LAUNCH_NS) & (np.abs(some.enter_ns - ended) > CROSSING_NS)
    limited = _limited(some, own, free, operations.message[number])
    if not limited.any():
        return rows
    at = np.where(limited, issued, some.enter_ns)
    at[order] = np.minimum(running_maximum(at[order], own[order]), some.enter_ns[order])
    rows = move_sooner(rows, mine, some.enter_ns - at)
    slack = rows.slack_ns.copy()
    slack[mine[limited & (at - issued <= LAUNCH_NS)]] = NO_HOST
    return rows.with_column("slack_ns", slack)


def _beside_compute(rows: Columns, operations: Columns, stream: Array, held: Array) -> Array:
    """Which entry, in order of lane and issue, compute came to when it came to each: where all are
    `held` by their `stream` or by their hosts, the last that it had come to by then everywhere."""
    lane, own = rows.lane, np.arange(len(rows))
    place = places_of(rows, entered_kinds(rows, operations))
    other = ~held & (rows.slack_ns > LAUNCH_NS) & (_ends_before(rows, stream) != NEVER_NS)
    always = ((means(held, place) > 0) & (means(other, place) == 0))[place]
    free = np.flatnonzero(~always)
    if not 0 < len(free) < len(rows):
        return own
    came = free[grouped_order(lane[free], rows.enter_ns[free])]
    last = np.searchsorted(free, own) - 1
    lead = last + 1 - TimeLine(lane[came], rows.enter_ns[came]).before(lane, rows.enter_ns)
    most = np.zeros(int(place.max(initial=0)) + 1, np.int64)
    np.maximum.at(most, place[always & held], lead[always & held])
    source = free[np.maximum(last - most[place], -1)]
    return np.where(always & (lane[source] == lane) & (source < own), source, own)


def _ends_before(rows: Columns, own: Array) -> Array:
    """When the operation before each entry of the same `own` number was over, or `NEVER_NS`."""
    order, ended = grouped_order(own, np.arange(len(own))), np.empty(len(own), np.int64)
    ended[order] = np.where(begins(own[order]), NEVER_NS, np.roll(rows.leave_ns[order], 1))
    return ended


def _reached_later(rows: Columns, free: Array) -> Array:
    """Entries, in order of lane and issue, that begin clearly before compute reaches a `free` one
    that was issued earlier."""
    never = rows.enter_ns.min(initial=2**62)  # later than no entry
    reached = running_maximum(np.where(free, rows.enter_ns, never), rows.lane)
    return np.asarray(reached > rows.enter_ns + CROSSING_NS)


def _limited(rows: Columns, own: Array, free: Array, message: Array) -> Array:
    """Entries, in order of lane and issue, that are issued as compute comes to others. `own`
    numbers the kinds of each lane, `free` entries begin as compute reaches them. Those sought begin
    before compute reaches what their host had issued earlier."""
    issued = rows.enter_ns - rows.slack_ns
    early = ~free & ~message & _reached_later(rows, free)
    if not early.any():
        return early
    came = np.flatnonzero(free)[grouped_order(rows.lane[free], rows.enter_ns[free])]
    line = TimeLine(rows.lane[came], rows.enter_ns[came])
    last = line.before(rows.lane, issued + CROSSING_NS) - 1
    sure = early & (np.abs(issued - np.append(line.values, NEVER_NS)[last]) <= LAUNCH_NS)
    told, other = (np.bincount(own, each) for each in (sure, early & ~sure))
    return np.asarray(((told > other) & (told >= FEWEST))[own] & ~free)


def _since_issued(rows: Columns, lost: Array) -> Array:
    """How long before their kernels began compute reached these entries (indices), of which no
    lane tells: as far from the entry before to the one after as hosts issued them. (rows,), ns."""
    seen = np.append(np.setdiff1d(np.arange(len(rows)), lost), len(rows) - 1)
    following = np.searchsorted(seen, lost)
    before, after = seen[following - 1], seen[following]
    issued = running_maximum(rows.enter_ns - rows.slack_ns, rows.lane)  # clocks wander
    whole = issued[after] - issued[before]
    told = rows.lane[after] == rows.lane[before]
    part = told * (issued[lost] - issued[before]) / np.maximum(whole, 1)
    reached = rows.enter_ns[before] + part * (rows.enter_ns[after] - rows.enter_ns[before])
    found = np.zeros(len(rows), np.int64)
    found[lost] = np.maximum(rows.enter_ns[lost] - np.rint(reached), 0)
    return found


def _fits_better(
    rows: Columns, operations: Columns, gaps: tuple[Gaps, Gaps], always: Array
) -> Array:
    """Whether entries that `always` (a mask of gaps) come as the operation before ends were rather
    reached before: the second gaps, of all such in a row and the one after, then fit the paces of
    lanes and steps clearly better. Else compute waits for one operation after the other, as
    blocking calls in its stream do. A mask of gaps."""
    if not always.any():
        return always
    follows = np.append(False, always[:-1] & (np.diff(gaps[0].row) == 1))
    first = np.maximum.accumulate(np.where(always & ~follows, np.arange(len(always)), 0))
    place, found = np.where(always | follows, gaps[0].kind[first] + 1, 0), []
    for one in gaps:
        share = shares_of(rows, operations, one)
        misfit = one.misfit(share, one.paces(share))[0]
        found.append(means(misfit[one.kind], place)[place])
    return clearly(found[1], found[0], CROSSING_NS)


def _usual_work(rows: Columns, operations: Columns, gaps: Gaps, held: Array) -> tuple[Array, Array]:
    """The work of each gap, as other lanes and steps do it at this one's pace, nan where all of the
    kind's entries are `held`; and the shares of each kind done before it waits."""
    late, gaps = gaps.idle & ~held, gaps._replace(idle=gaps.idle | held)
    share = shares_of(rows, operations, gaps)
    work, unseen = gaps.work(share)
    pace = gaps.paces(share)
    seen = ~unseen | late & (means(~unseen, gaps.kind) == 0)[gaps.kind]  # else at most so long
    length = gaps.lengths(work / pace, ~seen)
    told = means(seen, gaps.kind) > 0
    return np.where(told, length[: len(told)], np.nan)[gaps.kind] * pace, share


def _held(rows: Columns, operations: Columns, own: Array) -> Array:
    """Entries that begin as the operation before of the same `own` number ends; none where others
    come before that."""
    ended = _ends_before(rows, own)
    free = operations.message[rows.operation] | (ended == NEVER_NS)
    after = np.where(free, np.inf, rows.enter_ns - ended)
    early, at_once = after < -CROSSING_NS, np.abs(after) <= CROSSING_NS
    return np.asarray(at_once & (early.sum() <= MINOR * at_once.sum()))


def _held_ns(gaps: Gaps, share: Array, work: Array, held: Array) -> Array:
    """How long each held entry waited for its queue since its lane had done this work; 0 where
    the work is not known, nan."""
    after = np.append(False, (np.diff(gaps.row) == 1) & held[:-1])
    own = np.arange(len(held))
    turn = own - np.maximum.accumulate(np.where(held & after, 0, own))
    found = np.zeros(len(held))
    for depth in range(int(turn.max(initial=0)) + 1):
        at = np.flatnonzero(held & ~np.isnan(work) & (turn == depth))
        one = Gaps(*(part[..., at] for part in gaps))
        before = np.where(after[at], found[at - 1], 0.0)
        lasts = one.expected(share, work[at], before)
        found[at] = np.maximum(one.lasted - lasts, 0.0)
    return found
