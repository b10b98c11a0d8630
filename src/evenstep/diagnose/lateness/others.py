"""Each rank beside the others in the same step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def above_others(values: Array) -> Array:
    """Each rank's value minus the median of the other ranks', step by step.

    Of an even number of others the upper middle: most of all ranks are not late, the rest early.
    """
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros(values.shape)
    middle = (ranks - 1) // 2  # of the others, by index among them
    ordered = np.partition(values, [middle, middle + 1], axis=1)
    low, high = ordered[:, middle, None], ordered[:, middle + 1, None]
    # who is at or below the middle is not among the others
    result: Array = values - np.where(values <= low, high, low).astype(float)
    return result


def middle_of_others(values: Array) -> Array:
    """What the last rank is compared with in `above_others`, step by step: its excess lies above.

    Of a single rank its own value.
    """
    middle = max(values.shape[1] - 1, 0) // 2
    return np.asarray(np.partition(values, middle, axis=1)[:, middle])
