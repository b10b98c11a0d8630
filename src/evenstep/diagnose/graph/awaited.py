"""Waits of compute streams, which no record shows, inferred from when operations are entered.

Between two entries a lane does its own work, or waits for an operation it entered before: at once,
after a part of its work, or after all of it. All work of a lane in a step has one pace; the waits
that fit the paces of all places best are taken (a max-plus model of each gap, fitted by its mean
absolute error).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.gaps import (
    FURTHEST,
    WHOLE,
    Gaps,
    best_shares,
    clearly,
    fit_shares,
    gaps_between,
    other_record,
    weighted_median,
    with_waits_of_hosts,
)
from evenstep.diagnose.graph.streams import AT_ONCE_NS, CROSSING_NS, LAUNCH_NS, TELLING
from evenstep.diagnose.graph.structure import NO_HOST, TimeLine, means, row_hash, row_numbers
from evenstep.diagnose.levels import MINOR, MOST, NEARLY_ALL, SEVERAL
from evenstep.trace.columns import Array, Columns, begins, finishes
from evenstep.trace.spool.layout import Op

_REDUCTIONS = (int(Op.ALL_REDUCE), int(Op.REDUCE_SCATTER), int(Op.REDUCE))


class Awaited(NamedTuple):
    """How many entries later each entry's lane waits for its operation (0: never); whether it works
    before it waits, and since when it then waits; and whether it was idle before the entry."""

    ahead: Array
    worked: Array
    since_ns: Array
    idle: Array


def infer_waits(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    """Infer the waits of each entry's lane.

    `rows` in order of lane and time; `over_ns` is the end of each operation, in place of which
    device rows use their own stamps. Places of a program are judged over all lanes and steps.
    Messages that one kernel carries are entered, and waited for, as one.
    """
    if "kernel" not in rows:  # of hosts
        return _infer_waits(rows, operations, over_ns)
    last = np.flatnonzero(finishes(rows.kernel) | ~rows.on_device)
    found = _infer_waits(rows.select(last), operations, over_ns)
    return found if len(last) == len(rows) else _of_members(found, last, len(rows))


def _of_members(found: Awaited, last: Array, count: int) -> Awaited:
    """The waits of the last row of each kernel, for all its rows; `ahead` counts rows."""
    member = np.searchsorted(last, np.arange(count))
    first = np.append(0, last[:-1] + 1)
    end = np.minimum(member + found.ahead[member], len(last) - 1)
    entered = np.where(found.worked[member], first[end], last[np.maximum(end - 1, member)] + 1)
    ahead = np.where(found.ahead[member] > 0, entered - np.arange(count), 0)
    return Awaited(ahead, found.worked[member], found.since_ns[member], found.idle[member])


def _infer_waits(rows: Columns, operations: Columns, over_ns: Array) -> Awaited:
    over = np.where(rows.on_device & (rows.leave_ns != 0), rows.leave_ns, over_ns[rows.operation])
    entered = entered_kinds(rows, operations)
    gaps = gaps_between(rows, over, places_of(rows, entered), entered)
    ends = row_numbers(entered[gaps.row - 1], entered[gaps.row])
    share = with_waits_of_hosts(gaps, shares_of(rows, operations, gaps))
    return _waits_of_rows(rows, gaps, share, ends)


def shares_of(rows: Columns, operations: Columns, gaps: Gaps) -> Array:
    """How much of each kind's work is done before it waits, (kinds, FURTHEST), nan: no wait."""
    usual, share = (of(rows, operations, gaps) for of in (usual_shares, _shares_alike))
    received = operations.message[rows.operation[gaps.row - 1]] & np.isnan(gaps.computed)
    for over, first in zip(
        gaps.over[1:], np.maximum(gaps.row - np.arange(2, FURTHEST + 1)[:, None], 0), strict=True
    ):
        received &= (over <= 0) | rows.sends[first] | ~operations.message[rows.operation[first]]
    sure = (means(received, gaps.kind) > MOST) & (share[:, 0] == 0) & (usual[:, 0] == 0)
    idle, told = _shares_by_idle_time(rows, gaps)
    share = np.where(told[:, None], idle, share)
    follows, hides = _in_stream(rows, gaps)
    back = _issued_ahead(rows, operations, gaps)
    ahead = np.flatnonzero((back > 0) & (means(gaps.idle, gaps.kind) > MOST))
    share[follows] = share[ahead] = np.nan
    share[ahead, back[ahead]], share[follows, 0] = 0.0, hides[follows]
    sure |= told | follows
    sure[ahead] = True
    return best_shares(gaps, share, sure, usual)


def _in_stream(rows: Columns, gaps: Gaps) -> tuple[Array, Array]:
    """Kinds of gaps that end with the operation before, by its own end, nearly all on all lanes:
    behind one that only keeps its queue busy some lane's compute comes last. Where no host tells
    when it issued kernels, queues may hold all of a place: between the same two kinds anywhere.
    And those whose operation hides work: their hosts mostly had some to issue in between."""
    told = np.abs(gaps.lasted - gaps.over[0]) <= CROSSING_NS
    told &= rows.on_device[gaps.row] & np.isnan(gaps.computed) & ~gaps.opens
    told &= gaps.lasted > SEVERAL * CROSSING_NS
    anywhere = on_all_lanes(rows, gaps.row, told, gaps.pair)[gaps.pairs]
    slack = rows.slack_ns if "slack_ns" in rows else np.full(len(rows), NO_HOST)
    told &= slack[gaps.row] >= 0
    issuing = told & ~gaps.idle & (np.diff(rows.enter_ns - slack)[gaps.row - 1] > LAUNCH_NS)
    follows = anywhere | on_all_lanes(rows, gaps.row, told, gaps.kind)
    return follows, means(issuing, gaps.kind) > MOST


def _issued_ahead(rows: Columns, operations: Columns, gaps: Gaps) -> Array:
    """How many entries before each kind of gap was entered what it waits for at once, where that
    is the gather before the one it follows; 0 elsewhere. Gathers are issued one ahead where the
    first two of a row are at once, which is all that tells it where devices idle."""
    gather = np.flatnonzero(operations.op[rows.operation] == int(Op.ALL_GATHER))
    if not len(gather) or not gaps.idle.any():
        return np.zeros(int(gaps.kind.max(initial=-1)) + 1, int)
    step, queue = np.cumsum(begins(rows.lane, rows.step)), operations.queue[rows.operation]
    gather = gather[np.lexsort([gather, queue[gather], step[gather]])]
    apart, ended = np.diff(gather, prepend=0), finishes(step[gather], queue[gather])
    since = np.append(np.diff(rows.enter_ns - rows.slack_ns), 0)  # until hosts issued the next
    at_once = np.append((apart[1:] == 1) & (since[gather[:-1]] <= LAUNCH_NS), False) & ~ended
    run = np.cumsum(at_once | np.append(True, ended[:-1]))
    ahead = np.isin(run, run[at_once]) & ~at_once & (np.bincount(run) >= SEVERAL)[run]
    ahead &= np.minimum(since[gather], since[gather - 1]) >= 0  # in the order of issue
    back = np.zeros(len(rows))
    back[gather[ahead]] = apart[ahead]
    usual = np.rint(means(back[gaps.row - 1], gaps.kind)).astype(int)
    return np.where(usual < FURTHEST, usual, 0)


def on_all_lanes(rows: Columns, row: Array, which: Array, number: Array) -> Array:
    """The numbers of which nearly always all lanes that enter an operation are among these rows."""
    entered = rows.operation[row]
    return means(~(np.bincount(entered, ~which)[entered] > 0), number) > NEARLY_ALL


def usual_shares(rows: Columns, operations: Columns, gaps: Gaps) -> Array:
    """Shares where programs usually wait: after a backward's last reduction, for anything else at
    once, for a message sent never; for what is issued as compute gets there, before the first
    work that is never done sooner; or for what most end with, after the work that others show.
    (kinds, FURTHEST); nan: no wait."""
    number = rows.operation[gaps.row - 1]
    reduces = np.isin(operations.op, _REDUCTIONS)
    more = reduces[number] & reduces[rows.operation[gaps.row]]
    more &= ~(gaps.opens | other_record(rows, gaps.row))
    waits = means(~more & ~rows.sends[gaps.row - 1], gaps.kind) > MOST
    went_on = np.stack([means(gaps.lasted < over - CROSSING_NS, gaps.kind) for over in gaps.over])
    went_on = went_on > MINOR
    received = operations.message[number] & ~rows.sends[gaps.row - 1]
    ahead = received & (gaps.lasted < gaps.over[0] - CROSSING_NS)
    if ahead.sum() > MINOR * received.sum():  # the program receives before it needs what comes
        waits &= means(received, gaps.kind) <= MOST
    share = np.full((len(waits), FURTHEST), np.nan)
    share[waits & ~went_on[0], 0] = 0.0
    share[waits & ~went_on[0] & _goes_on(rows, gaps, received), 0] = 1.0
    for ahead in range(1, FURTHEST):
        first, past = np.maximum(gaps.row - 1 - ahead, 0), went_on[ahead - 1][gaps.kind[:-1]]
        gathers = ~(reduces | operations.message)[rows.operation[first]]
        later = gathers & np.append(False, past) & np.isfinite(gaps.over[ahead])
        share[(means(later, gaps.kind) > MOST) & ~went_on[ahead], ahead] = 0.0
    told = np.zeros(len(waits), bool)
    for ahead, (ended, part) in enumerate(_most_end_with(gaps)):
        ended &= ~went_on[ahead] & ~told
        share[ended], told = np.nan, told | ended
        share[ended, ahead] = part[ended]
    return share


def _goes_on(rows: Columns, gaps: Gaps, received: Array) -> Array:
    """Kinds of gaps after a message (`received`, of each gap) that last as long whenever it comes:
    what follows its end would vary clearly more than the whole does. (kinds,)."""
    known = received & np.isfinite(gaps.over[0]) & ~(gaps.opens | gaps.idle)
    known &= np.isnan(gaps.computed)
    own = row_numbers(gaps.kind, rows.lane[gaps.row])
    rest = np.where(known, gaps.lasted - np.maximum(gaps.over[0], 0.0), 0.0)
    whole, after = (
        means(np.abs(each - weighted_median(each, known, own)[own]) * known, gaps.kind)
        for each in (gaps.lasted, rest)
    )
    return clearly(whole, after, AT_ONCE_NS)


def _most_end_with(gaps: Gaps) -> Iterator[tuple[Array, Array]]:
    """For each entry ahead, the kinds of which most gaps, or most between the same two kinds of
    entries, end with its operation; and the part of their work that is done before they wait: all,
    if other gaps between these mostly last over twice as long as what follows that end here. Two of
    (kinds,)."""
    after, soon = gaps.lasted - gaps.over, np.maximum(CROSSING_NS, TELLING * gaps.lasted)
    met = (after >= -CROSSING_NS) & (after <= soon) & ~(gaps.opens | gaps.idle)
    other: Array = ~np.asarray(met.any(axis=0))
    for ends, rest in zip(met, after, strict=True):
        of_kind, of_pair = (means(ends, number) for number in (gaps.kind, gaps.pair))
        often = np.maximum(of_kind, of_pair[gaps.pairs])
        follows = means(np.where(ends, rest, 0.0), gaps.pair) / np.maximum(of_pair, 1e-9)
        long = MOST * gaps.lasted > np.maximum(follows, MOST * CROSSING_NS)[gaps.pair]
        lasts = means(other & long, gaps.pair) > MOST * means(other, gaps.pair)
        yield often > MOST, lasts[gaps.pairs].astype(float)


def _shares_alike(rows: Columns, operations: Columns, gaps: Gaps) -> Array:
    """The usual shares, or others with which all gaps between the same two kinds of entries take
    equally long, clearly better: programs wait in one way, for one kind. (kinds, …)."""
    like = gaps._replace(kind=gaps.pair)
    some = like.sample()
    known = int(some.kind.max(initial=-1)) + 1
    share, unseen = np.split(usual_shares(rows, operations, like), [known])
    share = fit_shares(some, share, np.ones(known, bool), WHOLE)[0]
    share = np.concatenate([share, unseen])[gaps.pairs]
    entered = row_numbers(entered_kinds(rows, operations))
    for ahead in np.flatnonzero(~np.isnan(share).all(axis=0)):
        awaited = entered[np.maximum(gaps.row - 1 - ahead, 0)]  # as a step begins, of the last one
        usual = weighted_median(awaited, awaited >= 0, gaps.pair)[gaps.pair]
        share[means(awaited == usual, gaps.kind) <= MOST, ahead] = np.nan
    return share


def _shares_by_idle_time(rows: Columns, gaps: Gaps) -> tuple[Array, Array]:
    """Shares by recorded idle time: compute that was idle until an operation was over waited for
    it. Also, whether most of a kind's idle time is explained so."""
    share = np.full((int(gaps.kind.max(initial=-1)) + 1, FURTHEST), np.nan)
    first = np.flatnonzero(rows.idled_ns > 0)
    if not len(first):
        return share, np.zeros(len(share), bool)
    idle = np.where(np.isnan(gaps.computed), 0.0, gaps.lasted - gaps.computed)
    first, row = _until_over(rows, first)
    gap = np.searchsorted(gaps.row, row)
    since = np.maximum(rows.leave_ns[first] - rows.idled_ns[first], rows.enter_ns[row - 1])
    length = np.maximum(rows.leave_ns[first] - since, 0)
    part = (rows.freed_ns[first] - rows.computed_ns[row - 1]) / np.maximum(gaps.computed[gap], 1.0)
    explained = np.minimum(np.bincount(gap, length, len(idle)), idle)
    told = means(explained, gaps.kind) > MOST * means(idle, gaps.kind)
    told &= means(idle, gaps.kind) > AT_ONCE_NS
    place = gaps.kind[gap] * FURTHEST + row - first - 1
    of_kind = np.bincount(gaps.kind[gap], length, len(share))
    much = np.bincount(place, length, share.size).reshape(share.shape) > MINOR * of_kind[:, None]
    usual = weighted_median(part, length, place, share.size)
    share[much] = usual.reshape(share.shape)[much]
    share = np.where(share > 1 - TELLING, 1.0, share)  # all or nothing where that is nearly so
    return np.where(share < TELLING, 0.0, share), told


def _until_over(rows: Columns, first: Array) -> tuple[Array, Array]:
    """Those of the given rows in which the gap is known that their operation ended in, and the row
    that follows that gap."""
    entered = TimeLine(rows.lane, rows.enter_ns)
    row = entered.before(rows.lane[first], rows.leave_ns[first] - AT_ONCE_NS - 1)
    row = np.maximum(row, first + 1)
    there = row < len(rows)
    there[there] = rows.lane[row[there]] == rows.lane[first[there]]
    there &= row - first <= FURTHEST
    return first[there], row[there]


def _waits_of_rows(rows: Columns, gaps: Gaps, share: Array, ends: Array) -> Awaited:
    """The waits of rows, with these shares of each kind. What is always hidden is as long as work
    between the same two kinds of entries in another part of the step (the same `ends` number)."""
    found, worked = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    since = rows.enter_ns.astype(np.int64)
    work, unseen = gaps.work(share)
    if unseen.any():
        pace = gaps.paces(share)
        length = gaps.lengths(work / pace, unseen)[gaps.kind]
        seen = gaps.seen(unseen) & (length > 0)
        elsewhere = weighted_median(work / pace, seen & ~gaps.opens, ends)[ends]
        length = np.where(length > 0, length, elsewhere) * pace
        hidden = np.flatnonzero(unseen & (length > 0))
        if seen.any():  # what is hidden varies as what is seen does
            length[hidden] *= np.resize(work[seen] / length[seen], len(hidden))
        work[hidden] = np.minimum(work, length)[hidden]
    past = rows.on_device & (rows.leave_ns == 0) & ~rows.sends  # over before they were waited for
    for ahead in range(FURTHEST, 0, -1):
        part = share[gaps.kind, ahead - 1]
        waits = np.isfinite(part) & (gaps.lasted >= gaps.over[ahead - 1] - CROSSING_NS)
        waits &= np.isfinite(gaps.over[ahead - 1])
        waits[waits] = ~past[gaps.row[waits] - ahead]
        part, first = part[waits], gaps.row[waits] - ahead
        found[first], worked[first] = ahead, part > 0
        begun = _work_done_after(gaps, share, part, work, waits)
        since[first] = rows.enter_ns[first + ahead - 1] + np.rint(begun).astype(np.int64)
    last = finishes(rows.lane)  # nothing tells what comes after
    idle = np.zeros(len(rows), bool)
    idle[gaps.row] = gaps.idle
    return Awaited(np.where(last & (found == 0), 1, found), worked, since, idle)


def _work_done_after(gaps: Gaps, share: Array, part: Array, work: Array, which: Array) -> Array:
    """How long after these gaps began that part of their work was done, held up by waits before."""
    work, reached = work[which], part * work[which]
    for over, sooner in gaps.waits(share):
        held = np.where(sooner[which] < part, over[which] + (part - sooner[which]) * work, reached)
        reached = np.maximum(reached, held)
    return np.asarray(reached)


def entered_kinds(rows: Columns, operations: Columns) -> Array:
    """A number for what each entry enters: operation, size of its group, direction; for reductions
    also their size, in octaves: models that are trained in turn have gradients of their own."""
    number = rows.operation
    away = np.where(operations.message[number], operations.root[number] - rows.lane, 0)
    large = np.isin(operations.op, _REDUCTIONS) * operations.size_bytes
    octave = np.rint(np.log2(np.maximum(large, 1)))[number]
    kinds = [operations.op[number], operations.members[number], np.sign(away), rows.sends, octave]
    return row_hash(kinds)


def places_of(rows: Columns, entered: Array) -> Array:
    """A number per entry, the same at the same place in steps of the same program."""
    opens = begins(rows.lane, rows.step)
    step, first = np.cumsum(opens) - 1, np.flatnonzero(opens)
    place = np.arange(len(rows)) - first[step]
    return row_numbers(np.add.reduceat(row_hash([place, entered]), first)[step], place)
