"""The run replayed in absolute times: everything begins when all that it waits for is over.

No condition is put on what was seen: whoever did not block may block, and the reverse. Segments are
replayed one after the other, many stretches of them side by side; each stretch begins with what the
one before has left, and is repeated until that agrees. Times are relative to when a stretch begins:
a shift of all lanes shifts all that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.schedule import evaluate, left
from evenstep.diagnose.graph.structure import Batch, Graph

Array = npt.NDArray[Any]

SHORTEST = 8  # segments of a chunk, replayed one after the other
MOST_CHUNKS = 256  # side by side
AGREED_NS = 1.0
ROUNDS = 4  # of chunks side by side; then one after the other
CELLS = 8_000_000  # own work of rows under all scenarios, held at a time


class Change(NamedTuple):
    """A scenario: own work of some rows, and how long some operations take, in ns."""

    rows: Array
    own_ns: Array
    operations: Array
    took_ns: Array

    @staticmethod
    def none() -> Change:
        """As it was."""
        nothing = np.zeros(0, np.int64)
        return Change(nothing, np.zeros(0), nothing, np.zeros(0))

    @staticmethod
    def of_work(rows: Array, own_ns: Array) -> Change:
        """Other own work of these rows; never less than none."""
        return Change.none()._replace(rows=rows, own_ns=np.maximum(own_ns, 0.0))

    @staticmethod
    def of_transfers(operations: Array, took_ns: Array) -> Change:
        """Other lengths of these operations; never less than none."""
        return Change.none()._replace(operations=operations, took_ns=np.maximum(took_ns, 0.0))


def together(graph: Graph, changes: Sequence[Change]) -> Change:
    """All of them at once: what each takes away or adds is summed, to no less than nothing or than
    one of them has it alone."""
    own, took = graph.own_ns.copy(), graph.took_ns.copy()
    least = np.zeros(len(own))
    for change in changes:
        least[change.rows] = np.minimum(least[change.rows], change.own_ns)
        own[change.rows] += change.own_ns - graph.own_ns[change.rows]
        took[change.operations] += change.took_ns - graph.took_ns[change.operations]
    rows, operations = np.flatnonzero(own != graph.own_ns), np.flatnonzero(took != graph.took_ns)
    return Change(rows, np.maximum(own, least)[rows], operations, np.maximum(took[operations], 0))


class Chunk(NamedTuple):
    """Neighbouring segments; `follows` the chunk before, of the same stretch of steps."""

    first: int
    last: int
    follows: bool


def replay(graph: Graph, changes: Sequence[Change]) -> Array:
    """Ends of all steps under each scenario: (scenarios, steps, lanes), ns.

    Each stretch of steps counts from the beginning of the trace's own; nan where a lane has no end.
    """
    each = max(1, CELLS // max(len(graph.rows), 1))
    parts = [
        _replayed(graph, changes[first : first + each]) for first in range(0, len(changes), each)
    ]
    shape = (0, len(graph.steps), len(graph.ranks))
    return np.concatenate(parts) if parts else np.zeros(shape)


def _replayed(graph: Graph, changes: Sequence[Change]) -> Array:
    tables = _Tables(graph, changes)
    chunks = _chunks(graph, MOST_CHUNKS)
    for allowed in (ROUNDS, len(graph.batch_of) + 1):
        states = np.zeros((len(chunks), len(graph.starts_ns[0]), len(changes)))
        states[:, len(graph.ranks) :] = -np.inf
        for number, chunk in enumerate(chunks):
            if not chunk.follows:
                states[number] = _first_state(graph, chunk)[:, None]
        run = _Run(graph, tables, chunks, states)
        if run.agree(allowed):
            break
        chunks = _chunks(graph, 1)
    return run.ends()


def _first_state(graph: Graph, chunk: Chunk) -> Array:
    start = graph.starts_ns[graph.stretch_of[chunk.first]]
    return np.asarray(start - start[: len(graph.ranks)].max())


def _chunks(graph: Graph, most: int) -> list[Chunk]:
    """Every stretch of steps in chunks of about equal length."""
    count = len(graph.batch_of)
    edges = np.flatnonzero(np.diff(graph.stretch_of[:count], prepend=-1, append=-1))
    length = max(SHORTEST, -(-count // most)) if most > 1 else count
    found = []
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        parts = max((last - first) // length, 1)
        cuts = np.linspace(first, last, parts + 1).astype(int).tolist()
        found += [Chunk(a, b, a > first) for a, b in itertools.pairwise(cuts)]
    return found


class _Tables:
    """Own work and transfers under every scenario."""

    def __init__(self, graph: Graph, changes: Sequence[Change]) -> None:
        self.own = np.repeat(graph.own_ns[:, None], len(changes), axis=1)
        self.took = np.repeat(graph.took_ns[:, None], len(changes), axis=1)
        for number, change in enumerate(changes):
            self.own[change.rows, number] = change.own_ns
            self.took[change.operations, number] = change.took_ns

    def of(self, batch: Batch, places: Array) -> tuple[Array, Array]:
        """Those of some segments of a batch: (rows or operations, segments × scenarios)."""
        rows = batch.schedule.rows[:, None] + batch.first_row[places][None, :]
        operations = batch.schedule.operations[:, None] + batch.first_operation[places][None, :]
        own, took = self.own[rows], self.took[operations]
        columns = len(places) * own.shape[2]
        return own.reshape(len(rows), columns), took.reshape(len(operations), columns)


class _Run:
    """Chunks side by side, and what each leaves to the next."""

    def __init__(
        self, graph: Graph, tables: _Tables, chunks: Sequence[Chunk], states: Array
    ) -> None:
        self.graph, self.tables, self.chunks = graph, tables, chunks
        self.states = states  # (chunks, lanes and queues, scenarios), the largest lane at 0
        shape = (states.shape[2], len(graph.steps), len(graph.ranks))
        self.found = np.full(shape, np.nan)  # relative to the begin of the chunk
        self.left = np.zeros(states.shape)
        self.owner = np.zeros(len(graph.steps), np.int64)  # chunk of each step's end

    def agree(self, rounds: int) -> bool:
        """Replay until every chunk begins with what the one before has left."""
        stale = np.ones(len(self.chunks), bool)
        for _ in range(rounds):
            self._replay(np.flatnonzero(stale))
            stale[:] = False
            for number, chunk in enumerate(self.chunks):
                if chunk.follows:
                    state = self._relative(number - 1)
                    if not _close(state, self.states[number]):
                        self.states[number], stale[number] = state, True
            if not stale.any():
                return True
        return False

    def _relative(self, number: int) -> Array:
        lanes = len(self.graph.ranks)
        return np.asarray(self.left[number] - self.left[number][:lanes].max(axis=0))

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
        own, took = self.tables.of(batch, self.graph.place_in_batch[segment])
        carried = state[mine].transpose(1, 0, 2).reshape(state.shape[1], -1)
        buffer = evaluate(batch.schedule, own, took, carried)
        after = left(batch.schedule, buffer).reshape(state.shape[1], len(mine), scenarios)
        state[mine] = after.transpose(1, 0, 2)
        row, lane, ahead = batch.ends.T
        ends = buffer[batch.schedule.place[row]].reshape(len(row), len(mine), scenarios)
        step = segment[None, :] + ahead[:, None]
        self.found[:, step, lane[:, None]] = ends.transpose(2, 0, 1)
        self.owner[step] = which[mine][None, :]

    def ends(self) -> Array:
        """Ends of the steps, with the chunks one after the other."""
        lanes = len(self.graph.ranks)
        offset = np.zeros((len(self.chunks), self.states.shape[2]))
        for number, chunk in enumerate(self.chunks):
            if chunk.follows:
                offset[number] = offset[number - 1] + self.left[number - 1][:lanes].max(axis=0)
            else:
                start = self.graph.starts_ns[self.graph.stretch_of[chunk.first]]
                offset[number] = start[:lanes].max()
        return np.asarray(self.found + offset[self.owner].T[:, :, None])


def _close(one: Array, other: Array) -> bool:
    known = np.isfinite(one) & np.isfinite(other)
    apart = np.abs(one[known] - other[known]).max(initial=0.0)
    return bool(apart <= AGREED_NS and (known | (np.isfinite(one) == np.isfinite(other))).all())


def step_lengths(graph: Graph, ends: Array) -> Array:
    """How long each step of the job takes: (scenarios, steps), ns: the median over lanes.

    Where steps were left out, from the last lane's end to the last lane's: in short stretches what
    one lane has done after it was waited for would not show. A step whose end nobody was seen to
    reach shares what passes until the next one that is seen with it, evenly; after the last one
    that is seen nothing passes. So lengths add up to what the run took.
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
        start = np.median(begun) if whole else begun.max()
        turns = np.arange(end - first + 1)
        for scenario, there in enumerate(known[:, first:end]):
            points = np.append(True, there)
            values = np.append(start, last[scenario, first:end])
            values = np.interp(turns, turns[points], values[points])
            lengths[scenario, first:end] = np.diff(values)
    return lengths
