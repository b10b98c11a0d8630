"""Named numpy arrays of one length: where there may be a million of something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Columns:
    """A table held by column; `columns.enter_ns` and `columns["enter_ns"]` are the same array."""

    __slots__ = ("_arrays", "_length")

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: {sorted(lengths)}")
        self._arrays = dict(arrays)
        self._length = lengths.pop() if lengths else 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):  # copying and pickling ask before there are columns
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self)}") from None

    def select(self, which: Array | slice) -> Columns:
        """The rows picked by a mask, an index array or a slice."""
        return Columns({name: array[which] for name, array in self._arrays.items()})

    def only(self, *names: str) -> Columns:
        """The same rows with these columns alone."""
        return Columns({name: self[name] for name in names})

    def sorted_by(self, *names: str) -> Columns:
        """Rows in ascending order of the named columns, the first being the most significant."""
        return self.select(np.lexsort([self[name] for name in reversed(names)]))

    def with_column(self, name: str, array: Array) -> Columns:
        """The same table with one column added or replaced."""
        return Columns({**self._arrays, name: array})

    @staticmethod
    def concatenate(tables: list[Columns]) -> Columns:
        """Rows of several tables with the same columns, in the order given."""
        if not tables:
            return Columns({})
        return Columns({name: np.concatenate([t[name] for t in tables]) for name in tables[0]})
