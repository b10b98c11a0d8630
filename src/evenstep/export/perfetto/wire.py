"""The part of the protocol buffers wire format that Perfetto traces need: one message, or many.

Many messages of one form are rows of equal width: varints are padded with continuation bytes, so
that a million messages take a few numpy operations.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from evenstep.trace.columns import Array

VARINT, FIXED64, LENGTH = 0, 1, 2
TIME_BYTES = 9  # of a padded varint: 63 bits
LENGTH_BYTES = 3  # 2 MB
SLAB = 50_000  # rows copied together


def varint(value: int) -> bytes:
    """Encode a number with seven bits per byte, lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """Encode a field with an unsigned number or a bool."""
    return tag(field, VARINT) + varint(value)


def text(field: int, value: str) -> bytes:
    """Encode a field with a string; lone surrogates are replaced."""
    return message(field, value.encode("utf-8", "replace"))


def real(field: int, value: float) -> bytes:
    """Encode a field with a double."""
    return tag(field, FIXED64) + struct.pack("<d", value)


def message(field: int, *parts: bytes) -> bytes:
    """Encode a field with a message of these fields."""
    body = b"".join(parts)
    return tag(field, LENGTH) + varint(len(body)) + body


# -- many of one form ------------------------------------------------------------------------------


def varints(values: Array, width: int) -> Array:
    """Encode numbers as varints of exactly `width` bytes. Shape (n, width), uint8."""
    left = np.asarray(values, np.uint64)
    table = np.empty((len(left), width), np.uint8)
    for place in range(width):
        table[:, place] = (left & np.uint64(0x7F)).astype(np.uint8) | np.uint8(0x80)
        left = left >> np.uint64(7)
    table[:, -1] &= 0x7F
    return table


def narrow(values: Array) -> Array:
    """Encode numbers as varints of the width that the largest needs."""
    largest = int(np.max(values, initial=0))
    return varints(values, max(1, -(-largest.bit_length() // 7)))


def fixed64(values: Array) -> Array:
    """Encode numbers in eight bytes. Shape (n, 8), uint8."""
    return np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(len(values), 8)


def rows(count: int, parts: Sequence[bytes | Array]) -> Array:
    """Join parts (tables, or bytes repeated in every row) to rows. Shape (count, width), uint8."""
    width = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)
    table = np.empty((count, width), np.uint8)
    at = 0
    for part in parts:
        block = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        end = at + block.shape[-1]
        table[:, at:end] = block
        at = end
    return table


def wrap(field: int, table: Array) -> Array:
    """Wrap every row as a message in a field."""
    head = tag(field, LENGTH)
    length = varints(np.full(1, table.shape[1]), LENGTH_BYTES).tobytes()
    return rows(len(table), [head + length, table])


def interleave(tables: Sequence[Array], order: Array) -> Array:
    """Concatenate the rows of all tables (numbered table by table) in the given order."""
    width = np.repeat([table.shape[1] for table in tables], [len(table) for table in tables])
    begin = np.empty(len(order), np.int64)
    begin[order] = np.cumsum(width[order]) - width[order]
    found = np.empty(int(width.sum()), np.uint8)
    first = 0
    for table in tables:
        columns = np.arange(table.shape[1])
        for low in range(0, len(table), SLAB):
            slab = table[low : low + SLAB]
            at = begin[first + low : first + low + len(slab)]
            found[at[:, None] + columns] = slab
        first += len(table)
    return found
