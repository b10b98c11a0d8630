"""One number for several columns: equal where all of them are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_ODD = np.uint64(0x9E3779B97F4A7C15)


def mixed(columns: Sequence[Array]) -> Array:
    """Per row, a hash of integer columns (multiplied and folded, 64 bits)."""
    code = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            code = (code ^ column.astype(np.int64).astype(np.uint64)) * _ODD
            code ^= code >> np.uint64(29)
    return code
