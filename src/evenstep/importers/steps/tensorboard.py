"""Read the metrics in TensorBoard's event files, and those of a run in MLflow's file store:
`metrics/NAME` beside its `meta.yaml`, with time in ms since 1970, value, and step in a line."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream
from evenstep.importers.content import SourceFile, lines
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.importers.protobuf import Schema

LONGEST_RECORD = 1 << 28  # bytes: images and graphs are in these files, too
MOST_VALUES, MOST_METRICS = 10_000_000, 10_000  # of a file, of a run
SAMPLED = "system/"  # MLflow's metrics of the machine, at any time
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
                found.setdefault(value.tag[:LONGEST_TEXT], []).append(
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


def is_run(source: SourceFile) -> bool:
    """Whether a file describes a run that has metrics."""
    named = source.path.name == "meta.yaml" and b"\nrun_id:" in b"\n" + source.head
    return named and (source.path.parent / "metrics").is_dir()


def scalars_of_run(path: Path, limits: list[str]) -> dict[str, list[tuple[int, float, float]]]:
    """The metrics of a run by name: (step, time in s, value) in order of writing."""
    folder = path.parent / "metrics"
    found: dict[str, list[tuple[int, float, float]]] = {}
    for file in islice(sorted(folder.rglob("*")), MOST_METRICS):
        name, wrong = file.relative_to(folder).as_posix(), 0
        for line in islice(lines(file), MOST_VALUES) if file.is_file() else ():
            try:
                time_ms, value, step, *_ = line.text.split()
                row = int(step), int(time_ms) / 1e3, float(value)
            except (ValueError, OverflowError):
                wrong += 1
                continue
            found.setdefault(name, []).append(row)
        if wrong:
            limits.append(f"{file}: {wrong} lines that are no values were left out")
    return {name: rows for name, rows in found.items() if not name.startswith(SAMPLED)}
