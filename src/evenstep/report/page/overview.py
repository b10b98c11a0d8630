"""Data of ranks × steps reduced for charts: the step-time curve, the map, means per rank, waits.

All but waits are computed from the table of `diagnose.measure.overview.step_table`: one row per
rank and step with `start_ns`, `end_ns`, `wait_ns` (NaN unknown), `lateness_ns` and `phase_…_ns`.

A large map is encoded with a byte per cell on a logarithmic scale, within two percent over four
orders of magnitude. 0 is unknown, 1 is zero or below the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.dynamics import critical_path
from evenstep.report.page.sheet import Chart
from evenstep.trace.columns import Array, Columns, largest_of, means_of, rows_by_key
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace
from evenstep.words import ranks as named
from evenstep.words import some

CURVE_POINTS = 2000
MOST_CELLS = 2_500_000
MOST_STEPS = 4096
MOST_RANKS = 4096
EXACT_CELLS = 128_000  # larger maps are encoded
RANGE = 1e4  # highest over lowest encoded value
UNKNOWN, NOTHING, LOWEST, HIGHEST = 0, 1, 2, 255


@dataclass(slots=True, frozen=True)
class Bins:
    """The grid of a map: range of steps, number of ranks, and how many of each share a cell."""

    first_step: int
    last_step: int
    steps_per_bin: int
    ranks: int
    ranks_per_bin: int

    @property
    def rows(self) -> int:
        return -(-self.ranks // self.ranks_per_bin)

    @property
    def columns(self) -> int:
        return -(-(self.last_step - self.first_step + 1) // self.steps_per_bin)


def bins(steps: Columns, world: int) -> Bins | None:
    """Return the finest grid within the limits for all steps; None without steps."""
    if not len(steps):
        return None
    first, last = int(steps.step.min()), int(steps.step.max())
    ranks = max(world, int(steps.rank.max()) + 1)
    rows = min(ranks, MOST_RANKS)
    columns = min(MOST_STEPS, MOST_CELLS // rows)
    return Bins(first, last, -(-(last - first + 1) // columns), ranks, -(-ranks // rows))


def drawn_map(steps: Columns, world: int, named: Sequence[int] = ()) -> Chart | None:
    """Return the map of ranks and steps; None without steps.

    Each rank has a row if there is room; otherwise ranks of similar lateness share one, after the
    ranks `named` in findings. The table has the cells of each metric, row by row; row r contains
    the ranks order[r * ranks_per_bin : (r + 1) * ranks_per_bin]. `scales`: the lowest and highest
    value (µs) of the metrics, if they are encoded.
    """
    shape = bins(steps, world)
    if shape is None:
        return None
    order = np.arange(shape.ranks)
    if shape.ranks_per_bin > 1:
        late = np.nan_to_num(means_of(steps.lateness_ns, steps.rank, shape.ranks), nan=-1.0)
        late[[rank for rank in named if rank < shape.ranks]] = np.inf
        order = np.argsort(-late, kind="stable")
    cells, scales = grid(steps, shape, order), {}
    if shape.rows * shape.columns > EXACT_CELLS:
        coded = {name: encode(cells[name]) for name in cells}
        cells = Columns({name: code for name, (code, _) in coded.items()})
        scales = {name: scale for name, (_, scale) in coded.items()}
    size = {"rows": shape.rows, "columns": shape.columns}
    facts = asdict(shape) | size | {"scales": scales, "order": order.tolist()}
    return Chart({"grid": cells}, {"grid": facts})


def curve(steps: Columns, *, points: int = CURVE_POINTS) -> Columns:
    """Return the shortest, median and longest step over ranks, per step or bin of steps."""
    if not len(steps):
        return Columns({name: np.empty(0, np.float32) for name in CURVE_COLUMNS})
    first = int(steps.step.min())
    width = -(-(int(steps.step.max()) - first + 1) // points)
    time_us = (steps.end_ns - steps.start_ns) / 1e3
    key = (steps.step.astype(np.int64) - first) // width
    order = np.lexsort([time_us, key])
    numbers, begins, counts = np.unique(key[order], return_index=True, return_counts=True)
    ordered = time_us[order]
    middle = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
    return Columns(
        {
            "step": (first + numbers * width).astype(np.int32),
            "shortest_us": ordered[begins].astype(np.float32),
            "median_us": middle.astype(np.float32),
            "longest_us": ordered[begins + counts - 1].astype(np.float32),
        }
    )


CURVE_COLUMNS = ("step", "shortest_us", "median_us", "longest_us")


def grid(steps: Columns, shape: Bins, order: Array) -> Columns:
    """Each cell's smallest wait (steps averaged), greatest lateness and longest step (µs; NaN
    unknown): extremes instead of means keep one late rank among many visible."""
    place = np.empty(shape.ranks, np.int64)
    place[order] = np.arange(shape.ranks)
    column = (steps.step.astype(np.int64) - shape.first_step) // shape.steps_per_bin
    own = place[steps.rank] * shape.columns + column
    waits = means_of(steps.wait_ns, own, shape.ranks * shape.columns) / 1e3
    none = np.full((shape.rows * shape.ranks_per_bin - shape.ranks) * shape.columns, np.nan)
    parted = np.concatenate([waits, none]).reshape(shape.rows, shape.ranks_per_bin, -1)
    row = place[steps.rank] // shape.ranks_per_bin
    cell, size = row * shape.columns + column, shape.rows * shape.columns
    return Columns(
        {
            "wait_us": np.asarray(np.fmin.reduce(parted, axis=1), np.float32).reshape(-1),
            "lateness_us": _cell_most(steps.lateness_ns, cell, size),
            "step_us": _cell_most(steps.end_ns - steps.start_ns, cell, size),
        }
    )


def _cell_most(values_ns: Array, cell: Array, size: int) -> Array:
    return (largest_of(values_ns, cell, size, least=np.nan) / 1e3).astype(np.float32)


def per_rank(steps: Columns) -> list[dict[str, float | None]]:
    """Return each rank's means over steps (ns) of step, wait, lateness, phases; None if unknown."""
    phases = [name for name in steps if name.startswith("phase_")]
    ranks, place = np.unique(steps.rank, return_inverse=True)
    columns = {name: steps[name] for name in ("wait_ns", "lateness_ns", *phases)}
    rows: list[dict[str, float | None]] = [{"rank": int(rank)} for rank in ranks]
    for name, column in ({"step_ns": steps.end_ns - steps.start_ns} | columns).items():
        means = means_of(column, place, ranks.size)
        for row, mean in zip(rows, means.tolist(), strict=True):
            row[name] = mean if isfinite(mean) else None
    return rows


def encode(values: Array) -> tuple[Array, tuple[float, float]]:
    """Encode values as bytes; return codes and the (low, high) of the scale."""
    known = np.isfinite(values)
    positive = values[known & (values > 0)]
    if not positive.size:
        return np.where(known, NOTHING, UNKNOWN).astype(np.uint8), (1.0, 1.0)
    high = float(positive.max())
    low = max(float(positive.min()), high / RANGE)
    shown = known & (values >= low)
    place = np.log(np.where(shown, values, low) / low) / max(np.log(high / low), 1e-9)
    code = LOWEST + np.rint(np.clip(place, 0, 1) * (HIGHEST - LOWEST))
    return np.where(shown, code, np.where(known, NOTHING, UNKNOWN)).astype(np.uint8), (low, high)


# -- phases ----------------------------------------------------------------------------------------

BOXES = 128  # per phase; with more ranks neighbours share a box
QUANTILES = {"q05_us": 0.05, "q25_us": 0.25, "q50_us": 0.5, "q75_us": 0.75, "q95_us": 0.95}
SMALLEST = 1e-5  # smallest share of all time that is not rounding
COLUMNS = ("phase", "rank", "last_rank", *QUANTILES)

#: In the order of a step.
PHASES_IN_ORDER = (*sorted(set(Phase) - {Phase.OTHER}), Phase.OTHER)


def distributions(steps: Columns) -> Columns:
    """Five quantiles of each phase that takes time, by rank or ranks. `steps`: the step table."""
    least = SMALLEST * float((steps.end_ns - steps.start_ns).sum())
    known = [phase for phase in PHASES_IN_ORDER if _column(phase) in steps]
    took = [phase for phase in known if float(steps[_column(phase)].sum()) > least]
    parts = [_of_phase(steps, phase) for phase in took]
    if not parts:
        return Columns({name: np.empty(0, np.float32) for name in COLUMNS})
    return Columns.concatenate(parts)


def _column(phase: Phase) -> str:
    return f"phase_{phase.name.lower()}_ns"


def _of_phase(steps: Columns, phase: Phase) -> Columns:
    ranks = np.unique(steps.rank)
    width = -(-len(ranks) // BOXES)
    boxes = rows_by_key(np.searchsorted(ranks, steps.rank) // width)
    time_us = np.asarray(steps[_column(phase)], float) / 1e3
    quantiles = np.array([np.quantile(time_us[box], list(QUANTILES.values())) for box in boxes])
    last = np.minimum(np.arange(1, len(boxes) + 1) * width, len(ranks)) - 1
    return Columns(
        {
            "phase": np.full(len(boxes), int(phase), np.uint8),
            "rank": ranks[::width].astype(np.int32),
            "last_rank": ranks[last].astype(np.int32),
            **dict(zip(QUANTILES, quantiles.T.astype(np.float32), strict=True)),
        }
    )


# -- waits -----------------------------------------------------------------------------------------
# Ranks cannot observe the load of links, only how long ranks of one host waited for those of
# another; the findings tell whether a link is the cause.

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
