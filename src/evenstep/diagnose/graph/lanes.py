"""Rows of the graph: what each host thread and each stream did, one after the other.

Where the thread of a host waited is recorded: calls that block, and phases of waiting. On devices,
and where no wait was recorded, it follows from how operations follow one another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.awaited import Awaited, awaited
from evenstep.diagnose.graph.entries import Entries
from evenstep.diagnose.graph.structure import in_order
from evenstep.diagnose.levels import MOST, NEARLY_ALL
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

NONE = -1
WORKED, ENTRY, CALL, WAIT, STEP_END = range(5)  # `order` of rows at one time
NEVER = -(2**40)
TELLING_NS = 20_000  # a wait of so long was ended by what it was for
BETWEEN_NS = 200_000  # by which an end seen elsewhere may come after the wait it ended


class LaneExtent(NamedTuple):
    """What is laid out: steps and ranks by number, ascending; `device` (ranks,) are streams, and
    `apart` those of them whose clock is not their host's: their steps end with what they do."""

    trace: Trace
    clocks: Clocks
    steps: Array
    ranks: Array
    device: Array
    apart: Array

    def table(self, rows: Columns) -> Columns:
        """Records of these steps and of the hosts among these ranks, on the common time."""
        mine = np.isin(rows.step, self.steps) & np.isin(rows["rank"], self.ranks)
        rows = rows.select(mine & (rows.exit_ns > 0))
        enter, leave = self.clocks.placed(rows)
        table = Columns(
            {
                "lane": np.searchsorted(self.ranks, rows["rank"]),
                "step": rows.step.astype(np.int64),
                "enter_ns": enter,
                "leave_ns": leave,
                "seq": rows.seq.astype(np.int64),
                "parent": rows.parent.astype(np.int64),
            }
        )
        return table.select(~self.apart[table.lane]) if self.apart.any() else table

    def waits(self) -> Columns:
        """What host threads were recorded to wait."""
        phases = self.trace.of_kind(Kind.PHASE)
        waits = self.table(phases.select(phases.op == int(Phase.SYNC)))
        return waits.select(~self.device[waits.lane])

    def step_ns(self, end: str) -> Array:
        """When each step began ("enter_ns") or ended: (steps, lanes), -1 unknown."""
        rows = self.table(self.trace.of_kind(Kind.STEP))
        found = np.full((len(self.steps), len(self.ranks)), NONE, np.int64)
        found[np.searchsorted(self.steps, rows.step), rows.lane] = rows[end]
        return found


def rows_of(span: LaneExtent, found: Entries, operations: Columns) -> tuple[Columns, Columns]:
    """All rows, in order of lane and time: lane, step, at_ns, enter, wait, order; and all
    operations, with those added of which nothing is known but that somebody waited for them.

    At one time rows are in the order in which they were recorded, where that is known.
    """
    over = operations.over_ns
    parts, unknown = _host_rows(span, found, operations)
    operations = _over_for(parts, operations)
    if len(unknown):
        parts.append(_unknown_rows(unknown, len(operations)))
        operations = Columns.concatenate([operations, _unknown_operations(unknown, operations)])
    if span.device.any():
        parts += _device_rows(span, found, over)
    rows = Columns.concatenate(parts)
    return rows.select(_in_order(rows)), operations


def _in_order(rows: Columns) -> Array:
    """Places of the rows by lane, time, step, its end last, number and order: the first two tell
    nearly all of them apart."""
    order = in_order(rows.lane, rows.at_ns)
    lane, at = rows.lane[order], rows.at_ns[order]
    same = np.append(False, (np.diff(lane) == 0) & (np.diff(at) == 0))
    tied = np.flatnonzero(same | np.append(same[1:], False))
    ties = rows.select(order[tied])
    last = ties.order == STEP_END
    keys = [ties.until_ns, ties.order, ties.seq, last, ties.step, ties.at_ns, ties.lane]
    order[tied] = order[tied][np.lexsort(keys)]
    return order


def _unknown_rows(waits: Columns, first: int) -> Columns:
    """Waits for what was not recorded: for an operation of their own each."""
    number = first + np.arange(len(waits))
    return _table(waits, number, number, CALL)


def _unknown_operations(waits: Columns, operations: Columns) -> Columns:
    nothing = np.zeros(len(waits), np.int64)
    columns: dict[str, Any] = dict.fromkeys(operations, nothing)
    columns |= {
        "queue": int(operations.queue.max(initial=-1)) + 1 + waits.lane,
        "sequence": np.arange(len(waits)),
        "step": waits.step,
        "group": nothing - 1,
        "members": nothing + 1,
        "last_ns": waits.enter_ns,
        "over_ns": waits.leave_ns,
    }
    columns["whole"] = columns["message"] = columns["queues"] = np.zeros(len(waits), bool)
    return Columns({name: columns[name] for name in operations})


def _table(rows: Columns, enter: Array | None, wait: Array | None, order: Array | int) -> Columns:
    """Rows of the graph from anything with lane, step, enter_ns and leave_ns."""
    nothing, small = np.full(len(rows), NONE), np.full(len(rows), NONE, np.int8)
    return Columns(
        {
            "lane": rows.lane.astype(np.int64),
            "step": rows.step,
            "at_ns": rows.enter_ns,
            "until_ns": rows.leave_ns,
            "seq": rows.seq,
            "enter": nothing if enter is None else enter,
            "wait": nothing if wait is None else wait,
            "order": np.broadcast_to(np.asarray(order, np.int8), len(rows)),
            "slack_ns": rows.slack_ns if "slack_ns" in rows and enter is not None else small,
            "after": rows.after if "after" in rows and enter is not None else small,
        }
    )


def _entered(rows: Columns, waits: Array) -> Columns:
    """Rows of entries: into operations that they decide on, waiting for them or not."""
    enter = np.where(rows.decides, rows.operation, NONE)
    wait = np.where(waits, rows.operation, NONE)
    kept = (enter >= 0) | (wait >= 0)
    if "after" in rows:
        rows = rows.with_column("after", np.where(rows.decides, rows.after, NONE))
    table = _table(rows, enter, wait, np.where(wait >= 0, CALL, ENTRY))
    return table if kept.all() else table.select(kept)


# -- hosts -----------------------------------------------------------------------------------------


def _over_for(parts: list[Columns], operations: Columns) -> Columns:
    """The operations, over at the latest when somebody who waited for them went on.

    What stamps the end of an asynchronous one is another thread, which may come later."""
    over = operations.over_ns.copy()
    for rows in parts:
        waited = rows.select(rows.order == WAIT)
        np.minimum.at(over, waited.wait, waited.until_ns)
    return operations.with_column("over_ns", np.maximum(over, operations.last_ns))


def _host_rows(
    span: LaneExtent, found: Entries, operations: Columns
) -> tuple[list[Columns], Columns]:
    """Entries and waits of host threads, and the ends of their steps; and waits for what is not
    known."""
    over = operations.over_ns
    rows = found.rows.select(~found.rows.on_device) if span.device.any() else found.rows
    phases = span.trace.of_kind(Kind.PHASE)
    waits = span.waits()
    behind = rows.select(rows.waits & ~rows.calls)
    blocked = rows.waits & rows.calls
    parts, named = _told(waits, rows.select(~rows.calls))
    sure = np.unique(waits.lane[named])
    guessed = ~named & ((waits.parent == 0) | ~np.isin(waits.lane, sure))
    waits = _after_calls(waits.select(guessed), rows).sorted_by("lane", "enter_ns")
    behind = behind.select(~np.isin(behind.lane, sure))
    known = np.zeros(len(waits), bool)
    if len(behind) and not len(waits):
        rows = rows.sorted_by("lane", "enter_ns", "seq")
        waited = awaited(rows, found.operations, over)
        ahead = np.where(rows.waits & ~rows.calls, waited.ahead, 0)
        blocked = rows.waits & (rows.calls | ((ahead == 1) & ~waited.worked))
        parts += _later(rows, waited._replace(ahead=ahead))
    elif len(behind):
        more, known = _awaited(waits, behind, operations)
        parts += more
    unknown = waits.select(~known & (waits.leave_ns - waits.enter_ns >= TELLING_NS))
    ends = span.table(span.trace.of_kind(Kind.STEP))
    ends = ends.select(~span.device[ends.lane])
    ends = ends.with_column("enter_ns", ends.leave_ns)
    parts += _sent(span, rows.select(~np.isin(rows.lane, sure)), phases, over)
    return [_entered(rows, blocked), *parts, _table(ends, None, None, STEP_END)], unknown


def _sent(span: LaneExtent, rows: Columns, phases: Columns, over: Array) -> list[Columns]:
    """Waits for what was sent, of which there is no record: a thread whose next doing mostly
    follows at once on the end of the last message that it had handed over in a step has waited for
    it."""
    sends = rows.select(rows.sends & ~rows.waits & (rows.leave_ns > rows.enter_ns))
    if not len(sends):
        return []
    calls = rows.select(rows.calls)
    phases = span.table(phases)
    times = [rows.enter_ns, calls.leave_ns, phases.enter_ns, phases.leave_ns]
    lanes = [rows.lane, calls.lane, phases.lane, phases.lane]
    lane, done = np.concatenate(lanes), np.concatenate(times)
    order = np.lexsort([done, lane])
    line, done = TimeLine(lane[order], done[order]), done[order]
    sends = sends.sorted_by("lane", "step", "leave_ns")
    last = np.diff(sends.lane, append=-1) != 0
    last |= np.diff(sends.step, append=-1) != 0
    sends = sends.select(last)
    following = line.before(sends.lane, sends.leave_ns - TELLING_NS - 1)  # ends are seen late
    next_lane = np.append(lane[order], NONE)[following]
    gap = np.append(done, 0)[following] - sends.leave_ns
    at_once = (next_lane == sends.lane) & (gap <= TELLING_NS)
    often = np.bincount(sends.lane, at_once) >= MOST * np.bincount(sends.lane)
    sends = sends.select(often[sends.lane])
    ended = over[sends.operation]
    before = line.before(sends.lane, np.minimum(ended, sends.leave_ns) - TELLING_NS - 1) - 1
    blocked = ended >= sends.leave_ns - BETWEEN_NS
    since = np.where(blocked, np.maximum(done[np.maximum(before, 0)], sends.enter_ns), 2**62)
    sends = sends.with_column("enter_ns", np.minimum(since, sends.leave_ns))
    return [_table(sends, None, sends.operation, WAIT)]


def _after_calls(waits: Columns, rows: Columns) -> Columns:
    """Waits from the last call on that their thread made in the meantime: until it had come back
    from that, it waited for something else."""
    if not len(waits) or not len(rows):
        return waits
    rows = rows.only("lane", "enter_ns", "leave_ns", "seq", "calls")
    rows = rows.select(in_order(rows.lane, rows.enter_ns, rows.seq))
    last = TimeLine(rows.lane, rows.enter_ns).before(waits.lane, waits.leave_ns - 1) - 1
    at = np.maximum(last, 0)
    inside = (last >= 0) & (rows.lane[at] == waits.lane) & (rows.enter_ns[at] > waits.enter_ns)
    came_back = np.where(rows.calls[at], rows.leave_ns[at], rows.enter_ns[at])
    since = np.where(inside, np.clip(came_back, waits.enter_ns, waits.leave_ns), waits.enter_ns)
    return waits.with_column("enter_ns", since)


def _told(waits: Columns, rows: Columns) -> tuple[list[Columns], Array]:
    """Rows of waits that say what they were for, and which these are: of the others `parent` is
    what they lie in. Where a lane has some, nothing is guessed."""
    if not len(waits) or not len(rows):
        return [], np.zeros(len(waits), bool)
    width = int(max(rows.seq.max(initial=0), waits.parent.max())) + 1
    key = rows.lane * width + rows.seq
    order = np.argsort(key, kind="stable")
    wanted = waits.lane * width + waits.parent
    at = np.minimum(np.searchsorted(key[order], wanted), len(rows) - 1)
    there = (waits.parent > 0) & (key[order][at] == wanted)
    return [_table(waits.select(there), None, rows.operation[order[at[there]]], WAIT)], there


def _awaited(waits: Columns, behind: Columns, operations: Columns) -> tuple[list[Columns], Array]:
    """Rows of waits: of every queue the last operation of the lane that was over when one ended.

    What an earlier wait has waited for is not waited for again. Also, which waits are for anything
    that is known.
    """
    queue = operations.queue[behind.operation]
    queues = int(queue.max()) + 1
    pair = behind.lane * queues + queue
    present = np.bincount(pair, minlength=1) > 0
    lanes, number = np.flatnonzero(present) // queues, (np.cumsum(present) - 1)[pair]
    ended = operations.over_ns[behind.operation]
    order = in_order(number, ended, behind.enter_ns)
    number, ended, entered = number[order], ended[order], behind.enter_ns[order]
    operation = behind.operation[order]
    began = operations.last_ns[operation]
    turn = np.arange(len(lanes)) - np.searchsorted(lanes, lanes)
    firsts = np.searchsorted(number, np.arange(len(lanes) + 1))
    by_lane = np.full((int(turn.max()) + 1, int(waits.lane.max(initial=0)) + 1), NONE)
    inside = lanes < by_lane.shape[1]
    by_lane[turn[inside], lanes[inside]] = np.flatnonzero(inside)
    ends, entries_ = TimeLine(number, ended), TimeLine(number, entered[in_order(number, entered)])
    steps_ = TimeLine(number, behind.step[order])
    place = _turns(waits)
    if operations.message.any():  # stages have orders of their own
        place = np.unique(place * by_lane.shape[1] + waits.lane, return_inverse=True)[1].reshape(-1)
    parts, found_any = [], np.zeros(len(waits), bool)
    for which in by_lane:
        pairs = which[waits.lane]
        mine = np.flatnonzero(pairs >= 0)
        chosen = pairs[mine]
        over_by = ends.before(chosen, waits.leave_ns[mine] + BETWEEN_NS)
        entered_by = entries_.before(chosen, waits.enter_ns[mine])
        last = np.minimum(over_by, entered_by) - 1
        first = steps_.before(chosen, waits.step[mine] - 1)
        blocked = waits.leave_ns[mine] - waits.enter_ns[mine] >= TELLING_NS
        usual = first + _usual(place[mine], last - first, blocked & (last >= first))
        leave = waits.leave_ns[mine]
        usually, lastly = (np.clip(at, 0, len(ended) - 1) for at in (usual, last))
        known = (usual >= first) & (usual < entered_by) & (began[usually] <= leave)
        known &= (ended[usually] >= leave - BETWEEN_NS) | (ended[lastly] < leave - BETWEEN_NS)
        last = np.where(known, usual, last)
        earlier = _before_in_lane(waits.lane[mine], last)
        found_any[mine] |= last >= firsts[chosen]
        new = (last >= firsts[chosen]) & (last > earlier)
        mine, last = mine[new], last[new]
        rows = waits.select(mine)
        parts.append(_table(rows, None, operation[last], WAIT))
    return parts, found_any


def _turns(waits: Columns) -> Array:
    """A number for each wait, the same for the n-th of a step with equally many."""
    opens = (np.diff(waits.lane, prepend=-1) != 0) | (np.diff(waits.step, prepend=-1) != 0)
    first = np.flatnonzero(opens)
    size = np.diff(np.append(first, len(waits)))
    turn = np.arange(len(waits)) - np.repeat(first, size)
    return np.asarray(turn * (int(size.max(initial=0)) + 1) + np.repeat(size, size))


def _usual(place: Array, ahead: Array, telling: Array) -> Array:
    """By the place in the step, how many operations of the step come before the one that such a
    wait is mostly for, by those that were blocked; a large negative number where that varies."""
    if not telling.any():
        return np.full(len(place), NEVER)
    width = int(ahead[telling].max()) + 1
    votes = np.bincount(place[telling] * width + ahead[telling])
    keys = np.flatnonzero(votes)
    order = np.lexsort([votes[keys], keys // width])
    best = keys[order[np.flatnonzero(np.diff(keys[order] // width, append=-1))]]
    cast = np.bincount(place[telling], minlength=int(place.max()) + 1)
    found = np.full(int(place.max()) + 1, NEVER)
    sure = votes[best] > MOST * cast[best // width]
    found[(best // width)[sure]] = (best % width)[sure]
    return found[place]


class TimeLine(NamedTuple):
    """Values in order within each number, side by side on one line."""

    number: Array
    values: Array

    def before(self, number: Array, value: Array) -> Array:
        """How many there are, of this and smaller numbers, with at most this value."""
        low = int(min(self.values.min(), value.min(initial=2**62)))
        width = int(max(self.values.max(), value.max(initial=0))) - low + 2
        line = self.number * width + (self.values - low)
        return np.asarray(np.searchsorted(line, number * width + (value - low), side="right"))


def _before_in_lane(lane: Array, last: Array) -> Array:
    """The furthest that earlier waits of the same lane have come; -1 for the first."""
    opens = np.diff(lane, prepend=-1) != 0
    number = np.cumsum(opens)
    width = int(last.max(initial=0)) + 2
    furthest = np.maximum.accumulate(number * width + last + 1) - number * width - 1
    found = np.full(len(last), NONE)
    found[1:] = np.where(opens[1:], NONE, furthest[:-1])
    return found


# -- streams ---------------------------------------------------------------------------------------


def _device_rows(span: LaneExtent, found: Entries, over: Array) -> list[Columns]:
    """Entries of streams, what their compute waits for, and steps that end with the last of it."""
    rows = found.rows.select(found.rows.on_device)
    rows = rows.select(np.lexsort([rows.seq, ~rows.sends, rows.enter_ns, rows.lane]))
    waited = awaited(rows, found.operations, over)
    changes = (np.diff(rows.lane, append=-1) != 0) | (np.diff(rows.step, append=-1) != 0)
    last = np.flatnonzero(changes)
    step = np.cumsum(changes) - changes
    left = _left(rows, found.operations, over, waited, last[step])
    at_once = (waited.ahead[last] == 1) & ~waited.worked[last]
    resumed = np.where(at_once, over[rows.operation[last]], rows.enter_ns[last])
    np.maximum.at(resumed, step[left], over[rows.operation[left]])
    resumed = np.maximum(resumed, rows.enter_ns[last])
    ended = span.step_ns("leave_ns")[np.searchsorted(span.steps, rows.step[last]), rows.lane[last]]
    resumed = np.maximum(resumed, ended)
    ends = rows.select(last).with_column("enter_ns", resumed).with_column("leave_ns", resumed)
    crosses = last[step] < np.arange(len(rows)) + waited.ahead
    since = np.maximum(waited.since_ns, np.where(crosses, resumed[step], 0))
    waited = waited._replace(since_ns=since)
    finals = rows.select(last[step[left]]).with_column("operation", rows.operation[left])
    return [
        _entered(rows, (waited.ahead == 1) & ~waited.worked),
        *_later(rows, waited),
        _table(finals, None, finals.operation, WAIT),
        _table(ends, None, None, STEP_END),
    ]


def _left(rows: Columns, operations: Columns, over: Array, waited: Awaited, last: Array) -> Array:
    """Entries that a step waits for at its end: of each queue the last that nothing waited for, if
    the next step mostly begins after it."""
    following = np.minimum(last + 1, len(rows) - 1)
    same = rows.lane[following] == rows.lane
    after = ~same | (rows.enter_ns[following] >= over[rows.operation] - BETWEEN_NS)
    open_ = np.flatnonzero((waited.ahead == 0) & ~rows.sends & after)
    if not len(open_) or np.count_nonzero(after) < NEARLY_ALL * len(after):
        return np.zeros(0, np.int64)
    queue = operations.queue[rows.operation[open_]]
    order = np.lexsort([open_, queue, last[open_]])
    final = np.diff(queue[order], append=-1) != 0
    final |= np.diff(last[open_][order], append=-1) != 0
    return np.asarray(open_[order[final]])


def _later(rows: Columns, waited: Awaited) -> list[Columns]:
    """Waits for operations some entries after theirs: before the work that follows, or after it."""
    parts = []
    for worked, order in ((False, WAIT), (True, WORKED)):
        waiting = np.flatnonzero((waited.ahead > 1 - worked) & (waited.worked == worked))
        since = waiting + waited.ahead[waiting] - (not worked)
        table = rows.select(since).with_column("operation", rows.operation[waiting])
        if worked:
            table = table.with_column("enter_ns", waited.since_ns[waiting])
        parts.append(_table(table, None, table.operation, order))
    return parts
