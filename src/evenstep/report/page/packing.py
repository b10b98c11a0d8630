"""Columns packed for a page: one gzip stream in base64 and a directory of what stands where.

The page unpacks it with the browser's `DecompressionStream`. Every column begins at a multiple of
8 bytes, so that a typed array can be laid over it without a copy. Little-endian throughout.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.trace.columns import Columns

ALIGNMENT_BYTES = 8

#: Element types a browser has typed arrays for.
TYPES = {"f8", "f4", "i4", "u4", "u2", "u1"}


@dataclass(slots=True, frozen=True)
class Packed:
    """Tables in one stream; `directory[table][column]` is {"type", "offset", "length"}."""

    directory: dict[str, dict[str, dict[str, Any]]]
    data: str  # base64 of gzip


def pack(tables: Mapping[str, Columns]) -> Packed:
    """The same bytes for the same columns, always. Raises `ValueError` for another element type."""
    directory: dict[str, dict[str, dict[str, Any]]] = {}
    raw = bytearray()
    for table, columns in tables.items():
        directory[table] = {}
        for name in columns:
            array = np.ascontiguousarray(columns[name])
            kind = array.dtype.str[1:]
            if kind not in TYPES:
                raise ValueError(f"column {table}.{name} has type {array.dtype}, not {TYPES}")
            directory[table][name] = {"type": kind, "offset": len(raw), "length": len(array)}
            raw += array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            raw += bytes(-len(raw) % ALIGNMENT_BYTES)
    data = gzip.compress(bytes(raw), compresslevel=6, mtime=0)
    return Packed(directory, base64.b64encode(data).decode("ascii"))
