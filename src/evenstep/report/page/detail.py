"""The heat maps at full detail, a byte a cell: what zooming in shows of a large run.

Values are coded on a logarithmic scale, so that a byte reads back within two percent over four
orders of magnitude. 0 is unknown, 1 is nothing or below the scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.report.terminal.overview import Bins, bins, grid
from evenstep.trace.columns import Columns

Array = npt.NDArray[Any]

MOST_CELLS = 2_500_000
MOST_STEPS = 4096  # side by side, the widest picture a browser surely draws
MOST_RANKS = 4096
RANGE = 1e4  # highest over lowest value told apart
UNKNOWN, NOTHING, LOWEST, HIGHEST = 0, 1, 2, 255


class Detail(NamedTuple):
    """`cells` has a byte a cell for each metric; `scales` its lowest and highest value in µs."""

    shape: Bins
    cells: Columns
    scales: dict[str, tuple[float, float]]


def detail(steps: Columns, world: int, overview: Bins) -> Detail | None:
    """The finest grid that fits; None where the overview is as fine already."""
    ranks = min(world, MOST_RANKS)
    shape = bins(steps, world, rows=MOST_RANKS, columns=min(MOST_STEPS, MOST_CELLS // ranks))
    if shape is None or shape == overview:
        return None
    values = grid(steps, shape)
    coded = {name: encoded(values[name]) for name in values}
    cells = Columns({name: code for name, (code, _) in coded.items()})
    return Detail(shape, cells, {name: scale for name, (_, scale) in coded.items()})


def encoded(values: Array) -> tuple[Array, tuple[float, float]]:
    """Codes of the values, and the scale they are on."""
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


def decoded(codes: Array, scale: tuple[float, float]) -> Array:
    """The values again, to within half a step of the scale; as the page reads them."""
    low, high = scale
    value = low * (high / low) ** ((codes.astype(float) - LOWEST) / (HIGHEST - LOWEST))
    return np.where(codes == UNKNOWN, np.nan, np.where(codes == NOTHING, 0.0, value))
