"""Infer steps that were not recorded: training repeats its calls, and a repetition is a step.

The calls of one rank, collectives of all its groups and messages alike, are searched for a period
in group, operation and bytes. Steps of other ranks follow from the calls they share with it. Steps
are inferred only if the end of every collective is known: waiting could not be measured otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns, key_numbers, largest_of, rows_by_key
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.spooled import NONE_VALUES, OnDisk
from evenstep.trace.trace import Trace

FEWEST_STEPS = 6  # repetitions of calls that are all alike: fewer tell no steps
COINCIDENCE = 0.01  # chance of unlike calls to come again in the same order, below which they do
LONGEST = 4_096  # most calls of a step
MOST_CALLS = FEWEST_STEPS * LONGEST  # calls examined: enough for the longest step
RARE = 0.1  # share of calls that may be ignored, of kinds that recur less often than the rest
EVEN = 0.1  # pauses whose mean deviation is below this share of their mean count as equal
ALIKE = 0.25  # share of that deviation that may remain between pauses one step apart
COUNTED = ("group_seq", "peer_or_root", "parent")  # processor time, switches, time without a core
NOTHING_ELSE = "what lies within a step besides them is not recorded"
HIDDEN = (
    ": compute beside collectives may hide waits, and a kernel that follows another of its group "
    "at once hides how early its rank came: costs are rough"
)


def with_steps(trace: Trace, issued_ns: Array | None = None) -> tuple[Trace, str]:
    """The trace with inferred steps, begun after pauses (of the hosts, where rows have a time of
    issue), in place of recorded ones, and what a step is in words; "" where nothing repeats."""
    calls = _calls(trace, issued_ns)
    if calls is None:
        return trace, ""
    reference = calls.richest(range(len(calls.ranks)))
    cuts = _cuts(calls, reference)
    if len(cuts) < 3:  # two steps
        return trace, ""
    found = _of_all(calls, reference, cuts)
    whole = min(_whole(cut, calls.ended[calls.of(place)]) for place, cut in found.items())
    if whole < 3:
        return trace, ""
    cuts, found = cuts[:whole], {place: cut[:whole] for place, cut in found.items()}
    times = {place: calls.between(place, cut) for place, cut in found.items()}
    if any((np.diff(one) <= 0).any() for one in times.values()):  # of another period
        return trace, ""
    events = trace.events.select(trace.events.kind != int(Kind.STEP))
    divided = _divided(trace, events, calls, times, np.arange(whole))
    each = int(np.median(np.diff(cuts)))
    what = "collectives" if calls.collective.all() else "collectives and messages"
    what = f"{each} {what} that come" if each > 1 else "one call that comes"
    return divided, f"steps were inferred: {what} again {len(cuts) - 1} times"


def with_shared_steps(trace: Trace) -> Trace:
    """The trace in which ranks that mark no steps, as actors do beside a learner, have those of the
    calls they share with a rank that does, each up to the end of its last call in the step."""
    steps = trace.of_kind(Kind.STEP)
    marking = np.unique(steps["rank"])
    calls = _calls(trace, None) if 0 < len(marking) < len(trace.ranks) else None
    if calls is None or not np.isin(marking, calls.ranks).any():
        return trace
    lead = calls.richest(np.flatnonzero(np.isin(calls.ranks, marking)))
    steps = steps.select(steps["rank"] == calls.ranks[lead])
    called = np.searchsorted(calls.begun[calls.of(lead)], steps.exit_ns)
    cuts, first = np.unique(called[called > 0] - 1, return_index=True)
    numbers, times = steps.step[called > 0][first].astype(np.int64), {}
    for place, cut in (_of_all(calls, lead, cuts) if len(cuts) > FEWEST_STEPS else {}).items():
        cut = cut[: 1 + int(np.append(np.diff(cut) <= 0, True).argmax())]  # up to the rank's end
        many = _whole(cut, calls.ended[calls.of(place)]) if len(cut) > FEWEST_STEPS else 0
        if calls.ranks[place] not in marking and many > FEWEST_STEPS:
            times[place] = calls.between(place, cut[:many])
    if not times:
        return trace
    found = _divided(trace, trace.events, calls, times, numbers)
    who = ", ".join(map(str, calls.ranks[[*times]][:8])) + " …" * (len(times) > 8)
    said = f"a step of ranks that mark none ({who}) is what they share with rank"
    found.limits.append(f"{said} {calls.ranks[lead]}'s")
    return found


def _divided(
    trace: Trace, events: Columns, calls: _Calls, times: Mapping[int, Array], numbers: Array
) -> Trace:
    """The trace with these events, and with steps of each place that end at its `times`, with these
    numbers; the first is the end of what came before."""
    step, begun = events.step.astype(np.int64), _beginnings(events, trace)
    steps, tables = trace.of_kind(Kind.STEP), []
    for place, ends in times.items():
        number = np.append(numbers[: len(ends)], numbers[len(ends) - 1] + 1)
        rows = np.flatnonzero(events["rank"] == calls.ranks[place])
        step[rows] = number[np.searchsorted(ends, begun[rows], side="right")]
        recorded = steps.select(steps["rank"] == calls.ranks[place])
        counted = _counted(recorded, ends)
        tables.append(_steps(events.select(rows[-1:]), ends, number[1:-1], counted))
    events = events.with_column("step", step.astype(np.uint32))
    events = Columns.concatenate([events, *tables]).sorted_by("rank", "seq")
    return replace(trace, events=events)


def infer_steps(trace: Trace, unmarked: str) -> Trace:
    """The trace with inferred steps, or with a single step where nothing repeats; its limits say
    which. `unmarked` names, in words, the source that marks no steps."""
    found, inferred = with_steps(trace)
    one = f"{unmarked}: all of it is taken as one"
    rough = "" if trace.hiding_known else HIDDEN
    found.limits.append(f"{inferred}; {NOTHING_ELSE}{rough}" if inferred else one)
    return found if inferred else _in_one_step(found)


def _in_one_step(trace: Trace) -> Trace:
    """The trace with a single step that holds everything recorded."""
    begun = _beginnings(trace.events, trace)
    ended = np.maximum(trace.events.exit_ns, begun + 1)
    events = trace.events.with_column("step", np.ones(len(begun), np.uint32))
    tables = [events]
    for mine in rows_by_key(events["rank"]):
        times = np.array([begun[mine].min(), ended[mine].max()])
        tables.append(_steps(events.select(mine[-1:]), times, np.ones(1)))
    return replace(trace, events=Columns.concatenate(tables).sorted_by("rank", "seq"))


def _counted(recorded: Columns, times: Array) -> dict[str, Array]:
    """What a rank counted in the steps that it had recorded, taken as even within each, between
    consecutive `times`; empty without such steps."""
    at = np.append(recorded.enter_ns[:1], recorded.exit_ns)
    totals = {name: np.append(0, recorded[name].astype(np.int64).cumsum()) for name in COUNTED}
    return {
        name: np.diff(np.interp(times, at, total).round()).astype(np.int64)
        for name, total in totals.items()
        if len(recorded)
    }


def _steps(
    last: Columns, times: Array, number: Array, counted: Mapping[str, Array] | None = None
) -> Columns:
    """Step records between consecutive `times`, in sequence after the `last` record of a rank."""
    count = len(times) - 1
    columns: dict[str, Any] = {
        "rank": last["rank"], "seq": last.seq + np.arange(1, count + 1, dtype=np.uint64),
        "kind": int(Kind.STEP), "flags": int(Flag.INFERRED), "step": number,
        "enter_ns": times[:-1], "exit_ns": times[1:], **NONE_VALUES, "peer_or_root": 0,
        **(counted or {}),
    }  # fmt: skip
    return Columns.filled(columns, {name: last[name].dtype for name in last}, count)


def _beginnings(rows: Columns, trace: Trace) -> Array:
    """When each row began: on the device, if its stamps are on the host's clock."""
    return np.where(_on_host_clock(rows, trace), rows.device_enter_ns, rows.enter_ns)


def _on_host_clock(rows: Columns, trace: Trace) -> Array:
    """Which rows have device stamps on the host's clock."""
    there = ((rows.flags & int(Flag.ON_DEVICE)) != 0) & (rows.device_enter_ns > 0)
    return np.asarray(there & np.isin(rows["rank"], trace.host_clock_ranks))


# -- calls -----------------------------------------------------------------------------------------


class _Calls(NamedTuple):
    """Collectives and messages in order of rank and sequence. A rank's `place` is its index in
    `ranks`."""

    ranks: Array
    first: Array  # (ranks + 1,): index of each rank's first call
    kind: Array  # the same number for calls of the same group, operation, type, tag and peer
    size: Array
    shared: Array  # the same number for the calls of several ranks in one operation
    collective: Array
    begun: Array
    ended: Array  # 0 where unknown
    issued: Array | None
    backwards: Array  # that the call's rank had begun before it

    def of(self, place: int) -> slice:
        return slice(int(self.first[place]), int(self.first[place + 1]))

    def richest(self, places: Iterable[int]) -> int:
        """The rank with the most calls; among equals the one that waits least in them."""
        calls = np.diff(self.first)
        return max(places, key=lambda at: (calls[at], int(self.pauses(at).sum())))

    def between(self, place: int, cuts: Array) -> Array:
        """When a rank went from each of these calls to the next: the call's end, if known."""
        begun, ended = self.begun[self.of(place)], self.ended[self.of(place)]
        following = begun[np.minimum(cuts + 1, len(begun) - 1)]
        following = np.where(cuts + 1 < len(begun), following, ended[cuts])
        left = np.where(ended[cuts] > 0, np.minimum(ended[cuts], following), following)
        return np.asarray(np.maximum.accumulate(np.maximum(left, begun[cuts] + 1)))

    def pauses(self, place: int) -> Array:
        """Time from each call of a rank to its next call: from the end of a collective, from the
        start of a message; between their issues where these are given."""
        if self.issued is not None:
            return np.diff(self.issued[self.of(place)])
        begun, ended = self.begun[self.of(place)], self.ended[self.of(place)]
        since = np.clip(ended[:-1], begun[:-1], begun[1:])
        since = np.where(self.collective[self.of(place)][:-1], since, begun[:-1])
        return np.asarray(begun[1:] - since)


def _calls(trace: Trace, issued_ns: Array | None) -> _Calls | None:
    """All calls; None if there are too few, or a rank's collectives before those in flight at its
    end lack ends."""
    if isinstance(trace.events, OnDisk):
        return None
    events = trace.events
    if issued_ns is not None:
        events = events.with_column("issued_ns", issued_ns)
    rows = replace(trace, events=events).of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT)
    rows = rows.select((rows.group >= 0) & np.isin(rows["rank"], list(trace.ranks)))
    rows = rows.sorted_by("rank", "seq")
    on_device = (rows.flags & int(Flag.ON_DEVICE)) != 0
    collective = rows.kind == int(Kind.COLLECTIVE)
    timed = ~collective | (np.where(on_device, rows.device_exit_ns, rows.exit_ns) > 0)
    done = largest_of(np.where(timed, np.arange(len(rows)), 0), rows["rank"])
    kept = np.arange(len(rows)) <= done[rows["rank"]] + 1  # one in flight closes the last step
    rows, timed = rows.select(kept), timed[kept]
    on_device, collective = on_device[kept], collective[kept]
    ranks, first = np.unique(rows["rank"], return_index=True)
    if len(ranks) < 2 or len(rows) < FEWEST_STEPS * len(ranks):
        return None
    if not np.delete(timed, np.append(first[1:], len(rows)) - 1).all():
        return None
    placed = _on_host_clock(rows, trace)
    ended = np.where(placed, rows.device_exit_ns, np.where(on_device, 0, rows.exit_ns))
    sends = rows.op == int(Op.SEND)
    peer = np.where(collective, -1, rows.peer_or_root)
    source, target = np.where(sends, rows["rank"], peer), np.where(sends, peer, rows["rank"])
    tag = np.where(collective, 0, rows.payload)
    pair = [np.where(collective, -1, side) for side in (source, target)]
    kinds = [rows.group, rows.op, rows.dtype, rows.payload, peer]
    return _Calls(
        ranks,
        np.append(first, len(rows)),
        key_numbers(*kinds),
        rows.bytes_in.astype(np.int64),
        key_numbers(rows.group, *pair, tag, rows.group_seq),
        collective,
        _beginnings(rows, trace).astype(np.int64),
        ended.astype(np.int64),
        None if issued_ns is None else rows.issued_ns,
        _backwards(trace, rows),
    )


def _backwards(trace: Trace, rows: Columns) -> Array:
    """How many backwards each row's rank had begun before it, where they were recorded."""
    phases = trace.of_kind(Kind.PHASE)
    begun = phases.select(phases.op == int(Phase.BACKWARD))
    rank = np.concatenate([begun["rank"], rows["rank"]])
    is_row = np.arange(len(rank)) >= len(begun)
    order = np.lexsort([~is_row, np.concatenate([begun.enter_ns, rows.enter_ns]), rank])
    count = np.empty(len(rank), np.int64)
    count[order] = np.cumsum(~is_row[order])
    earlier = np.searchsorted(np.sort(begun["rank"]), rows["rank"])  # of lower ranks
    return np.asarray(count[is_row] - earlier)


# -- one rank --------------------------------------------------------------------------------------


def _cuts(calls: _Calls, place: int) -> Array:
    """The last call before the first step and of each step, as indices of the rank's calls; empty
    where nothing repeats."""
    mine = calls.of(place)
    kind = calls.kind[mine]
    sized = key_numbers(kind, calls.size[mine])
    for token in (sized, kind):  # sizes may vary from step to step, as with sequence lengths
        kept = _returning(token)
        period = _period(token[kept])
        if period > 0:
            other = np.flatnonzero(token[kept][period:] != token[kept][:-period])
            settled = int(other.max(initial=-1)) + 1  # calls repeat from here
            return _at_pauses(calls, place, kept, settled, period)
        if period:  # and so no step is as short as what kinds alone repeat after
            break
    return np.zeros(0, np.int64)


def _returning(token: Array) -> Array:
    """Indices of the calls without those of rare kinds, such as logging makes."""
    settled = token[len(token) // 4 :]
    kinds, counts = np.unique(settled, return_counts=True)
    passed = np.isin(token, kinds[counts < FEWEST_STEPS])
    passed[: len(token) // 4] = False
    few = np.count_nonzero(passed) <= RARE * len(settled)
    return np.flatnonzero(~passed) if few else np.arange(len(token))


def _period(token: Array) -> int:
    """Number of calls after which they repeat, outside the first quarter (start-up); 0 for never,
    below 0 where that may be a coincidence. Any period of the sequence is one of its rarest kind
    of call."""
    settled = token[len(token) // 4 :]
    kinds, counts = np.unique(settled, return_counts=True)
    at = np.flatnonzero(settled == kinds[np.argmin(counts)]) if len(kinds) else kinds
    same = float(((counts / max(len(settled), 1)) ** 2).sum())  # chance of two calls to be alike
    for many in range(1, len(at) // 2 + 1):
        period = int(at[many] - at[0])
        if period <= LONGEST and (settled[period:] == settled[:-period]).all():
            told = len(at) // many >= FEWEST_STEPS or same ** (len(settled) - period) < COINCIDENCE
            return period if told else -period
    return 0


def _at_pauses(calls: _Calls, place: int, kept: Array, since: int, period: int) -> Array:
    """Cut before the place in the period with the longest median pause, after a collective if any.
    `kept`: indices of the calls that repeat with this period from the `since`-th on."""
    pauses = calls.pauses(place)[kept[:-1]].astype(float)[since:]
    collective = calls.collective[calls.of(place)][kept][since:]
    begun = calls.backwards[calls.of(place)][kept][since:]
    period *= max(_period(np.diff(begun[::period])), 1)  # equal calls for each layer of a model
    period *= _periods_per_step(pauses[:MOST_CALLS], period)
    usual = np.array([np.median(pauses[at::period]) for at in range(period)])
    wanted = collective[:period]
    last = int(np.argmax(np.where(wanted, usual, -1.0) if wanted.any() else usual))
    return kept[np.arange(since + last, len(kept), period)]


def _periods_per_step(pauses: Array, period: int) -> int:
    """How many periods make a step, as pauses repeat from step to step, too: the fewest that leave
    little of their deviation; or half of it and about the least, where the rest is noise."""
    most = len(pauses) // FEWEST_STEPS // period
    alone = _deviation(pauses, period)
    if alone <= EVEN * pauses.mean():
        return 1
    left = np.full(most + 2, np.inf)
    for n in range(2, most + 1):
        left[n] = _deviation(pauses, n * period)
        if left[n] <= ALIKE * alone:
            return n
        left[n] /= 1 - n * period / len(pauses)  # medians of few pauses fit their noise
    return int(np.argmax(left <= (1 + EVEN) * left.min())) if 2 * left.min() <= alone else 1


def _deviation(pauses: Array, period: int) -> float:
    """Mean distance of pauses from the median at their place in a period."""
    whole = pauses[: len(pauses) // period * period].reshape(-1, period)
    return float(np.abs(whole - np.median(whole, axis=0)).mean())


# -- other ranks -----------------------------------------------------------------------------------


def _of_all(calls: _Calls, reference: int, cuts: Array) -> dict[int, Array]:
    """The cuts of every rank that shares calls with one whose cuts are known."""
    step = np.full(int(calls.shared.max()) + 1, -1)
    found, waiting, left = {reference: cuts}, {reference}, set(range(len(calls.ranks)))
    while waiting:
        for place in waiting:
            mine = calls.shared[calls.of(place)]
            step[mine] = np.searchsorted(found[place], np.arange(len(mine)), side="left")
        left -= waiting
        known = {at: float((step[calls.shared[calls.of(at)]] >= 0).mean()) for at in left}
        most = max(known.values(), default=0.0)  # ranks with more known calls come first
        waiting = {place for place, share in known.items() if share > 0 and share >= most / 2}
        for place in waiting:
            found[place] = _like(calls, place, step[calls.shared[calls.of(place)]], len(cuts))
        if left and not waiting:  # the rest share no calls with these, only the steps
            other = calls.richest(left)
            found[other] = _cuts(calls, other)
            waiting = {other} if len(found[other]) == len(cuts) else set()
    return {place: each for place, each in found.items() if len(each) == len(cuts)}


def _whole(cuts: Array, ended: Array) -> int:
    """How many cuts there are up to the last step in which a rank has its usual number of calls,
    and to its last call known to have ended, or before its last where no end is known: records of
    some ranks may end before others'."""
    calls = np.diff(cuts)
    whole = int(np.flatnonzero(calls >= np.median(calls))[-1]) + 2
    over = np.flatnonzero(ended > 0)
    last = over[-1] if len(over) else len(ended) - 2
    return min(whole, int(np.searchsorted(cuts, last, "right")))


def _like(calls: _Calls, place: int, step: Array, count: int) -> Array:
    """Cuts of a rank from the known steps of some of its calls (-1: unknown), each at the longest
    pause between two steps' known calls, after a collective if there is one."""
    known = np.flatnonzero(step >= 0)
    at = np.searchsorted(np.maximum.accumulate(step[known]), np.arange(1, count + 1))
    low = np.maximum(np.where(at > 0, known[at - 1], known[0] - 1), 0)
    high = np.where(at < len(known), known[np.minimum(at, len(known) - 1)], len(step)) - 1
    pauses = np.append(calls.pauses(place), 0)
    room = np.maximum(high - low, 0)
    width = int(np.bincount(room).argmax())
    usual = np.flatnonzero(room == width)
    between = low[usual][:, None] + np.arange(width + 1)
    wanted = calls.collective[calls.of(place)][between].mean(axis=0) > 0.5
    longest = np.median(pauses[between], axis=0)
    chosen = int(np.argmax(np.where(wanted, longest, -1.0) if wanted.any() else longest))
    return np.asarray(low + np.minimum(chosen, room))
