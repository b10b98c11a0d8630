"""Records of an operation table: its steps, phases, collectives, messages and waits.

All workers share the table's clock. A step ends with its last operation; a next step that began
earlier counts from that end. If times count from the beginning of each step, steps are laid end to
end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.importers.draft import Draft
from evenstep.importers.kineto.names import operation
from evenstep.importers.operations.program import PLACES, TALKS, place_operations, program
from evenstep.trace.columns import Array, Columns, key_numbers, smallest_of
from evenstep.trace.operation_messages import STAMPS_S, OperationMessages, messages
from evenstep.trace.operations import MESSAGES, SENDS, Role
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace

_OPS = {Role.PARAMS: Op.ALL_GATHER, Role.GRADS: Op.REDUCE_SCATTER}
_PHASES = {
    Role.FORWARD: Phase.FORWARD, Role.BACKWARD: Phase.BACKWARD, Role.OPTIMIZER: Phase.OPTIMIZER,
    Role.OTHER: Phase.OTHER,
}  # fmt: skip


def trace_of(table: Columns, draft: Draft, meta: Mapping[str, Any]) -> Trace:
    """The trace of a table with the columns of `trace.operations`, with the table itself."""
    layout = {
        "dp_size": int(table.dp_rank.max()) + 1,
        "pp_size": int(table.stage.max()) + 1,
        "vpp_size": int(table.mc.max(initial=0)) + 1,
    }
    draft.limits += [
        f"the description says {name} {meta[name]}, the table has {size}; the table is used"
        for name, size in layout.items() if meta.get(name, size) != size
    ]  # fmt: skip
    ops, apart = place_operations(table)
    for row in np.unique(ops["rank"], return_index=True)[1]:
        place = f"dp{ops.dp_rank[row]}-stage{ops.stage[row]}"
        draft.rank(int(ops["rank"][row]), boot_id="operation table", place=place)
    sent = messages(ops)
    ops, waits = program(ops, sent)
    parts = [_steps(ops), _phases(ops), _collectives(draft, ops), _messages(ops, sent)]
    if apart and len(draft.ranks) > 1:
        closing, last = _closing(draft, ops)
        parts, waits = [*parts, closing], Columns.concatenate([waits, last])
    wait = {"op": int(Phase.SYNC), "parent": waits.awaited + 1, "payload": waits.order}
    for part in (*parts, {**_span(waits), **wait}):
        draft.rows(part["rank"], **part)
    run = {"run_id": str(meta.get("trial_name", "")), "source": "operation table"}
    world = meta.get("world_size")  # a table may have one of several ranks that share a model slice
    known = world if isinstance(world, int) and 0 < world <= MOST_RANKS else None
    trace = draft.trace({**run, "world": known, "layout": {**layout, **meta}}, world=known)
    trace.operations = table
    return replace(trace, events=_renumber(trace.events))


def _renumber(events: Columns) -> Columns:
    """Sort records of one moment by the order of their thread, which `payload` holds; and replace
    rows by sequence numbers in the `parent` of waits."""
    rank = events["rank"]
    events = events.select(np.lexsort([events.payload, events.enter_ns, rank]))
    seq = np.arange(len(events)) - np.searchsorted(rank, rank) + 1
    waits = (events.kind == int(Kind.PHASE)) & (events.parent > 0)
    of = np.zeros(int(events.parent.max(initial=0)) + 1, np.int64)
    of[events.parent[~waits]] = seq[~waits]
    columns = {"seq": seq, "payload": 0 * seq, "parent": np.where(waits, of[events.parent], 0)}
    typed = {name: values.astype(events[name].dtype) for name, values in columns.items()}
    return events.with_columns(**typed)


def _steps(ops: Columns) -> dict[str, Any]:
    """Steps of each rank with operations in them."""
    rows = ops.select(np.diff(ops.worker, prepend=-1) != 0)
    times = {"enter_ns": rows.begin_ns, "exit_ns": rows.end_ns}
    return {"rank": rows["rank"], "kind": int(Kind.STEP), "step": rows.step, **times}


def _closing(draft: Draft, ops: Columns) -> tuple[dict[str, Any], Columns]:
    """An inferred barrier at the end of each step, and the waits in it."""
    first = np.flatnonzero(np.diff(ops.worker, prepend=-1))
    rows = ops.select(first)
    times = {"enter_ns": np.maximum.reduceat(ops.exit_ns, first), "exit_ns": rows.end_ns}
    number, order = len(ops) + np.arange(len(rows)), PLACES * (len(ops) + 1)
    closing = {
        "rank": rows["rank"], "kind": int(Kind.COLLECTIVE), "op": int(Op.BARRIER),
        "group": draft.group("all", np.unique(ops["rank"]).tolist(), "nccl"),
        "group_seq": len(ops) + rows.step,  # after all others of the group
        "step": rows.step, "flags": int(Flag.ASYNC | Flag.INFERRED), "parent": number + 1,
        "payload": order, **times,
    }  # fmt: skip
    known = {"rank": rows["rank"], "step": rows.step, "awaited": number, **times}
    return closing, Columns({**known, "order": np.full(len(rows), order + 1)})


def _phases(ops: Columns) -> dict[str, Any]:
    rows = ops.select(np.isin(ops.role, list(_PHASES)))
    phase = np.array([_PHASES.get(Role(role), 0) for role in range(len(Role))])
    return {**_span(rows), "op": phase[rows.role], "name": rows.optype, "payload": rows.order}


def _span(rows: Columns) -> dict[str, Any]:
    """Columns of phases without nested phases."""
    times = {name: rows[name] for name in ("rank", "step", "enter_ns", "exit_ns")}
    return {"kind": int(Kind.PHASE), "group_seq": rows.exit_ns - rows.enter_ns, **times}


# -- collectives and messages ----------------------------------------------------------------------


def _collectives(draft: Draft, ops: Columns) -> dict[str, Any]:
    """Data-parallel collectives by stage, embedding gradients, and agreements of all workers."""
    chosen = np.flatnonzero(np.isin(ops.role, TALKS))
    rows = ops.select(chosen)
    group = _groups(draft, rows)
    number = key_numbers(group, rows.step, rows.role, rows.optype, rows.seq_id)
    first = smallest_of(number, group, int(group.max(initial=-1)) + 2, most=len(number))
    told = [operation(name) for name in draft.names]
    op = np.array([int(one or Op.ALL_REDUCE) for one in told])[rows.optype]
    for role, usual in _OPS.items():  # `params-sync`, `grads-sync`
        op[(rows.role == role) & np.array([one is None for one in told])[rows.optype]] = int(usual)
    return {
        "rank": rows["rank"], "kind": int(Kind.COLLECTIVE), "op": op, "group": group,
        "group_seq": np.where(group >= 0, number - first[group], 0), **_call_columns(rows, chosen),
    }  # fmt: skip


def _call_columns(rows: Columns, chosen: Array) -> dict[str, Any]:
    """Columns of calls; `chosen` are their rows in the table."""
    times = {name: rows[name] for name in ("step", "enter_ns", "exit_ns")}
    order = {"parent": chosen + 1, "payload": rows.order}
    return {"name": rows.optype, "flags": int(Flag.ASYNC), **times, **order}


def _groups(draft: Draft, rows: Columns) -> Array:
    """Group of each collective; -1 where its members are unknown."""
    kind = np.where(rows.role == Role.EMBEDDING, 1, np.where(rows.role == Role.CLIP, 2, 0))
    inside = np.select([kind == 0, kind == 1], [rows.stage, rows.dp_rank], 0)
    key = np.stack([0 * kind, kind, inside, np.where(kind == 2, 0, rows.lane)])
    places = np.unique(np.stack([rows.stage, rows.optype])[:, kind == 0], axis=1).T
    calls = [
        np.flatnonzero((rows.stage == stage) & (rows.optype == optype) & (kind == 0))
        for stage, optype in places
    ]
    ends = [_Ends.of(rows.select(mine)) for mine in calls]
    clock = _clocks(ends)
    for (_, optype), mine, each in zip(places, calls, ends, strict=True):
        first = each.first_of_group(clock)
        if first is not None:
            key[:, mine] = [0 * first + 1 + optype, 0 * first, key[2, mine], first]
    known = np.flatnonzero(rows.role != Role.LAYERNORM)
    places, number = np.unique(key[:, known], axis=1, return_inverse=True)
    numbers = np.full(len(rows), -1)
    numbers[known] = number.reshape(-1)
    found = numbers.copy()
    for at, (optype, one, place, lane) in enumerate(places.T.tolist()):
        name = ("stage {} data-parallel", "dp {} embedding", "all")[one].format(place)
        name += f" of lane {lane}" if lane and not optype else ""
        name += f", {draft.names[optype - 1]} with rank {lane}" if optype else ""
        members = np.unique(rows["rank"][numbers == at]).tolist()
        found[numbers == at] = draft.group(name, members, "nccl")
    return found


class _Ends(NamedTuple):
    """When the ranks of a stage left collectives of one type: (calls, ranks), nan for none."""

    ranks: Array
    lane: Array  # of each rank
    column: Array  # of each row
    end_s: Array
    opens: Array  # the first call of each step

    @staticmethod
    def of(rows: Columns) -> _Ends:
        ranks, first, column = np.unique(rows["rank"], return_index=True, return_inverse=True)
        calls, call = np.unique(np.stack([rows.step, rows.seq_id]), axis=1, return_inverse=True)
        ends = np.full((calls.shape[1], len(ranks)), np.nan)
        ends[call.reshape(-1), column] = rows.end_s
        return _Ends(
            ranks, rows.lane[first], column, ends, np.flatnonzero(np.diff(calls[0], prepend=-1))
        )

    def together(self, at: int, clock: Array) -> Array:
        """Which ranks leave with the one in a column: ends are the same, but for a constant in each
        step between ranks of different clocks."""
        apart = self.end_s - self.end_s[:, at : at + 1]
        count = np.diff(np.append(self.opens, len(apart)))
        usual = np.add.reduceat(apart, self.opens, axis=0) / count[:, None]
        usual[:, clock[self.ranks] == clock[self.ranks[at]]] = 0.0
        varies = np.abs(apart - np.repeat(usual, count, axis=0)).mean(axis=0)
        return np.asarray(varies <= STAMPS_S)

    def first_of_group(self, clock: Array) -> Array | None:
        """The lowest rank of each row's group: ranks that leave together. None where each lane is
        one group and not all lanes together, or a rank is alone."""
        if np.isnan(self.end_s).any():
            return None
        heads = np.unique(self.lane, return_index=True)[1]
        several = len(heads) > 1 and len(self.opens) < len(self.end_s)
        alike = (self.together(at, clock)[self.lane == self.lane[at]].all() for at in heads)
        if not (several and self.together(0, clock).all()) and all(alike):
            return None
        found = np.full(len(self.ranks), -1)
        while (left := np.flatnonzero(found < 0)).size:
            found[left[self.together(left[0], clock)[left]]] = self.ranks[left[0]]
        return found[self.column] if np.unique(found, return_counts=True)[1].min() > 1 else None


def _clocks(ends: list[_Ends]) -> Array:
    """A number for the clock of each rank: ranks that leave any type of collective at one time, and
    those that share a clock with either, read the same one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = [np.zeros((2, 0), np.int64)]
    for each in ends:
        order = np.argsort(each.end_s.mean(axis=0))
        apart = np.abs(np.diff(each.end_s[:, order], axis=1)).mean(axis=0)
        ranks = each.ranks[order].astype(np.int64)
        links.append(np.stack([ranks[:-1], ranks[1:]])[:, apart <= STAMPS_S])
    pairs = np.concatenate(links, axis=1)
    count = max((int(each.ranks[-1]) for each in ends), default=-1) + 1
    same = coo_array((np.ones(pairs.shape[1]), pairs), shape=(count, count))
    return np.asarray(connected_components(same, directed=False)[1])


def _messages(ops: Columns, sent: OperationMessages) -> dict[str, Any]:
    """Messages: both ends have the same number; without another end the peer is unknown."""
    chosen = np.flatnonzero(np.isin(ops.role, MESSAGES))
    rows, pair = ops.select(chosen), sent.pair[chosen]
    peer = np.full(len(rows), NO_PEER)
    order = np.argsort(pair, kind="stable")
    order = order[pair[order] >= 0]
    peer[order] = rows["rank"][order.reshape(-1, 2)[:, ::-1].reshape(-1)]
    return {
        "rank": rows["rank"], "kind": int(Kind.POINT_TO_POINT),
        "op": np.where(np.isin(rows.role, SENDS), int(Op.SEND), int(Op.RECV)),
        "group_seq": np.maximum(pair, 0), "peer_or_root": peer, **_call_columns(rows, chosen),
    }  # fmt: skip
