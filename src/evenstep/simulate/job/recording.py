"""Recording of a simulation: steps become rows, phases and collectives in the order of a rank, and
rows become records of every rank.

Records of all ranks are collected for a block of steps, 14 words of 8 bytes each (see
`evenstep.trace.spool.layout`), and handed to a sink, such as a run folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from evenstep.simulate.job.graph import MAIN, FinishedStep, Operation
from evenstep.simulate.job.strategies import Extra
from evenstep.simulate.wires.interface import COMPUTE, SLOWED
from evenstep.trace.columns import Array
from evenstep.trace.reader import RECORD, SUMMARY
from evenstep.trace.spool import layout, summary
from evenstep.trace.spool.layout import DType, Flag, Kind, Op, Phase, ReduceOp

START_NS = 1_000_000_000  # the clock of a simulation does not begin at zero
BLOCK_BYTES = 1 << 28
_SEQ, _STEP = 0, 9  # words; the second holds the step below the group
_PEER = 24  # of 4 bytes, in a record
_COUNTED = (Kind.COLLECTIVE, Kind.POINT_TO_POINT)

OPERATIONS = {op.name.lower(): op for op in (*layout.SYNCHRONIZING_OPS, Op.BROADCAST)}
#: Operations in which each rank has one part of the bytes, as input or as output.
PARTED: dict[int, str] = {Op.ALL_GATHER: "bytes_in", Op.REDUCE_SCATTER: "bytes_out"}


class RecordRow(NamedTuple):
    """One record of every rank in a step. Times are in ns since the start, (ranks,)."""

    kind: Kind
    op: int
    enter_ns: Array
    exit_ns: Array
    group_seq: Array | int = 0  # leaf time of a phase, CPU time of a step
    held_ns: Array | int = 0
    bytes: int = 0
    group: int = 0  # number of the partition, from 1
    flags: int = 0
    payload: int = 0
    parts: int = 1  # of the bytes, one on each rank: input of a gather, output of a scatter
    more: Array | None = None  # bytes that each rank receives beyond these
    peer: Array | None = None  # of a message: the other rank; ranks of a role share a stage's peers


#: Keeps a block of whole steps of some ranks, whose memory is reused afterwards: these, (ranks,),
#: records, (ranks, records, words), and summaries, (ranks, steps).
BlockSink = Callable[[Array, Array, Array], None]


class SimulatedRecorder:
    """Collects the records of ranks of one role, and hands blocks of whole steps to a sink."""

    def __init__(self, which: Array, sink: BlockSink) -> None:
        self._which, self._ranks = which, len(which)
        self._sink = sink
        self._templates: dict[tuple[int, ...], Array] = {}
        #: Collectives of each partition, and messages of each kind to the same peers, so far.
        self._issued: Counter[tuple[object, ...]] = Counter()
        self._buffer = np.zeros((self._ranks, 0, layout.RECORD_WORDS), np.uint64)
        self._used = self._written = self._steps = 0
        self._whole = 0  # records of finished steps: an interrupted one is left out
        self._summaries: list[Array] = []

    def step(self, number: int, rows: list[RecordRow]) -> None:
        """Add a step: the first row is the step's own, collectives follow in order of issue."""
        if self._used + len(rows) > self._buffer.shape[1]:
            self.flush()
            if len(rows) > self._buffer.shape[1]:
                fit = BLOCK_BYTES // (self._ranks * layout.RECORD_BYTES)
                most = len(rows) * max(1, min(fit // len(rows), 256))
                self._buffer = np.empty((self._ranks, most, layout.RECORD_WORDS), np.uint64)
        for row in rows:
            self._put(number, row)
        self._summaries.append(_summary(number, rows, self._ranks))
        self._whole = self._used
        self._steps += 1

    def _put(self, number: int, row: RecordRow) -> None:
        words = self._buffer[:, self._used]
        words[:] = self._template(row)
        words[:, _SEQ] = self._written + self._used + 1
        words[:, layout.WORD_ENTER] = _stamp(row.enter_ns)
        words[:, layout.WORD_EXIT] = _stamp(row.exit_ns)
        words[:, _STEP] |= np.uint64(number)
        if row.peer is not None:
            words.view(np.int32)[:, _PEER] = row.peer
        if row.more is not None:
            words[:, layout.WORD_BYTES_OUT] += row.more.astype(np.uint64)
        if row.kind in _COUNTED:
            same = (row.group,) if row.peer is None else (row.group, row.op, row.peer.tobytes())
            words[:, layout.WORD_GROUP_SEQ] = self._issued[same]
            self._issued[same] += 1
        elif isinstance(row.group_seq, np.ndarray) or row.group_seq:
            words[:, layout.WORD_GROUP_SEQ] = np.rint(row.group_seq).astype(np.uint64)
        if isinstance(row.held_ns, np.ndarray):
            words[:, layout.WORD_HELD] = row.held_ns.astype(np.uint64)
        self._used += 1

    def _template(self, row: RecordRow) -> Array:
        """What is the same on all ranks and in all steps."""
        key = (int(row.kind), row.op, row.bytes, row.group, row.flags, row.payload, row.parts)
        if key not in self._templates:
            record = np.zeros(1, RECORD)
            record["kind"], record["op"] = row.kind, row.op
            record["bytes_in"] = record["bytes_out"] = row.bytes
            if row.kind is Kind.COLLECTIVE and row.op in PARTED:
                record[PARTED[row.op]] = row.bytes // row.parts
            record["group"], record["flags"], record["payload"] = row.group, row.flags, row.payload
            record["device"] = layout.HOST_DEVICE
            record["peer_or_root"] = 0 if row.kind is Kind.STEP else layout.NO_PEER
            if row.kind in _COUNTED:
                record["dtype"], record["reduce_op"] = DType.BFLOAT16, ReduceOp.SUM
            self._templates[key] = record.view(np.uint64)
        return self._templates[key]

    def flush(self) -> None:
        """Hand on the steps collected so far."""
        if not self._steps:
            return
        self._used = self._whole
        summaries = np.zeros((self._ranks, self._steps), SUMMARY)  # what pads a summary is written
        for index, each in enumerate(self._summaries[: self._steps]):
            summaries[:, index] = each
        self._sink(self._which, self._buffer[:, : self._used], summaries)
        self._written += self._used
        self._used = self._whole = self._steps = 0
        self._summaries = []


def extra_records(extras: list[Extra], written: Array) -> dict[int, Array]:
    """Records of single ranks, numbered after the `written` ones of each rank."""
    by_rank: dict[int, list[Extra]] = {}
    for extra in extras:
        by_rank.setdefault(extra.rank, []).append(extra)
    found = {rank: np.zeros(len(items), RECORD) for rank, items in by_rank.items()}
    for rank, records in found.items():
        items = by_rank[rank]
        records["seq"] = int(written[rank]) + 1 + np.arange(len(items))
        for name in ("kind", "op", "step", "held_ns", "name", "flags"):
            records[name] = [getattr(item, name) for item in items]
        for name in ("enter_ns", "exit_ns"):
            records[name] = [round(getattr(item, name)) + START_NS for item in items]
        records["device"], records["peer_or_root"] = layout.HOST_DEVICE, layout.NO_PEER
    return found


def _stamp(time_ns: Array) -> Array:
    return (time_ns + (START_NS + 0.5)).astype(np.uint64)


def _summary(number: int, rows: list[RecordRow], ranks: int) -> Array:
    """The step's summary on every rank."""
    found = np.zeros(ranks, SUMMARY)
    step = rows[0]
    length = np.rint(step.exit_ns - step.enter_ns)
    found["seq"], found["first_step"], found["last_step"] = number + 1, number, number
    found["count"] = 1
    found["start_ns"], found["end_ns"] = _stamp(step.enter_ns), _stamp(step.exit_ns)
    found["realtime_ns"] = found["end_ns"]
    for name in ("step_sum_ns", "step_min_ns", "step_max_ns"):
        found[name] = length
    found["step_square_sum"] = (length * 1e-9) ** 2
    found["cpu_ns"], found["samples"] = step.group_seq, step.payload
    found["held_ns"] = step.held_ns
    for row in rows[1:]:
        if row.kind is Kind.PHASE:
            found["phase_ns"][:, row.op] += np.rint(row.group_seq).astype(np.uint64)
        elif row.kind is Kind.COLLECTIVE:
            found["collectives"] += 1
            found["bytes"] += row.bytes
    bins = np.log2(np.maximum(length, 1.0) / summary.SKETCH_FLOOR_NS) * summary.SKETCH_PER_OCTAVE
    place = np.clip(bins, 0, summary.SKETCH_BINS - 1).astype(np.int64)
    found["sketch"][np.arange(ranks), place] = 1
    return found


# -- rows of a step -------------------------------------------------------------------------------


class StepRows:
    """Turns the steps of one role of a job into rows of records."""

    def __init__(
        self, number: int, ranks: Array, partitions: tuple[tuple[str, Array], ...], samples: int
    ) -> None:
        self._number, self._ranks, self._samples = number, ranks, samples
        groups = {_key(members): index for index, (_, members) in enumerate(partitions, 1)}
        self._partitions = partitions
        #: Number of a flow's partition, in whatever order its ring has the members.
        self._group = cache(lambda flow: groups.get(_key(flow.members), 1))

    def rows(self, done: FinishedStep, work: Array) -> list[RecordRow]:
        """Rows of the step itself, then of everything in it."""
        mine = self._ranks
        role = done.graph.roles[self._number]
        begin, over = done.begin[mine], done.over[mine]
        found = [
            RecordRow(
                Kind.STEP, 0, begin, over, group_seq=np.rint(np.maximum(work[mine], 0.0)),
                held_ns=done.held[mine], payload=self._samples,
            )
        ]  # fmt: skip
        main: dict[int, Any] = {index: timed for index, *timed in done.main(self._number)}
        for index, one in enumerate(role.operations):
            if index in role.spans:
                phase, last = role.spans[index]
                inside = [main[at] for at in range(index, last) if at in main]
                found.append(self._phase(done, phase, inside))
            if one.instance >= 0:
                found += self._exchanged(done, one, index)
            elif one.phase is Phase.SYNC:
                _, reached, end = main[index]
                found.append(_phase_row(Phase.SYNC, reached, end, end - reached))
        return found

    def _phase(self, done: FinishedStep, phase: Phase, inside: list[Any]) -> RecordRow:
        """The row of a phase, with the part of it that was work."""
        leaf = np.zeros(len(self._ranks))
        for one, reached, end in inside:
            works = one.kind in (COMPUTE, SLOWED) and one.phase is phase
            if works or done.graph.reads(one):
                leaf = leaf + end - reached
        return _phase_row(phase, inside[0][1], inside[-1][2], leaf)

    def _exchanged(self, done: FinishedStep, one: Operation, index: int) -> list[RecordRow]:
        flow, mine = done.graph.flows[one.instance], self._ranks
        if flow.operation == "read" or (flow.operation == "barrier" and one.stream == MAIN):
            return []
        enter = done.enter[index, mine]
        end = np.maximum(done.end[index, mine], enter)
        blocks = one.receives or (flow.operation != "send" and one.stream == MAIN)
        flags = int(Flag.HOST_BLOCKED if blocks else Flag.ASYNC)
        if flow.operation == "send":
            ends = flow.members[:, ::-1] if one.receives else flow.members
            peer = np.full(len(done.begin), -1)
            peer[ends[:, 0]] = ends[:, 1]
            group = [name for name, _ in self._partitions].index("pipeline") + 1
            return [RecordRow(
                Kind.POINT_TO_POINT, int(Op.RECV if one.receives else Op.SEND), enter, end,
                bytes=int(flow.bytes), group=group, flags=flags, peer=peer[mine],
            )]  # fmt: skip
        alone = flow.apart or flow.spared  # it does not synchronize its group
        more = np.zeros(len(done.begin), np.int64)
        more[flow.members[:, 0]] = int(flow.imbalance * flow.bytes)
        return [RecordRow(
            Kind.COLLECTIVE, int(Op.OTHER if alone else OPERATIONS[flow.operation]), enter, end,
            bytes=int(flow.bytes), more=more[mine] if flow.imbalance else None,
            parts=flow.members.shape[1], group=self._group(flow), flags=flags,
        )]  # fmt: skip


def _key(members: Array) -> tuple[object, ...]:
    return members.shape, np.sort(members, axis=1).tobytes()


def pauses(done: FinishedStep) -> list[Extra]:
    """Records of garbage collections."""
    pause = done.disturbance.pause_ns
    if pause is None:
        return []
    start = done.begin + done.held
    return [
        Extra(rank, Kind.PAUSE, 2, float(start[rank]), float((start + pause)[rank]), done.number)
        for rank in np.flatnonzero(pause).tolist()
    ]


def _phase_row(phase: Phase, enter_ns: Array, exit_ns: Array, leaf_ns: Array) -> RecordRow:
    """A phase with its leaf time."""
    return RecordRow(Kind.PHASE, int(phase), enter_ns, exit_ns, np.maximum(leaf_ns, 0.0))
