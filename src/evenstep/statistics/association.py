"""Whether two series of steps go together: rank correlation, and how often chance does as much.

Never a claim of cause. Both series are freed of their slow course first (a loss falls anyway), and
chance keeps their autocorrelation: one series is shifted round against the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.statistics.trend import ranked

Array = npt.NDArray[Any]

FEWEST = 24  # steps
SHIFTS = 999  # at most
WINDOW = 9  # steps of the running median that is taken off
SEED = 20_403  # any: the same trace must give the same p-value


class Association(NamedTuple):
    """Spearman's ρ, the share of shifts with at least as large a one, and the number of steps."""

    rho: float
    p: float
    steps: int


def association(one: Array, other: Array) -> Association | None:
    """Of two series over the same steps; None where there are too few or one never changes."""
    if len(one) < FEWEST:
        return None
    first, second = ranked(_quick(one)), ranked(_quick(other))
    if first.std() == 0 or second.std() == 0:
        return None
    rho = _rho(first, second)
    shifts = np.arange(1, len(first))
    if len(shifts) > SHIFTS:
        shifts = np.random.default_rng(SEED).choice(shifts, SHIFTS, replace=False)
    chance = np.array([_rho(first, np.roll(second, int(shift))) for shift in shifts])
    as_large = int(np.count_nonzero(np.abs(chance) >= abs(rho) - 1e-12))
    return Association(rho, (1 + as_large) / (1 + len(shifts)), len(one))


def _quick(values: Array) -> Array:
    """The series less its running median."""
    from scipy.ndimage import median_filter  # when first asked: .1 s

    return np.asarray(values - median_filter(values.astype(float), WINDOW, mode="nearest"))


def _rho(one: Array, other: Array) -> float:
    return float(np.corrcoef(one, other)[0, 1])
