"""Read flight recorder dumps of torch.distributed: the last collectives of each rank.

One file per rank: a pickle, as the watchdog writes it when a collective times out, or JSON. The
ring has no steps and few times: when an operation was issued, sometimes when its end was noticed,
and which operations are unfinished. That is enough to diagnose a hang. With
TORCH_NCCL_ENABLE_TIMING it has durations, too, from which waits follow.

Differences that matter (torch 2.6 to 2.13): gloo's recorder has no members of groups, marks ended
operations by retiring them, and omits messages; JSON has 0 for an unknown time, a pickle has None;
no file states its rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.importers.content import SourceFile, usable
from evenstep.importers.draft import Draft
from evenstep.importers.file_ranks import APART_NS, misfits, ranks_or_numbers
from evenstep.importers.flight_recorder.dump import PICKLE, Dump, Place, read_dump
from evenstep.importers.flight_recorder.entries import Entry
from evenstep.importers.flight_recorder.timeline import in_rings, place_calls
from evenstep.trace.columns import Array
from evenstep.trace.ranks import format_ranks
from evenstep.trace.repetition import HIDDEN, NOTHING_ELSE
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import UNKNOWN, Trace

NAME = "flight recorder dump"
_RING = (
    "a kernel of a ring sends to one rank and receives from another: its duration does not tell "
    "for which it waited: who waits for whom in rings of messages cannot be told"
)
_FIELDS = (b"collective_seq_id", b"pg_config", b"pg_status", b"comm_lib_version")
_OF_PICKLES = (*_FIELDS, b"entries", b"profiling_name")


def recognises(source: SourceFile) -> bool:
    """Whether a file is a pickle or JSON with a ring's fields."""
    if PICKLE.match(source.head):
        return any(name in source.head for name in _OF_PICKLES)
    return source.head.lstrip()[:1] == b"{" and any(
        b'"%b"' % name in source.head for name in _FIELDS
    )


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read the dumps of all ranks as one trace. Raises `TraceError` where none is usable."""
    draft = Draft()
    dumps: dict[int, Dump] = {}
    named = ranks_or_numbers([source.path for source in sources])
    for dump in usable(sources, draft.limits, lambda each: read_dump(each.path, dumps, named)):
        draft.limits += dump.limits
        dumps[dump.rank] = dump
    _leave_out_other_runs(draft, dumps)
    first = next(iter(dumps.values()), None)
    run = {"source": NAME, "format": first.version, "library": first.library} if first else {}
    return trace_of(draft, dumps, run)


def trace_of(draft: Draft, dumps: Mapping[int, Dump], run: Mapping[str, Any]) -> Trace:
    """The trace of all ranks' dumps. Raises `TraceError` without any."""
    groups, guessed = _enter_groups(draft, dumps)
    _count_overwritten(draft, dumps, groups)
    for dump in dumps.values():
        _enter(draft, dump, groups)
    draft.limits += guessed + _overall(dumps)
    trace, inferred = draft.trace(run), ""
    if trace.events.device_exit_ns.any():  # without durations, waiting is unknown
        trace, inferred = place_calls(trace)
        ring = in_rings(trace.events)
        if ring.any():
            group, peer = (np.where(ring, -1, trace.events[n]) for n in ("group", "peer_or_root"))
            trace.events = trace.events.with_columns(group=group, peer_or_root=peer)
            trace.limits.append(_RING)
    nothing = "a flight recorder holds no steps: shares of step time cannot be given"
    trace.run["beside_calls"] = UNKNOWN
    trace.limits.append(f"{inferred}; {NOTHING_ELSE}{HIDDEN}" if inferred else nothing)
    return trace


# -- all files -------------------------------------------------------------------------------------


def _leave_out_other_runs(draft: Draft, dumps: dict[int, Dump]) -> None:
    """Remove dumps of another run (another number of ranks) or of another hang (latest times that
    are hours from those of most dumps)."""
    apart_ns = max([APART_NS, *(2 * dump.timeout_ns for dump in dumps.values())])
    told = {dump.path: (dump.world, dump.last_ns) for dump in dumps.values() if dump.entries}
    strange, _ = misfits(told, apart_ns)
    draft.limits += strange.values()
    for rank in [rank for rank, dump in dumps.items() if dump.path in strange]:
        del dumps[rank]


_Numbers = Mapping[tuple[int, tuple[str, str]], int]  # of groups, by rank and torch's names


def _enter_groups(draft: Draft, dumps: Mapping[int, Dump]) -> tuple[_Numbers, list[str]]:
    """The groups of all dumps, and a sentence where their members are not in them.

    A group has the program's name for it, with torch's name added where two have the same.
    """
    first = {(rank, one.group): one for rank, dump in dumps.items() for one in dump.entries[::-1]}
    users: dict[tuple[str, str], set[int]] = {}
    for rank, group in first:
        users.setdefault(group, set()).add(rank)
    labels: dict[tuple[str, tuple[int, ...]], Any] = {}
    numbers, guessed = {}, False
    for rank, (name, description) in sorted(first, key=lambda key: (key[0], first[key].record)):
        members = dumps[rank].config.get(name, ())
        if rank not in members:
            default = description == "default_pg" or (name == "0" and not description)
            guessed = True
            members = tuple(range(max(dumps) + 1) if default else users[name, description])
        key = name, description, tuple(sorted(members))
        label = description if description not in ("", "undefined") else name or "default_pg"
        if labels.setdefault((label, key[-1]), key) != key:
            label = f"{label} ({name})"
        group = name, description
        numbers[rank, group] = draft.group(label, members, first[rank, group].backend)
    guess = (
        "the dumps do not say who is in which group (gloo's do not): the default group is "
        "taken to be all ranks, any other those that used it"
    )
    return numbers, [guess] if guessed else []


def _count_overwritten(draft: Draft, dumps: Mapping[int, Dump], groups: _Numbers) -> None:
    """Count messages from so many that both ends of each channel have them at the same times: rings
    may have overwritten the first of them."""
    times: dict[tuple[int, Place], list[int]] = {}
    for rank, dump in dumps.items():
        for item in dump.entries:
            if item.message:
                place = _place(draft, item, groups[rank, item.group])
                times.setdefault((rank, place), []).append(item.completed_ns or item.created_ns)
    for (rank, (group, peer, op)), sent in times.items():
        came = times.get((peer, (group, rank, Op.RECV)))
        wrapped = came and any(dumps[one].entries[0].record for one in (rank, peer))
        if op == Op.SEND and came and wrapped:
            more = _messages_more(np.array(sent), np.array(came))
            dumps[rank].overwritten[group, peer, op] = max(-more, 0)
            dumps[peer].overwritten[group, rank, Op.RECV] = max(more, 0)


def _messages_more(sent: Array, came: Array) -> int:
    """How many messages more begin the first series than the second, by ascending times of both."""

    def apart(more: int) -> float:
        first, second = sent[max(more, 0) :], came[max(-more, 0) :]
        count = min(len(first), len(second))
        return float((first[:count] - second[:count]).mean())

    possible = range(1 - len(came), len(sent))
    at = bisect_left(possible, 0.0, key=apart)
    return min(possible[max(at - 1, 0) : at + 1], key=lambda more: abs(apart(more)))


def _enter(draft: Draft, dump: Dump, groups: _Numbers) -> None:
    numbers = [groups[dump.rank, item.group] for item in dump.entries]
    reached = {
        str(number): dump.reached[item.pg]
        for number, item in zip(numbers, dump.entries, strict=True)
        if item.pg in dump.reached
    }
    draft.rank(
        dump.rank, {"dump": {"written_ns": dump.written_ns or None, "reached": reached}},
        closed=not _in_flight(dump), dropped=dump.entries[0].record if dump.entries else 0,
        source=str(dump.path),
    )  # fmt: skip
    for kind, message in ((Kind.COLLECTIVE, False), (Kind.POINT_TO_POINT, True)):
        chosen = [index for index, item in enumerate(dump.entries) if item.message is message]
        if chosen:
            rows = [dump.entries[index] for index in chosen]
            table = _columns(draft, dump, rows, [numbers[index] for index in chosen])
            draft.rows(dump.rank, kind=int(kind), **table)


def _in_flight(dump: Dump) -> bool:
    """Whether any operation was in flight when the dump was written."""
    return any(not _has_ended(item) for item in dump.entries)


def _columns(
    draft: Draft, dump: Dump, rows: Sequence[Entry], groups: Sequence[int]
) -> dict[str, Any]:
    """Columns of the records of some entries. An unknown end is the latest time in the dump."""
    ends = [max(_end(dump, item), item.created_ns + 1) if _has_ended(item) else 0 for item in rows]
    timed = [item.duration_ns > 0 and item.done for item in rows]
    lengths = np.array([item.duration_ns for item in rows]) * timed
    sequences, peers = _order(draft, rows, groups, dict(dump.overwritten))
    return {
        "enter_ns": [item.created_ns for item in rows],
        "device_enter_ns": np.where(timed, 1, 0),  # until all dumps together place them
        "device_exit_ns": np.where(timed, 1 + lengths, 0), "device": np.where(timed, 0, -1),
        "exit_ns": ends, "group": groups, "group_seq": sequences, "peer_or_root": peers,
        "bytes_in": [item.bytes_in for item in rows],
        "bytes_out": [item.bytes_out for item in rows],
        "op": [int(item.op) for item in rows], "dtype": [int(item.dtype) for item in rows],
        "name": [draft.name(item.site) for item in rows],
        "flags": [_flags(item, known) for item, known in zip(rows, timed, strict=True)],
    }  # fmt: skip


def _has_ended(item: Entry) -> bool:
    return item.done or item.timed_out


def _end(dump: Dump, item: Entry) -> int:
    """Upper bound of an entry's end."""
    if item.timed_out:
        return item.created_ns + item.timeout_ns
    return item.completed_ns or dump.last_ns


def _flags(item: Entry, timed: bool) -> int:
    flags = Flag.FAILED * item.timed_out | Flag.COALESCED * item.coalesced | Flag.ON_DEVICE * timed
    return int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND | flags)


def _order(
    draft: Draft, rows: Sequence[Entry], groups: Sequence[int], counts: dict[Place, int]
) -> tuple[list[int], list[int]]:
    """Position of each row in its group's order, and the global rank of its peer; all are messages,
    which are counted per group, peer and direction, from `counts`, or none is."""
    if not rows[0].message:
        return [item.sequence for item in rows], [-1] * len(rows)
    places = [_place(draft, item, group) for item, group in zip(rows, groups, strict=True)]
    sequences = []
    for place in places:
        sequences.append(counts.get(place, 0))
        counts[place] = sequences[-1] + 1
    return sequences, [peer for _, peer, _ in places]


def _place(draft: Draft, item: Entry, group: int) -> Place:
    """The channel of a message: its group, the global rank of its peer (-1 unknown), its way."""
    members = draft.members(group)
    return group, members[item.peer] if 0 <= item.peer < len(members) else -1, item.op


def _overall(dumps: Mapping[int, Dump]) -> list[str]:
    """Limits of these dumps as a whole."""

    def ranks(told: Callable[[Dump], bool]) -> str:
        return format_ranks(rank for rank, dump in dumps.items() if told(dump))

    empty, gaps = ranks(lambda dump: not dump.entries), ranks(_has_gaps)
    unseen = ranks(lambda dump: any(item.done and not item.completed_ns for item in dump.entries))
    listed = {rank for dump in dumps.values() for ranks in dump.config.values() for rank in ranks}
    absent = format_ranks(listed - set(dumps))
    limits = {
        f"the dumps of ranks {empty} have no entries": empty,
        f"the dumps of ranks {unseen} do not say when operations ended (gloo's do not): their "
        "ends are only known to lie before the dump": unseen,
        "some dumps were copied after they were written, so that how long an operation had been "
        "in flight is not known": ranks(lambda dump: not dump.written_ns and _in_flight(dump)),
        f"the dumps of ranks {gaps} leave out what had completed: only what was in flight can be "
        "compared": gaps,
        f"there is no dump of these ranks: {absent}": absent,
    }
    return [text for text, applies in limits.items() if applies]


def _has_gaps(dump: Dump) -> bool:
    """Whether records are missing between the first and the last; False if some were coalesced."""
    records = [item.record for item in dump.entries if not item.coalesced]
    coalesced = any(item.coalesced for item in dump.entries)
    return not coalesced and bool(records) and records[-1] - records[0] + 1 != len(records)
