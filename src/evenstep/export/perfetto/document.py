"""A trace in Perfetto's native format, TrackEvent, for ui.perfetto.dev.

Ranks are processes; their tracks are steps with phases, collectives with wait and transfer inside
(all waits have one name, and so one colour), messages, spans and pauses. Arrows lead from the last
rank to enter a collective to the waiting ranks; pacing decisions and findings are instants. Field
numbers are those of protos/perfetto/trace/perfetto_trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.errors import UsageError
from evenstep.export.perfetto import wire
from evenstep.export.perfetto.slices import SHOWN, TRACKS, Numbered, Slices, slices
from evenstep.trace.clocks.clocks import Clocks, align, sharpen
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Trace

MOST_RECORDS = 3_000_000  # in one file; of longer traces only the latest steps are written
BEGIN, END, INSTANT = 1, 2, 3  # TrackEvent.Type
CLEARED, NEEDED = b"\x68\x01", b"\x68\x02"  # TracePacket.sequence_flags
SEQUENCE = b"\x50\x01"  # TracePacket.trusted_packet_sequence_id
GROUPS_TRACK, FIRST_TRACK = 1 << 20, (1 << 20) + 1  # below: processes
EXPLICIT = 3  # TrackDescriptor.child_ordering
TEXT_VALUES = frozenset({"group"})  # values that are indexes of strings


Tracks = Numbered[tuple[int, str, int]]  # rank, name and lane


def encode(
    trace: Trace, diagnosis: Diagnosis, *, steps: tuple[int, int] | None = None
) -> tuple[bytes, str]:
    """Return the file, and a description of the part of the run it contains ("" for all). `steps`
    are the first and the last step to write. Raises `UsageError` if the run has none of them."""
    clocks = sharpen(trace, align(trace))
    shown, partial = _excerpt(trace, steps)
    names, tracks = Numbered[str](), Tracks(FIRST_TRACK)
    drawn = slices(shown, clocks, names)
    categories = list(dict.fromkeys(one.category for one in drawn))
    values = sorted({name for one in drawn for name in one.values})
    body = _events(drawn, tracks, categories, values)
    start = _first_times(shown, clocks)
    found = b"".join(_finding(item, start, tracks) for item in diagnosis.findings)
    head = _intern(names, categories, values)
    described = b"".join(_processes(shown, clocks)) + b"".join(_descriptors(tracks))
    return head + described + body + found, partial


def _steps_of(trace: Trace) -> Array:
    return np.unique(trace.of_kind(Kind.STEP).step).astype(np.int64)


def held_steps(trace: Trace, steps: tuple[int, int]) -> tuple[int, int]:
    """The first and the last of these steps that a run has. Raises `UsageError` if it has none."""
    numbers = _steps_of(trace)
    held = numbers[(numbers >= steps[0]) & (numbers <= steps[1])]
    if not len(held):
        has = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) else "no steps at all"
        raise UsageError(f"no step is within {steps[0]} to {steps[1]}: the run has {has}")
    return int(held[0]), int(held[-1])


def _excerpt(trace: Trace, steps: tuple[int, int] | None) -> tuple[Trace, str]:
    if steps is None and len(trace.events) <= MOST_RECORDS:
        return trace, ""
    numbers = _steps_of(trace)
    if steps is None:
        room = max(1, int(MOST_RECORDS // max(trace.table.per_step(), 1)))
        steps = (int(numbers[-room:][0]), int(numbers[-1])) if len(numbers) else (0, 0)
    else:
        steps = held_steps(trace, steps)
    wanted = dict.fromkeys((*SHOWN, Kind.SAMPLE, Kind.MARKER), EVENT_COLUMNS[1:])
    most = (int(numbers[0]), int(numbers[-1])) if len(numbers) else steps
    words = "steps {} to {} of {} to {}".format(*steps, *most) if steps != most else ""
    return trace.window(steps[0], steps[1] + 1, wanted), words


# -- events ----------------------------------------------------------------------------------------


def _events(
    drawn: Sequence[Slices], tracks: Tracks, categories: list[str], values: list[str]
) -> bytes:
    """Encode begins, ends and instants in order of time; at equal times ends come first."""
    tables, times, ties = [], [], []
    for one in drawn:
        track = _tracks_of(one, tracks)
        tables.append(_begin(one, track, 1 + categories.index(one.category), values))
        times.append(one.start_ns)
        ties.append(1000 + one.depth)
        if not one.instant:
            over = one.end_ns > 0
            head = wire.number(9, END) + wire.tag(11, wire.VARINT)  # the innermost of the track
            ends = wire.rows(int(over.sum()), [head, wire.narrow(track[over])])
            tables.append(_packets(one.end_ns[over], ends))
            times.append(one.end_ns[over])
            ties.append(-one.depth[over])
    if not tables:
        return b""
    order = np.lexsort([np.concatenate(ties), np.concatenate(times)])
    return wire.interleave(tables, order).tobytes()


def _tracks_of(one: Slices, tracks: Tracks) -> Array:
    lanes = int(one.lane.max(initial=0)) + 1
    key = one.rank.astype(np.int64) * lanes + one.lane
    return tracks.of(key, lambda place: (place // lanes, one.track, place % lanes))


def _begin(one: Slices, track: Array, category: int, values: list[str]) -> Array:
    """Encode packets that begin slices, or instants."""
    count = len(track)
    kind = INSTANT if one.instant else BEGIN
    parts: list[bytes | Array] = [
        wire.number(9, kind) + wire.number(3, category) + wire.tag(11, wire.VARINT),
        wire.narrow(track),
        wire.tag(10, wire.VARINT),
        wire.narrow(one.name),
    ]
    for name, column in one.values.items():
        as_text = name in TEXT_VALUES
        table = wire.narrow(column)
        lead = wire.number(1, 1 + values.index(name)) + wire.tag(17 if as_text else 3, wire.VARINT)
        head = wire.tag(4, wire.LENGTH) + wire.varint(len(lead) + table.shape[1]) + lead
        parts += [head, table]
    for number, flows in ((47, one.flow_out), (48, one.flow_in)):
        for place in range(0 if flows is None else flows.shape[1]):
            assert flows is not None
            parts += [wire.tag(number, wire.FIXED64), wire.fixed64(flows[:, place])]
    return _packets(one.start_ns, wire.rows(count, parts))


def _packets(times: Array, events: Array) -> Array:
    """Wrap events with their times in packets of the trace."""
    parts: list[bytes | Array] = [
        wire.tag(8, wire.VARINT),
        wire.varints(np.maximum(times, 0), wire.TIME_BYTES),
        SEQUENCE + NEEDED,
        wire.wrap(11, events),
    ]
    return wire.wrap(1, wire.rows(len(events), parts))


# -- descriptors -----------------------------------------------------------------------------------


def _intern(names: Numbered[str], categories: Sequence[str], values: Sequence[str]) -> bytes:
    """Encode the first packet: the interned strings of all events."""
    tables: dict[int, Iterable[str]] = {1: categories, 2: names.numbers, 3: values}
    entries = [
        wire.message(number, wire.number(1, at), wire.text(2, name))
        for number, strings in (tables | {29: names.numbers}).items()
        for at, name in enumerate(strings, start=1)
    ]
    return wire.message(1, SEQUENCE + CLEARED + wire.number(87, 1), wire.message(12, *entries))


def _processes(trace: Trace, clocks: Clocks) -> list[bytes]:
    """Encode a process for every rank, and a track for findings of the whole run."""
    found = [_descriptor(wire.number(1, GROUPS_TRACK), wire.text(2, "findings"))]
    for rank, info in sorted(trace.ranks.items()):
        name = f"rank {rank}" + (f" ({info.node})" if info.node else "")
        if rank in clocks.unplaced:
            name += ", clock not aligned"
        process = wire.number(1, rank + 1) + wire.text(6, name)
        order = wire.number(11, EXPLICIT)
        found.append(_descriptor(wire.number(1, rank + 1), wire.message(3, process), order))
    return found


def _descriptors(tracks: Tracks) -> list[bytes]:
    found = []
    for (rank, track, lane), number in tracks.numbers.items():
        order = wire.number(12, 100 * TRACKS.index(track) + min(lane, 99))
        own = wire.number(1, number), wire.number(5, rank + 1)
        found.append(_descriptor(*own, wire.text(2, track), order))
    return found


def _descriptor(*fields: bytes) -> bytes:
    return wire.message(1, SEQUENCE, wire.message(60, *fields))


# -- findings --------------------------------------------------------------------------------------


def _first_times(trace: Trace, clocks: Clocks) -> dict[int, int]:
    rows = trace.of_kind(Kind.STEP)
    if not len(rows):
        return {}
    start = clocks.common(rows["rank"], rows.enter_ns)
    order = np.lexsort([start, rows.step])
    first = np.flatnonzero(np.diff(rows.step[order].astype(np.int64), prepend=-1))
    return dict(zip(rows.step[order][first].tolist(), start[order][first].tolist(), strict=True))


def _finding(finding: Finding, start: dict[int, int], tracks: Tracks) -> bytes:
    """Encode an instant at the first step of a finding, on the tracks of culprits or the run."""
    if not start:
        return b""
    since = finding.when.steps[0][0] if finding.when.steps else min(start)
    time = start.get(since) or start[min(start, key=lambda step: abs(step - since))]
    where = [tracks((int(rank), "findings", 0)) for rank in finding.where.ranks] or [GROUPS_TRACK]
    texts = {"observation": finding.observation, "cause": finding.cause, "layer": finding.layer}
    texts["remedy"] = finding.options[0].action if finding.options else ""
    notes = [wire.message(4, wire.text(10, key), wire.text(6, t)) for key, t in texts.items()]
    notes.append(wire.message(4, wire.text(10, "severity"), wire.real(5, finding.severity)))
    kind = wire.number(9, INSTANT) + wire.text(22, "finding")
    head = wire.number(8, max(time, 0)) + SEQUENCE + NEEDED
    told = (wire.text(23, finding.mode), *notes)
    events = (wire.message(11, kind, wire.number(11, at), *told) for at in where)
    return b"".join(wire.message(1, head, event) for event in events)
