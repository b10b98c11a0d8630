"""Questions to an operation table: every operation is replayed with what it would take instead."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.operations.operations import OperationJob, balanced, evened, replayed
from evenstep.diagnose.sentences import TEXTS, say
from evenstep.diagnose.what_if.spec import Spec

Array = npt.NDArray[Any]

_COLUMN = {"rank": "rank", "stage": "stage", "dp": "dp_rank"}


class OperationWhatIf:
    """A job to ask. `step_ns` (steps,) are its measured steps."""

    def __init__(self, plan: OperationJob) -> None:
        self.plan = plan
        self.step_ns: Array = plan.measured_s * 1e9

    def refusal(self, spec: Spec) -> str | None:
        """Why the table cannot tell; None where it can."""
        known = spec.subject in (*_COLUMN, "optype", "stages", "work")
        if not known or spec.change not in TEXTS["what_if"]["table"]:
            return (
                f"an operation table does not record what {spec.text!r} changes; it can answer "
                "rank:, stage:, dp: and optype: with =ideal or a factor, stages=balanced "
                "and work=balanced"
            )
        if spec.change == "median" and not np.isfinite(self._medians(spec)).any():
            return "the rank is alone on its stage: there are no others to take the median of"
        return None

    def saved_ns(self, specs: list[Spec]) -> Array:
        """How much shorter each step is with all of the changes."""
        changed = reduce(self._changed, specs, self.plan.own_s)
        length = replayed(self.plan, np.stack([self.plan.own_s, changed], axis=1))
        return np.asarray((length[:, 0] - length[:, 1]) * 1e9)

    def method(self, spec: Spec) -> str:
        """How it was predicted, in words."""
        return say(f"what_if.table.{spec.subject if spec.subject == 'work' else spec.change}")

    def _changed(self, durations_s: Array, spec: Spec) -> Array:
        if spec.subject == "work":
            return evened(self.plan, durations_s)
        if spec.change == "balanced":
            return balanced(self.plan, durations_s)
        mine = self._rows(spec)
        if spec.change == "x":
            return np.where(mine, durations_s * spec.factor, durations_s)
        if spec.change == "median":
            middle = self._medians(spec)
            return np.where(np.isfinite(middle), middle, durations_s)
        return np.where(mine, self.plan.usual_s, durations_s)

    def _rows(self, spec: Spec) -> Array:
        if spec.subject == "optype":
            wanted = self.plan.names.index(spec.target)
            return np.asarray(self.plan.table.optype == wanted)
        return np.isin(self.plan.table[_COLUMN[spec.subject]], spec.numbers)

    def _medians(self, spec: Spec) -> Array:
        """Of the rows asked about: median over other workers at the same place; nan elsewhere."""
        table, mine = self.plan.table, self._rows(spec)
        names = ("step", "stage", "optype", "seq_id")
        key = np.stack([table[name] for name in names])
        place = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
        order = np.flatnonzero(~mine)
        order = order[np.lexsort([self.plan.own_s[order], place[order]])]
        count = np.bincount(place[order], minlength=int(place.max()) + 1)
        first = np.cumsum(count) - count
        known = count > 0
        low, high = (np.where(known, first + (count - one) // 2, 0) for one in (1, 0))
        values = self.plan.own_s[order] if len(order) else np.zeros(1)
        last = len(values) - 1
        middle = (values[np.minimum(low, last)] + values[np.minimum(high, last)]) / 2
        return np.where(mine & known[place], middle[place], np.nan)
