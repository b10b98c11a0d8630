"""Read XPlane profiles (`*.xplane.pb` of jax.profiler), one file per process, as one trace.

Events are identified by the programs in the profile, of which it has the HLO: an instruction's
opcode, shape and replica groups give the operation, bytes and members of a collective, whatever its
name ("psum_invariant.7"). Each device is a rank, in the order of files and of the devices in them,
which is JAX's order of devices; replica groups are numbers in that order. Verified on profiles of
JAX on CPUs; those of GPUs and TPUs follow the same schema and have events on planes of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import nothing_read
from evenstep.importers.content import SourceFile, content, usable
from evenstep.importers.draft import FIRST_NS, LATEST_NS, MOST_BYTES, Draft
from evenstep.importers.file_ranks import ranks_by_paths
from evenstep.importers.kineto.names import operation
from evenstep.importers.merging import unite
from evenstep.importers.protobuf import Schema
from evenstep.trace.columns import Array
from evenstep.trace.ranks import MOST_RANKS, natural
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import DType, Kind, Op
from evenstep.trace.trace import COMPUTE, Trace

NAME = "XPlane profile"
MOST_FILE_BYTES = 1 << 29
MOST_EVENTS = 20_000_000
RELATIVE_NS = 10**15  # a line with a smaller time stamp counts from the beginning of the profile
_PLANES = (b"/host:", b"/device:", b"Task Environment")
_DEVICE = re.compile(r"^/device:\w+:(\d{1,4})$")

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


class Ran(NamedTuple):
    """An executed instruction. Times in ns since 1970; `run` is the launch, -1 unknown."""

    start_ns: int
    end_ns: int
    run: int
    what: Instruction


@dataclass(slots=True)
class PlaneFile:
    """The contents of one file."""

    path: Path
    host: str = ""
    began_ns: int = 0
    devices: dict[int, list[Ran]] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # by number: start, end

    def step_at(self, times_ns: Array) -> Array:
        """The number of the last step to begin before each time; 0 before the first."""
        numbers = sorted(self.steps, key=lambda number: self.steps[number])
        begins = [self.steps[number][0] for number in numbers]
        place = np.searchsorted(np.array(begins, np.int64), times_ns, side="right")
        return np.asarray(np.array([0, *numbers], np.int64)[place])


def recognises(source: SourceFile) -> bool:
    """Whether a file begins with a plane."""
    head = source.head
    return head[:1] == b"\n" and any(name in head[:24] for name in _PLANES)


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all files as one trace. Raises `TraceError` where none has an event of a device."""
    draft = Draft()
    named = ranks_by_paths([source.path for source in sources])
    ordered = sorted(sources, key=lambda each: (named.get(each.path, 0), natural(each.path)))
    read_one = partial(_profile, limits=draft.limits)
    profiles = list(usable(ordered, draft.limits, read_one))
    devices = [(each, number) for each in profiles for number in sorted(each.devices)]
    if not devices:
        none = f"{sources[0].path} shows no device at work"
        raise nothing_read(draft.limits, none, "; profile with jax.profiler.trace")
    origin = min(ran.start_ns for each, number in devices for ran in each.devices[number])
    origin = min([origin, *(start for each in profiles for start, _ in each.steps.values())])
    _enter(draft, devices, origin - FIRST_NS)
    if _kept_step(profiles):
        for rank, (each, _) in enumerate(devices):
            number = np.array(sorted(each.steps), np.int64)
            times = np.array([each.steps[step] for step in number.tolist()], np.int64)
            start, end = times.T - (origin - FIRST_NS)
            draft.rows(rank, kind=int(Kind.STEP), step=number, enter_ns=start, exit_ns=end)
        return draft.trace({"source": NAME})
    marked = any(each.steps for each in profiles)
    unmarked = "the profile marks no steps"
    asynchronous = "the devices do not keep to the steps that the host marks"
    return infer_steps(draft.trace({"source": NAME}), asynchronous if marked else unmarked)


# -- one file --------------------------------------------------------------------------------------

_SPACE = Schema(
    "xplane",
    {
        "XSpace": "planes=1*XPlane hostnames=4*string",
        "XPlane": "name=2:string lines=3*XLine event_metadata=4*EventName "
        "stat_metadata=5*StatName stats=6*XStat",
        "EventName": "key=1:int64 value=2:EventMetadata",
        "EventMetadata": "name=2:string display_name=4:string stats=5*XStat",
        "StatName": "key=1:int64 value=2:StatMetadata",
        "StatMetadata": "name=2:string",
        "XLine": "name=2:string timestamp_ns=3:int64 events=4*XEvent",
        "XEvent": "metadata_id=1:int64 offset_ps=2:int64 duration_ps=3:int64 stats=4*XStat",
        "XStat": "metadata_id=1:int64 uint64_value=3:uint64 int64_value=4:int64 "
        "str_value=5:string bytes_value=6:bytes ref_value=7:uint64",
    },
)


def _profile(source: SourceFile, limits: list[str]) -> PlaneFile:
    path = source.path
    space = _SPACE.parse(content(path, MOST_FILE_BYTES), path)
    found = PlaneFile(path, next(iter(space.hostnames), ""))
    programs: dict[str, Instruction] = {}
    for plane in space.planes:
        names = {each.key: each.value.name for each in plane.stat_metadata}
        for stat in plane.stats:
            if names.get(stat.metadata_id) == "profile_start_time":
                found.began_ns = min(_number(stat), LATEST_NS)
        for each in plane.event_metadata:
            for stat in each.value.stats:
                if names.get(stat.metadata_id) == "Hlo Proto":
                    programs |= instructions(stat.bytes_value, path)
    for plane in space.planes:
        if plane.name.startswith(("/host:CPU", "/device:")):
            _take_plane(found, plane, programs)
    if sum(map(len, found.devices.values())) >= MOST_EVENTS:
        limits.append(f"{path}: only the first {MOST_EVENTS} instructions were read")
    return found


def _number(stat: Any) -> int:
    return int(stat.uint64_value or stat.int64_value)


def _take_plane(found: PlaneFile, plane: Any, programs: Mapping[str, Instruction]) -> None:
    """Take in the instructions that ran on a plane, and the steps that it marks."""
    stats = {each.key: each.value.name for each in plane.stat_metadata}
    events = {each.key: each.value for each in plane.event_metadata}
    whole = _DEVICE.match(plane.name)
    count = sum(map(len, found.devices.values()))
    for line in plane.lines:
        began_ns = line.timestamp_ns + (found.began_ns if line.timestamp_ns < RELATIVE_NS else 0)
        for event in line.events:
            start_ns = began_ns + event.offset_ps // 1000
            end_ns = start_ns + event.duration_ps // 1000
            if not 0 < start_ns <= end_ns < LATEST_NS:
                continue
            said = {stats.get(stat.metadata_id, ""): stat for stat in event.stats}
            if "step_num" in said:
                number = _number(said["step_num"])
                if number < 1 << 31:
                    found.steps.setdefault(number, (start_ns, end_ns))
                continue
            told = events.get(event.metadata_id)
            what = next((programs[name] for name in _names(told, said, stats) if name in programs),
                        None)  # fmt: skip
            ordinal = _number(said["device_ordinal"]) if "device_ordinal" in said else 0
            device = int(whole[1]) if whole else ordinal
            if what is None or device >= MOST_RANKS or count >= MOST_EVENTS:
                continue
            run = _number(said["run_id"]) if "run_id" in said else -1
            found.devices.setdefault(device, []).append(Ran(start_ns, end_ns, run, what))
            count += 1


def _names(told: Any, said: Mapping[str, Any], stats: Mapping[int, str]) -> Iterator[str]:
    """Possible names of an event's instruction, the most reliable first."""
    if "hlo_op" in said:
        yield said["hlo_op"].str_value or stats.get(said["hlo_op"].ref_value, "")
    elif told is not None:
        yield told.display_name
        yield told.name.removeprefix("%").partition(" ")[0]


# -- the trace -------------------------------------------------------------------------------------


def _enter(draft: Draft, devices: Sequence[tuple[PlaneFile, int]], shift: int) -> None:
    """Enter ranks, spans of compute, and collectives, counted over the launches that all ranks
    have."""
    runs = [{ran.run for ran in each.devices[number] if ran.what.op} for each, number in devices]
    shared = set.intersection(*runs)
    if not shared and any(runs):
        draft.limits.append(
            "the files have no launch of a program in common: their collectives are counted from "
            "the beginning of each"
        )
    left_out = 0
    for rank, (each, number) in enumerate(devices):
        host = each.host or each.path.name.partition(".")[0]
        draft.rank(rank, {"device_clock": "host"}, hostname=host, boot_id=f"host {host}",
                   source=str(each.path))  # fmt: skip
        ran = sorted(each.devices[number], key=lambda ran: ran.start_ns)
        moving = [one for one in ran if one.what.op is not None]
        kept = [one for one in moving if not shared or one.run in shared]
        left_out += len(moving) - len(kept)
        _enter_calls(draft, rank, len(devices), kept, each, shift)
        busy = [one for one in ran if one.what.computes]
        start, end = unite(*(np.array([one[at] for one in busy], np.int64) for at in (0, 1)))
        draft.device_spans(rank, COMPUTE, number, start - shift, end - shift, each.step_at(start))
    if left_out:
        draft.limits.append(
            f"{left_out} collectives are of programs that not all ranks' profiles show: left out"
        )


def _enter_calls(
    draft: Draft, rank: int, world: int, calls: Sequence[Ran], profile: PlaneFile, shift: int
) -> None:
    counts: dict[tuple[int, int, Op | None], int] = {}
    taken: dict[Instruction, tuple[int, list[tuple[Op, int]]]] = {}  # group, operations and peers
    rows = []
    for call in calls:
        if call.what not in taken:
            taken[call.what] = _taken_part(draft, rank, world, call.what)
        group, ends = taken[call.what]
        for op, peer in ends:
            place = (group, peer, op if peer >= 0 else None)
            counts[place] = counts.get(place, -1) + 1
            rows.append((int(op), group, counts[place], peer, call))
    if not rows:
        return
    op, group, sequence, peer = np.array([row[:4] for row in rows], np.int64).T
    start, end = (np.array([row[4][at] for row in rows], np.int64) - shift for at in (0, 1))
    draft.calls(
        rank,
        op=op, group=group, group_seq=sequence, peer_or_root=peer,
        bytes_in=np.array([row[4].what.bytes for row in rows]),
        step=profile.step_at(start + shift),
        dtype=np.array([int(row[4].what.dtype) for row in rows]),
        enter_ns=start, exit_ns=np.maximum(end, start + 1), device=0, flags=0,
    )  # fmt: skip


def _taken_part(
    draft: Draft, rank: int, world: int, what: Instruction
) -> tuple[int, list[tuple[Op, int]]]:
    """The group of a rank in an instruction, and its operations with their peers (-1: all)."""
    ends = [(Op.SEND, to) for source, to in what.pairs if source == rank != to]
    ends += [(Op.RECV, source) for source, to in what.pairs if to == rank != source]
    mine = next((group for group in what.groups if rank in group), None)
    if not what.pairs:
        ends = [(what.op or Op.OTHER, -1)] if mine or not what.groups else []
    if what.pairs or mine is None or len(mine) == world:
        return draft.group("world", range(world)), ends
    return draft.group("replicas", mine), ends


def _kept_step(profiles: Sequence[PlaneFile]) -> bool:
    """Whether every file marks steps, and no instruction crosses the end of a step."""
    for each in profiles:
        if len(each.steps) < 2:
            return False
        ends = np.sort([end for _, end in each.steps.values()])
        for ran in each.devices.values():
            start, end = np.array([(one.start_ns, one.end_ns) for one in ran], np.int64).T
            across = np.searchsorted(ends, start, "right") != np.searchsorted(ends, end, "left")
            if across.any():
                return False
    return True


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
    module = _PROGRAM.parse(data, path).hlo_module
    return {
        each.name: _instruction(each)
        for computation in module.computations
        for each in computation.instructions
    }


_PROGRAM = Schema(
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
)


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
