"""How large a step size stays stable where gradients are stale."""

from __future__ import annotations

import math

from evenstep.errors import ConfigError


def stable_step_share(staleness: float) -> float:
    """Largest stable step size on a quadratic, ÷ that of fresh gradients: sin(π/(4τ+2)).

    Delayed gradient descent x' = x − ηλ x(t−τ) is stable iff ηλ < 2 sin(π/(2(2τ+1))) (Levin and May
    1976); fresh gradients allow 2. An indicator of stability, never of accuracy.
    """
    if staleness < 0:
        raise ConfigError(f"staleness must not be negative, found {staleness:g}")
    return math.sin(math.pi / (4 * staleness + 2))
