"""Questions to the graph of a run: it is replayed with work or transfers changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.what_if import transfers, work
from evenstep.diagnose.what_if_spec import Spec

Array = npt.NDArray[Any]


class WhatIfRun:
    """A case to ask. `step_ns` (steps,) are its measured steps."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.step_ns: Array = case.grid.step_ns.astype(float)

    def refusal(self, spec: Spec) -> str | None:
        """Why the trace cannot tell; None where it can."""
        if not len(self.case.grid.steps):
            return "no step was finished by every rank"
        graph = self.case.grid.graph
        if graph is None or not len(graph.operations):
            return "no collective that all traced ranks took part in was recorded"
        if spec.change == "ideal" or spec.subject in ("stage", "stages", "dp", "optype"):
            return f"{spec.text!r} needs an operation table, with every compute and message"
        return _REFUSALS[spec.subject](self.case, spec)

    def saved_ns(self, specs: list[Spec]) -> Array:
        """How much shorter each step is with all of the changes."""
        assert self.case.costs is not None
        changes = [_CHANGES[spec.subject](self.case, spec) for spec in specs]
        return np.asarray(self.case.saved(self.case.costs.together(changes)))

    def method(self, spec: Spec) -> str:
        """How it was predicted, in words."""
        return "replay of the run's graph, " + _METHODS[spec.subject]


_CHANGES: dict[str, Callable[[Case, Spec], Change]] = {
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
