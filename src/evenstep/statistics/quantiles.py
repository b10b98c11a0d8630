"""Normal and Student's distributions, as SciPy has them, imported when first asked: .1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def student(freedom: float, level: float = 0.975) -> float:
    """Quantile of Student's t: half of a two-sided 95 % interval in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))


def normal_cdf(z: Array) -> Array:
    """P(Z <= z) of a standard normal."""
    from scipy.special import ndtr

    return np.asarray(ndtr(z))


def log_survival(z: Array) -> Array:
    """log P(Z > z) of a standard normal, exact far out in its tail."""
    from scipy.special import log_ndtr

    return np.asarray(log_ndtr(-np.asarray(z)))
