"""Read the metrics in TensorBoard's event files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream
from evenstep.importers.protobuf import Schema

LONGEST_RECORD = 1 << 28  # bytes: images and graphs are in these files, too
MOST_VALUES = 10_000_000
_FRAME = struct.Struct("<QI")  # length of the record and its checksum; another one follows it
_VERSION = b"brain.Event:"
_EVENT = Schema(
    "tensorboard",
    {
        "Event": "wall_time=1:double step=2:int64 summary=5:Summary",
        "Summary": "value=1*Value",
        "Value": "tag=1:string simple_value=2:float tensor=8:Tensor",
        "Tensor": "float_val=5*float",
    },
)


def recognises(head: bytes) -> bool:
    """Whether a file begins with the record that names the format."""
    return _VERSION in head[_FRAME.size : _FRAME.size + 64]


def scalars(path: Path, limits: list[str]) -> dict[str, list[tuple[int, float, float]]]:
    """The metrics of a file by tag: (step, time in s, value) in order of writing.

    A file that is still being written, or is cut short, is read as far as it is whole.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    count = 0
    try:
        for record in _records(path):
            event = _EVENT.parse(record, path)
            for value in event.summary.value:
                number = value.simple_value or next(iter(value.tensor.float_val), 0.0)
                found.setdefault(value.tag[:256], []).append(
                    (event.step, event.wall_time, float(number))
                )
                count += 1
            if count > MOST_VALUES:
                raise TraceError(f"{path}: only the first {count} values were read")
    except TraceError as error:
        if not found:
            raise
        limits.append(str(error))
    return found


def _records(path: Path) -> Iterator[bytes]:
    with Stream(path) as stream:
        while head := stream.read(_FRAME.size):
            length = _FRAME.unpack(head)[0] if len(head) == _FRAME.size else 0
            record = stream.read(length + 4) if length <= LONGEST_RECORD else b""
            if len(record) != length + 4:
                raise TraceError(f"{path} is damaged or cut short at byte {stream.read_bytes}")
            yield record[:-4]
