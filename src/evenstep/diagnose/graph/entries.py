"""Entries of ranks into operations: every record of communication, assigned to one operation.

An operation is a collective of a group, or a message. A message begins when its sender has entered,
unless the sender's thread was blocked until the receiver came. A record without a counterpart is an
operation of one member. Times are ns on the common time; device times are brought there by
`evenstep.diagnose.graph.streams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.structure import NO_HOST, row_numbers
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns, begins, key_numbers, largest_of, run_numbers
from evenstep.trace.spool.layout import FROM_ROOT, SYNCHRONIZING_OPS, TO_ROOT, Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace, match_messages

_DEVICE, _ASYNC = int(Flag.ON_DEVICE), int(Flag.ASYNC)
_BLOCKED, _FAILED = int(Flag.HOST_BLOCKED), int(Flag.FAILED)
_UPPER_BOUND = int(Flag.EXIT_UPPER_BOUND)
GLOO = "gloo"

#: A sender or root that need not wait is taken to wait if it left after the last member in this
#: share of at least so many calls; entries closer together than `TELLING_NS` do not count.
MOSTLY, FEWEST_CALLS, TELLING_NS = 0.95, 8, 100_000


class Entries(NamedTuple):
    """`rows`, one per rank and operation, in order of operation: operation, lane (index of the
    rank), step, enter_ns, leave_ns (0 unknown), decides (the operation cannot begin before this
    entry), waits (the rank needs the operation's end), sends (a message), calls (the thread was
    blocked in the call), on_device, seq (of the record), inside (of which record it was
    issued, by its seq), issued_ns (by the host), behind_ns (by a profile, how long before compute
    reached it, and unblocked_ns, for how long that host had not been blocked then; -1 unknown),
    seen_ns (its end, by the host), held_ns (on a device, from when compute reached the operation
    until its stream did), stream (0 unknown).
    `operations`, in order of queue and sequence: queue, sequence, step, group (-1 none), op, dtype,
    size_bytes, members, whole (all traced members of its group take part), root, message, uneven
    (members may end one after another, as it brings one more than another), apart_ns (how much
    later the last of them ended than the first, where devices tell).
    """

    rows: Columns
    operations: Columns


def entries(trace: Trace, clocks: Clocks, ranks: Array) -> Entries:
    """Every operation that any of these ranks took part in."""
    found = collectives(trace, clocks, ranks)
    events = trace.of_kind(Kind.POINT_TO_POINT)
    events = _finished_records(events, ranks, np.ones(len(events), bool))
    if not len(events):
        return found
    sent = _messages(trace, events, clocks, ranks)
    number = sent.rows.operation + len(found.operations)
    queue = sent.operations.queue + int(found.operations.queue.max(initial=-1)) + 1
    return Entries(
        Columns.concatenate([found.rows, sent.rows.with_column("operation", number)]),
        Columns.concatenate([found.operations, sent.operations.with_column("queue", queue)]),
    )


def collectives(trace: Trace, clocks: Clocks, ranks: Array) -> Entries:
    """Every collective that any of these ranks took part in."""
    events = trace.of_kind(Kind.COLLECTIVE)
    events = _finished_records(events, ranks, np.ones(len(events), bool))
    events = events.sorted_by("group", "group_seq", "rank")
    number = run_numbers(events.group, events.group_seq)
    placed = stamps(trace, events, clocks)
    enter, leave = placed.enter_ns, placed.leave_ns
    is_root = events["rank"] == events.peer_or_root
    rooted = (np.bincount(number, is_root) > 0)[number]
    single = _unrelated_records(events, number, placed, rooted)
    number = np.cumsum(begins(number) | single) - 1  # each of these an operation of its own
    first = np.flatnonzero(begins(number))
    from_root = np.isin(events.op, FROM_ROOT) & rooted
    to_root = np.isin(events.op, TO_ROOT) & rooted
    decides, waits = ~from_root | is_root, ~(from_root & is_root) & ~(to_root & ~is_root)
    if (from_root & is_root).any():
        waiting = _waiting_roots(events, number, enter, leave, from_root & is_root)
        waits |= waiting
        decides |= (np.bincount(number, waiting) > 0)[number]
    if (to_root & ~is_root).any():
        waits |= _waiting_senders(events, number, enter, leave, to_root & ~is_root)
    part = {"decides": decides, "waits": waits, "sends": np.zeros(len(events), bool)}
    table = _rows(events, ranks, number, placed, part)
    group = events.group[first]
    alone = -1 - np.searchsorted(ranks, events["rank"][first])
    members = np.diff(np.append(first, len(events)))
    traced = [sum(rank in trace.ranks for rank in group.ranks) for group in trace.groups]
    operations = _operations(
        events.select(first),
        queue=key_numbers(np.where(single[first], alone, group)),
        members=members,
        whole=members == np.array([*traced, 0])[group],  # nobody is known of no group
        **_sizes(events, first),
    )
    if single.any():  # in order of queue and sequence
        order = np.lexsort([operations.sequence, operations.queue])
        table = table.with_column("operation", np.argsort(order)[number]).sorted_by("operation")
        operations = operations.select(order)
    return Entries(table, operations)


def _operations(heads: Columns, **known: Array) -> Columns:
    """Operations, each from the record of its first member but for what else is known of it."""
    names = {"sequence": "group_seq", "root": "peer_or_root"}
    whole = ("sequence", "step", "group", "op", "dtype", "root")
    found = {name: heads[names.get(name, name)].astype(np.int64) for name in whole}
    found |= dict.fromkeys(("message", "uneven"), np.zeros(len(heads), bool))
    return Columns({**found, **known})


def _finished_records(events: Columns, ranks: Array, usable: Array) -> Columns:
    """The usable records of these ranks that ended without an error."""
    ended = events.exit_ns
    if (device := on_device(events)).any():
        ended = np.where(device, events.device_exit_ns, ended)
    usable = usable & (ended > 0) & ((events.flags & _FAILED) == 0)
    usable &= np.isin(events["rank"], ranks)
    return events.select(usable)


def on_device(events: Columns) -> Array:
    """Whether each record ran on a device's stream: only its device knows when."""
    return np.asarray((events.flags & _DEVICE) != 0)


def _unrelated_records(events: Columns, number: Array, placed: Columns, rooted: Array) -> Array:
    """Records that tell nothing of the other members: their group or kind is not known, or their
    root, unless all kernels of the kind and group that begin before the last last until that."""
    known = np.isin(events.op, SYNCHRONIZING_OPS + FROM_ROOT + TO_ROOT) & (events.group >= 0)
    rootless = ~rooted & ~np.isin(events.op, SYNCHRONIZING_OPS)
    if not rootless.any():
        return np.asarray(~known)
    last = largest_of(placed.enter_ns, number)
    early = rootless & on_device(events) & (last[number] - placed.enter_ns >= TELLING_NS)
    kind = key_numbers(events.group, events.op)
    came, left = (np.bincount(kind, early & one) for one in (early, placed.leave_ns < last[number]))
    stays = (came > 0) & (left <= (1 - MOSTLY) * came)
    return np.asarray(~known | (rootless & ~stays[kind]))


def _waiting_roots(
    events: Columns, number: Array, enter: Array, leave: Array, roots: Array
) -> Array:
    """Roots of a broadcast that regularly wait for the last member, where their ends are known."""
    last = largest_of(enter, number)
    known = (events.flags & _BLOCKED) != 0
    known |= (events.flags & (_ASYNC | _UPPER_BOUND)) == _ASYNC
    blocked = roots & known & ((events.flags & _DEVICE) == 0)
    early = blocked & (last[number] - enter >= TELLING_NS)
    stayed = early & (leave >= last[number])
    kind = key_numbers(events.group, events.op)
    calls, waited = np.bincount(kind, early), np.bincount(kind, stayed)
    return np.asarray(blocked & ((calls >= FEWEST_CALLS) & (waited >= MOSTLY * calls))[kind])


def _waiting_senders(
    events: Columns, number: Array, enter: Array, leave: Array, senders: Array
) -> Array:
    """Senders to a root that, though they need not be, are blocked until the root has everything.

    Transfers are weighted by their length, as ends of short ones are seen too late to tell.
    """
    is_root = events["rank"] == events.peer_or_root
    end = np.zeros(int(number[-1]) + 1, np.int64)
    end[number[is_root]] = leave[is_root]
    blocked = senders & ((events.flags & (_ASYNC | _DEVICE)) == 0)
    lasted = np.where(blocked, np.maximum(end[number] - enter, 0), 0)
    late = leave >= end[number] - np.maximum(lasted // 10, TELLING_NS)
    kind = key_numbers(events.group, events.op)
    whole, waited = np.bincount(kind, lasted), np.bincount(kind, lasted * late)
    return np.asarray(blocked & (waited >= MOSTLY * whole)[kind])


def stamps(trace: Trace, events: Columns, clocks: Clocks) -> Columns:
    """Of each record enter_ns, leave_ns, issued_ns, seen_ns, held_ns, behind_ns, unblocked_ns and
    stream, see `Entries`; times of devices are on their own clocks. Without any device what is of
    one is 0, or unknown.

    A collective begins when its rank's compute reaches it, where a profile tells that beside when
    the kernel ran: the kernel may have waited for the one before it in its stream.
    """
    enter, leave = clocks.placed(events)
    device = on_device(events)
    found = Columns({"enter_ns": enter, "leave_ns": leave})
    if not device.any():
        nothing, unknown = np.zeros(len(enter), np.int8), np.full(len(enter), NO_HOST, np.int8)
        columns = dict.fromkeys(("issued_ns", "seen_ns", "held_ns", "stream"), nothing)
        return found.with_columns(**columns, behind_ns=unknown, unblocked_ns=unknown)
    told = np.isin(events["rank"], entered_on_device(trace))
    known = "issued_ns" in events  # else nothing says so
    issued, freed = (events[n] if known else 0 * enter for n in ("issued_ns", "freed_ns"))
    profiled = device & told & (issued > 0)
    came = np.where(told, events.enter_ns, events.device_enter_ns)
    seen = events.device_exit_ns > events.device_enter_ns  # else the batch had ended when awaited
    return found.with_columns(
        enter_ns=np.where(device, came, enter),
        leave_ns=np.where(device, events.device_exit_ns * seen, leave),
        issued_ns=enter,
        seen_ns=leave,
        held_ns=np.where(device, np.maximum(events.device_enter_ns - came, 0), 0),
        behind_ns=np.where(profiled, np.maximum(came - issued, 0), NO_HOST),
        unblocked_ns=np.where(profiled, issued - freed, NO_HOST),
        stream=np.where(device & told, events.stream, 0),
    )


def entered_on_device(trace: Trace) -> list[int]:
    """Ranks whose entry times are those at which their device reached each call."""
    return [rank for rank, info in trace.ranks.items() if info.facts.get("entered") == "device"]


def _rows(
    events: Columns, ranks: Array, number: Array, placed: Columns, part: Mapping[str, Array]
) -> Columns:
    flags, device = events.flags, on_device(events)
    return Columns({
        "operation": number, "lane": np.searchsorted(ranks, events["rank"]),
        "step": events.step.astype(np.int64), **part,
        "calls": ((flags & (_ASYNC | _DEVICE)) == 0) & (events.thread == 0), "on_device": device,
        "seq": events.seq.astype(np.int64), "inside": events.parent,
        **{name: placed[name] for name in placed},
    })  # fmt: skip


def _sizes(events: Columns, first: Array) -> dict[str, Array]:
    """Sizes as nccl-tests counts them: the whole buffer where ranks hold parts of it, and what the
    busiest link carries where ranks exchange unequal ones. And where they do, or may."""
    op = events.op[first]
    members = np.diff(np.append(first, len(events)))
    moved = np.stack([events.bytes_in, events.bytes_out]).astype(np.int64)
    most, least = (of.reduceat(moved, first, axis=1) for of in (np.maximum, np.minimum))
    (sent, received), exchange = most, op == int(Op.ALL_TO_ALL)
    uneven = (most > least).any(axis=0) | (most == 0).all(axis=0)
    parts_in = np.isin(op, [int(Op.ALL_GATHER), int(Op.GATHER)])
    parts_out = np.isin(op, [int(Op.REDUCE_SCATTER), int(Op.SCATTER)])
    size = np.where(parts_in, np.where(received > sent, received, sent * members), sent)
    size = np.where(exchange, np.maximum(sent, received), size)
    size = np.where(parts_out & (sent <= received), received * members, size)
    return {"size_bytes": size, "uneven": exchange & uneven}


# -- messages --------------------------------------------------------------------------------------


def _messages(trace: Trace, events: Columns, clocks: Clocks, ranks: Array) -> Entries:
    """Every message as one operation; where only one end is known, as an operation of one."""
    pairs = match_messages(events)
    number = len(pairs.send) + np.arange(len(events))
    number[pairs.send] = number[pairs.receive] = np.arange(len(pairs.send))
    single = number >= len(pairs.send)
    sending = events.op == int(Op.SEND)
    own, peer = events["rank"].astype(np.int64), events.peer_or_root.astype(np.int64)
    source, target = np.where(sending | single, own, peer), np.where(sending & ~single, peer, own)
    channel = row_numbers(single, events.group, source, target)
    order = np.lexsort([~sending, number, events.group_seq, events.payload, channel])
    events, channel, sending = events.select(order), channel[order], sending[order]
    number = run_numbers(number[order])
    placed = stamps(trace, events, clocks)
    both = np.bincount(number)[number] == 2
    at_once, later = (where & sending for where in _awaited_sends(trace, events))
    meets = _rendezvous(trace, events, number, placed, sending & both, at_once)
    blocks = meets & (sending & ((events.flags & _BLOCKED) != 0) | later | on_device(events))
    first = np.flatnonzero(begins(number))
    part = {"decides": sending | meets | ~both, "waits": ~sending | blocks, "sends": sending}
    heads, members = events.select(first), np.diff(np.append(first, len(events)))
    operations = _operations(
        heads,
        queue=channel[first],
        op=np.full(len(first), int(Op.SEND)),
        size_bytes=np.maximum(heads.bytes_in, heads.bytes_out).astype(np.int64),
        members=members,
        whole=members == 2,
        root=np.where(sending[first], heads["rank"], heads.peer_or_root).astype(np.int64),
        message=np.ones(len(first), bool),
    )
    return Entries(_rows(events, ranks, number, placed, part), operations)


def _awaited_sends(trace: Trace, events: Columns) -> Array:
    """Messages that their thread waited for at once: its next doing was a wait that ended with the
    message; and all messages that any later wait of it ended with. Waits that name their operation
    are left out. (2, messages)."""
    phases, calls = trace.of_kind(Kind.PHASE), trace.of_kind(Kind.COLLECTIVE)
    waits = phases.select((phases.op == int(Phase.SYNC)) & (phases.exit_ns > 0))
    seqs, wanted = (rows["rank"].astype(np.int64) << 32 for rows in (events, waits))
    named = np.isin(wanted + waits.parent, seqs + events.seq.astype(np.int64))
    waits = waits.select((waits.parent == 0) | ~named)
    at_once, later = np.zeros((2, len(events)), bool)
    for rank in np.unique(waits["rank"]):
        own, mine = waits.select(waits["rank"] == rank), events["rank"] == rank
        own, sent = own.sorted_by("enter_ns"), events.select(mine)
        entered = np.sort(np.append(sent.enter_ns, calls.enter_ns[calls["rank"] == rank]))
        at = np.searchsorted(own.enter_ns, sent.enter_ns)
        there, at = at < len(own), np.minimum(at, len(own) - 1)
        others = np.searchsorted(entered, own.enter_ns[at], side="right")
        next_to = others - np.searchsorted(entered, sent.enter_ns) == 1
        at_once[mine] = there & next_to & (sent.exit_ns >= own.exit_ns[at] - TELLING_NS)
        at = np.searchsorted(own.exit_ns, sent.exit_ns - TELLING_NS)
        there, at = at < len(own), np.minimum(at, len(own) - 1)
        after = own.exit_ns[at] - TELLING_NS <= sent.exit_ns
        later[mine] = at_once[mine] | (there & after & (own.exit_ns[at] > sent.enter_ns))
    return np.stack([at_once, later])


def _rendezvous(
    trace: Trace, events: Columns, number: Array, placed: Columns, sends: Array, at_once: Array
) -> Array:
    """Whether each message begins only when both ends have entered: on devices, with gloo (whose
    sender announces a message and sends it when the receiver has asked for it,
    `gloo/transport/tcp/pair.cc`), where a sender was seen to wait for its receiver, and where
    messages received late take as long as the others."""
    device = on_device(events)
    called = ((events.flags & _BLOCKED) != 0) & ((events.flags & _ASYNC) == 0)
    blocked = sends & (called | at_once)
    gloo = [place for place, group in enumerate(trace.groups) if group.backend == GLOO]
    meets = np.bincount(number, device | np.isin(events.group, gloo)) == 2
    enter, leave = placed.enter_ns, placed.leave_ns
    last = largest_of(enter, number, least=0)
    if blocked.any():
        meets |= np.bincount(number, blocked & (leave >= last[number])) > 0
    pairs = np.flatnonzero(np.bincount(number) == 2)
    first = np.searchsorted(number, pairs)  # the sender, then the receiver
    sent, posted, came = enter[first], enter[first + 1], leave[first + 1]
    late, took = posted > sent + (came - np.maximum(posted, sent)), came - np.maximum(posted, sent)
    if late.any() and (~late).any() and np.median(took[late]) > np.median(took[~late]) / 2:
        meets[pairs] = True
    return np.asarray(meets[number])
