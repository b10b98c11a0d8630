"""The run replayed in absolute times: everything begins when all that it depends on is over.

A rank that did not block in the run may block in a replay, and the reverse. Segments are replayed
in order, many chunks of them side by side; each chunk begins with the state that the previous one
left, and is repeated until both agree. Times are relative to the beginning of a chunk: a shift of
all lanes shifts all that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenstep.diagnose.graph.schedule import carried_over, evaluate
from evenstep.diagnose.graph.structure import Batch, Graph, begun_ns
from evenstep.trace.columns import Array

SHORTEST = 8  # segments of a chunk, replayed one after the other
MOST_CHUNKS = 256  # side by side
AGREED_NS = 1.0  # between the state a chunk left and the one the next began with: rounding
ROUNDS = 4  # with chunks side by side; then with all segments one after the other
CELLS = 8_000_000  # values of own work, rows × scenarios, held at a time


class Change(NamedTuple):
    """A scenario: other own work of some rows, and other durations of some operations, in ns."""

    rows: Array
    own_ns: Array
    operations: Array
    took_ns: Array

    @staticmethod
    def none() -> Change:
        """The run as it was."""
        nothing = np.zeros(0, np.int64)
        return Change(nothing, np.zeros(0), nothing, np.zeros(0))

    @staticmethod
    def of_work(rows: Array, own_ns: Array) -> Change:
        """Other own work of these rows; negative work counts as 0."""
        return Change.none()._replace(rows=rows, own_ns=np.maximum(own_ns, 0.0))

    @staticmethod
    def of_transfers(operations: Array, took_ns: Array) -> Change:
        """Other durations of these operations; negative ones count as 0."""
        return Change.none()._replace(operations=operations, took_ns=np.maximum(took_ns, 0.0))


def combine(graph: Graph, changes: Sequence[Change]) -> Change:
    """All changes at once: their differences are summed; the result is at least 0, and own work at
    least the smallest that one of the changes sets."""
    own, took = graph.own_ns.copy(), graph.took_ns.copy()
    least = np.zeros(len(own))
    for change in changes:
        least[change.rows] = np.minimum(least[change.rows], change.own_ns)
        own[change.rows] += change.own_ns - graph.own_ns[change.rows]
        took[change.operations] += change.took_ns - graph.took_ns[change.operations]
    rows, operations = np.flatnonzero(own != graph.own_ns), np.flatnonzero(took != graph.took_ns)
    return Change(rows, np.maximum(own, least)[rows], operations, np.maximum(took[operations], 0))


class Chunk(NamedTuple):
    """Neighbouring segments; `follows`: the previous chunk is of the same stretch of steps."""

    first: int
    last: int
    follows: bool


def replay(graph: Graph, changes: Sequence[Change]) -> Array:
    """Ends of all steps under each scenario: (scenarios, steps, lanes), ns.

    Each stretch of steps counts from the beginning of the trace's own; nan where a lane has no end.
    """
    parts = [np.zeros((0, len(graph.steps), len(graph.ranks)))]
    at_once = max(1, CELLS // max(len(graph.rows), 1))
    for first in range(0, len(changes), at_once):
        for most, allowed in ((MOST_CHUNKS, ROUNDS), (1, len(graph.batch_of) + 1)):
            run = _Run(graph, changes[first : first + at_once], _chunks(graph, most))
            if run.agree(allowed):
                break
        parts.append(run.ends())
    return np.concatenate(parts)


def _chunks(graph: Graph, most: int) -> list[Chunk]:
    """Every stretch of steps cut into chunks of about equal length, at most about `most`."""
    count = len(graph.batch_of)
    edges = np.flatnonzero(np.diff(graph.stretch_of[:count], prepend=-1, append=-1))
    length = max(SHORTEST, -(-count // most)) if most > 1 else count
    found = []
    for first, last in itertools.pairwise(edges.tolist()):
        parts = max((last - first) // length, 1)
        cuts = np.linspace(first, last, parts + 1).astype(int).tolist()
        found += [Chunk(a, b, a > first) for a, b in itertools.pairwise(cuts)]
    return found


def _sooner_issued(graph: Graph, change: Change) -> Array:
    """How much less hosts work for each operation, an issue, if their devices have less to do: by
    what exceeds the time since the issue, in which the device had other things to do."""
    rows, count = graph.rows, len(graph.operations)
    less = graph.own_ns[change.rows] - change.own_ns
    less = np.bincount(rows.host[change.rows] + 1, less, count + 1)[1:]
    entries = np.flatnonzero(rows.slack_ns >= 0)
    less[rows.host[entries]] -= rows.slack_ns[entries]
    return np.maximum(less, 0.0)


class _Run:
    """Chunks replayed side by side, and the state that each leaves to the next."""

    def __init__(self, graph: Graph, changes: Sequence[Change], chunks: Sequence[Chunk]) -> None:
        self.graph, self.chunks, self.lanes = graph, chunks, len(graph.ranks)
        self.own = np.repeat(graph.own_ns[:, None], len(changes), axis=1)
        self.took = np.repeat(graph.took_ns[:, None], len(changes), axis=1)
        for number, change in enumerate(changes):
            self.own[change.rows, number] = change.own_ns
            self.took[change.operations, number] = change.took_ns
            if "host" in graph.rows:
                sooner, took = _sooner_issued(graph, change), self.took[:, number]
                at_most = np.where(sooner > 0, graph.took_ns - sooner, np.inf)
                self.took[:, number] = np.minimum(took, at_most)
        self.offset = np.zeros((len(chunks), len(changes)))  # when the latest lane was free
        shape = len(chunks), graph.starts_ns.shape[1], len(changes)
        self.left, self.states = np.zeros(shape), np.zeros(shape)  # lanes and queues, since then
        self.states[:, self.lanes :] = -np.inf
        for number, chunk in enumerate(chunks):
            if not chunk.follows:
                start = graph.starts_ns[graph.stretch_of[chunk.first]]
                self.offset[number] = start[: self.lanes].max()
                self.states[number] = start[:, None] - self.offset[number]
        self.found = np.full((len(changes), len(graph.steps), self.lanes), np.nan)  # since then
        self.owner = np.zeros(len(graph.steps), np.int64)  # chunk of each step's end

    def agree(self, rounds: int) -> bool:
        """Replay until every chunk begins with the state its predecessor left; whether it did."""
        stale = np.ones(len(self.chunks), bool)
        for _ in range(rounds):
            self._replay(np.flatnonzero(stale))
            stale[:] = False
            for number, chunk in enumerate(self.chunks):
                if chunk.follows:
                    left = self.left[number - 1]
                    state = left - left[: self.lanes].max(axis=0)
                    if not _close(state, self.states[number]):
                        self.states[number], stale[number] = state, True
            if not stale.any():
                return True
        return False

    def _replay(self, which: Array) -> None:
        state = self.states[which].copy()
        first = np.array([self.chunks[n].first for n in which])
        length = np.array([self.chunks[n].last for n in which]) - first
        for turn in range(int(length.max(initial=0))):
            running = np.flatnonzero(turn < length)
            segment = first[running] + turn
            batch_of = self.graph.batch_of[segment]
            for number in np.unique(batch_of).tolist():
                mine = running[batch_of == number]
                self._advance(self.graph.batches[number], first[mine] + turn, state, mine, which)
        self.left[which] = state

    def _advance(
        self, batch: Batch, segment: Array, state: Array, mine: Array, which: Array
    ) -> None:
        scenarios = state.shape[2]
        place = self.graph.place_in_batch[segment]
        rows = batch.schedule.rows[:, None] + batch.first_row[place]
        operations = batch.schedule.operations[:, None] + batch.first_operation[place]
        columns = len(place) * scenarios
        own = self.own[rows].reshape(len(rows), columns)
        took = self.took[operations].reshape(len(operations), columns)
        carried = state[mine].transpose(1, 0, 2).reshape(state.shape[1], -1)
        buffer = evaluate(batch.schedule, own, took, carried)
        after = carried_over(batch.schedule, buffer).reshape(state.shape[1], len(mine), scenarios)
        state[mine] = after.transpose(1, 0, 2)
        row, lane, ahead = batch.ends.T
        ends = buffer[batch.schedule.place[row]].reshape(len(row), len(mine), scenarios)
        step = segment[None, :] + ahead[:, None]
        self.found[:, step, lane[:, None]] = ends.transpose(2, 0, 1)
        self.owner[step] = which[mine][None, :]

    def ends(self) -> Array:
        """Ends of all steps in absolute times."""
        for number, chunk in enumerate(self.chunks):
            if chunk.follows:
                passed = self.left[number - 1][: self.lanes].max(axis=0)
                self.offset[number] = self.offset[number - 1] + passed
        return np.asarray(self.found + self.offset[self.owner].T[:, :, None])


def _close(one: Array, other: Array) -> bool:
    known = np.isfinite(one) & np.isfinite(other)
    apart = np.abs(one[known] - other[known]).max(initial=0.0)
    return bool(apart <= AGREED_NS and (known | (np.isfinite(one) == np.isfinite(other))).all())


def step_lengths(graph: Graph, ends: Array) -> Array:
    """Length of each step of the job: (scenarios, steps), ns, between median ends of the lanes, at
    first since half of them had begun.

    Where steps were left out it lies between the ends of the last lanes: in short stretches the
    median would hide what one lane does after the others' waits. Steps without any known end share
    the time until the next known end evenly; after the last known end nothing passes. So lengths
    add up to the duration of the run.
    """
    whole, lanes = len(graph.starts_ns) == 1, len(graph.ranks)
    known = np.asarray(np.isfinite(ends).any(axis=2))
    seen = np.where(known[:, :, None], ends, 0.0)
    last = np.nanmedian(seen, axis=2) if whole else np.nanmax(seen, axis=2)
    stretch = np.asarray(graph.stretch_of[: len(graph.steps)])
    lengths = np.zeros(last.shape)
    opens = np.flatnonzero(np.diff(stretch, prepend=-1, append=-1))
    for first, end in itertools.pairwise(opens.tolist()):
        begun = graph.starts_ns[stretch[first]][:lanes]
        start = begun_ns(begun) if whole else begun.max()
        turns = np.arange(end - first + 1)
        for scenario, there in enumerate(known[:, first:end]):
            points = np.append(True, there)
            values = np.append(start, last[scenario, first:end])
            values = np.interp(turns, turns[points], values[points])
            lengths[scenario, first:end] = np.diff(values)
    return lengths
