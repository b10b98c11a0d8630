"""Jobs that share a link and drift past one another.

Symbols: c compute, m exposed communication when alone, T the period in which they meet. Fair
sharing; periods nearly equal, so every phase between them occurs equally often. Any unit of time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from evenstep.errors import ConfigError

MOST_JOBS = 10_000


class ContentionDrift(NamedTuple):
    """Step time of one of several near-equal jobs on one link."""

    mean: float
    variance: float
    cv: float


def drifting(compute: float, transfer: float, *, jobs: int = 2) -> ContentionDrift:
    """E[T] = c + m + m²/T and Var = (2m/T)(m²/3) − (m²/T)² for two: transfers that start x apart
    delay each other by m − x where x < m, and x is uniform over the period (reference: integrate).

    For more, mean value analysis: R_J = m(1 + Q_{J−1}), Q_J = J·R_J/(c + R_J), E[T] = c + R_J, with
    Q the transfers under way (Reiser and Lavenberg 1980). The variance is that of two.
    """
    if compute < 0 or transfer < 0 or compute + transfer == 0:
        raise ConfigError("compute and transfer must not be negative, nor both 0")
    if not 1 <= jobs <= MOST_JOBS:
        raise ConfigError(f"jobs must be from 1 to {MOST_JOBS:,}, found {jobs:,}")
    queue = mean = 0.0
    for number in range(1, jobs + 1):
        shared = transfer * (1 + queue)
        mean = compute + shared
        queue = number * shared / mean
    if jobs == 2:
        mean = (compute + transfer + math.sqrt((compute + transfer) ** 2 + 4 * transfer**2)) / 2
    variance = (2 * transfer**3 / (3 * mean) - (transfer**2 / mean) ** 2) * (jobs > 1)
    return ContentionDrift(mean, max(variance, 0.0), math.sqrt(max(variance, 0.0)) / mean)


def crossings(n: int, per_rack: int, *, ordered: bool) -> float:
    """Hops of a ring of n ranks that leave a rack of r: n(n−r)/(n−1) on average in random order.

    In rack order one hop leaves each rack, whatever its size; a single rack has none.
    """
    if not 1 <= per_rack <= n:
        raise ConfigError(f"per_rack must be between 1 and the {n} ranks, found {per_rack}")
    if n == per_rack:
        return 0.0
    return math.ceil(n / per_rack) if ordered else n * (n - per_rack) / (n - 1)
