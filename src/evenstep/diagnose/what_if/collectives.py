"""Questions to a trace of collectives: its steps are replayed with work or transfers changed.

The replay is that of `replay.saved`, without its restriction to ranks that come earlier: work may
be added too, transfers may take more or less, and a rank may be left out. Everything is kept as
time saved against what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.replay import NEAR_NS, PASSES, Program, program
from evenstep.diagnose.what_if import transfers, work
from evenstep.diagnose.what_if.change import Change
from evenstep.diagnose.what_if_spec import Spec

Array = npt.NDArray[Any]


class Collectives:
    """A case to ask. `step_ns` (steps,) are its measured steps."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.plan: Program = program(case.grid)
        self.step_ns: Array = case.grid.step_ns.astype(float)

    def refusal(self, spec: Spec) -> str | None:
        """Why the trace cannot tell; None where it can."""
        if not len(self.case.grid.steps):
            return "no step was finished by every rank"
        if not len(self.plan.rows):
            return "no collective that all traced ranks took part in was recorded"
        if spec.change == "ideal" or spec.subject in ("stage", "stages", "dp", "optype"):
            return f"{spec.text!r} needs an operation table, with every compute and message"
        return _REFUSALS[spec.subject](self.case, spec)

    def saved_ns(self, specs: list[Spec]) -> Array:
        """How much shorter each step is with all of the changes."""
        changes = [_CHANGES[spec.subject](self.case, self.plan, spec) for spec in specs]
        return saved(self.plan, Change.together(changes))

    def method(self, spec: Spec) -> str:
        """How it was predicted, in words."""
        return "replay of the trace's collectives, " + _METHODS[spec.subject]


def saved(plan: Program, change: Change) -> Array:
    """How much shorter each step of the job is: what the median rank has saved in it."""
    late = np.concatenate([np.zeros_like(change.tail_ns[:1]), change.tail_ns[:-1]])
    lead, here = np.zeros(late.shape), ~change.absent
    for _ in range(PASSES):
        end = _passed(plan, change, lead + late)
        apart = np.where(change.absent, 0.0, end - end[:, here].min(axis=1, keepdims=True))
        carried = np.concatenate([0 * end[:1], apart[:-1]])
        if np.abs(carried - lead).max() <= NEAR_NS:
            break
        lead = carried
    gain = np.median(end[:, here], axis=1) - np.median(lead[:, here], axis=1)
    return np.asarray(gain - change.added_ns)


def _passed(plan: Program, change: Change, begin: Array) -> Array:
    """All steps at once, layer by layer, from what is saved at their beginning to their end."""
    rows = plan.rows
    ahead = begin.reshape(-1).copy()
    absent = np.broadcast_to(change.absent, begin.shape).reshape(-1)
    before = np.zeros(ahead.size)  # how much earlier each rank's previous collective has ended
    for part in plan.layers:
        cell, instance = rows.cell[part], rows.instance[part]
        ahead[cell] += change.rows_ns[part]
        opens = np.diff(instance, prepend=-1) != 0
        edges, member = np.flatnonzero(opens), np.cumsum(opens) - 1
        late = (rows.arrival_ns[part] - rows.last_ns[part]) - ahead[cell]
        present = ~absent[cell]
        deciding = rows.deciding[part] & present
        arrived = np.maximum.reduceat(np.where(deciding, late, -np.inf), edges)
        in_flight = (rows.queued_ns[part] - rows.last_ns[part]).astype(float)
        began = np.maximum(np.maximum.reduceat(in_flight, edges), 0)
        queued = np.where(present, in_flight - before[cell], -np.inf)
        begins = np.maximum(arrived, np.maximum.reduceat(queued, edges))
        begins = np.where(np.isfinite(begins), begins, began)
        gained = (began - begins + change.cut_ns[instance[edges]])[member]
        before[cell] = gained
        blocked = rows.blocked_ns[part]
        held = np.minimum(gained, ahead[cell] + blocked)
        ahead[cell] = np.where(blocked > 0, held, ahead[cell])
    return ahead.reshape(begin.shape)


_CHANGES: dict[str, Callable[[Case, Program, Spec], Change]] = {
    "rank": work.ranks_change,
    "node": work.ranks_change,
    "work": work.even_change,
    "remove": work.removal,
    "gc": work.collector_change,
    "input": work.input_change,
    "op": transfers.operation_change,
    "algorithm": transfers.algorithm_change,
    "bucket": transfers.bucket_change,
}
_REFUSALS: dict[str, Callable[[Case, Spec], str | None]] = {
    "rank": work.ranks_refusal,
    "node": work.ranks_refusal,
    "work": work.even_refusal,
    "remove": work.removal_refusal,
    "gc": work.collector_refusal,
    "input": work.input_refusal,
    "op": transfers.operation_refusal,
    "algorithm": transfers.algorithm_refusal,
    "bucket": transfers.bucket_refusal,
}
_METHODS = {
    "rank": "the ranks' own work between collectives at the others' median, or multiplied",
    "node": "the own work of the node's ranks at the other ranks' median, or multiplied",
    "work": "each rank's own work between collectives at the mean of all ranks",
    "remove": "nobody waiting for the ranks; their share of the batch is not given to others",
    "gc": "pauses taken out, and where aligned the longest of each n-th one put back at a time",
    "input": "the input phase taken out before each step's first collective",
    "op": "transfers at the lowest tenth of their group, operation and size, or multiplied",
    "algorithm": "all-reduces by the latency and bandwidth that the line through their times by "
    "size has for a ring, with the cost of the other algorithm (Thakur et al. 2005)",
    "bucket": "gradients in buckets of this size by the line through times by size; overlap with "
    "backward is taken to stay",
}
