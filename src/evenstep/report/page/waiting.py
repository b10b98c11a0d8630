"""Who waits for whom, ranks and hosts, and who bounds each step, small enough to draw.

How full a link is, nobody in a job can see. How long the ranks of one host waited for those of
another is measured in every collective; whether a link is the reason is for the findings to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.lateness.blame import Blame
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.dynamics import critical_path
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace
from evenstep.words import some, some_ranks

Array = npt.NDArray[Any]

MOST_CELLS_A_SIDE = 128
BOUNDS = 20_000  # steps drawn one by one; of more, every n-th
NOBODY = -1
MOST_PLACES = 64
PAIRS_LISTED = 8


@dataclass(slots=True, frozen=True)
class Waiting:
    """Tables for the page.

    `matrix`: lost_us, rows are those who wait, columns those they wait for, `ranks_per_bin` ranks
    each. `path`: step, rank (-1: nobody bounds it) and phase.
    """

    matrix: Columns
    path: Columns
    ranks: list[int]  # first rank of every row and column
    ranks_per_bin: int


def waiting(case: Case) -> Waiting | None:
    """Lost time by pair, and the bound of every step; None where nobody was seen to wait."""
    found, ranks = case.blame, case.grid.shape[1]
    if ranks < 2 or not case.waits_known or found.lost_ns.sum() <= 0:
        return None
    width = -(-ranks // MOST_CELLS_A_SIDE)
    lost = lost_between(found, np.arange(ranks) // width)
    matrix = Columns({"lost_us": (lost / 1e3).astype(np.float32).reshape(-1)})
    firsts = [int(rank) for rank in case.grid.ranks[::width]]
    return Waiting(matrix, _bounds(case), firsts, width)


def lost_between(found: Blame, place: Array) -> Array:
    """(places that wait, places waited for) of rank-nanoseconds; `place` has each rank's."""
    side = int(place.max()) + 1
    cell = place[found.victim] * side + place[found.culprit]
    total = np.bincount(cell, weights=found.lost_ns, minlength=side * side)
    return total.reshape(side, side)


def _bounds(case: Case) -> Columns:
    path = critical_path(case)
    every = -(-len(path.step) // BOUNDS)
    kept = np.flatnonzero(case.grid.sampled)[::every]
    column = path.column[kept]
    rank = np.where(column >= 0, case.grid.ranks[np.maximum(column, 0)], NOBODY)
    return Columns(
        {
            "step": path.step[kept].astype(np.int32),
            "rank": rank.astype(np.int32),
            "phase": path.phase[kept].astype(np.uint8),
        }
    )


# -- hosts -----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class HostWaits:
    """`pairs`: waiting and awaited (indices into `places`) and lost_us, ranks' time all together.

    `places`: name, ranks and the process groups that reach beyond them. `worst`: the pairs of
    hosts that lost most, with their share of all waiting.
    """

    pairs: Columns
    places: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    hosts_per_place: int


def host_waits(trace: Trace, case: Case) -> HostWaits | None:
    """The waits of a run on several hosts; None of one on a single host, or without any wait."""
    names = [trace.ranks[int(rank)].node for rank in case.grid.ranks]
    hosts = list(dict.fromkeys(names))
    found = case.blame
    if len(hosts) < 2 or not all(hosts) or found.lost_ns.sum() <= 0:
        return None
    number = {name: at for at, name in enumerate(hosts)}
    host = np.array([number[name] for name in names])
    width = -(-len(hosts) // MOST_PLACES)
    lost = lost_between(found, host // width)
    waiting, awaited = np.nonzero(lost)
    pairs = Columns(
        {
            "waiting": waiting.astype(np.uint8),
            "awaited": awaited.astype(np.uint8),
            "lost_us": (lost[waiting, awaited] / 1e3).astype(np.float32),
        }
    )
    places = _places(trace, case, hosts, host, width)
    return HostWaits(pairs, places, _worst(lost_between(found, host), hosts), width)


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
            "ranks": some_ranks([rank for rank, place in place_of.items() if place == at]),
            "groups": some(list(dict.fromkeys(filter(None, groups.get(at, []))))),
        }
        for at, first in enumerate(range(0, len(hosts), width))
    ]


def _worst(lost: Array, hosts: list[str]) -> list[dict[str, Any]]:
    total = float(lost.sum())
    order = np.argsort(-lost, axis=None, kind="stable")[:PAIRS_LISTED]
    return [
        {
            "waiting": hosts[waiting],
            "awaited": hosts[awaited],
            "lost_ns": float(lost[waiting, awaited]),
            "share": float(lost[waiting, awaited]) / total,
        }
        for waiting, awaited in (divmod(int(place), len(hosts)) for place in order)
        if lost[waiting, awaited] > 0
    ]
