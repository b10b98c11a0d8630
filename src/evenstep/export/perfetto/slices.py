"""Slices, flows and instants of a Perfetto trace as columns; times are ns on the common clock.

The tracks of a rank are steps with phases, collectives with wait and transfer (a lane for each one
in flight), messages, spans, and pauses. Overlapping slices need several lanes. An arrow leads from
the awaited rank to each waiting rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from evenstep import words
from evenstep.diagnose.measure.transfers import arrivals
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.trace import Trace

Thing = TypeVar("Thing")
NOTHING: Mapping[str, Array] = MappingProxyType({})

MOST_LANES = 16  # slices that overlap more others go to lanes below
SEEN_NS = 1_000  # shorter waits get no arrow
TRACKS = ("steps", "collectives", "messages", "spans", "pauses", "pacing", "findings")
SHOWN = (
    *(Kind.STEP, Kind.PHASE, Kind.COLLECTIVE, Kind.POINT_TO_POINT),
    *(Kind.SPAN, Kind.PAUSE, Kind.PACING),
)


@dataclass(slots=True)
class Numbered(Generic[Thing]):
    """Distinct things (strings, tracks), numbered in order of their first use."""

    first: int = 1
    numbers: dict[Thing, int] = field(default_factory=dict)

    def __call__(self, thing: Thing) -> int:
        return self.numbers.setdefault(thing, self.first + len(self.numbers))

    def of(self, keys: Array, called: Callable[[int], Thing]) -> Array:
        """Return the numbers of the things of many keys; `called` is asked once for each key."""
        known, which = np.unique(keys, return_inverse=True)
        table = np.array([self(called(int(key))) for key in known], np.int64)
        return np.asarray(table[which.reshape(-1)]) if len(table) else np.zeros(0, np.int64)


@dataclass(slots=True, frozen=True)
class Slices:
    """Slices with the same kinds of values, all (n,); `end_ns` is 0 for an open slice. `flow_out`
    (n, k) and `flow_in` (n, 1) number the outgoing and incoming arrows."""

    track: str
    category: str
    rank: Array
    lane: Array
    depth: Array
    start_ns: Array
    end_ns: Array
    name: Array
    values: dict[str, Array]
    flow_out: Array | None = None
    flow_in: Array | None = None
    instant: bool = False


def slices(trace: Trace, clocks: Clocks, names: Numbered[str]) -> list[Slices]:
    spans, pauses = (_nest(_placed(trace, clocks, kind)) for kind in (Kind.SPAN, Kind.PAUSE))
    found = [
        *_steps(trace, clocks, names),
        *_collectives(trace, clocks, names),
        _messages(trace, clocks, names),
        _draw("spans", "span", spans, names.of(spans.name, lambda at: trace.names[at] or "span")),
        _draw("pauses", "pause", pauses, names.of(pauses.op, "garbage collection {}".format)),
        _pacing(trace, clocks, names),
    ]
    return [one for one in found if len(one.rank)]


def _placed(trace: Trace, clocks: Clocks, *kinds: Kind) -> Columns:
    """Records with start_ns and end_ns on the common clock; an open end stays 0."""
    rows = trace.of_kind(*kinds)
    start, end = clocks.placed(rows)
    end = np.where(rows.exit_ns > 0, np.maximum(end, start + 1), 0)
    return rows.with_columns(start_ns=start, end_ns=end)


def _close(rows: Columns) -> Array:
    """Return ends for the layout: open slices last until the end of the trace."""
    last = max(int(rows.end_ns.max(initial=0)), int(rows.start_ns.max(initial=0))) + 1
    return np.where(rows.end_ns > 0, rows.end_ns, last)


def _nest(rows: Columns) -> Columns:
    """Sort rows and add their depth; rows that overlap without nesting get other lanes."""
    order = np.lexsort([-_close(rows), rows.start_ns, rows["rank"]])
    rows = rows.select(order)
    start, end = side_by_side(rows["rank"], rows.start_ns, _close(rows))
    depth = levels(start, end)
    crossing = depth < 0
    lane = np.zeros(len(rows), np.int64)
    lane[crossing] = 1 + lanes(start[crossing], end[crossing])
    return rows.with_columns(depth=np.maximum(depth, 0), lane=lane)


def _spread_lanes(rows: Columns) -> Columns:
    """Sort rows and add a lane for each of those in flight together."""
    rows = rows.select(np.lexsort([rows.start_ns, rows["rank"]]))
    start, end = side_by_side(rows["rank"], rows.start_ns, _close(rows))
    return rows.with_columns(depth=np.zeros(len(rows), np.int64), lane=lanes(start, end))


def _draw(
    track: str,
    category: str,
    rows: Columns,
    name: Array,
    values: Mapping[str, Array] = NOTHING,
    **more: Any,
) -> Slices:
    """Slices of placed rows, with their step and these values, and `more` of their fields."""
    return Slices(
        track, category, rows["rank"], rows.lane, rows.depth, rows.start_ns, rows.end_ns, name,
        {"step": rows.step, **values}, **more,
    )  # fmt: skip


def _steps(trace: Trace, clocks: Clocks, names: Numbered[str]) -> list[Slices]:
    rows = _nest(_placed(trace, clocks, Kind.STEP, Kind.PHASE))
    is_step = rows.kind == int(Kind.STEP)
    steps, phases = rows.select(is_step), rows.select(~is_step)
    called = names.of(phases.op, lambda op: _member(Phase, op))
    return [
        _draw("steps", "step", steps, names.of(steps.step, lambda step: f"step {step}")),
        _draw("steps", "phase", phases, called, {"leaf_ns": phases.group_seq}),
    ]


def _member(kinds: Any, value: int) -> str:
    """Return the lower-case name of a phase or operation."""
    known = value in kinds._value2member_map_
    return str(kinds(value).name).lower() if known else f"{kinds.__name__.lower()} {value}"


def _pacing(trace: Trace, clocks: Clocks, names: Numbered[str]) -> Slices:
    """Return pacing decisions as instants, named by their reason."""
    rows = _placed(trace, clocks, Kind.PACING)
    zero = np.zeros(len(rows), np.int64)
    name = names.of(rows.name, lambda index: trace.names[index] or "pacing")
    held, rows = {"held_ns": np.maximum(rows.held_ns, 0)}, rows.with_columns(lane=zero, depth=zero)
    return _draw("pacing", "pacing", rows, name, held, instant=True)


# -- communication ---------------------------------------------------------------------------------


def _messages(trace: Trace, clocks: Clocks, names: Numbered[str]) -> Slices:
    rows = _spread_lanes(_placed(trace, clocks, Kind.POINT_TO_POINT))
    name = names.of(rows.op, lambda op: _member(Op, op))
    size, peer = np.maximum(rows.bytes_in, rows.bytes_out), np.maximum(rows.peer_or_root, 0)
    return _draw("messages", "message", rows, name, {"bytes": size, "peer": peer})


def _collectives(trace: Trace, clocks: Clocks, names: Numbered[str]) -> list[Slices]:
    """Return collectives with wait and transfer, and arrows from the awaited rank."""
    rows = _placed(trace, clocks, Kind.COLLECTIVE)
    if not len(rows):
        return []
    rows = _spread_lanes(_match(trace, rows, clocks))
    kind = rows.op.astype(np.int64) << 48 | np.minimum(rows.size, (1 << 48) - 1)
    name = names.of(kind, lambda key: f"{_member(Op, key >> 48)} {words.size(key & (1 << 48) - 1)}")
    group = np.array([names(each.name or each.uid) for each in trace.groups] or [0])
    values = {
        "bytes": rows.size,
        "sequence": rows.group_seq,
        "wait_ns": np.maximum(rows.wait_ns, 0),
        "group": np.where(rows.group >= 0, group[np.maximum(rows.group, 0)], names("none")),
    }
    groups, into = arrows(rows)
    whole = [
        _draw("collectives", "collective", rows.select(mask), name[mask],
              {key: value[mask] for key, value in values.items()}, flow_out=out)
        for mask, out in groups
    ]  # fmt: skip
    return [*whole, *_inside(rows, into, names)]


def _match(trace: Trace, rows: Columns, clocks: Clocks) -> Columns:
    """Add size, wait_ns (-1 unknown), instance (-1 none), and whether the row is `awaited`.

    The awaited rank is the last to enter, or the root whose data the others need. Matched
    collectives get the start and end that the diagnosis uses, on device or host.
    """
    size = np.maximum(rows.bytes_in, rows.bytes_out).astype(np.int64)
    rows = rows.with_columns(seq=np.arange(len(rows)), size=size)
    table = arrivals(replace(trace, events=rows), clocks)
    wait, instance = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    awaited = np.zeros(len(rows), bool)
    start, end = rows.start_ns.copy(), rows.end_ns.copy()
    if len(table):
        at = table.seq
        whole = np.array([all(rank in trace.ranks for rank in one.ranks) for one in trace.groups])
        wait[at] = np.where(whole[table.group], table.wait_ns, -1)
        comparable = ~table.relative & whole[table.group]
        instance[at] = np.where(comparable, table.operation, -1)
        awaited[at] = table.awaited
        start[at], end[at] = table.here_ns, table.here_ns + np.maximum(table.took_ns, 1)
    return rows.with_columns(
        wait_ns=wait, instance=instance, awaited=awaited, start_ns=start, end_ns=end
    )


def _inside(rows: Columns, into: Array, names: Numbered[str]) -> list[Slices]:
    """Return the wait until the last rank has entered, and the transfer after it."""
    ended = np.where(rows.end_ns > 0, rows.end_ns, 2**62)
    until = np.minimum(rows.start_ns + np.maximum(rows.wait_ns, 0), ended)
    waited = (rows.wait_ns > 0) & (until > rows.start_ns)
    moving = (rows.wait_ns >= 0) & (until < ended)
    deeper = rows.with_column("depth", rows.depth + 1)
    waits = deeper.with_column("end_ns", until).select(waited)
    moves = deeper.with_column("start_ns", until).select(moving)
    found = [_draw("collectives", "wait", waits, np.full(len(waits), names("wait")))]
    into = into[moving]
    for mask, arrives in ((into > 0, True), (into == 0, False)):
        name = np.full(np.count_nonzero(mask), names("transfer"))
        came = into[mask][:, None] if arrives else None
        found.append(_draw("collectives", "transfer", moves.select(mask), name, flow_in=came))
    return found


def lanes(start: Array, end: Array) -> Array:
    """Assign lanes so that intervals of a lane do not overlap; starts must ascend. If at most K
    start before any of them ends, lane i mod K is free for interval i."""
    count = len(start)
    if not count:
        return np.zeros(0, np.int64)
    index = np.arange(count)
    begun = np.maximum(np.searchsorted(start, end, side="left") - index, 1)
    long = begun > MOST_LANES
    if not long.any() or long.all():
        return np.asarray(index % int(begun.max()))
    found = np.empty(count, np.int64)
    found[~long] = lanes(start[~long], end[~long])
    found[long] = lanes(start[long], end[long]) + found[~long].max() + 1
    return found


def levels(start: Array, end: Array) -> Array:
    """Return the nesting depth of each interval (-1: overlaps another without nesting). They must
    be sorted by start, longer ones first."""
    found = np.full(len(start), -1, np.int64)
    pending, level = np.arange(len(start)), 0
    while len(pending):
        begins, ends = start[pending], end[pending]
        reach = np.maximum.accumulate(ends)
        outer = np.concatenate([[True], begins[1:] >= reach[:-1]])
        around = np.flatnonzero(outer)[np.cumsum(outer) - 1]
        found[pending[outer]] = level
        inside = ~outer & (ends <= ends[around]) & (begins < ends[around])
        pending, level = pending[inside], level + 1
    return found


def side_by_side(rank: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Shift the intervals of all ranks onto one time axis, rank after rank."""
    low = int(start.min(initial=0))
    width = int(end.max(initial=0)) - low + 1
    place = np.unique(rank, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return start - low + place * width, end - low + place * width


def arrows(rows: Columns) -> tuple[list[tuple[Array, Array | None]], Array]:
    """Arrows from the awaited rank to every rank that waited for it: masks of rows with equally
    many outgoing arrows, with these; and the incoming arrow of each row, 0 if none."""
    order = np.lexsort([~rows.awaited, rows.instance])
    instance, source_row = rows.instance[order], rows.awaited[order]
    head = np.flatnonzero(source_row & (instance >= 0) & (np.diff(instance, prepend=-2) != 0))
    source = np.full(int(instance.max(initial=-1)) + 2, -1, np.int64)
    source[instance[head]] = order[head]
    of = source[rows.instance]
    waited = (rows.wait_ns >= SEEN_NS) & (rows.instance >= 0) & (of >= 0) & ~rows.awaited
    begins = rows.start_ns + rows.wait_ns
    waited &= (begins >= rows.start_ns[of]) & ((rows.end_ns == 0) | (begins < rows.end_ns))
    into = np.zeros(len(rows), np.int64)
    into[waited] = 1 + np.arange(np.count_nonzero(waited))
    count = np.bincount(of[waited], minlength=len(rows))
    targets = np.flatnonzero(waited)[np.argsort(of[waited], kind="stable")]
    first = np.cumsum(count) - count
    groups: list[tuple[Array, Array | None]] = []
    for size in np.unique(count):
        mask = count == size
        begun = first[mask][:, None] + np.arange(size)
        groups.append((mask, into[targets[begun]] if size else None))
    return groups, into
