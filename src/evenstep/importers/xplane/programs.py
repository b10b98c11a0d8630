"""The XLA programs of a profile: which instructions move data between devices.

A profile has the HLO of its programs. An instruction's opcode, shape and replica groups give the
operation, bytes and members of a collective, whatever its name ("psum_invariant.7").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.importers.draft import MOST_BYTES
from evenstep.importers.kineto.names import operation
from evenstep.importers.protobuf import messages, parse
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import DType, Op

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]

_PERMUTE = "collective-permute"
_CONTAINERS = ("while", "conditional", "call")  # the instructions they run are events, too
#: Type and bytes of an element, by XLA's primitive types.
_TYPES: Mapping[int, tuple[DType, int]] = {
    1: (DType.BOOL, 1), 2: (DType.INT8, 1), 3: (DType.INT16, 2), 4: (DType.INT32, 4),
    5: (DType.INT64, 8), 6: (DType.UINT8, 1), 7: (DType.OTHER, 2), 8: (DType.OTHER, 4),
    9: (DType.OTHER, 8), 10: (DType.FLOAT16, 2), 11: (DType.FLOAT32, 4), 12: (DType.FLOAT64, 8),
    15: (DType.COMPLEX, 8), 16: (DType.BFLOAT16, 2), 18: (DType.COMPLEX, 16),
    19: (DType.FLOAT8, 1), 20: (DType.FLOAT8, 1),
}  # fmt: skip


class Instruction(NamedTuple):
    """An instruction. Devices have the program's numbers."""

    op: Op | None  # None: it moves nothing between devices
    computes: bool = True
    bytes: int = 0
    dtype: DType = DType.OTHER
    groups: Groups = ()  # empty: all devices
    pairs: Pairs = ()  # of a permutation: source, target


def instructions(data: bytes, path: Path) -> dict[str, Instruction]:
    """The instructions of an HLO program, by name."""
    module = parse(_program(), data, path).hlo_module
    return {
        each.name: _instruction(each)
        for computation in module.computations
        for each in computation.instructions
    }


@cache
def _program() -> Any:
    return messages(
        "xla",
        {
            "HloProto": "hlo_module=1:Module",
            "Module": "computations=3*Computation",
            "Computation": "instructions=2*Instruction",
            "Instruction": "name=1:string opcode=2:string shape=3:Shape replica_groups=49*Group "
            "source_target_pairs=52*Pair devices=87:Devices",
            "Shape": "element_type=2:int32 dimensions=3*int64 tuple_shapes=4*Shape",
            "Group": "replica_ids=1*int64",
            "Pair": "source=1:int64 target=2:int64",
            "Devices": "replica_groups=1*Group iota=2:Iota",
            "Iota": "groups=1:int64 devices=2:int64 dims=3*int64 order=4*int32",
        },
    )["HloProto"]


def _instruction(said: Any) -> Instruction:
    opcode = said.opcode.removesuffix("-start")
    if opcode == _PERMUTE:
        pairs = tuple((pair.source, pair.target) for pair in said.source_target_pairs)
        return Instruction(Op.OTHER, False, *_size(said.shape), pairs=_sound(pairs))
    op = operation(opcode) if opcode.startswith(("all-", "reduce-scatter", "collective-")) else None
    if op is None:
        return Instruction(None, computes=opcode not in _CONTAINERS)
    return Instruction(op, False, *_size(said.shape), groups=_sound(_groups(said)))


def _size(shape: Any) -> tuple[int, DType]:
    """Bytes and type of an array, or of a tuple's last one (the result of a -start instruction)."""
    shape = shape.tuple_shapes[-1] if shape.tuple_shapes else shape
    dtype, size = _TYPES.get(shape.element_type, (DType.OTHER, 0))
    elements = math.prod(min(max(count, 0), MOST_BYTES) for count in shape.dimensions[:16])
    return min(elements * size, MOST_BYTES), dtype


def _groups(said: Any) -> Groups:
    iota = said.devices.iota
    if 0 < iota.groups * iota.devices <= MOST_RANKS and iota.groups > 0:
        dims = list(iota.dims) or [iota.groups * iota.devices]
        if len(dims) > 16 or math.prod(dims) != iota.groups * iota.devices:
            return ()
        order = list(iota.order) or list(range(len(dims)))
        if sorted(order) != list(range(len(dims))):
            return ()
        table = np.arange(math.prod(dims)).reshape(dims).transpose(order)
        return tuple(map(tuple, table.reshape(iota.groups, iota.devices).tolist()))
    listed = said.devices.replica_groups or said.replica_groups
    return tuple(tuple(group.replica_ids) for group in listed if group.replica_ids)


def _sound(sets: tuple[Any, ...]) -> Any:
    """The sets of devices; empty where a number is not a device."""
    return sets if all(0 <= device < MOST_RANKS for each in sets for device in each) else ()
