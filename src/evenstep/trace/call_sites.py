"""Where a script calls its collectives, from collectives named after their call site."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Trace

MOST_RECORDS = 1_000_000  # records examined; of a larger trace those of its middle steps
_NEEDED = {Kind.COLLECTIVE: ("name", "op", "enter_ns", "exit_ns")}


def waited_at(trace: Trace, ranks: Collection[int]) -> str:
    """Where these ranks spend most time in collectives, as a clause of a sentence or "": ", longest
    in the all_reduce of train.py:31 router_statistics"."""
    if not trace.names:
        return ""
    if len(trace.events) > MOST_RECORDS:
        numbers, enough = trace.table.step_numbers(), int(MOST_RECORDS / trace.table.per_step())
        first = int(numbers[max(len(numbers) - enough, 0) // 2])
        trace = trace.window(first, first + max(enough, 1), _NEEDED)
    events = trace.of_kind(Kind.COLLECTIVE)
    named = (events.name > 0) & (events.exit_ns > 0)
    rows = events.select(named & np.isin(events["rank"], list(ranks)))
    if not len(rows):
        return ""
    spent_ns = np.bincount(rows.name, weights=(rows.exit_ns - rows.enter_ns).astype(float))
    name = int(spent_ns.argmax())
    first = int(np.flatnonzero(rows.name == name)[0])
    return f", longest in the {Op(int(rows.op[first])).name.lower()} of {trace.names[name]}"
