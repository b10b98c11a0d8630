"""Transfer times of collectives by size, with floors and the times of known algorithms.

The curves use the latency of the measured floors (as a ring's) and the best known bandwidth: of
nccl-tests, of the adapters, else of the run itself.
"""

from __future__ import annotations

import numpy as np

from evenstep import allreduce
from evenstep.allreduce import Link
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.transfers import RINGS, Shape, reference
from evenstep.diagnose.modes.placement import hierarchical
from evenstep.report.page.sheet import Chart
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Op

SHAPES = 6  # those with the longest transfers
POINTS = 4000  # per shape
CURVE_POINTS = 48
MARGIN = 4.0  # factor of the curves beyond the measured sizes
_NO_LATENCY = "zero latency, since sizes this similar do not show it"
ALGORITHMS = ("ring", "tree", "hierarchical")


def sizes(case: Case) -> Chart | None:
    """Return the data of the chart; None if transfers cannot be told from waits.

    `points`: shape, size_bytes, time_us. `floors`: the same for the floor of each size. `curves`:
    shape, algorithm (index into `algorithms`), size_bytes, time_us. `sizes`: the name of each
    shape, and bandwidth and latency of its curves in words.
    """
    if not len(case.grid.steps) or not case.transfers_known:
        return None
    shown = [shape for shape in case.shapes if _drawable(case, shape).any()][:SHAPES]
    if not shown:
        return None
    expected = [_curves(case, number, shape) for number, shape in enumerate(shown)]
    tables = {
        "points": [_points(case, *item) for item in enumerate(shown)],
        "floors": [_table(n, s.sizes, s.floors_ns) for n, s in enumerate(shown)],
        "curves": [table for table, _ in expected],
    }
    names = (shape.name.replace("_", "-") for shape in shown)
    words = (text for _, text in expected)
    named = [{"name": n, "rests_on": text} for n, text in zip(names, words, strict=True)]
    joined = {name: Columns.concatenate(parts) for name, parts in tables.items()}
    return Chart(joined, {"sizes": named, "algorithms": ALGORITHMS})


def _drawable(case: Case, shape: Shape) -> Array:
    """Return the mask of transfers that fit on logarithmic axes."""
    rows = case.transfers.rows
    return np.asarray(shape.rows & (rows.size_bytes > 0) & (rows.transfer_ns > 0))


def _points(case: Case, number: int, shape: Shape) -> Columns:
    """Return the transfers of a shape, or every n-th if there are too many."""
    rows = np.flatnonzero(_drawable(case, shape))
    rows = rows[:: -(-len(rows) // POINTS)]
    table = case.transfers.rows
    return _table(number, table.size_bytes[rows], table.transfer_ns[rows])


def _table(number: int, size_bytes: Array, time_ns: Array) -> Columns:
    return Columns(
        {
            "shape": np.full(len(size_bytes), number, np.uint8),
            "size_bytes": np.asarray(size_bytes, np.float64),
            "time_us": (np.asarray(time_ns, np.float64) / 1e3).astype(np.float32),
        }
    )


def _curves(case: Case, number: int, shape: Shape) -> tuple[Columns, str]:
    """Return expected times over the measured sizes, and their bandwidth and latency in words."""
    measured = case.transfers.rows.size_bytes[_drawable(case, shape)]
    low, high = float(measured.min()) / MARGIN, float(measured.max()) * MARGIN
    size = np.geomspace(max(low, 1.0), high, CURVE_POINTS)
    known = reference(case.trace, shape, case.shapes)
    if shape.op not in RINGS or shape.members < 2 or max(shape.busbw_gBps, 0) <= 0:
        none = _table(0, size[:0], size[:0]).with_column("algorithm", np.zeros(0, np.uint8))
        return none, "no closed form for this operation"
    gBps = max(known.gBps, shape.busbw_gBps) if known else shape.busbw_gBps  # noqa: N806
    passes = 2 if shape.op == int(Op.ALL_REDUCE) else 1
    latency = shape.line.alpha_ns if shape.line is not None else 0.0
    alpha = latency / (passes * (shape.members - 1))
    parts = [
        _table(number, size, time).with_column("algorithm", np.full(len(size), at, np.uint8))
        for at, time in enumerate(_expected_times(case, shape, size, alpha, gBps))
        if time is not None
    ]
    source = known.source if known and known.gBps > shape.busbw_gBps else "the best of this run"
    delay = f"{alpha / 1e3:.3g} µs a message" if shape.line is not None else _NO_LATENCY
    return Columns.concatenate(parts), f"{gBps:.3g} GB/s ({source}) and {delay}"


def _expected_times(
    case: Case,
    shape: Shape,
    size: Array,
    alpha_ns: float,
    gBps: float,  # noqa: N803
) -> list[Array | None]:
    """Return the times of `ALGORITHMS`; None where one does not apply."""
    n, link = shape.members, Link(gBps, alpha_ns)
    ring = allreduce.ring(1.0, n, link).grown(size)
    if shape.op != int(Op.ALL_REDUCE):
        return [ring / 2, None, None]  # half of an all-reduce, for which alone others have forms
    layers = shape.nodes > 1 and n >= 2 * shape.nodes
    layered = hierarchical(case, shape, 1.0, link).grown(size) if layers else None
    return [ring, allreduce.double_tree(1.0, n, link).grown(size), layered]
