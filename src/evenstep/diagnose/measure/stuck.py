"""Operations in which a job is stuck, and the ranks that it waits for.

A rank in a collective waits for the members that have not entered it, or entered another one in its
place; a rank in a message waits for its peer. A rank that waits is a victim itself; following the
waits from rank to rank leads to ranks that wait for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.sentences import say
from evenstep.trace.columns import Array, Columns, key_numbers, rows_by_key
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS, Flag, Kind, Op
from evenstep.trace.trace import Trace

SHORTEST_NS = 500_000_000  # a hang is in flight for longer than this …
LONG = 0.99  # quantile of the step lengths that a hang is compared with
STEPS = 20  # … and than so many of the longest steps (their 99 % quantile)
SHORTEST_IN_DUMP_NS = 100_000_000  # in a dump, which is written because something is wrong …
PAUSES = 3  # … and longer than so many of the longest pauses between operations
HISTORY = 4096  # previous calls that are searched for a repetition


#: The side of a call whose size must be equal on all members.
_ALIKE: Mapping[int, str] = {
    int(op): side
    for side, ops in (
        ("bytes_in", (Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE, Op.ALL_GATHER, Op.GATHER)),
        ("bytes_out", (Op.REDUCE_SCATTER, Op.SCATTER)),
    )
    for op in ops
}


class EnteredCall(NamedTuple):
    """The call that a rank entered. `size` is None where members may differ in it."""

    op: int
    size: int | None
    dtype: int
    name: int  # where it was called from: index of `Trace.names`


class Stuck(NamedTuple):
    """The first operation of a group that some member never left."""

    group: int
    sequence: int
    op: int
    step: int
    waiting: list[int]
    missing: list[int]
    different: list[int]  # ranks that entered another operation or size in its place
    since_ns: int  # time in flight at the end of the trace
    calls: Mapping[int, EnteredCall] = {}  # what each rank entered there
    untraced: tuple[int, ...] = ()  # members without a trace
    pause_ns: int | None = None  # of a dump: the longest pause between operations before
    timed: bool = True  # whether since_ns is known, not only a lower bound
    peer: int = -1  # of a message
    entered_ns: int = 0  # first entry of the waiting ranks on the clock of `waiting[0]`


def stuck(trace: Trace) -> list[Stuck]:
    """The earliest open operation of each group, without those held up by another one.

    A missing rank that itself waits in another operation is a victim. Where all operations wait for
    one another in a circle, or every member came, it is the one that left out a message; else those
    of the circle are returned.
    """
    found = _collectives(trace) + _messages(trace)
    held_up = {rank for place in found for rank in place.waiting}
    roots = [place for place in found if not place.missing or set(place.missing) - held_up]
    roots = [one for one in roots if one.missing or one.different or one.untraced] or roots
    clear = [place for place in roots if not set(place.missing) & held_up]
    named = {rank for place in clear for rank in place.missing}
    own = [[rank for rank in place.missing if rank not in held_up] for place in roots]
    found_out = [
        place._replace(missing=missing)
        for place, missing in zip(roots, own, strict=True)
        if place in clear or set(missing) - named
    ]
    if any(place.missing or place.different or place.untraced for place in found_out):
        return found_out
    return _without_message(trace, found) or found_out or _circle(found) or found


def _without_message(trace: Trace, found: list[Stuck]) -> list[Stuck]:
    """Of messages that are stuck, the one whose peer alone did not make all the calls for messages
    that it makes in other steps, and went on: one missing from the peer's calls."""
    if not any(place.peer >= 0 for place in found):
        return []
    first, events = min(place.step for place in found), trace.of_kind(Kind.POINT_TO_POINT)
    odd = [rank for rank in trace.ranks if _leaves_out(events, rank, first)]
    mine = [place for place in found if [place.peer] == odd]
    return [mine[0]._replace(missing=odd)] if mine else []


def _leaves_out(events: Columns, rank: int, first: int) -> bool:
    """Whether a rank's messages in this step or a later one are other than in any step before; of
    its last step, which may be incomplete, as far as it came."""
    rows = events.select(events["rank"] == rank).sorted_by("seq")
    call = key_numbers(*(rows[name] for name in ("group", "op", "peer_or_root", "payload")))
    made = [tuple(call[part].tolist()) for part in rows_by_key(rows.step)]
    steps = np.unique(rows.step)
    usual = {calls for step, calls in zip(steps, made, strict=True) if step < first}
    late = made[np.searchsorted(steps, first) :]
    whole = any(calls not in usual for calls in late[:-1])
    return bool(usual) and (
        whole or any(calls not in {one[: len(calls)] for one in usual} for calls in late[-1:])
    )


def _circle(found: list[Stuck]) -> list[Stuck]:
    """The operations whose waiting ranks others of them wait for."""
    awaited = {rank for place in found for rank in place.missing}
    held = [place for place in found if awaited & set(place.waiting)]
    return held if len(held) == len(found) else _circle(held)


def name_of(op: int) -> str:
    """The name of an operation as people read it."""
    return "unnamed call" if op == Op.OTHER else Op(op).name.lower()


def title(place: Stuck) -> str:
    """Who kept the others waiting in it, or entered another call, in a few words."""
    return say(
        f"hang.{_how(place)}",
        those=place.missing or place.different or place.waiting,
        others=sorted(set(place.calls) - set(place.different)),
        operation=name_of(place.op),
    )


def _how(place: Stuck) -> str:
    """What keeps an operation, in a word."""
    if place.missing and place.peer >= 0:
        return "unsent" if place.op == Op.RECV else "unread"
    if place.missing or not place.different:
        return "absent" if place.missing else "hung"
    if sizes_differ(place):
        return "unequal" if set(place.calls) <= set(place.different) else "sizes"
    alone = "pair" if len(place.calls) == len(place.different) + 1 == 2 else "mismatch"
    return "apart" if set(place.calls) <= set(place.different) else alone


def sizes_differ(place: Stuck) -> bool:
    """Whether what its ranks entered differs in nothing but size, as far as is known."""
    calls = place.calls.values()
    alike = len({(call.op, call.dtype) for call in calls}) == 1
    return place.peer < 0 and alike and len({call.name for call in calls} - {0}) <= 1


def long_enough(place: Stuck, step_ns: float) -> bool:
    """Whether it was stuck for much longer than a step takes, or in a dump, without steps, than the
    longest pause between operations. Differing calls, which nothing can complete, are enough in a
    dump, and else once the longest step is over, and half a second; a copied dump tells no time, so
    that only a member that did not come does."""
    told = place.pause_ns is not None or place.since_ns > max(SHORTEST_NS, step_ns)
    differs = bool(place.different) and told
    absent = not place.timed and bool(place.missing or place.untraced)
    return absent or differs or place.since_ns > limit_ns(place, step_ns)


def limit_ns(place: Stuck, step_ns: float) -> float:
    """Time in flight beyond which an operation hangs; the longest steps take `step_ns`."""
    if place.pause_ns is None:
        return max(SHORTEST_NS, STEPS * step_ns)
    return max(SHORTEST_IN_DUMP_NS, PAUSES * place.pause_ns)


def unfinished_operations(trace: Trace, kind: Kind = Kind.COLLECTIVE) -> Columns:
    """Unfinished operations: without an exit on ranks that did not close their trace or raised, or
    ended by an error (a timeout, a lost peer)."""
    events = trace.of_kind(kind)
    still = [r for r, info in trace.ranks.items() if not info.closed or "raised" in info.facts]
    # columns of a large run are read from files: none without need
    if not still and not trace.table.flagged(kind, Flag.FAILED):
        return events.select(slice(0, 0))
    wanted = (events.flags & int(Flag.FAILED)) != 0
    if still:
        wanted |= (events.exit_ns == 0) & np.isin(events["rank"], still)
        if kind is Kind.COLLECTIVE:
            wanted |= _without_all(events) & np.isin(events["rank"], still)
    return events.select(wanted)


def _without_all(events: Columns) -> Array:
    """Mask of synchronizing collectives that a member of the group had not reached: they ended by
    an error, even if it is not recorded. A member without any call in the group does not count."""
    found = np.zeros(len(events), bool)
    waits = np.isin(events.op, SYNCHRONIZING_OPS)
    for group in np.unique(events.group[events.group >= 0]):
        mine = np.flatnonzero(events.group == group)
        sequence, ranks = events.group_seq[mine], events["rank"][mine]
        last = [sequence[ranks == rank].max() for rank in np.unique(ranks)]
        found[mine] = waits[mine] & (sequence > min(last))
    return found


def call_of(rows: Columns, index: int) -> EnteredCall:
    op = int(rows.op[index])
    side = _ALIKE.get(op)
    size = int(rows[side][index]) if side else None
    return EnteredCall(op, size, int(rows.dtype[index]) if side else 0, int(rows.name[index]))


def calls_before(
    events: Columns, group: int, sequence: int, rank: int
) -> list[tuple[int, int | None, int]]:
    """What a rank called in a group before this one, in order: operations, sizes and types."""
    rows = events.select((events.group == group) & (events["rank"] == rank))
    rows = rows.select(rows.group_seq < sequence).sorted_by("group_seq")
    rows = rows.select(slice(-HISTORY, None))
    return [call_of(rows, index)[:3] for index in range(len(rows))]


def in_flight(trace: Trace, waiting: Columns) -> tuple[int, bool]:
    """How long the first of these records was in flight until the last sign of any rank on its
    clock; and whether that is exact: a copied dump does not tell when it was written."""
    enter_ns, exit_ns = int(waiting.enter_ns[0]), int(waiting.exit_ns[0])
    if exit_ns > 0:  # it ended by an error
        return exit_ns - enter_ns, True
    info = trace.ranks[int(waiting["rank"][0])]
    last = _last_heard(trace, info.clock)
    if "dump" not in info.facts:
        return last - enter_ns, True
    written = info.facts["dump"].get("written_ns")
    return max(last, written or 0) - enter_ns, written is not None


def _last_heard(trace: Trace, clock: str) -> int:
    """The last moment on a clock in any record, heartbeat or launcher's note."""
    near = {rank: info for rank, info in trace.ranks.items() if info.clock == clock}
    events = trace.events
    mine = np.isin(events["rank"], list(near))
    latest = [int(events[name][mine].max()) for name in ("enter_ns", "exit_ns") if mine.any()]
    latest += [int(info.facts.get("heartbeat_ns", 0)) for info in near.values()]
    ends = (info.facts.get("ended") or {} for info in near.values())
    latest += [int(end.get("monotonic_ns", 0)) for end in ends]
    return max(latest, default=0)


def longest_pause(trace: Trace, ranks: Iterable[int]) -> int | None:
    """The longest pause between operations in the second half of these ranks' dumps, as the first
    half may hold start-up and compilation. None if not all are dumps."""
    pauses = []
    for rank in ranks:
        if "dump" not in trace.ranks[rank].facts:
            return None
        enter = np.sort(trace.events.enter_ns[trace.events["rank"] == rank])
        gaps = np.diff(enter[len(enter) // 2 :])
        pauses.append(int(gaps.max()) if len(gaps) else 0)
    return max(pauses, default=0)


def _stuck_in(trace: Trace, waiting: Columns, **known: Any) -> Stuck:
    """The operation of these waiting records; `known`: its other fields."""
    ranks = [int(rank) for rank in waiting["rank"]]
    clock = trace.ranks[ranks[0]].clock
    near = [trace.ranks[rank].clock == clock for rank in ranks]
    since_ns, timed = in_flight(trace, waiting)
    usual: dict[str, Any] = {
        "op": int(waiting.op[0]),
        "calls": {rank: call_of(waiting, index) for index, rank in enumerate(ranks)},
    }
    return Stuck(
        group=int(waiting.group[0]), sequence=int(waiting.group_seq[0]), step=int(waiting.step[0]),
        waiting=ranks, since_ns=since_ns, timed=timed, pause_ns=longest_pause(trace, ranks),
        entered_ns=int(waiting.enter_ns[near].min()), **usual | known,
    )  # fmt: skip


# -- collectives -----------------------------------------------------------------------------------


def _collectives(trace: Trace) -> list[Stuck]:
    pending, found = unfinished_operations(trace), []
    events = trace.of_kind(Kind.COLLECTIVE) if len(pending) else pending
    for group in np.unique(pending.group[pending.group >= 0]):
        mine = pending.select(pending.group == group)
        each = (mine.select(mine.group_seq == sequence) for sequence in np.unique(mine.group_seq))
        places = filter(None, (_place(trace, events, waiting) for waiting in each))
        found += list(islice(places, 1))
    return found


def _place(trace: Trace, events: Columns, waiting: Columns) -> Stuck | None:
    """The stuck collective of these records; None where another member has left it, as ranks may
    write their dumps at different moments."""
    group, sequence = int(waiting.group[0]), int(waiting.group_seq[0])
    entered = events.select((events.group == group) & (events.group_seq == sequence))
    calls = {int(r): call_of(entered, i) for i, r in enumerate(entered["rank"])}
    named = events.select((events.group == group) & (events.name > 0)).sorted_by("enter_ns")
    named = named.select(slice(-HISTORY, None))
    seen = (call_of(named, index) for index in range(len(named)))
    sites = {call[:3]: call.name for call in seen}  # of calls alike: those of few steps are known
    calls = {r: one._replace(name=one.name or sites.get(one[:3], 0)) for r, one in calls.items()}
    common, different = _different(calls)
    if len(different) == len(calls) > 1:
        different = _unusual(events, waiting, calls) or different
    passed = _ranks_past(trace, events, group, sequence) - set(calls)
    finished = (entered.exit_ns > 0) & ~np.isin(entered["rank"], waiting["rank"])
    left = bool(passed) or bool(finished.any())
    if left and not different and common in SYNCHRONIZING_OPS:
        return None
    absent = [r for r in trace.groups[group].ranks if r not in calls and r not in passed]
    return _stuck_in(
        trace, waiting, op=int(common), missing=[rank for rank in absent if rank in trace.ranks],
        different=different, calls=calls,
        untraced=tuple(r for r in trace.groups[group].ranks if r not in trace.ranks),
    )  # fmt: skip


def _different(calls: Mapping[int, EnteredCall]) -> tuple[Op, list[int]]:
    """The operation that most ranks entered, and the ranks that entered another one or another
    size; all ranks, where no call is the most frequent."""
    kinds = {rank: call[:3] for rank, call in calls.items()}
    (usual, votes), *others = Counter(kinds.values()).most_common()
    tied = bool(others) and others[0][1] == votes
    odd = sorted(rank for rank, kind in kinds.items() if tied or kind != usual)
    return Op(usual[0]), odd


def _unusual(events: Columns, waiting: Columns, calls: Mapping[int, EnteredCall]) -> list[int]:
    """Without a majority, the ranks that erred: the call that followed the longest repetition of
    the previous calls was due, as training repeats its collectives, and they left it out, made the
    one before again, or brought a new size to it from the same line. Any other new call is no
    error: others may have left it out."""
    group, sequence, rank = (int(waiting[name][0]) for name in ("group", "group_seq", "rank"))
    kinds = calls_before(events, group, sequence, rank)
    known = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    code = np.array([known[kind] for kind in kinds])
    due, ends = None, np.arange(1, len(code))
    for back in range(1, len(code)):
        ends = ends[ends >= back]
        ends = ends[code[ends - back] == code[-back]]
        if not len(ends):
            break
        due = kinds[ends[-1]]
    if due is None:
        return []
    off = {kinds[-1], *(later for call, later in pairwise(kinds) if call == due)}
    odd = {rank: call[:3] for rank, call in calls.items() if call[:3] != due}
    sites = {call.name for rank, call in calls.items() if rank not in odd} - {0}
    erred = (
        kind in off or (kind[0] == due[0] and kind not in known and calls[rank].name in sites)
        for rank, kind in odd.items()
    )
    return sorted(odd) if len(odd) < len(calls) and all(erred) else []


def _ranks_past(trace: Trace, events: Columns, group: int, sequence: int) -> set[int]:
    """Ranks known to have passed a collective that their ring no longer holds."""
    found = {
        rank
        for rank, info in trace.ranks.items()
        if (info.facts.get("dump") or {}).get("reached", {}).get(str(group), -1) > sequence
    }
    wrapped = [rank for rank, info in trace.ranks.items() if info.dropped]
    if wrapped:
        later = (events.group == group) & (events.group_seq > sequence)
        found |= set(np.unique(events["rank"][later]).tolist()) & set(wrapped)
    return found


# -- messages whose other end was never called -----------------------------------------------------
# A message is identified by group, ends, direction, tag and number. Where a ring has lost its
# oldest records, numbers do not compare; any open call of the other direction then stands for it.


def _messages(trace: Trace) -> list[Stuck]:
    """Messages whose other end was never called, one per peer that is waited for."""
    pending = unfinished_operations(trace, Kind.POINT_TO_POINT)
    if not len(pending):
        return []
    pending = pending.sorted_by("enter_ns")
    calls = np.stack([pending[name].astype(int) for name in ("rank", "peer_or_root", "op")])
    awaited: dict[tuple[int, ...], list[int]] = {}
    for index in np.sort(np.unique(calls, axis=1, return_index=True)[1]).tolist():
        ends, numbered = _other_ends(trace, pending, index)
        if not (numbered and (ends.exit_ns > 0).any()):  # else only its end here was not recorded
            key = int(pending.group[index]), *map(int, calls[1:, index])
            awaited.setdefault(key, []).append(index)
    places = [_message(trace, pending.select(np.array(rows))) for rows in awaited.values()]
    return [place for n, place in enumerate(places) if not _is_other_end(place, places[:n])]


def _is_other_end(place: Stuck, before: Sequence[Stuck]) -> bool:
    """Whether it is the other end of an earlier entry's message: both called, neither left."""
    return not place.missing and any(
        not other.missing and other.peer in place.waiting and place.peer in other.waiting
        for other in before
    )


def _other_ends(trace: Trace, pending: Columns, index: int) -> tuple[Columns, bool]:
    """The peer's calls of the same message, and True; its open calls of that direction, and False,
    where message numbers do not compare."""
    events = trace.of_kind(Kind.POINT_TO_POINT)
    rank, peer = int(pending["rank"][index]), int(pending.peer_or_root[index])
    op = int(Op.RECV if pending.op[index] == int(Op.SEND) else Op.SEND)
    same = (events["rank"] == peer) & (events.peer_or_root == rank) & (events.op == op)
    if peer not in trace.ranks or trace.ranks[peer].dropped or trace.ranks[rank].dropped:
        return events.select(same & (events.exit_ns == 0)), False
    for name in ("group", "group_seq", "payload"):
        same &= events[name] == pending[name][index]
    return events.select(same), True


def _message(trace: Trace, waiting: Columns) -> Stuck:
    peer, rank = int(waiting.peer_or_root[0]), int(waiting["rank"][0])
    ends, numbered = _other_ends(trace, waiting, 0)
    sizes = {max(int(rows.bytes_in[0]), int(rows.bytes_out[0])) for rows in (waiting, ends) if rows}
    return _stuck_in(
        trace, waiting, missing=[peer] if peer in trace.ranks and not len(ends) else [],
        different=sorted({rank, peer}) if numbered and len(sizes) > 1 else [],
        untraced=(peer,) if peer >= 0 and peer not in trace.ranks else (), peer=peer,
    )  # fmt: skip
