"""What-if questions: the run replayed with a change, and the share of step time that it gives back.

Where a trace cannot answer a question, the answer says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.diagnose.lateness.case import Case, open_case
from evenstep.diagnose.predict.changes import Spec, answer, parse
from evenstep.diagnose.sentences import say
from evenstep.documents import Document
from evenstep.errors import UsageError
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.columns import Array
from evenstep.trace.trace import Trace


@dataclass(slots=True, frozen=True)
class WhatIfGain(Document):
    """The share of step time that a change gives back, below zero where it costs time; None, with a
    `reason`, where the trace cannot tell."""

    spec: str
    gain: float | None
    low: float | None
    high: float | None
    step_ns_before: int | None
    step_ns_after: int | None
    method: str | None
    reason: str | None = None


def answers(trace: Trace, specs: Sequence[str]) -> list[WhatIfGain]:
    """Answer each question by itself and, of several, all of them together at the end. Raises
    `UsageError` for what is no question, or is about something the trace has not."""
    asked = [parse(text) for text in specs]
    for spec in asked:
        _check(trace, spec)
    if not asked:
        return []
    case = open_case(trace)
    changes = [answer(case, spec) for spec in asked]
    found = []
    for spec, change in zip(asked, changes, strict=True):
        method = say(f"what_if.graph.{'ideal' if spec.change == 'ideal' else spec.subject}")
        found.append(_gain(case, spec.text, [change], method))
    if len(asked) > 1 and all(one.reason is None for one in found):
        text = " + ".join(spec.text for spec in asked)
        found.append(_gain(case, text, changes, "replay with all of them at once"))
    return found


def _gain(case: Case, text: str, changes: Sequence[Any], method: str) -> WhatIfGain:
    before = case.grid.step_ns.astype(float)
    reason = next((change for change in changes if isinstance(change, str)), None)
    if reason is not None:
        return WhatIfGain(text, None, None, None, _mean(before), None, None, reason)
    saved = case.saved(case.costs.combined(changes))
    gain = gain_share(saved, before)
    return WhatIfGain(text, *gain.rounded(), _mean(before), _mean(before - saved), method)


def gain_share(saved_ns: Array, step_ns: Array) -> Share:
    """Share of the step time that is saved, with its interval; negative where time is lost."""
    if saved_ns.sum() >= 0:
        return share_of(saved_ns, step_ns)
    lost = share_of(-saved_ns / 1e3, step_ns)  # may be more than the step: shares end at 1
    return Share(*(-1e3 * value for value in (lost.value, lost.high, lost.low)))


def _mean(step_ns: Array) -> int | None:
    return round(float(step_ns.mean())) if len(step_ns) else None


def _check(trace: Trace, spec: Spec) -> None:
    """Raise `UsageError` where the trace lacks what is asked about."""
    there: dict[str, list[Any]] = {"rank": sorted(trace.ranks), "node": list(trace.nodes)}
    table = trace.operations
    if table is not None:
        there["stage"] = np.unique(table.stage).tolist()
        there["dp"] = np.unique(table.dp_rank).tolist()
        there["optype"] = [trace.names[kind] for kind in np.unique(table.optype)]
    if spec.subject not in there:
        return
    wanted = spec.numbers or (spec.target,)
    absent = [one for one in wanted if one not in there[spec.subject]]
    if absent:
        known = ", ".join(map(str, there[spec.subject][:16])) or "none"
        raise UsageError(
            f"--what-if {spec.text!r}: there is no {spec.subject} {absent[0]} in this trace; "
            f"there are {known}{' …' if len(there[spec.subject]) > 16 else ''}"
        )
