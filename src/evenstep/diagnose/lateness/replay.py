"""A step's collectives replayed in order, with ranks that arrive earlier than they did.

Each rank's step is a row of collectives with own work between them; a message is a broadcast of
two. Work taken out makes the rank arrive earlier; a collective ends its own transfer after the last
arrival, and not before the one in flight before it has ended; who was blocked in it goes on that
much earlier. Everything is kept as time saved against what happened, so nothing but differences is
ever computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure.arrivals import FROM_ROOT
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.intervals import begun, by_cell, length_before
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS

Array = npt.NDArray[Any]

LAYERINGS = 256  # rounds until every collective comes after all that its members did before
PASSES = 8  # of the replay: differences between ranks travel from group to group over steps
NEAR_NS = 1000  # leads that agree
NEVER = -(2**62)
USUAL = 0.25  # quantile of a kind's transfers: those a pause has stretched stay above it


USED = (
    *("rank", "instance", "op", "group", "bytes_in", "peer_or_root"),
    *("here_ns", "arrival_ns", "leave_ns", "relative", "waits_for_last"),
)


class Program(NamedTuple):
    """The collectives of all steps, sorted by layer: what can be replayed at the same time.

    `rows` has cell, instance, arrival_ns, last_ns, ended_ns, queued_ns (end of what was in flight
    before), own_ns (work since the one before), blocked_ns (after it), deciding (others wait for
    it). `layers` are the slices of equal layer.
    """

    rows: Columns
    layers: list[slice]
    tail_ns: Array  # (steps, ranks): own work after the last collective
    instances: int


def program(grid: StepGrid) -> Program:
    """Lay out the grid's collectives and messages for replay."""
    rows = _awaited(grid)
    cell, _ = grid.cell(rows)
    order = by_cell(cell, rows.here_ns - grid.start_ns.reshape(-1)[cell])
    rows, cell = rows.select(order), cell[order]
    present = np.bincount(rows.instance) > 0
    instance = (np.cumsum(present) - 1)[rows.instance]
    count = int(np.count_nonzero(present))
    own, blocked, tail = _between(grid, rows, cell)
    deciding = ~np.isin(rows.op, [int(op) for op in FROM_ROOT]) | (
        rows["rank"] == rows.peer_or_root
    )
    met = np.bincount(rows.instance, rows.waits_for_last) > 0  # also a root that waits for all
    deciding |= met[rows.instance]
    deciding |= _alone(deciding, instance)
    last = _largest(rows.arrival_ns, instance, count, deciding)
    paused = grid.pause_ns.reshape(-1)[cell] > 0
    ended, queued = _ends(rows, cell, instance, last, paused)
    layer = _layers(cell, instance, count)
    by_layer = np.lexsort([instance, layer])
    table = Columns(
        {
            "cell": cell,
            "instance": instance,
            "arrival_ns": rows.arrival_ns,
            "last_ns": last[instance],
            "ended_ns": ended,
            "queued_ns": queued,
            "own_ns": own,
            "blocked_ns": blocked,
            "deciding": deciding,
        }
    ).select(by_layer)
    # records that contradict each other may tear an instance apart: each part goes on by itself
    opens = (np.diff(layer[by_layer], prepend=-1) != 0) | (np.diff(table.instance, prepend=-1) != 0)
    torn = _alone(table.deciding, np.cumsum(opens) - 1)
    table = table.with_column("deciding", table.deciding | torn)
    edges = np.flatnonzero(np.diff(layer[by_layer], prepend=-1, append=-1))
    layers = [slice(int(first), int(end)) for first, end in pairwise(edges)]
    return Program(table, layers, tail, count)


def _awaited(grid: StepGrid) -> Columns:
    """What somebody may wait in: the grid's collectives, then its messages. The columns `USED`."""
    rows = grid.arrivals.rows
    _, inside = grid.cell(rows)
    inside = inside & np.isin(rows.op, [int(op) for op in SYNCHRONIZING_OPS | FROM_ROOT])
    rows = rows.only(*USED, "step").select(inside)
    sent = grid.messages
    if sent is None or not len(sent):
        return rows
    sent = sent.select(grid.cell(sent)[1])
    sent = sent.with_column("here_ns", np.where(sent.receives, _needed(grid, sent), sent.here_ns))
    sent = sent.with_column("instance", sent.instance + rows.instance.max(initial=-1) + 1)
    return Columns.concatenate([rows, sent.only(*USED, "step")])


def _alone(deciding: Array, number: Array) -> Array:
    """Rows of instances in which nobody decides: the root is not known, or not traced."""
    return np.asarray((np.bincount(number, deciding) == 0)[number])


def _needed(grid: StepGrid, rows: Columns) -> Array:
    """When each receive was needed: it may be posted long before its rank is blocked in it."""
    cell, _ = grid.cell(rows)
    start = grid.start_ns.reshape(-1)[cell]
    since = start + begun(grid.blocked, cell, rows.leave_ns - start)
    return np.asarray(np.maximum(rows.here_ns, since))


def _between(grid: StepGrid, rows: Columns, cell: Array) -> tuple[Array, Array, Array]:
    """Own work before each row, time blocked after it, and own work after the last of a cell."""
    at = np.maximum(rows.here_ns - grid.start_ns.reshape(-1)[cell], 0)
    before = length_before(grid.blocked, cell, at)
    worked = at - before
    first = np.diff(cell, prepend=-1) != 0
    final = np.diff(cell, append=-1) != 0
    own = np.maximum(worked - np.where(first, 0, np.roll(worked, 1)), 0)
    total = grid.blocked_ns.reshape(-1)[cell]
    blocked = np.maximum(np.where(final, total, np.roll(before, -1)) - before, 0)
    tail = grid.work_ns.reshape(-1).copy()
    tail[cell[final]] = np.maximum(tail[cell[final]] - worked[final], 0)
    return own, blocked, grid.shaped(tail)


def _largest(values: Array, instance: Array, count: int, where: Array) -> Array:
    found = np.full(count, NEVER, np.int64)
    np.maximum.at(found, instance[where], values[where])
    return found


def _ends(
    rows: Columns, cell: Array, instance: Array, last: Array, paused: Array
) -> tuple[Array, Array]:
    """When each row's collective was over, and when what its rank had in flight before it was.

    Seen exits are upper bounds, so the earliest of all members counts; in steps in which a member
    collected garbage, not more than such a collective usually takes. Ends of collectives whose
    members' times only compare within each of them are not compared with one another.
    """
    soonest = np.full(len(last), 2**62, np.int64)
    left = rows.leave_ns > 0
    np.minimum.at(soonest, instance[left], rows.leave_ns[left])
    transfer = np.where(soonest < 2**62, np.maximum(soonest - last, 0), 0)
    transfer = _undisturbed(transfer, rows, instance, paused)
    ended = (last + transfer)[instance]
    follows = (np.diff(cell, prepend=-1) == 0) & ~rows.relative & ~np.roll(rows.relative, 1)
    return ended, np.where(follows, np.minimum(np.roll(ended, 1), ended), NEVER)


def _undisturbed(transfer: Array, rows: Columns, instance: Array, paused: Array) -> Array:
    """Transfer times with those of paused members brought down to what is usual.

    A pause holds the interpreter lock, and with it the callbacks and the transport's threads that
    run them: what was in flight then ends when the pause does, on every member.
    """
    if not paused.any():
        return transfer
    held = np.zeros(len(transfer), bool)
    held[instance[paused]] = True
    first = np.unique(instance, return_index=True)[1]
    kind = np.stack([rows.group[first], rows.op[first], rows.bytes_in[first].astype(np.int64)])
    number = np.unique(kind, axis=1, return_inverse=True)[1].reshape(-1)
    usual = np.array(
        [np.quantile(transfer[number == one], USUAL) for one in range(int(number.max()) + 1)]
    )
    return np.where(held, np.minimum(transfer, usual[number]), transfer).astype(np.int64)


def _layers(cell: Array, instance: Array, count: int) -> Array:
    """Layer of each row: after all earlier rows of its cell, the same for a whole instance."""
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    sizes = np.diff(np.append(first, len(cell)))
    position = np.arange(len(cell)) - np.repeat(first, sizes)
    base = cell.astype(np.int64) * 2**32
    layer = position.astype(np.int64)
    for _ in range(LAYERINGS):
        together = _largest(layer, instance, count, np.ones(len(cell), bool))[instance]
        raised = np.maximum.accumulate(together - position + base) - base + position
        if np.array_equal(raised, layer):
            break
        layer = raised
    return layer


# -- replay ----------------------------------------------------------------------------------------


class Removed(NamedTuple):
    """Work to be taken out: per row of the program, and (steps, ranks) after the last one."""

    rows_ns: Array
    tail_ns: Array


class Ahead(NamedTuple):
    """What every rank is ahead by at the beginning of the first step replayed. (ranks,), ns."""

    lead_ns: Array  # brought from the steps before
    late_ns: Array  # … and what was taken out after the last collective of the step before


def saved(
    plan: Program,
    removed: Removed,
    guess: Array | None = None,
    *,
    ahead: Ahead | None = None,
) -> tuple[Array, Array]:
    """What every rank is ahead by when each step begins, and has saved when its last ends, in ns.

    Both are (steps, ranks); only differences between ranks are carried into the next step. What
    was taken out after the last collective shows there, and is not in the lead. Steps are
    repeated until the leads agree, beginning with `guess`; before the first step ranks are `ahead`,
    or at nothing.
    """
    ranks = removed.tail_ns.shape[1]
    ahead = ahead or Ahead(np.zeros(ranks), np.zeros(ranks))
    if guess is None and not _anything(removed, ahead):
        return np.zeros(removed.tail_ns.shape), np.zeros(removed.tail_ns.shape)
    late = np.concatenate([ahead.late_ns[None, :], removed.tail_ns[:-1]])
    lead = np.zeros(late.shape) if guess is None else guess.copy()
    lead[:1] = ahead.lead_ns
    for _ in range(PASSES):
        end = _passed(plan, removed.rows_ns, lead + late)
        carried = np.concatenate([lead[:1], (end - end.min(axis=1, keepdims=True))[:-1]])
        if np.abs(carried - lead).max() <= NEAR_NS:
            break
        lead = carried
    return lead, end


def _anything(removed: Removed, ahead: Ahead) -> bool:
    return any(bool(part.any()) for part in (*removed, *ahead))


def _passed(plan: Program, taken: Array, begin: Array) -> Array:
    """All steps at once, layer by layer, from what is saved at their beginning to their end."""
    rows = plan.rows
    ahead = begin.reshape(-1).copy()
    before = np.zeros(ahead.size)  # how much earlier each rank's previous collective has ended
    for part in plan.layers:
        cell, instance = rows.cell[part], rows.instance[part]
        ahead[cell] += taken[part]
        opens = np.diff(instance, prepend=-1) != 0
        edges, member = np.flatnonzero(opens), np.cumsum(opens) - 1
        # relative to what happened, so that doubles hold nanoseconds exactly
        late = (rows.arrival_ns[part] - rows.last_ns[part]) - ahead[cell]
        late = np.where(rows.deciding[part], late, -np.inf)
        arrived = np.maximum.reduceat(late, edges)
        in_flight = (rows.queued_ns[part] - rows.last_ns[part]).astype(float)
        began = np.maximum(np.maximum.reduceat(in_flight, edges), 0)
        begins = np.maximum(arrived, np.maximum.reduceat(in_flight - before[cell], edges))
        gained = (began - begins)[member]
        before[cell] = gained
        blocked = rows.blocked_ns[part]
        held = np.minimum(gained, ahead[cell] + blocked)
        ahead[cell] = np.where(blocked > 0, held, ahead[cell])
    return np.maximum(ahead, 0).reshape(begin.shape)


def by_layer(
    plan: Program, shape: tuple[int, int], own_ns: Array | None = None
) -> Iterator[tuple[slice, Array]]:
    """Own work of every layer as (steps, ranks), nan where a rank has no collective in it."""
    values = plan.rows.own_ns if own_ns is None else own_ns
    for part in plan.layers:
        own = np.full(shape[0] * shape[1], np.nan)
        own[plan.rows.cell[part]] = values[part]
        yield part, own.reshape(shape)
