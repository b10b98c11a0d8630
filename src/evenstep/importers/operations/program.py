"""The program of each worker of an operation table: its operations in order, and its waits.

The model is that of Lin et al. (OSDI 2025, section 3.2). A worker's thread runs its computes in
order, and after the last of them the operations that end its step. Messages, gathers of parameters
and reductions of gradients that overlap with backward run beside the thread: a compute waits for
the message that it needs, the first forward of a virtual stage for its parameters, the operations
that end the step for the gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.importers.draft import ORIGIN_NS
from evenstep.trace.columns import Array, Columns, begins, key_numbers, largest_of, smallest_of
from evenstep.trace.operation_messages import MOST, OperationMessages, lanes
from evenstep.trace.operations import (
    COLLECTIVES,
    COMPUTES,
    MESSAGES,
    RECVS,
    SENDS,
    Pairs,
    Role,
    after_gathers,
    extent,
    gathered_ahead,
    in_chunks,
    join,
    latest,
    on_one_line,
    reduces_behind,
)

GAP_NS = 1_000  # between steps laid end to end
STAMPS_NS = 50_000  # stamps of a thread and of operations that it issues may overlap by so much
TALKS = (*COLLECTIVES, Role.MEETING, Role.LAYERNORM)

#: Order at one moment of a thread: operations issued before an operation, waits before it, itself,
#: the wait for itself, operations issued while it runs. Two numbers each: sends precede receives.
ISSUED, WAITS, ITSELF, ENDED, WITHIN, PLACES = range(0, 12, 2)


class Program(NamedTuple):
    """Placed operations with times of their thread and `order` at one moment; and waits with rank,
    step, enter_ns, exit_ns, order and `awaited`, a row (-1 for a group of unknown members).
    """

    ops: Columns
    waits: Columns


def place_operations(table: Columns) -> tuple[Columns, bool]:
    """The table on one time line, by rank, step and time; and whether its steps are disjoint.

    New columns: `turn` (index of the step), `worker` (a number for each rank's step), `lane`
    (index among workers of one stage and data-parallel rank), `enter_ns` and `exit_ns`, `begin_ns`
    and `end_ns` of the step, `start_s` and `end_s`.
    """
    turn, begin, end = extent(table)
    if one_line := on_one_line(table):
        at = ORIGIN_NS + np.rint((begin - begin[0]) * 1e9).astype(np.int64)
    else:
        length_ns = np.rint((end - begin) * 1e9).astype(np.int64) + GAP_NS
        at = ORIGIN_NS + np.cumsum(length_ns) - length_ns
    enter = at[turn] + np.rint((table.start_s - begin[turn]) * 1e9).astype(np.int64)
    leave = enter + np.rint(table.duration_s * 1e9).astype(np.int64)
    ended = largest_of(leave, turn)
    rank = np.unique(table["rank"], return_inverse=True)[1].reshape(-1)
    table = table.with_columns(
        enter_ns=enter, exit_ns=leave, begin_ns=at[turn], end_ns=ended[turn], turn=turn,
        lane=lanes(table, rank), start_s=(enter - ORIGIN_NS) / 1e9,
        end_s=(leave - ORIGIN_NS) / 1e9,
    )  # fmt: skip
    table = table.sorted_by("rank", "step", "enter_ns")
    new = begins(table.step, table["rank"])
    table = table.with_column("worker", np.cumsum(new) - 1)
    if not one_line or bool((begin[1:] >= end[:-1]).all()):
        return table, True
    first = np.flatnonzero(new)
    over = np.maximum.reduceat(table.exit_ns, first)
    gap_s = np.append(0.0, np.maximum(begin[1:] - np.maximum.accumulate(end)[:-1], 0.0))
    idle = np.rint(gap_s * 1e9).astype(np.int64)[table.turn[first]]
    follows = np.diff(table["rank"][first], prepend=-1) == 0
    before = np.where(follows, np.append(0, over[:-1]) + idle, table.begin_ns[first])
    own = table.worker
    return table.with_columns(begin_ns=before[own], end_ns=over[own]), False


def program(ops: Columns, sent: OperationMessages) -> Program:
    """The program of each thread of placed operations.

    A thread begins no operation before it has ended the previous one. Operations beside the thread
    are issued between two of its operations, or right after the compute that produces their data,
    however long they then queue.
    """
    behind = (ops.role == Role.GRADS) & reduces_behind(ops, ops.worker)
    ahead_of = (ops.role == Role.PARAMS) & ~gathered_ahead(ops)
    flying = np.isin(ops.role, MESSAGES) | behind | ahead_of  # beside the thread
    thread, fly = np.flatnonzero(~flying), np.flatnonzero(flying)
    free, ended = _free(ops, thread, _first_starts(ops, sent))
    seen = ops.enter_ns
    ops = ops.with_column("enter_ns", np.where(flying, seen, np.maximum(seen, free)))
    ops = ops.with_column("exit_ns", np.where(flying, ops.exit_ns, ended))
    issued, order = ops.enter_ns.copy(), PLACES * np.arange(len(ops)) + ITSELF
    asked = _issue_times(ops, fly)
    moment = np.where(asked > 0, asked, seen[fly])
    at, there = _next(ops, thread, ops.exit_ns, fly, moment + STAMPS_NS + 1)
    begun = there & (moment >= ops.enter_ns[at]) & (ops.enter_ns[at] < ops.exit_ns[at])
    place = np.where(begun, np.maximum(ops.enter_ns[at], asked), free[at])
    issued[fly] = np.where(there, place, seen[fly])
    order[fly] = PLACES * np.where(there, at, fly) + np.where(begun, WITHIN, ISSUED)
    made, after = _follow(ops, sent, fly)
    made, after = (one[seen[made] >= ended[after] - STAMPS_NS] for one in (made, after))
    after = _last_met(ops, thread, after, ended, seen[made])
    issued[made], order[made] = ended[after], PLACES * (after + 1) + ISSUED
    ahead, first = _ahead(ops, sent, thread, flying)
    issued[ahead], order[ahead] = free[first], PLACES * first + ISSUED
    order += np.isin(ops.role, RECVS)
    waits = _waits(ops, sent.compute, flying, free)
    over = np.maximum(ops.exit_ns, issued)
    return Program(ops.with_columns(enter_ns=issued, exit_ns=over, order=order), waits)


# -- times of issue --------------------------------------------------------------------------------


def _first_starts(ops: Columns, sent: OperationMessages) -> Array:
    """When each worker first did anything in its step: with its first operation; with the step
    where that is a receive of what was not sent before, which need not show how long it waited."""
    first = np.flatnonzero(np.diff(ops.worker, prepend=-1))
    sends = np.flatnonzero(np.isin(ops.role, SENDS) & (sent.pair >= 0))
    sent_ns = np.full(int(sent.pair.max(initial=-1)) + 2, 2**62)
    sent_ns[sent.pair[sends]] = ops.enter_ns[sends]
    unsent = np.isin(ops.role[first], RECVS)
    unsent &= sent_ns[sent.pair[first]] > ops.enter_ns[first] - STAMPS_NS
    return np.where(unsent, ops.begin_ns[first], ops.enter_ns[first])


def _free(ops: Columns, thread: Array, begun: Array) -> Pairs:
    """When the thread had ended the operation before each one, and the operation itself."""
    line = ops.worker[thread] * (int(ops.exit_ns.max()) + 1)
    ended = np.maximum.accumulate(ops.exit_ns[thread] + line) - line
    opens = begins(ops.worker[thread])
    before, after = begun[ops.worker], ops.exit_ns.copy()
    before[thread[1:]] = np.where(opens[1:], before[thread[1:]], ended[:-1])
    after[thread] = ended
    return before, after


def _next(ops: Columns, thread: Array, times: Array, fly: Array, moment: Array) -> Pairs:
    """The first operation of the thread whose time is not before the moment of each operation in
    `fly`, and whether there is one."""
    if not len(thread):
        return fly, np.zeros(len(fly), bool)
    width = int(ops.exit_ns.max()) + STAMPS_NS + 2
    line = ops.worker[thread] * width + times[thread]
    at = np.searchsorted(line, ops.worker[fly] * width + moment)
    found = thread[np.minimum(at, len(thread) - 1)]
    return found, (at < len(thread)) & (ops.worker[found] == ops.worker[fly])


def _issue_times(ops: Columns, fly: Array) -> Array:
    """When overlapped reductions and gathers of layers were issued at the latest: their start. One
    that queued: where its worker was as far in its computes as another of its stage, on which the
    same did not queue in that step, at its start; else with the first of the queue. Others: 0."""
    row = fly[(ops.role[fly] == Role.GRADS) | _by_layer(ops)[fly]]
    computes = np.flatnonzero(np.isin(ops.role, COMPUTES))
    if not len(row) or not len(computes):
        return np.zeros(len(fly), np.int64)
    line = ops.worker * (int(ops.exit_ns.max()) + STAMPS_NS + 1)
    row = row[np.argsort(line[row] + ops.exit_ns[row], kind="stable")]
    enter, leave, places = line[row] + ops.enter_ns[row], line[row] + ops.exit_ns[row], len(row)
    before = np.searchsorted(leave, enter + STAMPS_NS, side="right") - 1
    queued = (before >= 0) & (before < np.arange(places)) & (leave[before] >= enter - STAMPS_NS)
    head = np.where(queued, before, np.arange(places))
    while (head[head] != head).any():
        head = head[head]
    edges = line[computes, None] + np.stack([ops.enter_ns, ops.exit_ns], axis=1)[computes]
    edges, into = np.maximum.accumulate(edges.reshape(-1)), np.arange(2 * len(computes))
    begun = 2 * np.searchsorted(ops.worker[computes], ops.worker[row])
    call = key_numbers(*(each[row] for each in (ops.step, ops.stage, ops.optype, ops.seq_id)))
    done = np.where(queued, np.inf, np.interp(enter, edges, into) - begun)
    first = smallest_of(done, call, most=np.inf)
    told = queued & np.isfinite(first[call])
    reached = np.interp(begun + np.where(told, first[call], 0), into, edges)
    since = np.where(told, np.clip(reached, enter[head], enter), enter[head])
    found = np.zeros(len(ops), np.int64)
    found[row] = np.rint(since).astype(np.int64) - line[row]
    return found[fly]


def _by_layer(ops: Columns) -> Array:
    """Mask of gathers before each layer: of workers that also gather after their first forward."""
    forward, gathers = ops.role == Role.FORWARD, ops.role == Role.PARAMS
    begun = -latest(forward, -ops.start_s, ops.worker)
    return np.asarray(gathers & (latest(gathers, ops.start_s, ops.worker) > begun))


def _follow(ops: Columns, sent: OperationMessages, fly: Array) -> Pairs:
    """Sends and overlapped reductions, and the compute that produces their data."""
    sends = fly[np.isin(ops.role[fly], SENDS) & (sent.compute[fly] >= 0)]
    reduced = fly[ops.role[fly] == Role.GRADS]
    backward = np.flatnonzero(ops.role == Role.BACKWARD)[::-1]
    last, first = in_chunks(ops, backward, reduced)
    return np.append(sends, first), np.append(sent.compute[sends], last)


def _last_met(ops: Columns, thread: Array, after: Array, ended: Array, begun: Array) -> Array:
    """These computes, or the last of the collectives that follow on each if all had ended before
    what it made began: tensor-parallel ranks first sum what they send on."""
    same = np.diff(ops.worker[thread], prepend=-1) == 0
    opens = np.append(np.flatnonzero(~same | (ops.role[thread] != Role.MEETING)), len(thread))
    following = np.searchsorted(opens, np.searchsorted(thread, after), side="right")
    last = thread[opens[following] - 1]
    return np.where(ended[last] <= begun + STAMPS_NS, last, after)


def _ahead(ops: Columns, sent: OperationMessages, thread: Array, flying: Array) -> Pairs:
    """Operations issued at the beginning of their step, and the thread's first operation.

    These are gathers of parameters; and all receives of a direction, if most of them began before
    the compute that they would follow had ended: then they delay no compute.
    """
    found = (ops.role == Role.PARAMS) & flying & ~_by_layer(ops)
    for role in RECVS:
        told = (ops.role == role) & (sent.after >= 0)
        early = ops.enter_ns[told] < ops.exit_ns[sent.after[told]] - STAMPS_NS
        found |= (ops.role == role) & (len(early) > 0 and bool(early.mean() > MOST))
    first = np.full(int(ops.worker.max()) + 1, -1)
    first[ops.worker[thread][::-1]] = thread[::-1]
    ahead = np.flatnonzero(found)
    ahead = ahead[first[ops.worker[ahead]] >= 0]
    return ahead, first[ops.worker[ahead]]


# -- waits -----------------------------------------------------------------------------------------


def _waits(ops: Columns, compute: Array, flying: Array, free: Array) -> Columns:
    """Waits of all threads; `compute` is the compute that makes or needs each message."""
    calls = np.flatnonzero(np.isin(ops.role, TALKS) & ~flying)
    received = np.flatnonzero((compute >= 0) & np.isin(ops.role, RECVS))
    gathered, reduced, last = _gathers(ops, flying), _last_reductions(ops, flying), _last_sent(ops)
    awaited = np.concatenate([calls, received, gathered[0], reduced[0], last[0]])
    at = np.concatenate([calls, compute[received], gathered[1], reduced[1], last[1]])
    ends = (at == awaited) | (np.arange(len(at)) >= len(at) - len(last[0]))
    order = np.lexsort([ops.exit_ns[awaited], ends, at])
    awaited, at, ends = awaited[order], at[order], ends[order]
    since = np.where(ends, np.where(at == awaited, ops.enter_ns[at], ops.exit_ns[at]), free[at])
    until = np.where(ends, 2**62, ops.enter_ns[at])
    done = np.clip(ops.exit_ns[awaited], since, until)
    again = ~begins(at, ends)
    since[again] = np.maximum(since, np.append(0, done[:-1]))[again]
    return Columns(
        rank=ops["rank"][at], step=ops.step[at], enter_ns=since,
        exit_ns=np.maximum(done, since), order=PLACES * at + np.where(ends, ENDED, WAITS),
        awaited=np.where(ops.role[awaited] == Role.LAYERNORM, -1, awaited),
    )  # fmt: skip


def _gathers(ops: Columns, flying: Array) -> Pairs:
    """The last gather of each virtual stage with its first forward; and each gather of a layer with
    the next compute to begin."""
    by_layer = _by_layer(ops)
    gathers = np.flatnonzero((ops.role == Role.PARAMS) & flying & ~by_layer)[::-1]
    one = after_gathers(ops, gathers, np.flatnonzero(ops.role == Role.FORWARD))
    thread, layers = np.flatnonzero(np.isin(ops.role, COMPUTES)), np.flatnonzero(by_layer & flying)
    after, there = _next(ops, thread, ops.enter_ns, layers, ops.exit_ns[layers] - STAMPS_NS)
    return np.append(one[0], layers[there]), np.append(one[1], after[there])


def _last_reductions(ops: Columns, flying: Array) -> Pairs:
    """The last overlapped reduction of each worker, and the first operation that ends its step."""
    reduced = np.flatnonzero((ops.role == Role.GRADS) & flying)[::-1]
    closing = np.flatnonzero((ops.role > Role.GC) & ~flying)
    return join((reduced, ops.worker[reduced]), (closing, ops.worker[closing]))


def _last_sent(ops: Columns) -> Pairs:
    """The last send to end of each worker, and its thread's last operation."""
    by_end = np.argsort(-ops.exit_ns, kind="stable")
    sent = by_end[np.isin(ops.role[by_end], SENDS)]
    thread = by_end[~np.isin(ops.role[by_end], MESSAGES)]
    return join((sent, ops.worker[sent]), (thread, ops.worker[thread]))
