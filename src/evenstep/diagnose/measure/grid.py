"""The step grid: what each rank did in each step, as dense arrays that every finding reads.

Only steps that every traced rank finished are in the grid. Own work, time blocked and waits come
from the run's graph, for host threads and device streams alike. A run too large for memory is read
in stretches of steps, and its graph is that of a sample of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose.graph.build import BUSY, graph, of_hosts
from evenstep.diagnose.graph.entries import on_device
from evenstep.diagnose.graph.peers import peers
from evenstep.diagnose.graph.structure import (
    Graph,
    Intervals,
    TimeLine,
    begun_ns,
    by_step_and_lane,
    issued_behind,
    issued_in,
    overlap,
    times,
    union_length,
)
from evenstep.statistics.interval import BLOCK_STEPS
from evenstep.trace.clocks.clocks import Clocks, align, sharpen
from evenstep.trace.columns import Array, Columns, key_numbers, medians_of, running_maximum
from evenstep.trace.cores import map_on_cores
from evenstep.trace.spool.layout import Flag, Kind, Phase
from evenstep.trace.spooled import OnDisk
from evenstep.trace.spools import LARGE_RECORDS
from evenstep.trace.trace import COMPUTE, ByKind, Trace

WARM_UP_STEPS = 3  # the most that are left out as such
STEADY_STEPS = 4  # later ones for each of them, at least
FEWEST_STEPS = STEADY_STEPS * WARM_UP_STEPS  # that tell how long steps take in the long run
WINDOW_RECORDS = LARGE_RECORDS  # of a run that is read as a whole; a larger one is read in pieces
_SAMPLE_RECORDS = WINDOW_RECORDS // 2  # of a larger run that are kept in memory

_CELLS = (
    *("start_ns", "end_ns", "held_ns", "work_ns", "blocked_ns", "wait_ns", "hidden_ns", "cpu_ns"),
    *("pause_ns", "stood_ns", "switches", "run_delay_ns", "samples", "collectives", "device_ns"),
)


@dataclass  # no slots: a property is cached in its dictionary
class StepGrid:
    """Arrays are (steps, ranks), ns, unless said otherwise; rows and columns ascend."""

    steps: Array  # (steps,) numbers
    ranks: Array  # (ranks,)
    start_ns: Array  # on the common time
    end_ns: Array
    phase_ns: dict[Phase, Array]  # leaf times
    held_ns: Array  # pacing delay
    work_ns: Array  # own work: neither blocked nor held
    blocked_ns: Array  # blocked in communication
    wait_ns: Array  # of that, waiting for other ranks
    hidden_ns: Array  # transfer hidden by compute
    pause_ns: Array  # garbage collection
    stood_ns: Array  # own time in which the process was stopped
    cpu_ns: Array  # of the process
    switches: Array  # involuntary context switches
    run_delay_ns: Array  # the training thread was ready but had no core
    samples: Array
    collectives: Array
    device_ns: Array  # compute of the rank's device, where recorded
    clocks: Clocks
    records: Trace  # in memory, of the `sampled` steps at least
    graph: Graph  # of the sampled steps
    limits: list[str] = field(default_factory=list)
    unseen: bool = False  # what its hosts issue ran on devices of which there are no times
    sampled: Array = field(default_factory=lambda: np.zeros(0, bool))  # (steps,): in the graph

    @property
    def duration_ns(self) -> Array:
        """Length of each step on each rank."""
        return self.end_ns - self.start_ns

    @cached_property
    def step_ns(self) -> Array:
        """Length of each step of the job: the median over ranks; the first one since half of them
        had begun. Shape (steps,)."""
        if not self.start_ns.size:
            return np.zeros(len(self.steps))
        lanes, ahead = np.arange(len(self.ranks)), self.graph.ahead  # clocks may be apart
        start, end = (ahead.placed(lanes, times[0]) for times in (self.start_ns, self.end_ns))
        first = np.median(end) - begun_ns(start)
        return np.append(first, np.median(self.duration_ns[1:], axis=1))

    @property
    def total_ns(self) -> float:
        return float(self.step_ns.sum())

    @property
    def issuing(self) -> Array:
        """Whether each rank's host only issues what a device with a clock of its own does."""
        return self.graph.device & ~np.isin(self.ranks, self.records.host_clock_ranks)

    def cell(self, rows: Columns) -> tuple[Array, Array]:
        """Index of each row's cell, by step and rank, and a mask of the rows that have one."""
        at_step = np.searchsorted(self.steps, rows.step)
        at_step = np.minimum(at_step, max(len(self.steps) - 1, 0))
        at_rank = np.minimum(np.searchsorted(self.ranks, rows["rank"]), len(self.ranks) - 1)
        if not len(self.steps):
            return at_step, np.zeros(len(rows), bool)
        inside = (self.steps[at_step] == rows.step) & (self.ranks[at_rank] == rows["rank"])
        return at_step * len(self.ranks) + at_rank, inside

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, ranks)."""
        return len(self.steps), len(self.ranks)

    @property
    def computed_ns(self) -> Array:
        """Compute of each step and rank: of the device where recorded, else in the phases where
        forward and backward are in every step of a rank without streams; nan unknown."""
        known = (self.phase_ns[Phase.FORWARD] * self.phase_ns[Phase.BACKWARD] > 0).all(axis=0)
        known &= ~self.graph.device
        phases = sum(self.phase_ns[one] for one in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
        seen = self.device_ns.any(axis=0)
        return np.asarray(np.where(seen, self.device_ns, np.where(known, phases, np.nan)))

    def shaped(self, cells: Array) -> Array:
        """A per-cell array as (steps, ranks)."""
        return cells.reshape(self.shape)

    # -- large runs ----------------------------------------------------------------------------

    def from_sampled(self, values: Array) -> Array:
        """Values of the sampled steps, as values of all steps: those of the nearest sampled one."""
        steps = np.zeros((len(self.steps), *values.shape[1:]))
        steps[self.sampled] = values
        return self.spread(steps)

    def spread(self, per_step: Array) -> Array:
        """Values per step, those of steps not sampled replaced by the nearest sampled step's."""
        known = np.flatnonzero(self.sampled)
        if len(known) in (0, len(self.sampled)):
            return per_step
        middle = (known[1:] + known[:-1]) / 2
        return np.asarray(per_step[known[np.searchsorted(middle, np.arange(len(per_step)))]])


def step_grid(trace: Trace) -> StepGrid:
    """Build the grid; without a step that all ranks finished, a grid of no steps."""
    numbers, ranks = _common_steps(trace)
    numbers, cut = _accounted(trace, numbers)
    numbers, untimed, limits = _finished(trace, numbers)
    limits += cut
    unseen = len(untimed) > 0 and bool(np.isin(ranks, untimed).all())
    ranks = ranks if unseen else np.setdiff1d(ranks, untimed)
    pieces = _pieces(trace, len(numbers))
    if len(pieces) < 2:
        return replace(_grid_of(trace, numbers, ranks), limits=limits, unseen=unseen)
    sample, sampled = _sample(trace, numbers)
    grid = _grid_of(sample, numbers, ranks)
    grid.sampled, grid.limits, grid.unseen = sampled, limits, unseen
    parts = map_on_cores(lambda piece: _dense(trace, grid, numbers[slice(*piece)]), pieces)
    for name in _CELLS:  # popped: keeping the pieces would double the memory
        setattr(grid, name, np.concatenate([part.pop(name) for part in parts]))
    for phase in Phase:
        grid.phase_ns[phase] = np.concatenate([part.pop(phase) for part in parts])
    grid.limits.append(
        f"of {len(numbers)} steps, the collectives of {np.count_nonzero(sampled)} were compared "
        "with one another in full; waits and delays are those of all steps"
    )
    return grid


def _grid_of(trace: Trace, numbers: Array, ranks: Array, clocks: Clocks | None = None) -> StepGrid:
    """The grid of these steps and ranks, from a trace with their records in memory."""
    steps = trace.of_kind(Kind.STEP)
    present = np.isin(numbers, steps.step)
    if clocks is None:
        clocks = sharpen(trace, align(trace))
        ranks = _comparable(trace, clocks, ranks)
    shape = (len(numbers), len(ranks))
    cells: dict[str, Any] = {name: np.zeros(shape, np.int64) for name in _CELLS}
    grid = StepGrid(
        steps=numbers, ranks=ranks, phase_ns={phase: np.zeros(shape, np.int64) for phase in Phase},
        clocks=clocks, records=trace, graph=graph(trace, clocks, numbers[present], ranks),
        sampled=np.ones(len(numbers), bool), **cells,
    )  # fmt: skip
    _fill_steps(grid, steps)
    _fill_phases(grid, trace)
    found = times(grid.graph)
    for name in ("blocked_ns", "wait_ns", "hidden_ns", "collectives"):
        getattr(grid, name)[present] = getattr(found, name)
    grid.work_ns[present] = np.maximum(found.work_ns - grid.held_ns[present], 0)
    stood = held_by(grid, trace.of_kind(Kind.STOP))
    grid.stood_ns[present] = by_step_and_lane(grid.graph, stood)
    _fill_own(grid, trace, present)
    _fill_devices(grid, trace)
    return grid


def _fill_devices(grid: StepGrid, trace: Trace) -> None:
    """Compute time of devices whose stamps are on the clock of the host."""
    if COMPUTE not in trace.names:
        return
    spans = trace.of_kind(Kind.SPAN)
    mine = (spans.name == trace.names.index(COMPUTE)) & (spans.device >= 0)
    mine &= ((spans.flags & int(Flag.ON_DEVICE)) != 0) & (spans.exit_ns > spans.enter_ns)
    spans = spans.select(mine & np.isin(spans["rank"], trace.host_clock_ranks))
    cell, inside = grid.cell(spans)
    spans, cell = spans.select(inside), cell[inside]
    base = grid.start_ns.reshape(-1)[cell]
    start, end = grid.clocks.placed(spans)
    length = union_length(Intervals(cell, start - base, end - base), grid.start_ns.size)
    grid.device_ns = grid.shaped(length)


#: Phases in which a host only issues what its device does, unless both read one clock and these are
#: phases of the device; in others the device has nothing to do, but for an evaluation's work.
_ISSUES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.SYNC)


def _fill_own(grid: StepGrid, trace: Trace, present: Array) -> None:
    """For device streams, own time of theirs in phases and pauses of the host; for hosts, what of
    phases that load, save or evaluate is no wait for other ranks."""
    streams = np.flatnonzero(grid.graph.device)
    for phase in (*BUSY, *_ISSUES) if len(streams) else BUSY:
        if not (len(streams) or grid.phase_ns[phase].any()):
            continue
        own = by_step_and_lane(grid.graph, in_phase(grid, phase))
        if phase not in _ISSUES:
            own = np.where(grid.graph.device, own, np.minimum(own, grid.phase_ns[phase][present]))
        lanes = np.flatnonzero(grid.issuing | (phase not in _ISSUES))
        grid.phase_ns[phase][np.ix_(present, lanes)] = own[:, lanes]
    if not len(streams):
        return
    paused = by_step_and_lane(grid.graph, held_by(grid, trace.of_kind(Kind.PAUSE)))
    grid.pause_ns[np.ix_(present, streams)] = paused[:, streams]


def in_phase(grid: StepGrid, phase: Phase) -> Array:
    """Own time of each row of the graph in a phase; of a device that its host runs ahead of, what
    was issued in that phase. Who evaluates or saves may first wait for work that its device has yet
    to do, which steps without have, too: of what lies in these, rows count in proportion to what
    all of their lane's together have more."""
    phases = grid.records.of_kind(Kind.PHASE)
    phases = phases.select((phases.op == int(phase)) & (phases.exit_ns > 0))
    lies = during(grid, phases)
    if phase in (Phase.EVALUATION, Phase.CHECKPOINT):
        lane, device = grid.graph.rows.lane, grid.graph.device
        more = np.where(lies > 0, _beyond_calm(grid.graph, lies), 0.0)
        more, whole = (np.bincount(lane, each, len(device)) for each in (more, lies))
        lies = lies * np.where(device, np.clip(more / np.maximum(whole, 1), 0, 1), 1.0)[lane]
    if phase not in (*_ISSUES, Phase.EVALUATION) or not grid.issuing.any():
        return lies
    rows, record = grid.graph.rows, phases["rank"].astype(np.int64) * 2**32
    record += phases.seq.astype(np.int64)
    entries = np.isin(grid.graph.ranks[rows.lane] * 2**32 + rows.inside, record) & (rows.inside > 0)
    issued = issued_in(grid.graph, entries)
    if phase is Phase.EVALUATION:  # its kernels may be all that comes before what gathers results
        issued = np.maximum(np.maximum(issued, lies), during(grid, phases, issued_behind))
    return np.where(grid.issuing[rows.lane], issued, lies)


def during(grid: StepGrid, rows: Columns, within: Callable[..., Array] = overlap) -> Array:
    """Own time of each row of the graph, or what else `within` gives, within these records."""
    return within(grid.graph, *of_hosts(rows, grid.clocks, grid.ranks, grid.graph.ahead))


def held_by(grid: StepGrid, stops: Columns) -> Array:
    """Own time of each row of the graph in which these records stop its host; of a device no more
    than the row is longer than others of its lane and place, as the device computes on."""
    held, graph = during(grid, stops), grid.graph
    longer = np.clip(_beyond_calm(graph, held), 0.0, held)
    return np.where(graph.device[graph.rows.lane], longer, held)


def _beyond_calm(graph: Graph, held: Array) -> Array:
    """How much longer each row of a device, ns, is than those of its lane and place in which
    nothing `held` it; all of it where it has no such peers."""
    more = graph.own_ns.astype(float)
    for part in peers(graph) if graph.device.any() and held.any() else ():
        there = part.there & graph.device[part.lanes][:, None]
        calm, own = there & (held[part.rows] <= 0), graph.own_ns[part.rows]
        place = np.broadcast_to(np.arange(own[0].size).reshape(own[0].shape), own.shape)
        usual = medians_of(own[calm], place[calm], own[0].size).reshape(own[0].shape)
        more[part.rows[there]] = (own - usual)[there]
    return more


def _common_steps(trace: Trace) -> tuple[Array, Array]:
    """Steps that all ranks with any step finished, and those ranks; without steps that start up,
    and without steps that a ring has begun to overwrite."""
    steps = trace.of_kind(Kind.STEP)
    present = np.unique(steps["rank"]).astype(np.int64)
    present = present[np.isin(present, list(trace.ranks))]
    numbers, counts = np.unique(steps.step, return_counts=True)
    numbers = numbers[counts >= max(len(present), 1)].astype(np.int64)
    if cut := [int(rank) for rank in present if trace.ranks[int(rank)].dropped]:
        oldest = trace.table.oldest_steps()
        numbers = numbers[numbers > max(oldest[rank] for rank in cut)]
    if not len(numbers) or numbers[0] >= WARM_UP_STEPS:
        return numbers, present
    stops, length = _stops(trace), _lengths(trace, steps, numbers)
    return numbers[warm_up_steps(length, lambda at: stops(int(numbers[at]))) :], present


def _lengths(trace: Trace, steps: Columns, numbers: Array) -> Array:
    """Length of these steps on the rank where each is shortest, ns, as all ranks start up; one that
    comes late does not. On a device, whose host runs ahead, from the end before it to its own, the
    first at least from its first entry and as long as on hosts."""
    mine = np.isin(steps.step, numbers)
    length = np.full(len(numbers), np.inf)
    at = np.searchsorted(numbers, steps.step[mine])
    np.minimum.at(length, at, (steps.exit_ns - steps.enter_ns)[mine])
    if isinstance(trace.events, OnDisk) and not trace.events.on_device:
        return length
    calls = trace.of_kind(Kind.COLLECTIVE)
    rank, timed = calls["rank"], (calls.device_exit_ns > 0) & np.isin(calls.step, numbers)
    calls = calls.select(timed & (rank == rank[timed].min(initial=2**31 - 1)))
    ended = np.zeros(len(numbers), np.int64)
    np.maximum.at(ended, np.searchsorted(numbers, calls.step), calls.device_exit_ns)
    begun = min(calls.device_enter_ns.min(initial=2**62), ended[0] - int(length[0]))
    seen = (ended > 0) & np.append(True, ended[:-1] > 0)
    return np.where(seen, np.diff(ended, prepend=begun), length)


def warm_up_steps(length_ns: Array, stops: Callable[[int], bool] | None = None) -> int:
    """How many of a run's first steps start up: allocation, autotuning, compilation, first touches.
    They took longer than all later ones, by more than those differ from each other; but for stops
    on record, and for what took twice as long again: that is something else."""
    stops = stops or (lambda _: False)
    for count in range(min(WARM_UP_STEPS, len(length_ns) // (1 + STEADY_STEPS)), 0, -1):
        first, later = length_ns[:count].min(), length_ns[count:]
        longer = later >= (first + later.min()) / 2
        alike = np.flatnonzero(longer & (later < 2 * first)) + count
        enough = np.count_nonzero(~longer) >= STEADY_STEPS * count
        if enough and not any(map(stops, range(count))) and all(map(stops, alike.tolist())):
            return count
    return 0


def _stops(trace: Trace) -> Callable[[int], bool]:
    """Whether any rank writes a checkpoint or evaluates in a step. Of a run too large to hold, the
    phases of the steps that are asked for are read."""
    stops = (int(Phase.CHECKPOINT), int(Phase.EVALUATION))
    if not isinstance(trace.events, OnDisk):
        phases = trace.of_kind(Kind.PHASE)
        return set(phases.step[np.isin(phases.op, stops)].tolist()).__contains__

    def has_one(step: int) -> bool:
        phases = trace.window(step, step + 1, {Kind.PHASE: ("op",)}).of_kind(Kind.PHASE)
        return bool(np.isin(phases.op, stops).any())

    return has_one


def _accounted(trace: Trace, numbers: Array) -> tuple[Array, list[str]]:
    """Steps without the last of ranks that were killed or still run, as they write phases, counters
    and summary of a step up to a second after it; and a sentence on them."""
    steps = trace.of_kind(Kind.STEP)
    marking = np.unique(steps["rank"][steps.flags & int(Flag.INFERRED) == 0]).tolist()
    killed = [each for each in marking if each in trace.ranks and not trace.ranks[each].closed]
    written = [trace.summaries["last_step"][trace.summary_rank == each] for each in killed]
    last = [each.astype(np.int64).max(initial=-1) for each in written]
    left = int((numbers > min(last)).sum()) if last and len(trace.summaries) else 0
    limit = f"last steps left out, whose phases were not written: {left}"
    return numbers[: len(numbers) - left], [limit] * (left > 0)


def _finished(trace: Trace, numbers: Array) -> tuple[Array, Array, list[str]]:
    """Steps without the last ones, which hosts have ended and devices have not: with a call that
    has no end, though calls alike have one, and no later one of its rank; ranks of whose devices
    there are no times; and sentences on them."""
    if isinstance(trace.events, OnDisk) and not trace.events.on_device:
        return numbers, numbers[:0], []
    calls = trace.of_kind(Kind.COLLECTIVE)
    calls = calls.select((calls.flags & int(Flag.ON_DEVICE)) != 0)
    rank, ended = calls["rank"], (calls.device_exit_ns > 0) | (calls.exit_ns > 0)
    last = np.zeros(int(rank.max(initial=0)) + 1, np.int64)
    np.maximum.at(last, rank[ended], calls.enter_ns[ended])
    alike = key_numbers(rank, calls.group, calls.op)  # some groups run no kernels: those of 1 rank
    flying = ~ended & np.isin(alike, alike[ended]) & (calls.enter_ns > last[rank])
    over = np.flatnonzero(~np.isin(numbers, calls.step[flying]))
    left = len(numbers) - 1 - int(over[-1]) if len(over) else 0
    limits = [f"last steps left out, which devices had not finished: {left}"] * (left > 0)
    untimed = np.setdiff1d(rank, timed := rank[calls.device_exit_ns > 0])
    if len(untimed):  # hosts are ahead of their devices, by nobody knows how much
        what = words.ranks(untimed.tolist()) if len(timed) else "all collectives"
        limits.append(f"left out, as their devices have no times: {what}")
    return numbers[: len(numbers) - left], untimed, limits


def _comparable(trace: Trace, clocks: Clocks, ranks: Array) -> Array:
    """The ranks without those whose waits nobody knows: that communicate, with no times of devices
    and on a clock that could not be aligned. Where that is all of them, those of the clock that
    most of them share."""
    moved = [trace.of_kind(kind) for kind in (Kind.COLLECTIVE, Kind.POINT_TO_POINT)]
    moving = np.concatenate([rows["rank"] for rows in moved])
    timed = np.concatenate([rows["rank"][on_device(rows)] for rows in moved])
    lost = np.setdiff1d(np.intersect1d(clocks.unplaced, moving), timed)
    known = np.setdiff1d(ranks, lost)
    if len(known) or not len(ranks):
        return known
    names = [trace.ranks[rank].clock for rank in ranks.tolist()]
    return ranks[[name == max(names, key=names.count) for name in names]]


def _fill_steps(grid: StepGrid, steps: Columns) -> None:
    cell, inside = grid.cell(steps)
    rows, cell = steps.select(inside), cell[inside]
    start, end = grid.clocks.placed(rows)
    columns = {
        "start_ns": start,
        "end_ns": end,
        "held_ns": rows.held_ns,
        "cpu_ns": rows.group_seq,
        "switches": rows.peer_or_root,
        "run_delay_ns": rows.parent.astype(np.int64) * 1000,
        "samples": rows.payload,
    }
    for name, values in columns.items():
        getattr(grid, name).reshape(-1)[cell] = values.astype(np.int64)


def _fill_phases(grid: StepGrid, trace: Trace) -> None:
    cells = grid.start_ns.size
    phases = trace.of_kind(Kind.PHASE)
    phases = phases.select((phases.exit_ns > 0) & ~_inside_evaluation(phases))
    cell, inside = grid.cell(phases)
    pauses = trace.of_kind(Kind.PAUSE)
    leaf_ns = np.maximum(phases.group_seq.astype(np.int64) - _stopped_ns(phases, pauses), 0)
    for phase in Phase:
        mine = inside & (phases.op == int(phase))
        leaf = np.bincount(cell[mine], weights=leaf_ns[mine], minlength=cells)
        grid.phase_ns[phase] = grid.shaped(leaf.astype(np.int64))
    cell, inside = grid.cell(pauses)
    length = (pauses.exit_ns - pauses.enter_ns)[inside]
    total = np.bincount(cell[inside], weights=length, minlength=cells).astype(np.int64)
    grid.pause_ns = grid.shaped(total)


def _stopped_ns(phases: Columns, pauses: Columns) -> Array:
    """Of each phase of loading, saving or evaluating, the collector's pauses within: causes that
    are recorded are disjoint. 0 for other phases."""
    found, length = np.zeros(len(phases), np.int64), pauses.exit_ns - pauses.enter_ns
    order = _by_rank(phases, np.isin(phases.op, BUSY))
    at, within = _last_begun(phases.select(order), pauses)
    within &= pauses.exit_ns <= np.append(phases.exit_ns[order], 0)[at]
    np.add.at(found, order[at[within]], length[within].astype(np.int64))
    return found


def _inside_evaluation(phases: Columns) -> Array:
    """Mask of phases within a longer evaluation of their rank, which counts their time."""
    evaluates, length = phases.op == int(Phase.EVALUATION), phases.exit_ns - phases.enter_ns
    outer = phases.select(order := _by_rank(phases, evaluates))
    at, within = _last_begun(outer, phases)
    within &= phases.exit_ns <= np.append(running_maximum(outer.exit_ns, outer["rank"]), 0)[at]
    return np.asarray(within & ~(evaluates & (length == np.append(length[order], 0)[at])))


def _by_rank(rows: Columns, which: Array) -> Array:
    """Indices of some rows (a mask), in order of rank and time."""
    order = np.flatnonzero(which)
    return order[np.lexsort([rows.enter_ns[order], rows["rank"][order]])]


def _last_begun(outer: Columns, rows: Columns) -> tuple[Array, Array]:
    """Of each row, which of these (by rank and time) its rank began last, and whether it did."""
    if not len(outer):
        return np.full(len(rows), -1), np.zeros(len(rows), bool)
    rank, own = (each["rank"].astype(np.int64) for each in (outer, rows))
    at = TimeLine(rank, outer.enter_ns).before(own, rows.enter_ns) - 1
    return at, (at >= 0) & (rank[at] == own)


# -- runs too large for memory ---------------------------------------------------------------------

#: Columns that the grid is made of, by kind; for collectives on devices also the device's times.
_TIMES, _OF_DEVICE = ("step", "enter_ns", "exit_ns"), ("device_enter_ns", "device_exit_ns")
_CALL = (
    *("seq", "op", "dtype", "flags", "thread", "group", "group_seq"),
    *("bytes_in", "bytes_out", "peer_or_root", "parent", *_TIMES),
)
_NEEDED: dict[Kind, tuple[str, ...]] = {
    Kind.STEP: ("seq", "held_ns", "group_seq", "peer_or_root", "parent", "payload", *_TIMES),
    Kind.PHASE: ("seq", "parent", "op", "group_seq", *_TIMES),
    Kind.PAUSE: _TIMES,
    Kind.STOP: _TIMES,
    Kind.COLLECTIVE: _CALL,
    Kind.POINT_TO_POINT: (*_CALL, "payload", *_OF_DEVICE),
    Kind.SPAN: ("name", "flags", "device", *_TIMES, *_OF_DEVICE),
}


def _pieces(trace: Trace, steps: int) -> list[tuple[int, int]]:
    """Stretches of steps, as half-open ranges of indices: one, or in a large run several of a tenth
    of `WINDOW_RECORDS`, or up to a third where that is few steps: one beside it is read, too."""
    if len(trace.events) <= WINDOW_RECORDS or not steps:
        return [(0, steps)]
    held = WINDOW_RECORDS / trace.table.per_step()
    most = max(int(held / 10), min(2 * BLOCK_STEPS, int(held / 3)), 1)
    edges = np.linspace(0, steps, -(-steps // most) + 1).astype(int)
    return [(int(first), int(last)) for first, last in pairwise(edges)]


def _dense(trace: Trace, whole: StepGrid, numbers: Array) -> dict[Any, Array]:
    """The cells of neighbouring steps, by name and phase, from their records and those of the step
    on either side: a collective at the edge of a step may be in the next one on some ranks."""
    piece = trace.window(int(numbers[0]) - 1, int(numbers[-1]) + 2, _recorded_columns(trace))
    grid = _grid_of(piece, numbers, whole.ranks, whole.clocks)
    return {**{name: getattr(grid, name) for name in _CELLS}, **grid.phase_ns}


def _recorded_columns(trace: Trace) -> dict[Kind, tuple[str, ...]]:
    """The columns that the grid is made of, as far as recorded."""
    if isinstance(trace.events, OnDisk) and not trace.events.on_device:
        return _NEEDED
    return {**_NEEDED, Kind.COLLECTIVE: (*_CALL, *_OF_DEVICE)}


def _sample(trace: Trace, numbers: Array) -> tuple[Trace, Array]:
    """Records of stretches of steps all over the run, in order of rank; a mask of these steps."""
    most = max(int(_SAMPLE_RECORDS / trace.table.per_step()), 1)
    each_of = max(2, min(BLOCK_STEPS, most // 16))
    starts = np.unique(np.linspace(0, len(numbers) - each_of, max(most // each_of, 2)).astype(int))
    sampled = np.zeros(len(numbers), bool)
    for start in starts:
        sampled[start : start + each_of] = True
    edges = np.flatnonzero(np.diff(sampled.astype(int), prepend=0, append=0)).reshape(-1, 2)
    wanted, bounds = _recorded_columns(trace), numbers[edges - [0, 1]] + [0, 1]
    windows = [trace.window(first, last, wanted) for first, last in bounds.tolist()]
    tables = {kind: Columns.concatenate([w.of_kind(kind) for w in windows]) for kind in wanted}
    order = {kind: np.argsort(table["rank"], kind="stable") for kind, table in tables.items()}
    tables = {kind: table.select(order[kind]) for kind, table in tables.items()}
    return replace(trace, events=ByKind(tables)), sampled
