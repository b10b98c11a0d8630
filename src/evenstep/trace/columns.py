"""Tables as named numpy arrays of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Chosen:
    """Rows of a column, an array or what reads one; read when first called, and then kept."""

    __slots__ = ("_column", "_length", "_rows")

    def __init__(self, column: Any, rows: Any) -> None:
        self._column, self._rows, self._length = column, rows, len(rows)

    def __len__(self) -> int:
        return self._length

    def __call__(self) -> Array:
        if self._rows is not None:
            self._column, self._rows = _read(self._column)[self._rows], None
        return _read(self._column)


def _read(column: Array | Callable[[], Array]) -> Array:
    return column() if callable(column) else column


class Columns:
    """A table stored by column; `columns.enter_ns` and `columns["enter_ns"]` are the same array.

    Of selected rows, only those columns are copied that are read.
    """

    __slots__ = ("_arrays", "_length")

    def __init__(
        self, arrays: Mapping[str, Array | Chosen] = MappingProxyType({}), /, **more: Array
    ) -> None:
        self._arrays = {**arrays, **more}
        lengths = {len(array) for array in self._arrays.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def keys(self) -> Iterator[str]:
        """Names of the columns, so that `**columns` are its arrays."""
        return iter(self)

    def __getitem__(self, name: str) -> Array:
        return _read(self._arrays[name])

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):  # copy and pickle look attributes up before `__init__` has run
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {', '.join(self)}") from None

    def select(self, which: Array | slice) -> Columns:
        """Select rows by a mask, an index array or a slice."""
        if isinstance(which, slice):
            return Columns({name: self[name][which] for name in self})
        if which.dtype == bool:
            if which.all():
                return Columns(self._arrays)
            which = which.nonzero()[0]  # counted once, not again for every column
        return Columns({name: Chosen(array, which) for name, array in self._arrays.items()})

    def only(self, *names: str) -> Columns:
        return Columns({n: self._arrays[n] if n in self._arrays else self[n] for n in names})

    def sorted_by(self, *names: str) -> Columns:
        """Sort rows by the named columns, ascending; the first is the most significant."""
        return self.select(np.lexsort([self[name] for name in reversed(names)]))

    def with_column(self, name: str, array: Array) -> Columns:
        return self.with_columns(**{name: array})

    def with_columns(self, **arrays: Array) -> Columns:
        return Columns(self._arrays, **arrays)

    @staticmethod
    def filled(given: Mapping[str, Any], types: Mapping[str, Any], length: int) -> Columns:
        """A table of these types, each column from an array, one value for all rows, or zeros."""
        values = ((name, np.asarray(given.get(name, 0))) for name in types)
        return Columns({n: np.broadcast_to(v, length).astype(types[n]) for n, v in values})

    @staticmethod
    def concatenate(tables: list[Columns]) -> Columns:
        if not tables:
            return Columns()
        return Columns({name: np.concatenate([t[name] for t in tables]) for name in tables[0]})


def key_numbers(*keys: Array) -> Array:
    """Number rows by their distinct keys, 0, 1, 2 … in ascending order of the keys."""
    order, new = _by_keys(keys)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    return numbers


def positions_by_key(*keys: Array) -> Array:
    """Position of each row, 0, 1, 2 …, among the rows with equal keys."""
    order, new = _by_keys(keys)
    positions = np.empty(len(order), np.int64)
    places = np.arange(len(order))
    positions[order] = places - np.maximum.accumulate(np.where(new, places, 0))
    return positions


def rows_by_key(key: Array) -> list[Array]:
    """The rows of each distinct key, in ascending order of the keys."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(begins(key[order]))[1:]) if len(key) else []


def run_numbers(*keys: Array) -> Array:
    """Number runs of adjacent rows with equal keys, 0, 1, 2 …"""
    return np.cumsum(begins(*keys)) - 1


def begins(*keys: Array) -> Array:
    """Whether each row has other keys than the one before."""
    new = np.ones(len(keys[0]), bool)
    new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return new


def finishes(*keys: Array) -> Array:
    """Whether each row has other keys than the one after."""
    return begins(*(key[::-1] for key in keys))[::-1]


def running_maximum(values: Array, number: Array) -> Array:
    """The largest value so far of the rows of each number, which follow each other."""
    first = np.flatnonzero(begins(number))
    low, high = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    apart = np.cumsum(high - low + 1) - high - 1  # side by side on one line
    apart = np.repeat(apart, np.diff(np.append(first, len(values))))
    return np.asarray(np.maximum.accumulate(values + apart) - apart)


def medians_of(values: Array, place: Array, size: int) -> Array:
    """Median of the values at each of `size` places; 0 without any."""
    order, count = np.lexsort([values, place]), np.bincount(place, minlength=size)
    first, values = np.cumsum(count) - count, np.append(values[order], 0.0)
    middle = values[first + np.maximum(count - 1, 0) // 2] + values[first + count // 2]
    return np.where(count > 0, middle / 2, 0.0)


def largest_of(values: Array, place: Any, size: Any = None, *, least: Any = -(2**63)) -> Array:
    """Largest of the values at each of `size` places, by default as many as there are; `least`
    without any. In a table, of which `size` is the shape, a place is its row and its column."""
    found = np.full(int(place.max(initial=0)) + 1 if size is None else size, least)
    np.fmax.at(found, place, values)
    return found


def smallest_of(values: Array, place: Any, size: Any = None, *, most: Any = 2**63 - 1) -> Array:
    """The same of the smallest; `most` without any."""
    found = np.full(int(place.max(initial=0)) + 1 if size is None else size, most)
    np.fmin.at(found, place, values)
    return found


def means_of(values: Array, place: Array, size: int) -> Array:
    """Mean of the known values at each of `size` places; NaN without any."""
    known = np.isfinite(values)
    total = np.bincount(place[known], weights=values[known], minlength=size)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.bincount(place[known], minlength=size))


def _by_keys(keys: tuple[Array, ...]) -> tuple[Array, Array]:
    """The order of rows by their keys, and whether each has other keys than the one before."""
    order = np.lexsort(keys[::-1])
    return order, begins(*(key[order] for key in keys))
