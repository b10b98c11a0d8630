"""Dependencies within a step of a pipeline- and data-parallel job.

The model is that of Lin et al. (OSDI 2025, section 3.2). A worker runs its computes in order, each
of the four kinds of messages in order, and its data-parallel collectives in order. A message is
sent after the compute whose result it carries, and received after the previous compute and before
the one that needs it. Parameters are gathered before the first forward of their virtual stage, or
ahead, at the end of the previous step. After the last compute come, in this order, if present:
garbage collection, the shared gradients, the optimizer, parameters gathered ahead. A message or a
collective begins when its last member does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.levels import MOST
from evenstep.trace.columns import Array, Columns, begins, key_numbers
from evenstep.trace.operation_messages import STAMPS_S, OperationMessages, in_order, messages
from evenstep.trace.operations import (
    ANYWHERE,
    COLLECTIVES,
    COMPUTES,
    MESSAGES,
    SENDS,
    Pairs,
    Role,
    after_gathers,
    gathered_ahead,
    in_chunks,
    join,
    latest,
)


class Dependencies(NamedTuple):
    """Dependencies among the operations of a table."""

    source: Array  # of each edge, an operation
    target: Array  # ascending
    group: Array  # of each operation, from 0: those of a number begin together


def dependencies(ops: Columns, *, overlapping: bool) -> Dependencies:
    """The dependencies of operations; see `evenstep.diagnose.predict.published` for the columns.

    `overlapping`: gradients are reduced behind backward. Where operations are missing, nothing
    depends on what ended after it had begun.
    """
    sent = messages(ops)
    group = _groups(ops, sent)
    source, target = _edges(ops, sent, overlapping=overlapping)
    if sent.doubtful:
        possible = ops.start_s[target] >= ops.end_s[source] - STAMPS_S
        source, target = source[possible], target[possible]
    for roles in (MESSAGES, COLLECTIVES):  # what was not each other's is taken apart
        apart = _circular(source, target, group) & np.isin(ops.role, roles)
        group = key_numbers(np.where(apart, len(ops) + np.arange(len(ops)), group))
    order = np.argsort(target, kind="stable")
    return Dependencies(source[order], target[order], group)


def _circular(source: Array, target: Array, group: Array) -> Array:
    """Mask of operations whose group depends on itself, directly or through others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    begins, ends = group[source], group[target]
    count = int(group.max()) + 1
    edges = coo_array((np.ones(len(begins)), (begins, ends)), shape=(count, count))
    part = connected_components(edges, connection="strong")[1]
    circle = np.bincount(part)[part] > 1
    circle[begins[begins == ends]] = True
    return np.asarray(circle[group])


def _groups(ops: Columns, sent: OperationMessages) -> Array:
    """A number per set of operations that begin together."""
    none, together = 0 * ops.role, np.isin(ops.role, COLLECTIVES)
    agreed = ops.role == Role.CLIP  # by all
    place = np.where(ops.role == Role.EMBEDDING, ops.dp_rank, np.where(agreed, 0, ops.stage))
    lane = np.where(agreed, 0, ops.lane)
    alone = [np.arange(len(ops)), *[none] * 4]
    collective = [-1 - ops.optype, ops.turn, place, lane, ops.seq_id]
    message = [none - 2**40, sent.pair, none, none, none]
    return key_numbers(*np.where(sent.pair >= 0, message, np.where(together, collective, alone)))


# -- edges -----------------------------------------------------------------------------------------


def _edges(ops: Columns, sent: OperationMessages, *, overlapping: bool) -> Pairs:
    gathers = in_order(ops, (ops.role == Role.PARAMS) & ~gathered_ahead(ops))[::-1]
    found = [
        _chain(ops, _computing(ops), ops.worker),
        _chain(ops, np.isin(ops.role, MESSAGES), ops.worker * len(Role) + ops.role),
        _chain(ops, np.isin(ops.role, (Role.PARAMS, Role.GRADS)), ops.worker),
        *_of_messages(ops, sent),
        _before_backward(ops),
        # a virtual stage's first forward after the last gather of its parameters
        after_gathers(ops, gathers, in_order(ops, ops.role == Role.FORWARD)),
        *_after_computes(ops, overlapping=overlapping),
    ]
    if overlapping:  # its gradients are first reduced after its last backward
        backward = in_order(ops, ops.role == Role.BACKWARD)[::-1]
        found.append(in_chunks(ops, backward, in_order(ops, ops.role == Role.GRADS)))
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def _of_messages(ops: Columns, sent: OperationMessages) -> list[Pairs]:
    """Sends after their computes, computes after the messages they receive, and receives after the
    compute after which they were posted."""
    found = []
    for role in MESSAGES:
        mine = np.flatnonzero((ops.role == role) & (sent.compute >= 0))
        if role in SENDS:
            found.append((sent.compute[mine], mine))
            continue
        asked = np.flatnonzero((ops.role == role) & (sent.after >= 0))
        found += [(mine, sent.compute[mine]), _seen_after(ops, sent.after[asked], asked)]
    return found


def _seen_after(ops: Columns, before: Array, after: Array) -> Pairs:
    """These edges; none where most targets began before their sources ended, as receives may be
    posted ahead of the previous compute."""
    early = ops.start_s[after] < ops.end_s[before] - STAMPS_S
    kept = slice(0) if len(early) and early.mean() > MOST else slice(None)
    return before[kept], after[kept]


def _computing(ops: Columns) -> Array:
    """Mask of operations in order with the computes: also unknown ones, until the last ends."""
    last = latest(np.isin(ops.role, COMPUTES), ops.end_s, ops.worker)
    unknown = np.isin(ops.role, ANYWHERE) & (ops.start_s < last)
    return np.asarray(np.isin(ops.role, COMPUTES) | unknown)


def _chain(ops: Columns, where: Array, key: Array) -> Pairs:
    """Each operation after the previous one of the same key, by time."""
    nodes = np.flatnonzero(where)
    orders = [ops.role[nodes], ops.seq_id[nodes], ops.start_s[nodes], key[nodes]]
    return _linked(nodes[np.lexsort(orders)], key)


def _linked(nodes: Array, key: Array) -> Pairs:
    """Each of these operations after the one before it, if that has the same key."""
    same = key[nodes[1:]] == key[nodes[:-1]]
    return nodes[:-1][same], nodes[1:][same]


def _before_backward(ops: Columns) -> Pairs:
    """The first backward messages are posted after the last but one forward of the warm-up."""
    computes = in_order(ops, np.isin(ops.role, COMPUTES))
    backward = computes[ops.role[computes] == Role.BACKWARD]
    place = np.full(len(ops), -1)
    place[computes] = np.arange(len(computes))
    first = backward[begins(ops.worker[backward])]
    at = place[first] - 2
    warm = (at >= 0) & (ops.worker[computes[np.maximum(at, 0)]] == ops.worker[first])
    earlier = np.full(int(ops.worker.max()) + 1, -1)
    earlier[ops.worker[first[warm]]] = computes[at[warm]]
    found = [in_order(ops, ops.role == role) for role in _BACKWARD_MESSAGES]
    posted = np.concatenate([nodes[begins(ops.worker[nodes])] for nodes in found])
    posted = posted[earlier[ops.worker[posted]] >= 0]
    return _seen_after(ops, earlier[ops.worker[posted]], posted)


_BACKWARD_MESSAGES = (Role.BACKWARD_RECV, Role.BACKWARD_SEND)


# -- after the last compute ------------------------------------------------------------------------


def _after_computes(ops: Columns, *, overlapping: bool) -> list[Pairs]:
    """The chain of operations that ends a worker's step, and what it begins after."""
    rank = ops.role.astype(float)
    late = np.isin(ops.role, ANYWHERE) & ~_computing(ops)
    known = (ops.role >= Role.GC) & ~(overlapping & (ops.role == Role.GRADS))
    known |= (ahead := gathered_ahead(ops))
    rank[ahead] = len(Role)
    rank[late] = _ranks_by_time(ops, late, known)
    nodes = np.flatnonzero(known | late)
    order = [ops.role, ops.seq_id, ops.start_s, rank, ops.worker]
    nodes = nodes[np.lexsort([each[nodes] for each in order])]
    computes = np.flatnonzero(np.isin(ops.role, COMPUTES))
    computes = computes[np.lexsort([-ops.end_s[computes], ops.worker[computes]])]
    found = [
        _linked(nodes, ops.worker),
        join((computes, ops.worker[computes]), (nodes, ops.worker[nodes])),
    ]
    if overlapping:
        reductions = in_order(ops, ops.role == Role.GRADS)[::-1]
        following = nodes[rank[nodes] > Role.GC]
        found.append(join((reductions, ops.worker[reductions]), (following, ops.worker[following])))
    return found


def _ranks_by_time(ops: Columns, late: Array, known: Array) -> Array:
    """Places of unknown operations: right after the last known one that started before them."""
    span = 1.0 + ops.end_s.max() - ops.start_s.min()
    line = ops.worker * span + ops.start_s - ops.start_s.min()
    nodes = np.flatnonzero(known)
    nodes = nodes[np.argsort(line[nodes], kind="stable")]
    at = np.searchsorted(line[nodes], line[late], side="right") - 1
    before = nodes[at] if len(nodes) else np.zeros(len(at), np.int64)
    found = (at >= 0) & (ops.worker[before] == ops.worker[late])
    return np.where(found, ops.role[before] + 0.5, Role.GC - 0.5)
