"""Messages between pipeline stages: the compute each belongs to, and pairs of send and receive.

A table has only the worker and the times of a send or receive. Its compute follows from the order
on the worker: the n-th message of a kind belongs to the n-th compute of its direction that needs
one. Profilers also record messages at both ends of the model that were never sent; those belong to
a compute but have no other end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns, key_numbers, positions_by_key
from evenstep.trace.operations import CLOCK_ERROR_S, MESSAGES, RECVS, SENDS, Role, latest

STAMPS_S = 50e-6  # a compute and its message may overlap by so much: error of the stamps
MOST = 0.5  # share of messages that micro-batches must pair, else they are paired by order

#: Compute of each kind of message, and the direction (virtual stages) in which it goes.
_DIRECTION = {
    Role.FORWARD_SEND: (Role.FORWARD, 1),
    Role.FORWARD_RECV: (Role.FORWARD, 1),
    Role.BACKWARD_SEND: (Role.BACKWARD, -1),
    Role.BACKWARD_RECV: (Role.BACKWARD, -1),
}


class OperationMessages(NamedTuple):
    """What is known about the messages of an operation table; arrays have one entry per row."""

    compute: Array  # row of the compute that makes or needs the message; -1 none
    after: Array  # row of the compute after which the message was posted; -1 unknown
    pair: Array  # the same number for the send and the receive of a message; -1 none
    unpaired: int  # sends and receives that should have another end but have none
    doubtful: bool  # operations are missing, so that some of this was guessed


def in_order(ops: Columns, where: Array) -> Array:
    """Rows of the mask, by worker, then in order of time."""
    nodes = np.flatnonzero(where)
    order = [ops.role[nodes], ops.seq_id[nodes], ops.start_s[nodes], ops.worker[nodes]]
    return np.asarray(nodes[np.lexsort(order)])


def lanes(operations: Columns, rank: Array) -> Array:
    """Index of each row's worker among the workers of its stage and data-parallel rank."""
    _, first = np.unique(rank, return_index=True)
    return positions_by_key(operations.stage[first], operations.dp_rank[first])[rank]


def messages(ops: Columns) -> OperationMessages:
    """Find the compute and the other end of every message."""
    compute, after = np.full((2, len(ops)), -1)
    lacking = _lacking(ops)
    doubtful = bool(lacking.any())
    for role in MESSAGES:
        computes = in_order(ops, ops.role == _DIRECTION[role][0])
        sent = in_order(ops, ops.role == role)
        found, posted, guessed = _computes_of(ops, role, sent, computes, lacking)
        doubtful |= guessed
        compute[sent] = found
        after[sent] = found if role in SENDS else posted
    pair, unpaired = _pair(ops, compute, doubtful=doubtful)
    return OperationMessages(compute, after, pair, unpaired, doubtful or unpaired > 0)


def _lacking(ops: Columns) -> Array:
    """Mask of workers on which a micro-batch lacks its forward or its backward."""
    mine = np.flatnonzero(np.isin(ops.role, (Role.FORWARD, Role.BACKWARD)))
    place = np.stack([ops.worker[mine], ops.gmc[mine], ops.mb_id[mine]])
    key, number = np.unique(place, axis=1, return_inverse=True)
    sign = np.where(ops.role[mine] == Role.FORWARD, 1, -1)
    left = np.bincount(number.reshape(-1), weights=sign, minlength=key.shape[1]) != 0
    found = np.zeros(int(ops.worker.max()) + 1, bool)
    found[key[0][left]] = True
    return found


# -- the compute of a message ----------------------------------------------------------------------


def _computes_of(
    ops: Columns, role: Role, sent: Array, computes: Array, lacking: Array
) -> tuple[Array, Array, bool]:
    """The compute of each message, the compute after which each receive was posted, and whether
    any had to be found by time."""
    found, posted = np.full(len(sent), -1), np.full(len(sent), -1)
    if not len(sent) or not len(computes):
        return found, posted, bool(len(sent))
    real = _can_belong(ops, role, sent, computes)
    at = _by_count(ops, role, sent[real], computes)
    lacking = lacking.copy()
    lacking[ops.worker[sent[real][_is_contradicted(ops, role, sent[real], computes, at)]]] = True
    unsure = (at < 0) | lacking[ops.worker[sent[real]]]
    at[unsure] = _by_time(ops, role, sent[real][unsure], computes)
    found[real] = np.where(at >= 0, computes[np.maximum(at, 0)], -1)
    before = np.maximum(at - 1, 0)
    same = (at > 0) & (ops.worker[computes[before]] == ops.worker[sent[real]])
    early = ops.end_s[computes[before]] <= ops.end_s[sent[real]] + STAMPS_S
    posted[real] = np.where(same & (early | ~unsure), computes[before], -1)
    return found, posted, bool(unsure.any())


def _is_contradicted(ops: Columns, role: Role, sent: Array, computes: Array, at: Array) -> Array:
    """Which sends began before their compute ended, or receives ended after it had begun."""
    compute = computes[np.maximum(at, 0)]
    first, second = (sent, compute) if role in RECVS else (compute, sent)
    return np.asarray((at >= 0) & (ops.start_s[second] < ops.end_s[first] - CLOCK_ERROR_S))


def _can_belong(ops: Columns, role: Role, sent: Array, computes: Array) -> Array:
    """Which messages can belong to a compute: not receives after the last compute has begun, nor
    sends before the first has ended."""
    if role in RECVS:
        last = latest(computes, ops.start_s, ops.worker)
        return np.asarray(ops.start_s[sent] <= last[sent] + STAMPS_S)
    first = -latest(computes, -ops.end_s, ops.worker)
    return np.asarray(ops.end_s[sent] >= first[sent] - STAMPS_S)


def _by_count(ops: Columns, role: Role, sent: Array, computes: Array) -> Array:
    """Index in `computes` of each message's compute, where counts on its worker agree; else -1.

    Counts agree if there are as many messages as computes, or as computes that need one, or if one
    at the end of the model is missing (the first receive, the last send).
    """
    workers = int(ops.worker.max()) + 1
    at, to = ops.worker[sent], ops.worker[computes]
    needed = needs_other_end(ops, role, computes)
    have, all_of = np.bincount(at, minlength=workers), np.bincount(to, minlength=workers)
    needy = np.bincount(to[needed], minlength=workers)
    begin = np.cumsum(all_of) - all_of
    place = np.arange(len(sent)) - (np.cumsum(have) - have)[at]
    result = np.full(len(sent), -1)
    whole = (have == all_of)[at]
    result[whole] = (begin[at] + place)[whole]
    wanted = (have == needy)[at]
    result[wanted] = np.flatnonzero(needed)[((np.cumsum(needy) - needy)[at] + place)[wanted]]
    edge = begin if role in RECVS else begin + all_of - 1
    spare = np.zeros(workers, bool)
    spare[all_of > 0] = ~needed[edge[all_of > 0]]
    short = (spare & (have == all_of - 1) & (have != needy))[at]
    result[short] = (begin[at] + place + (role in RECVS))[short]
    return result


def _by_time(ops: Columns, role: Role, sent: Array, computes: Array) -> Array:
    """Index of the first compute to begin after a receive, or last to end before a send; or -1."""
    origin = ops.start_s.min()
    span = 1.0 + ops.end_s.max() - origin
    received = role in RECVS
    times = ops.start_s if received else ops.end_s
    line = ops.worker[computes] * span + (times[computes] - origin)
    moment = (ops.end_s - STAMPS_S) if received else (ops.start_s + STAMPS_S)
    asked = ops.worker[sent] * span + (moment[sent] - origin)
    at = np.searchsorted(line, asked, side="left" if received else "right") - (not received)
    inside = (at >= 0) & (at < len(computes))
    at = np.where(inside, at, 0)
    return np.asarray(np.where(inside & (ops.worker[computes[at]] == ops.worker[sent]), at, -1))


def needs_other_end(ops: Columns, role: Role, computes: Array) -> Array:
    """Whether a compute's message of this kind has another end: False at the model's ends."""
    step = _DIRECTION[role][1] * (1 if role in SENDS else -1)
    other = ops.gmc[computes] + step
    return np.asarray((other >= 0) & (other <= ops.gmc.max()))


# -- the other end ---------------------------------------------------------------------------------


def _pair(ops: Columns, compute: Array, *, doubtful: bool) -> tuple[Array, int]:
    """Number both ends of each message alike, by receiving virtual stage and micro-batch, else by
    order at its receiving stage, and count the ends that have no other."""
    pair = np.full(len(ops), -1)
    unpaired = 0
    for send, recv in zip(SENDS, RECVS, strict=True):
        ends = [_ends(ops, role, compute) for role in (send, recv)]
        both = np.concatenate(ends)
        if not len(both):
            continue
        place = (ops.turn[both], ops.dp_rank[both], ops.lane[both])
        ahead = np.repeat([_DIRECTION[send][1], 0], [len(each) for each in ends])  # to the receiver
        chunk = ops.gmc[compute[both]] + ahead
        number = key_numbers(*place, chunk, ops.mb_id[compute[both]])
        matched = _is_matched(number, len(ends[0]))
        if matched.mean() < MOST:
            stage = (ops.stage[both] + ahead) % (int(ops.stage.max()) + 1)
            turn = np.concatenate([positions_by_key(ops.worker[nodes]) for nodes in ends])
            number = key_numbers(*place, stage, turn)
            matched = _is_matched(number, len(ends[0]))
        matched &= _possible(ops, number, ends, doubtful=doubtful)
        pair[both[matched]] = number[matched] + pair.max() + 1
        unpaired += int(np.count_nonzero(~matched))
    return pair, unpaired


def _ends(ops: Columns, role: Role, compute: Array) -> Array:
    nodes = in_order(ops, (ops.role == role) & (compute >= 0))
    return nodes[needs_other_end(ops, role, compute[nodes])]


def _possible(ops: Columns, number: Array, ends: list[Array], *, doubtful: bool) -> Array:
    """Which ends are of a message that was not received before it was sent. A send may end before
    the receive begins, but counts as a wrong pair if operations are missing."""
    count = int(number.max()) + 1
    sides = list(zip(np.split(number, [len(ends[0])]), ends, strict=True))
    possible = np.ones(count, bool)
    for (first, nodes), (second, others) in (sides, sides[::-1])[: 1 + doubtful]:
        begun, done = np.full(count, -np.inf), np.full(count, np.inf)
        begun[first], done[second] = ops.start_s[nodes], ops.end_s[others]
        possible &= done > begun - CLOCK_ERROR_S
    return np.asarray(possible[number])


def _is_matched(number: Array, sends: int) -> Array:
    """Whether each number occurs exactly once among the first `sends` and once among the rest."""
    one = np.bincount(number[:sends], minlength=int(number.max()) + 1) == 1
    other = np.bincount(number[sends:], minlength=int(number.max()) + 1) == 1
    return np.asarray((one & other)[number])
