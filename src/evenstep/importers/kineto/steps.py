"""The steps of a profile, and the phases within them.

A step is an annotation `ProfilerStep#N`; without any, the time between two ends of the first
optimizer's steps; without these, the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import EVALUATE, OPTIMIZER_STEP, STEP, phase, step_number
from evenstep.importers.merging import Completion, cut, leaf_lengths
from evenstep.trace.columns import Array, Columns, begins
from evenstep.trace.spool.layout import Flag, Phase

UNMARKED = "the profile marks neither steps nor optimizers"


@dataclass(slots=True)
class Steps:
    """Steps in order of time; they do not overlap."""

    number: Array
    start_ns: Array
    end_ns: Array
    thread: int  # the training thread; -1 unknown
    limits: list[str] = field(default_factory=list)
    whole: bool = False  # no marks: the whole file is one step

    def at(self, times_ns: Array) -> Array:
        """The step of each time; a number without a record for times outside all steps."""
        place = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        ends = np.append(self.start_ns[1:], self.end_ns[-1] + 1)
        first, last = int(self.number.min()), int(self.number.max())
        found = self.number[np.maximum(place, 0)]
        found = np.where(times_ns >= ends[np.maximum(place, 0)], last + 1, found)
        early = (place < 0) & (not self.whole)
        return np.asarray(np.where(early, first - 1 if first else last + 2, found))

    def on_device(self, done: Completion) -> Steps:
        """The steps in device time; a whole file stays as it is."""
        if self.whole:
            return self
        return replace(self, start_ns=done.at(self.start_ns), end_ns=done.at(self.end_ns))


class StepMarks(NamedTuple):
    """How annotations mark steps and optimizers, and sentences for missing marks."""

    step: re.Pattern[str] = STEP
    optimizes: Callable[[str], bool] = lambda name: name.startswith(OPTIMIZER_STEP)
    missing: str = "the profile marks no steps (profiler.step() was not called)"
    nothing: str = UNMARKED


def steps_of(file: KinetoFile, marks: StepMarks = StepMarks()) -> Steps:  # noqa: B008
    """The steps of a file, which has events."""
    host = file.host
    numbers = file.by_name(lambda name: step_number(name, marks.step), host.name)
    marked = host.select(numbers >= 0).with_column("number", numbers[numbers >= 0])
    if len(marked):
        return _marked_steps(marked)
    return _between_optimizers(file, host, marks) or _whole(file, host, marks)


def _marked_steps(rows: Columns) -> Steps:
    """Steps from the outermost marks with ascending numbers, of the thread with most marks."""
    thread = _most_frequent(rows.thread)
    rows = rows.select(rows.thread == thread).sorted_by("start_ns")
    rows = rows.select(_outermost(rows))
    rows = rows.select(np.append(True, np.diff(np.maximum.accumulate(rows.number)) > 0))
    end = np.minimum(rows.end_ns, np.append(rows.start_ns[1:], np.iinfo(np.int64).max))
    return Steps(rows.number, rows.start_ns, end, thread)


def _outermost(rows: Columns) -> Array:
    """Which rows, in order of start, do not lie within an earlier one."""
    reach = np.maximum.accumulate(rows.end_ns)[:-1]
    return np.append(np.ones(min(len(rows), 1), bool), rows.end_ns[1:] > reach)


def _between_optimizers(file: KinetoFile, host: Columns, marks: StepMarks) -> Steps | None:
    """Steps between consecutive ends of the marking optimizer; None with fewer than two ends."""
    rows = host.select(file.by_name(marks.optimizes, host.name)).sorted_by("start_ns")
    if len(rows) < 2:
        return None
    rows = rows.select((rows.name == rows.name[0]) & (rows.thread == rows.thread[0]))
    ends = np.unique(rows.select(_outermost(rows)).end_ns)
    if len(ends) < 2:
        return None
    optimizer = file.names[int(rows.name[0])].removeprefix(OPTIMIZER_STEP)
    limit = f"{marks.missing}: a step is what lies between two ends of {optimizer}"
    return Steps(np.arange(len(ends) - 1), ends[:-1], ends[1:], int(rows.thread[0]), [limit])


def _whole(file: KinetoFile, host: Columns, marks: StepMarks) -> Steps:
    """One step over all events except annotations."""
    done = file.rows.select(file.rows.row != int(RowKind.ANNOTATION))
    done = done if len(done) else file.rows
    operators = host.select(host.row == int(RowKind.OPERATOR)).sorted_by("start_ns")
    threads, first = np.unique(operators.thread, return_index=True)
    backward = file.by_name(lambda name: name.startswith(EVALUATE), operators.name[first])
    forward = ~np.isin(operators.thread, threads[backward])  # autograd's threads begin with a node
    operators = operators.select(forward) if forward.any() else operators
    operators = operators if len(operators) else host
    thread = _most_frequent(operators.thread) if len(operators) else -1
    whole = np.array([0]), np.array([done.start_ns.min()]), np.array([done.end_ns.max()])
    return Steps(*whole, thread, [f"{marks.nothing}: all of it is taken as one step"], whole=True)


def _most_frequent(values: Array) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


# -- phases ----------------------------------------------------------------------------------------


def phases_of(
    file: KinetoFile, steps: Steps, done: Completion, waits: tuple[Array, Array]
) -> Columns:
    """Phases of the training thread: op, enter_ns, exit_ns, group_seq (leaf time), step, flags.

    Marked phases; unmarked backwards inferred from autograd's operators, and unmarked forwards as
    the time before them; all in the device time given by `done`. `waits` are intervals (start, end)
    blocked on communication.
    """
    marked = _marked_phases(file, steps)
    table = Columns.concatenate([marked, _backward(file, steps, marked)])
    table = Columns.concatenate([table, _forward(steps, table)])
    enter, leave = done.at(table.enter_ns), done.at(table.exit_ns)
    table = table.with_columns(enter_ns=enter, exit_ns=leave).select(leave > enter)
    steps = steps.on_device(done)
    edges = np.concatenate([table.enter_ns, table.exit_ns, steps.start_ns, steps.end_ns])
    start, end = cut(*waits, edges)
    sync = _table(np.full(len(start), int(Phase.SYNC)), start, end, steps, inferred=True)
    table = Columns.concatenate([table, sync]).sorted_by("enter_ns")
    return table.with_column("group_seq", leaf_lengths(table.enter_ns, table.exit_ns))


def _marked_phases(file: KinetoFile, steps: Steps) -> Columns:
    rows = file.of(RowKind.ANNOTATION)
    rows = rows.select((rows.thread == steps.thread) & (rows.end_ns > rows.start_ns))
    code = file.by_name(lambda name: -1 if (one := phase(name)) is None else int(one), rows.name)
    rows, code = rows.select(code >= 0), code[code >= 0]
    return _table(code, rows.start_ns, rows.end_ns, steps)


def _backward(file: KinetoFile, steps: Steps, marked: Columns) -> Columns:
    """Infer backwards: from autograd's first to its last node between two phases of a step."""
    rows = file.of(RowKind.OPERATOR)
    nodes = file.by_name(lambda name: name.startswith(EVALUATE), rows.name)
    rows = rows.select(nodes).sorted_by("start_ns")
    step = steps.at(rows.start_ns)
    told = marked.step[marked.op == int(Phase.BACKWARD)]
    rows = rows.select(~np.isin(step, told))
    step = steps.at(rows.start_ns)
    others = np.sort(marked.enter_ns)
    stretch = np.searchsorted(others, rows.start_ns, side="right")
    first = np.flatnonzero(begins(stretch, step))
    end = np.maximum.reduceat(rows.end_ns, first)
    return _table(np.full(len(first), int(Phase.BACKWARD)), rows.start_ns[first], end, steps, True)


def _forward(steps: Steps, table: Columns) -> Columns:
    """Infer forwards: the time before a backward, in steps without a marked forward."""
    told = table.step[table.op == int(Phase.FORWARD)]
    backward = table.select((table.op == int(Phase.BACKWARD)) & ~np.isin(table.step, told))
    end = backward.enter_ns
    before = np.sort(np.concatenate([table.exit_ns, steps.start_ns]))
    start = before[np.searchsorted(before, end, side="right") - 1]  # a step's backward is in it
    usable = (start < end) & np.isin(backward.step, steps.number)
    codes = np.full(int(usable.sum()), int(Phase.FORWARD))
    return _table(codes, start[usable], end[usable], steps, inferred=True)


def _table(op: Array, start: Array, end: Array, steps: Steps, inferred: bool = False) -> Columns:
    return Columns(
        op=op, enter_ns=start, exit_ns=end, step=steps.at(start),
        flags=np.full(len(op), int(Flag.INFERRED) if inferred else 0),
    )  # fmt: skip
