"""Waits between ranks and between hosts, and the critical path, reduced for charts.

Ranks cannot observe the load of links, only how long ranks of one host waited for those of another;
the findings tell whether a link is the cause.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.dynamics import critical_path
from evenstep.report.page.sheet import Chart
from evenstep.trace.columns import Array, Columns
from evenstep.trace.trace import Trace
from evenstep.words import ranks as named
from evenstep.words import some

MOST_CELLS_A_SIDE = 128
BOUNDS = 20_000  # steps of the critical path; of more, every n-th
NO_RANK = -1
MOST_PLACES = 64


def waiting(case: Case) -> Chart | None:
    """Lost time by pair (rows wait for columns, `ranks_per_bin` each, first ones `ranks`) and the
    critical path (rank -1: none bounds the step); None without known waits."""
    found, ranks = case.blame, case.grid.shape[1]
    if ranks < 2 or not case.waits_known or found.lost_ns.sum() <= 0:
        return None
    width = -(-ranks // MOST_CELLS_A_SIDE)
    lost = found.between(np.arange(ranks) // width)
    matrix = Columns({"lost_us": (lost / 1e3).astype(np.float32).reshape(-1)})
    firsts = [int(rank) for rank in case.grid.ranks[::width]]
    facts = {"ranks": firsts, "ranks_per_bin": width}
    return Chart({"matrix": matrix, "bounds": _bounds(case)}, {"waiting": facts})


def _bounds(case: Case) -> Columns:
    path = critical_path(case)
    every = -(-len(path.step) // BOUNDS)
    kept = np.flatnonzero(case.grid.sampled)[::every]
    column = path.column[kept]
    rank = np.where(column >= 0, case.grid.ranks[np.maximum(column, 0)], NO_RANK)
    return Columns(
        {
            "step": path.step[kept].astype(np.int32),
            "rank": rank.astype(np.int32),
            "phase": path.phase[kept].astype(np.uint8),
        }
    )


# -- hosts -----------------------------------------------------------------------------------------


def host_waits(trace: Trace, case: Case) -> Chart | None:
    """Return the waits between hosts; None for a single host or without waits.

    The table: waiting and awaited (indices into `places`), and lost_us summed over ranks. `places`:
    name, ranks, and process groups that also have members elsewhere. `worst`: the pairs of hosts
    that lost most, with their share of all waiting.
    """
    names = [trace.ranks[int(rank)].node for rank in case.grid.ranks]
    hosts = list(dict.fromkeys(names))
    found, total_ns = case.blame, float(case.blame.lost_ns.sum())
    if len(hosts) < 2 or not all(hosts) or total_ns <= 0:
        return None
    number = {name: at for at, name in enumerate(hosts)}
    host = np.array([number[name] for name in names])
    width = -(-len(hosts) // MOST_PLACES)
    lost = found.between(host // width)
    waiting, awaited = np.nonzero(lost)
    pairs = Columns(
        {
            "waiting": waiting.astype(np.uint8),
            "awaited": awaited.astype(np.uint8),
            "lost_us": (lost[waiting, awaited] / 1e3).astype(np.float32),
        }
    )
    facts = {
        "places": _places(trace, case, hosts, host, width),
        "worst": [
            {"waiting": one, "awaited": other, "lost_ns": lost_ns, "share": lost_ns / total_ns}
            for one, other, lost_ns in found.largest(names)
        ],
        "hosts_per_place": width,
    }
    return Chart({"host_waits": pairs}, {"host_waits": facts})


def _places(
    trace: Trace, case: Case, hosts: list[str], host: Array, width: int
) -> list[dict[str, Any]]:
    place_of = dict(zip(case.grid.ranks.tolist(), (host // width).tolist(), strict=True))
    groups: dict[int, list[str]] = {}
    for group in trace.groups:
        reached = {place_of[rank] for rank in group.ranks if rank in place_of}
        for place in reached if len(reached) > 1 else ():
            groups.setdefault(place, []).append(group.name)
    return [
        {
            "name": " to ".join(dict.fromkeys((hosts[first], hosts[first : first + width][-1]))),
            "ranks": named([rank for rank, its in place_of.items() if its == at]).partition(" ")[2],
            "groups": some(list(dict.fromkeys(filter(None, groups.get(at, []))))),
        }
        for at, first in enumerate(range(0, len(hosts), width))
    ]
