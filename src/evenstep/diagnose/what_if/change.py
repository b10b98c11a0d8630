"""A change to a trace of collectives: work and transfer time taken out of its steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.replay import Program
from evenstep.diagnose.measure.arrivals import FROM_ROOT
from evenstep.trace.spool.layout import SYNCHRONIZING_OPS

Array = npt.NDArray[Any]


class Change(NamedTuple):
    """What is taken out, ns: negative values add. `absent` ranks are waited for by nobody."""

    rows_ns: Array  # per row of the program: own work before it
    tail_ns: Array  # (steps, ranks): own work after the last collective
    cut_ns: Array  # per instance of the program: transfer
    added_ns: Array  # (steps,): further time the step takes
    absent: Array  # (ranks,) bool

    @staticmethod
    def none(plan: Program) -> Change:
        """No change."""
        steps, ranks = plan.tail_ns.shape
        return Change(
            np.zeros(len(plan.rows)),
            np.zeros((steps, ranks)),
            np.zeros(plan.instances),
            np.zeros(steps),
            np.zeros(ranks, bool),
        )

    @staticmethod
    def together(changes: list[Change]) -> Change:
        """All of them at once."""
        return Change(
            np.sum([change.rows_ns for change in changes], axis=0),
            np.sum([change.tail_ns for change in changes], axis=0),
            np.sum([change.cut_ns for change in changes], axis=0),
            np.sum([change.added_ns for change in changes], axis=0),
            np.any([change.absent for change in changes], axis=0),
        )


def instances_of(case: Case) -> Array:
    """Instances of the arrivals that the program holds, in its own order."""
    rows = case.grid.arrivals.rows
    _, inside = case.grid.cell(rows)
    awaited = np.isin(rows.op, [int(op) for op in SYNCHRONIZING_OPS | FROM_ROOT])
    return np.unique(rows.instance[inside & awaited])
