"""From a trace to its dependency graph.

A row is the end of own work: the rank then enters an operation, waits for one, both, or ends a
step. An operation lasts from when it could begin until the first waiting member has left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.diagnose.graph import streams
from evenstep.diagnose.graph.entries import Entries, entered_on_device, entries
from evenstep.diagnose.graph.lanes import STEP_END, TELLING_NS, LaneExtent, ended_with, rows_of
from evenstep.diagnose.graph.reached import issued_beside, with_reached
from evenstep.diagnose.graph.segments import segments
from evenstep.diagnose.graph.structure import (
    NEVER_NS,
    NO_HOST,
    NO_INTERVALS,
    Ahead,
    Graph,
    Intervals,
    TimeLine,
    grouped_order,
    length_before,
    quantiles,
    row_numbers,
)
from evenstep.diagnose.levels import LOW, NEARLY_ALL
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns, begins, largest_of, running_maximum, smallest_of
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import COMPUTE, Trace

BUSY = (Phase.INPUT, Phase.CHECKPOINT, Phase.EVALUATION)  # phases with work of hosts alone
SURE_NS = 200_000  # error to which hosts' clocks agree; else each is placed by its own devices


def graph(trace: Trace, clocks: Clocks, steps: Array, ranks: Array) -> Graph:
    """The graph of these steps (numbers, ascending) and ranks."""
    found = entries(trace, clocks, ranks)
    inside = np.isin(found.rows.step, steps)
    there, lanes = found.rows.select(inside), len(ranks)
    count = np.bincount(there.lane, minlength=lanes)
    device = 2 * np.bincount(there.lane, there.on_device, lanes) > count  # where most ran
    leads = np.setdiff1d(steps - 1, steps) if device.any() else steps[:0]
    found = _restrict(found, inside | np.isin(found.rows.step, leads))
    found = found._replace(rows=_with_compute(trace, ranks, found.rows))
    ahead = Ahead.none(lanes)
    if device.any():
        found = _restrict(found, device[found.rows.lane] == found.rows.on_device)
        clock = _clocks_read(trace, clocks, ranks)
        issued = ~np.isin(ranks, entered_on_device(trace))
        rows = streams.with_kernels(found.rows, found.operations)
        uneven = np.flatnonzero(found.operations.uneven)
        rows, ahead = _align(_with_phase(trace, clocks, ranks, rows), issued, clock, uneven)
        found = found._replace(rows=rows)
    rows = found.rows
    nobody = np.bincount(rows.operation, rows.decides) == 0  # of those present: then all do
    rows = rows.with_column("decides", rows.decides | nobody[rows.operation])
    rows = streams.with_stream_order(rows, found.operations)
    if device.any():
        stamped, beside = rows.slack_ns, issued_beside(rows, found.operations)
        rows = with_reached(rows, found.operations)
        slack = rows.slack_ns
        behind = np.where(slack >= 0, slack, rows.behind_ns)
        beside |= (slack < stamped) & (slack <= streams.LAUNCH_NS)  # it began later than issued
        rows = rows.with_columns(behind_ns=behind, slack_ns=np.where(beside, NO_HOST, slack))
    found = found._replace(rows=rows)
    apart = device & ~np.isin(ranks, trace.host_clock_ranks)
    known = np.union1d(steps, leads)
    span = LaneExtent(trace, clocks, known, ranks, device, apart)
    over, queues = _over(span, found, _earliest_ends(found))
    entered = _last_of(found, found.rows.enter_ns, found.rows.decides)  # that each needs to begin
    operations = found.operations.with_columns(over_ns=over, queues=queues, last_ns=entered)
    ended = _last_of(found, found.rows.leave_ns, found.rows.on_device & found.rows.waits)
    apart = np.where(operations.uneven, np.maximum(ended - over, 0), 0)
    operations = operations.with_column("apart_ns", apart)
    rows, operations = rows_of(span, found, operations)
    begun, ended = (span.step_ns(end)[np.isin(known, steps)] for end in ("enter_ns", "leave_ns"))
    if device.any():
        ended[:] = NEVER_NS  # streams work between steps, too
    if len(leads):
        begun = _begun_after(rows, leads, steps, begun)
        rows, operations = _select_steps(rows, operations, steps)
    phases = trace.of_kind(Kind.PHASE)
    alone = phases.select(np.isin(phases.op, BUSY)), trace.of_kind(Kind.PAUSE)
    busy = sum((of_hosts(rows, clocks, ranks, ahead) for rows in alone), NO_INTERVALS)
    hosts = _hosts_begun(span, found, ahead)[np.isin(known, steps)]
    made = segments(rows, operations, steps, ranks, (begun, ended, hosts), busy)
    return replace(made, device=device, ahead=ahead)


def of_hosts(rows: Columns, clocks: Clocks, ranks: Array, ahead: Ahead) -> Intervals:
    """When these records of hosts were, by lane, in the times of a graph with hosts ahead."""
    rows = rows.select(np.isin(rows["rank"], ranks) & (rows.exit_ns > rows.enter_ns))
    lane = np.searchsorted(ranks, rows["rank"])
    return Intervals(lane, *(ahead.placed(lane, times) for times in clocks.placed(rows)))


def _restrict(found: Entries, kept: Array) -> Entries:
    """The entries with only these rows and the operations that still have a member."""
    rows = found.rows.select(kept)
    present = np.bincount(rows.operation, minlength=len(found.operations)) > 0
    number = np.cumsum(present) - 1
    return Entries(
        rows.with_column("operation", number[rows.operation]), found.operations.select(present)
    )


def _with_compute(trace: Trace, ranks: Array, rows: Columns) -> Columns:
    """The entries with `computed_ns`, how long their device had computed before, nan if unknown;
    `idled_ns`, how long it idled until the operation was over; `freed_ns`, computed by then."""
    told = np.isin(ranks, entered_on_device(trace))[rows.lane] & rows.on_device
    unknown, never = np.full(len(rows), np.nan, np.float16), np.zeros(len(rows), np.int8)
    found: dict[str, Array] = {"computed_ns": unknown, "idled_ns": never, "freed_ns": never}
    if told.any():
        spans = trace.of_kind(Kind.SPAN)
        named = np.array([name == COMPUTE for name in trace.names], bool)
        spans = spans.select(named[spans.name] & np.isin(spans["rank"], ranks))
        lane = np.searchsorted(ranks, spans["rank"])
        computes = Intervals(lane, spans.device_enter_ns, spans.device_exit_ns)
        told &= np.isin(rows.lane, lane)
        own, enter, leave = rows.lane[told], rows.enter_ns[told], rows.leave_ns[told]
        values = (
            length_before(computes, own, enter),
            streams.idle_until_over(computes, own, enter, leave),
            length_before(computes, own, leave),
        )
        for name, value in zip(found, values, strict=True):
            found[name] = found[name].astype(float)
            found[name][told] = value
    return rows.with_columns(**found)


def _with_phase(trace: Trace, clocks: Clocks, ranks: Array, rows: Columns) -> Columns:
    """The entries with `backward`: whether their hosts issued them in that phase."""
    phases = trace.of_kind(Kind.PHASE)
    phases = phases.select(phases.op == int(Phase.BACKWARD))
    during = of_hosts(phases, clocks, ranks, Ahead.none(len(ranks)))
    since, until = (length_before(during, rows.lane, rows.issued_ns + one) for one in (0, 1))
    return rows.with_column("backward", until > since)


def _align(rows: Columns, issued: Array, clock: Array, uneven: Array) -> tuple[Columns, Ahead]:
    """Entries with those of devices on the time of the first hosts' clock, and by how much each
    lane's host is ahead of that. `clock` numbers the clock that each lane's host reads, `issued`
    says whether it is known when that host issued what its device does; `uneven` are operations
    whose members may end one after another, as one receives more."""
    lanes, chosen = len(issued), np.flatnonzero(rows.on_device)
    moved = streams.on_one_clock(rows.select(chosen), lanes, uneven)
    number = clock[moved.lane]
    lines = {int(one): streams.issue_line(moved.select(number == one)) for one in np.unique(number)}
    first = lines[min(lines)]
    ends = np.array([moved.enter_ns.min(), moved.enter_ns.max()], float)
    level, error = np.zeros((2, lanes)), np.zeros(lanes)  # at these times
    slack = np.full(len(rows), NO_HOST, np.int64)
    for one, line in lines.items():
        mine = number == one
        slack[chosen[mine]] = line.shift(moved.enter_ns[mine]) - moved.issued_ns[mine]
        error[clock == one] = line.error_ns.max()
        level[:, clock == one] = (line.offset_at(ends) - first.offset_at(ends))[:, None]
    since = rows.enter_ns[chosen] - rows.issued_ns[chosen]
    slack[~issued[rows.lane]] = NO_HOST
    if (smallest_of(since, moved.lane) == largest_of(since, moved.lane))[moved.lane].all():
        slack[:] = NO_HOST  # the source has one time for both: entries of devices stand for calls
    for name in ("enter_ns", "leave_ns"):
        column = rows[name].copy()
        known = moved[name] != 0
        column[chosen[known]] = first.shift(moved[name][known])
        rows = rows.with_column(name, column)
    begun, ended = ends + first.offset_at(ends)
    slope = (level[1] - level[0]) / max(ended - begun, 1.0)
    return rows.with_column("slack_ns", slack), Ahead(begun, level[0], slope, error)


def _clocks_read(trace: Trace, clocks: Clocks, ranks: Array) -> Array:
    """A number for each lane's host clock: 0 where it is on the common time to within `SURE_NS`."""
    number: dict[str, int] = {}
    found = np.zeros(len(ranks), np.int64)
    for lane, rank in enumerate(ranks.tolist()):
        offset = clocks.by_rank[rank]
        if offset is None or np.median(offset.error_ns) > SURE_NS:
            found[lane] = number.setdefault(trace.ranks[rank].clock, 1 + len(number))
    return found


def _begun_after(rows: Columns, leads: Array, steps: Array, begun_ns: Array) -> Array:
    """When each step began, (steps, lanes): where it is not known otherwise, as the step before it
    ended, one of `leads`, of which nothing else is told."""
    ends = rows.select(np.isin(rows.step, leads) & (rows.order == STEP_END))
    found = np.full_like(begun_ns, NEVER_NS)
    found[np.searchsorted(steps, ends.step + 1), ends.lane] = ends.at_ns
    return np.where(begun_ns > NEVER_NS, begun_ns, found)


def _hosts_begun(span: LaneExtent, found: Entries, ahead: Ahead) -> Array:
    """By when each lane's host had surely begun the run's first step, before which its device had
    nothing to do: (steps, lanes), `NEVER_NS` for all other steps, and for the first on record where
    collectives of a group came before that."""
    table = found.operations
    of = row_numbers(table.group, table.message)
    before = (smallest_of(table.sequence, of)[of] > 1) & (table.group >= 0) & ~table.message
    begun = span._replace(apart=span.apart & False).step_ns("enter_ns")
    known = (begun > NEVER_NS) & (span.steps == 0)[:, None] & ~before.any()
    latest = ahead.placed(np.arange(len(span.ranks)), begun) + ahead.error_ns
    return np.where(known, latest, NEVER_NS)


def _select_steps(rows: Columns, operations: Columns, steps: Array) -> tuple[Columns, Columns]:
    """The rows of these steps, and the operations that are entered in them."""
    rows = rows.select(np.isin(rows.step, steps))
    kept = np.isin(np.arange(len(operations)), rows.enter)
    number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    for name in ("enter", "wait", "after"):
        rows = rows.with_column(name, number[rows[name]])
    rows = rows.select((rows.enter >= 0) | (rows.wait >= 0) | (rows.order == STEP_END))
    operations = operations.select(kept)
    follows = operations.queues & ~begins(operations.queue)
    return rows, operations.with_column("queues", follows)


# -- when operations were over ---------------------------------------------------------------------


def _last_of(found: Entries, times_ns: Array, where: Array) -> Array:
    """The last of these times of each operation's rows."""
    number, count = found.rows.operation[where], len(found.operations)
    return largest_of(times_ns[where], number, count, least=NEVER_NS)


def _earliest_ends(found: Entries) -> Array:
    """The earliest end that a waiting member saw of each operation, or else any member: every end
    seen is an upper bound."""
    rows, count = found.rows, len(found.operations)
    begin = _last_of(found, rows.enter_ns, rows.decides)
    seen = rows.leave_ns != 0
    soonest, anyhow = (
        smallest_of(rows.leave_ns[where], rows.operation[where], count, most=2**62)
        for where in (seen & rows.waits, seen)
    )
    ended = np.where(soonest < 2**62, soonest, anyhow)
    return np.where(ended < 2**62, np.maximum(ended, begin), begin)


def _over(span: LaneExtent, found: Entries, ended: Array) -> tuple[Array, Array]:
    """End of each operation, and whether it begins only after the one before it in its queue."""
    operations, over = found.operations, ended
    if operations.message.any():
        over = _with_usual_messages(span, found, ended)
    follows = ~begins(operations.queue) & ~operations.message
    if not follows.any():
        return over, follows
    rising = np.diff(over, prepend=0) >= 0
    queue = operations.queue
    serial = np.bincount(queue, follows & rising) >= NEARLY_ALL * np.bincount(queue, follows)
    follows &= serial[queue]
    return running_maximum(over, np.cumsum(~follows)), follows


def _is_blocked(span: LaneExtent, found: Entries) -> Array:
    """Whether each row's thread was blocked in a wait that ended with the operation, or, with the
    end of none, while it was in flight; True where no waits are recorded."""
    rows, waits = found.rows, span.waits()
    unrecorded = rows.calls | rows.on_device | ~np.isin(rows.lane, waits.lane)
    waits = waits.select(waits.leave_ns - waits.enter_ns >= TELLING_NS)
    if not len(waits):
        return np.asarray(unrecorded)
    waits = waits.select(grouped_order(waits.lane, waits.leave_ns))
    nearest, told = ended_with(waits, rows.lane, rows.leave_ns)
    end = row_numbers(rows.lane, rows.leave_ns)
    during = np.isin(end, end[nearest[told]])
    if not told.all():  # something was in flight, but nothing on record ended
        line = TimeLine(waits.lane[~told], waits.leave_ns[~told])
        begun = _last_of(found, rows.enter_ns, rows.decides)[rows.operation]
        during |= line.before(rows.lane, rows.leave_ns) > line.before(rows.lane, begun)
    return np.asarray(during | unrecorded)


def _with_usual_messages(span: LaneExtent, found: Entries, ended: Array) -> Array:
    """Ends of operations; a message whose end nobody was blocked for takes at most what messages of
    its channel usually take, or else those of its size within nodes or between them.

    A wait for several messages tells the end of the one that is expected to end last. A message
    surely ended with a wait that was for it alone, or that both its ends were blocked in; one that
    was sent before (`held` up by others on its link), with such a wait that lasted.
    """
    rows, operations = found.rows, found.operations
    number, count = rows.operation, len(operations)

    # a stream may be busy when compute reaches the message
    entered = _last_of(found, rows.enter_ns + rows.held_ns, rows.decides)
    received = _last_of(found, rows.enter_ns, operations.message[number] & ~rows.sends)
    names = [span.trace.ranks[int(rank)].node for rank in span.ranks]
    node = np.unique(names, return_inverse=True)[1].reshape(-1)[rows.lane]
    within = smallest_of(node, number, count) == largest_of(node, number, count)
    kind = row_numbers(operations.size_bytes, within)
    channel = row_numbers(kind, operations.queue)
    blocked = rows.waits & (rows.leave_ns != 0) & _is_blocked(span, found)
    wait = row_numbers(rows.lane, rows.leave_ns)
    if span.device.any():
        wait = row_numbers(rows.lane, np.where(rows.on_device, rows.kernel, rows.leave_ns))
    alone = np.bincount(number, blocked & (np.bincount(wait)[wait] == 1)) > 0
    first = smallest_of(rows.leave_ns[blocked], number[blocked], count, most=2**62)
    apart = _last_of(found, rows.leave_ns, blocked) - first
    both = (np.bincount(number, blocked) > 1) & (apart <= TELLING_NS)
    sure = operations.message & (alone | both)
    seen = operations.message & (np.bincount(number, rows.leave_ns != 0) > 0)
    took = np.where(seen, np.maximum(ended - entered, 0), np.inf)
    held = alone & (ended - np.maximum(received, entered) >= TELLING_NS)
    usual = most = _quiet_durations(took, channel, seen, took)  # an end is a bound
    for _ in range(2):
        expected = np.minimum(_quiet_durations(took, channel, sure, usual), most) + entered
        last = largest_of(expected[number], wait, least=-np.inf)
        told = np.bincount(number, blocked & (expected[number] == last[wait])) > 0
        awaited = seen & (told & (received <= entered) | held)
        usual = _quiet_durations(took, kind, awaited, most)
    lasts = np.minimum(took, np.minimum(_quiet_durations(took, channel, awaited, usual), most))
    lasts = entered + np.where(np.isfinite(lasts), lasts, 0).astype(np.int64)
    return np.where(awaited | ~operations.message, ended, lasts)


def _quiet_durations(took: Array, kind: Array, chosen: Array, otherwise: Array) -> Array:
    """For each operation the low quantile of the durations of the chosen ones of its kind;
    `otherwise` where none of its kind is chosen."""
    count = int(kind.max()) + 1
    there = np.bincount(kind[chosen], minlength=count) > 0
    low = quantiles(took[chosen], kind[chosen], LOW, count)
    return np.asarray(np.where(there[kind], low[kind], otherwise))
