"""Jobs that share a link and drift past one another.

Symbols: c compute, m exposed communication when alone, T the period in which they meet. Fair
sharing; periods nearly equal, so every phase between them occurs equally often. Any unit of time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from evenstep.errors import ConfigError


class ContentionDrift(NamedTuple):
    """Step time of one of several near-equal jobs on one link."""

    mean: float
    variance: float
    cv: float


def drifting(compute: float, transfer: float, *, jobs: int = 2) -> ContentionDrift:
    """E[T] = c + m + (J−1)m²/T; for two, Var = (2m/T)(m²/3) − (m²/T)².

    Two transfers that start x apart delay each other by m − x where x < m, and x is uniform over
    the period: excess m²/T (reference: integrate). Others are added, which holds while meetings
    of three are rare.
    """
    if compute < 0 or transfer < 0 or compute + transfer == 0:
        raise ConfigError("compute and transfer must not be negative, nor both 0")
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, found {jobs}")
    alone, others = compute + transfer, jobs - 1
    mean = (alone + math.sqrt(alone**2 + 4 * others * transfer**2)) / 2
    variance = others * (2 * transfer**3 / (3 * mean) - (transfer**2 / mean) ** 2)
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
