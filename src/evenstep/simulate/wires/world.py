"""All jobs on all links: operations that wait for each other and messages that share links.

A `World` is built with its links; flows (collectives laid on links) and graphs (the operations of a
step) are added, and its jobs are fed step by step. `world.c` is the engine; without a compiler
`world_python` gives the same results, slowly. Times are ns, rates GB/s.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import lru_cache
from pathlib import Path

import numpy as np

from evenstep.compiled import LibrarySource, build
from evenstep.simulate.wires.interface import STREAMS, Carriage, StepPlan
from evenstep.simulate.wires.world_python import PythonWorld
from evenstep.trace.columns import Array

LINE = 8  # numbers in a line of a processor's cache

_SOURCE = LibrarySource(Path(__file__).with_name("world.c"), flags=("-ffp-contract=off", "-lm"))


class CompiledWorld:
    """The engine in C; `PythonWorld` gives the same results."""

    def __init__(self, capacity: Array, ranks: tuple[int, ...], goodput: float = 1.0) -> None:
        library = _library()
        assert library is not None
        self._c = library
        self._links = len(capacity)
        self._rows: list[deque[Array]] = [deque() for _ in ranks]  # of steps under way
        self._past: list[deque[Array]] = [deque() for _ in ranks]  # of steps that may be needed
        self._spare: list[list[Array]] = [[] for _ in ranks]  # of those that are not
        self._of_job = ranks
        self._lag: dict[int, int] = {}
        self._widths: list[int] = []  # of each graph's widest role
        self._world = ctypes.c_void_p(
            library.world_new(
                len(capacity), _doubles(capacity), goodput, len(ranks),
                _pointer(np.array(ranks, np.int64)), STREAMS,
            )
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_world", None) is not None:
            self._c.world_free(self._world)

    def flow(self, carriage: Carriage) -> int:
        """Add a collective; return its number."""
        assert np.isin(np.flatnonzero(carriage.group >= 0), carriage.rank).all()
        groups = int(carriage.group.max(initial=-1)) + 1
        number = int(
            self._c.world_flow(
                self._world, len(carriage.rank), _ints(carriage.rank), groups,
                _ints(carriage.group), carriage.closed, carriage.joined, carriage.spared,
                carriage.launch_ns, carriage.steady, carriage.weight, carriage.lasting,
            )
        )  # fmt: skip
        for stage in carriage.stages:
            shared = np.ones(len(stage.link)) if stage.shared is None else stage.shared
            self._c.world_stage(
                self._world, number, len(stage.gate), _ints(stage.gate), _ints(stage.other),
                _doubles(stage.bytes), _doubles(stage.latency_ns), _doubles(stage.hop_ns),
                _pointer(np.ascontiguousarray(stage.route, np.int64)), _ints(stage.link),
                _pointer(np.ascontiguousarray(shared, np.int8)), stage.ring, stage.posted,
                stage.repeats,
            )  # fmt: skip
        return number

    def graph(self, plan: StepPlan) -> int:
        """Add the graph of a step; return its number."""
        columns = (plan.start, plan.kind, plan.stream, plan.instance, plan.soft, plan.need_start)
        self._widths.append(int(np.diff(plan.start).max(initial=0)))
        return int(
            self._c.world_graph(
                self._world, len(plan.role), _ints(plan.role), len(plan.start) - 1,
                *(_ints(column) for column in columns), _ints(plan.need), _ints(plan.back),
                len(plan.flow), _ints(plan.flow),
            )
        )  # fmt: skip

    def job(self, number: int, begin_ns: Array, *, lag: int = 0, slowdown: float = 0.0) -> None:
        """How a job runs: `lag` finished steps are kept for operations that need them; `slowdown`
        is the relative growth of compute while a collective is in flight."""
        self._lag[number] = max(lag, 1)  # what was taken is looked at until the next is
        self._c.world_job(self._world, number, lag, slowdown, _doubles(begin_ns))

    def feed(self, job: int, graph: int, value: Array, scale: Array) -> None:
        """Feed the next step: durations of operations, (widest, ranks), and scales of instances.

        NaN for the first of a rank's main stream: not known before it begins. Its other durations
        are then the least they can be, until `reveal`."""
        widest, ranks = value.shape
        assert (widest, ranks) == (self._widths[graph], self._of_job[job])
        rows = self._room(job, widest)
        rows[0, :, :ranks], rows[2] = value, np.nan
        self._rows[job].append(rows)
        self._c.world_feed(
            self._world, job, graph, rows.ctypes.data, rows.shape[2], _doubles(scale)
        )

    def _room(self, job: int, widest: int) -> Array:
        """Memory for the rows of a step: that of a step no longer needed, else new."""
        for place, spare in enumerate(self._spare[job]):
            if spare.shape[1] == widest:
                return self._spare[job].pop(place)
        lines = -(-self._of_job[job] // LINE) | 1  # odd: rows do not compete for places in a cache
        return np.empty((3, widest, LINE * lines))

    def reveal(self, job: int, step: int, ranks: Array, value: Array) -> None:
        """Durations of some ranks in a step under way; 0 is the oldest."""
        self._rows[job][step][0][:, ranks] = value[:, ranks]
        self._c.world_reveal(self._world, job)

    def under_way(self, job: int, step: int) -> tuple[Array, Array]:
        """(entry, end) of a step's operations, as `take`; NaN for those that are not over."""
        _, enter, end = self._rows[job][step][:, :, : self._of_job[job]]
        return enter, end

    def final(self, job: int) -> None:
        """Mark the last fed step of a job as its last."""
        self._c.world_final(self._world, job)

    def run(self, most: int) -> int:
        """Run until a job needs a step, or durations in one (its number), `most` messages are
        followed and rates solved, or the end."""
        return int(self._c.world_run(self._world, most))

    def take(self, job: int) -> tuple[Array, Array] | None:
        """(entry, end) of the oldest step's operations, (widest, ranks), once all are over. The
        arrays stay valid until the next step is taken and another is fed."""
        if not self._c.world_is_over(self._world, job):
            return None
        self._c.world_take(self._world, job)
        rows = self._rows[job].popleft()
        self._past[job].append(rows)
        if len(self._past[job]) > self._lag[job]:
            self._spare[job].append(self._past[job].popleft())
        _, enter, end = rows[:, :, : self._of_job[job]]
        return enter, end

    def messages(self, graph: int, *, shared: bool) -> int:
        """Messages of a step, of those collectives whose messages are all simulated one by one, and
        bundles; `shared`: only messages on links where others may be, also those in bundles."""
        return int(self._c.world_messages(self._world, graph, shared))

    def progress(self, graph: int) -> float:
        """How much of a step of the first job is sent: a share of the bytes of messages that are
        simulated one by one, from 0 to 1."""
        return float(self._c.world_progress(self._world, graph))

    @property
    def followed(self) -> int:
        """Messages simulated one by one, and trains and bundles of messages."""
        return int(self._c.world_followed(self._world))

    @property
    def rated(self) -> int:
        """Rates solved for messages among others, as these come and go: the cost of a run."""
        return int(self._c.world_rated(self._world))

    @property
    def peak_gBps(self) -> Array:  # noqa: N802
        """The highest rate on each link."""
        peak = np.empty(self._links)
        self._c.world_peaks(self._world, _pointer(peak))
        return peak


#: Jobs on links.
World = CompiledWorld | PythonWorld


def make_world(capacity: Array, ranks: tuple[int, ...], goodput: float = 1.0) -> World:
    """Build a world: jobs of these numbers of ranks, links of these capacities in GB/s.

    `goodput` is the factor on a link's capacity for each further job on it.
    """
    made = PythonWorld if _library() is None else CompiledWorld
    return made(capacity, ranks, goodput)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    found = build(_SOURCE)
    if found.path is None:
        return None
    library = ctypes.CDLL(str(found.path))
    whole, real, pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
    for name, result, arguments in (
        ("new", pointer, (whole, pointer, real, whole, pointer, whole)),
        ("flow", whole, (*(pointer, whole) * 2, pointer, *(whole,) * 3, *(real,) * 3, whole)),
        ("stage", None, (pointer, whole, whole, *(pointer,) * 8, whole, whole, whole)),
        ("graph", whole, (pointer, whole, pointer, whole, *(pointer,) * 8, whole, pointer)),
        ("job", None, (pointer, whole, whole, real, pointer)),
        ("reveal", None, (pointer, whole)),
        ("feed", None, (pointer, whole, whole, pointer, whole, pointer)),
        ("final", None, (pointer, whole)),
        ("run", whole, (pointer, whole)),
        ("is_over", whole, (pointer, whole)),
        ("take", None, (pointer, whole)),
        ("messages", whole, (pointer, whole, whole)),
        ("progress", real, (pointer, whole)),
        ("followed", whole, (pointer,)),
        ("rated", whole, (pointer,)),
        ("peaks", None, (pointer, pointer)),
        ("free", None, (pointer,)),
    ):
        function = getattr(library, f"world_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _pointer(array: Array) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)  # keeps the array alive


def _ints(array: Array) -> ctypes.c_void_p:
    return _pointer(np.ascontiguousarray(array, np.int32))


def _doubles(array: Array) -> ctypes.c_void_p:
    return _pointer(np.ascontiguousarray(array, np.float64))
