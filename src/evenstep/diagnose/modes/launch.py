"""Devices that stand idle because their hosts issue work too late: never called compute.

What a stream enters as soon as its host has issued it, it entered idle: all that its device had
before was done. For how long it had been idle no record of a collective tells.
"""

from __future__ import annotations

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.device_time import device_times
from evenstep.diagnose.measure.patterns import throughout
from evenstep.diagnose.modes import projection
from evenstep.diagnose.sentences import found

AT_ONCE_NS = 50_000  # after a host has issued it: a device that is idle needs less
MOSTLY = 0.3  # of the own time of streams ends so: of what hosts are ahead of, hardly any does
COMPUTING = 0.8  # of that time is taken to be compute: nothing shows it, and the cause says so


def late_issue(case: Case) -> Finding | None:
    """Devices most of whose time ends with what their hosts have just issued."""
    costs = case.costs
    if costs is None or not costs.graph.device.any() or _busy(case):
        return None
    graph = costs.graph
    own, slack = graph.own_ns, graph.rows.slack_ns
    bound = (slack >= 0) & (slack <= AT_ONCE_NS)
    count = len(graph.ranks)
    whole = np.bincount(graph.rows.lane, own, count)
    idle = np.bincount(graph.rows.lane, own * bound, count) / np.maximum(whole, 1)
    lanes = idle >= MOSTLY
    if np.count_nonzero(lanes) < np.count_nonzero(graph.device) / 2:
        return None  # one that is late with it is a straggler
    rows = np.flatnonzero(bound)
    change = Change.of_work(rows, own[rows] * COMPUTING)
    share = case.share(case.saved(change))
    return found(
        "runtime_jitter.launch",
        share,
        confidence=0.5,
        numbers={"at_once": AT_ONCE_NS, "idle": float(np.median(idle[lanes]))},
        where=Where(),
        when=throughout(case.grid.steps),
        projected=projection.constant(share, count),
        options={"launches": share},
        evidence=[
            Evidence("time_before_late_issue", round(float(idle[lanes].mean()), 4), 0.0, "share")
        ],
        change=lambda base: case.together([base, change]),
    )


def _busy(case: Case) -> bool:
    """Whether profiles show devices at work for most of the time; their calls are entered in the
    devices' time, which says nothing of when hosts issued them."""
    known = device_times(case.trace).values()
    return (
        bool(known)
        and float(np.median([each.busy_ns / max(each.elapsed_ns, 1) for each in known]))
        > 1 - MOSTLY
    )
