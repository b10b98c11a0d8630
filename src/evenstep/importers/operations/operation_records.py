"""Records of an operation table: the same job as steps, phases, collectives and messages.

All workers share the table's clock. A step ends with its last operation, and where the next has
begun by then, that counts from there. Times that count from the beginning of each step are laid end
to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.importers.draft import Draft
from evenstep.trace.columns import Columns
from evenstep.trace.operations import COLLECTIVES, MESSAGES, SENDS, Role, on_one_line
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

ORIGIN_NS = 1_000_000_000  # nothing begins at 0, which means an open end
GAP_NS = 1_000  # between steps laid end to end

_OPS = {
    Role.FORWARD_SEND: Op.SEND,
    Role.BACKWARD_SEND: Op.SEND,
    Role.FORWARD_RECV: Op.RECV,
    Role.BACKWARD_RECV: Op.RECV,
    Role.PARAMS: Op.ALL_GATHER,
    Role.GRADS: Op.REDUCE_SCATTER,
}
_PHASES = {
    Role.FORWARD: Phase.FORWARD,
    Role.BACKWARD: Phase.BACKWARD,
    Role.OPTIMIZER: Phase.OPTIMIZER,
    Role.OTHER: Phase.OTHER,
}
_TALKS = (*MESSAGES, *COLLECTIVES, Role.LAYERNORM)


def trace_of(table: Columns, draft: Draft, meta: Mapping[str, Any]) -> Trace:
    """The trace of a table with the columns of `trace.operations`, itself kept for replay."""
    layout = {
        "dp_size": int(table.dp_rank.max()) + 1,
        "pp_size": int(table.stage.max()) + 1,
        "vpp_size": int(table.mc.max(initial=0)) + 1,
    }
    draft.limits += _contradictions(layout, meta)
    timed = _timed(table)
    first = np.unique(timed["rank"], return_index=True)[1]
    for row in first:
        rank = int(timed["rank"][row])
        place = f"dp{timed.dp_rank[row]}-stage{timed.stage[row]}"
        draft.rank(rank, boot_id="operation table", place=place)
    parts = [_steps(timed), *_phases(timed), _collectives(draft, timed), _messages(timed)]
    for part in parts:
        draft.rows(part["rank"], part)
    run = {"run_id": str(meta.get("trial_name", "")), "source": "operation table"}
    world = meta.get("world_size")  # a table may hold one of the ranks that share a model's slice
    known = world if isinstance(world, int) and 0 < world <= MOST_RANKS else None
    trace = draft.trace({**run, "world": known, "layout": {**layout, **meta}}, world=known)
    trace.operations = table
    return trace


def _contradictions(layout: Mapping[str, int], meta: Mapping[str, Any]) -> list[str]:
    """Sizes that the description gives and the table has not."""
    return [
        f"the description says {name} {meta[name]}, the table has {size}; the table is used"
        for name, size in layout.items()
        if name in meta and meta[name] != size
    ]


def _timed(table: Columns) -> Columns:
    """The table in order of rank and step, with `enter_ns` and `exit_ns` on one line of time."""
    steps, index = np.unique(table.step, return_inverse=True)
    begin, end = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begin, index, table.start_s)
    np.maximum.at(end, index, table.start_s + table.duration_s)
    length_ns = np.rint((end - begin) * 1e9).astype(np.int64)
    if on_one_line(begin, end):
        at = ORIGIN_NS + np.rint((begin - begin[0]) * 1e9).astype(np.int64)
    else:
        at = ORIGIN_NS + np.cumsum(length_ns + GAP_NS) - length_ns - GAP_NS
    begun = np.maximum(at, np.append(0, (at + length_ns)[:-1]))
    enter = at[index] + np.rint((table.start_s - begin[index]) * 1e9).astype(np.int64)
    return (
        table.with_column("enter_ns", enter)
        .with_column("exit_ns", enter + np.rint(table.duration_s * 1e9).astype(np.int64))
        .with_column("begin_ns", begun[index])
        .with_column("end_ns", (at + length_ns)[index])
        .sorted_by("rank", "step", "enter_ns")
    )


def _steps(timed: Columns) -> dict[str, Any]:
    """A step of each rank that has any operation in it; all begin and end together."""
    new = (np.diff(timed.step, prepend=-1) != 0) | (np.diff(timed["rank"], prepend=-1) != 0)
    rows = timed.select(new)
    times = {"enter_ns": rows.begin_ns, "exit_ns": rows.end_ns}
    return {"rank": rows["rank"], "kind": int(Kind.STEP), "step": rows.step, **times}


def _phases(timed: Columns) -> list[dict[str, Any]]:
    rows = timed.select(np.isin(timed.role, list(_PHASES)))
    phase = np.array([_PHASES.get(Role(role), 0) for role in range(len(Role))])
    waits = _waits(timed)
    return [
        {**_span(rows), "op": phase[rows.role], "name": rows.optype},
        {**_span(waits), "op": int(Phase.SYNC)},
    ]


def _span(rows: Columns) -> dict[str, Any]:
    """Columns of phases that nothing is nested in."""
    times = {name: rows[name] for name in ("rank", "step", "enter_ns", "exit_ns")}
    return {"kind": int(Kind.PHASE), "group_seq": rows.exit_ns - rows.enter_ns, **times}


def _waits(timed: Columns) -> Columns:
    """Stretches in which a worker has messages or collectives in flight and computes nothing."""
    talks, works = np.isin(timed.role, _TALKS), np.isin(timed.role, list(_PHASES))
    rows = np.flatnonzero(talks | works)
    cell = np.cumsum(
        (np.diff(timed["rank"], prepend=-1) != 0) | (np.diff(timed.step, prepend=-1) != 0)
    )
    moment = np.concatenate([timed.enter_ns[rows], timed.exit_ns[rows]])
    row = np.concatenate([rows, rows])
    sign = np.repeat([1, -1], len(rows))
    order = np.lexsort([moment, cell[row]])
    moment, row, sign = moment[order], row[order], sign[order]
    talking = np.cumsum(sign * talks[row]) > 0
    working = np.cumsum(sign * works[row]) > 0
    waiting = talking & ~working
    following = np.append(moment[1:], 0)
    lasting = waiting & (following > moment) & (np.diff(cell[row], append=0) == 0)
    here = row[lasting]
    return Columns(
        {
            "rank": timed["rank"][here],
            "step": timed.step[here],
            "enter_ns": moment[lasting],
            "exit_ns": following[lasting],
        }
    )


# -- collectives and messages ----------------------------------------------------------------------


def _collectives(draft: Draft, timed: Columns) -> dict[str, Any]:
    """Data-parallel collectives by stage, the shared embedding, and what all workers agree on."""
    rows = timed.select(np.isin(timed.role, (*COLLECTIVES, Role.LAYERNORM)))
    group = _groups(draft, rows)
    key = np.stack([group, rows.step, rows.role, rows.seq_id])
    number = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    first = np.full(int(group.max(initial=-1)) + 2, len(number))
    np.minimum.at(first, group, number)
    op = np.array([int(_OPS.get(Role(role), Op.ALL_REDUCE)) for role in range(len(Role))])
    return {
        "rank": rows["rank"],
        "kind": int(Kind.COLLECTIVE),
        "op": op[rows.role],
        "group": group,
        "group_seq": np.where(group >= 0, number - first[group], 0),
        "name": rows.optype,
        "step": rows.step,
        "enter_ns": rows.enter_ns,
        "exit_ns": rows.exit_ns,
        "flags": int(Flag.ASYNC),
    }


def _groups(draft: Draft, rows: Columns) -> Array:
    """Group of each collective, -1 where its members are not in the table."""
    kinds = np.where(rows.role == Role.EMBEDDING, 1, np.where(rows.role == Role.CLIP, 2, 0))
    inside = np.select([kinds == 0, kinds == 1], [rows.stage, rows.dp_rank], 0)
    names = ("stage {} data-parallel", "dp {} embedding", "all")
    found = np.full(len(rows), -1)
    known = rows.role != Role.LAYERNORM
    for kind, name in enumerate(names):
        for number in np.unique(inside[known & (kinds == kind)]).tolist():
            mine = known & (kinds == kind) & (inside == number)
            members = np.unique(rows["rank"][mine]).tolist()
            found[mine] = draft.group(name.format(number), members, "nccl")
    return found


def _messages(timed: Columns) -> dict[str, Any]:
    rows = timed.select(np.isin(timed.role, MESSAGES))
    ahead = np.isin(rows.role, (Role.FORWARD_SEND, Role.BACKWARD_RECV))
    backward = np.isin(rows.role, (Role.BACKWARD_SEND, Role.BACKWARD_RECV))
    stages = int(timed.stage.max()) + 1
    in_a_step = int(rows.seq_id.max(initial=0)) + 1
    peer_stage = (rows.stage + np.where(ahead, 1, -1)) % stages
    return {
        "rank": rows["rank"],
        "kind": int(Kind.POINT_TO_POINT),
        "op": np.where(np.isin(rows.role, SENDS), int(Op.SEND), int(Op.RECV)),
        "group_seq": rows.step * in_a_step + rows.seq_id,
        "payload": backward,  # the tag: with two stages both directions have the same ends
        "peer_or_root": _worker_at(timed, rows.dp_rank, peer_stage),
        "name": rows.optype,
        "step": rows.step,
        "enter_ns": rows.enter_ns,
        "exit_ns": rows.exit_ns,
        "flags": int(Flag.ASYNC),
    }


def _worker_at(timed: Columns, dp_rank: Array, stage: Array) -> Array:
    """Rank of the worker of a stage and data-parallel rank; -1 where the table has none."""
    there = timed.dp_rank * (2**20) + timed.stage
    place, first = np.unique(there, return_index=True)
    wanted = dp_rank * (2**20) + stage
    at = np.minimum(np.searchsorted(place, wanted), len(place) - 1)
    return np.where(place[at] == wanted, timed["rank"][first[at]], -1)
