"""One step under way: where every rank is, what is in flight, what was spent on what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.fabric.noise import Disturbance
from evenstep.simulate.job.recording import Row
from evenstep.simulate.job.strategies import Seen
from evenstep.simulate.wires.wire import Carried
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]


class Step:
    """One step under way: `now` of every rank, what is in flight, what has been recorded."""

    def __init__(self, start_ns: Array, disturbance: Disturbance, *, recording: bool) -> None:
        self.start = start_ns
        self.now = start_ns
        self.disturbance = disturbance
        self.rows: list[Row] | None = [] if recording else None
        self.pending: list[tuple[list[Flow], Carried]] = []  # issued, not yet waited for
        self.seen: Seen | None = None
        self.delayed: set[Phase] = set()  # phases whose delay has been spent
        ranks = len(start_ns)
        self.input = np.zeros(ranks)
        self.blocked = np.zeros(ranks)
        self.waited = np.zeros(ranks)

    def noise_of(self, phase: Phase) -> tuple[Array | float, Array | float]:
        """(factor, delay) of a phase; its delay is spent once."""
        factor = self.disturbance.factor.get(phase, 1.0)
        if phase in self.delayed:
            return factor, 0.0
        self.delayed.add(phase)
        return factor, self.disturbance.delay_ns.get(phase, 0.0)

    def over(self, ends: Iterable[Array]) -> Array:
        """When all these collectives are over, on every rank."""
        latest = np.zeros_like(self.now)
        for end in ends:
            latest = np.maximum(latest, end.max(axis=0))
        return latest

    def block(self, until: Array, waiting: Array) -> None:
        """Nothing to do until then; `waiting` of it for other ranks."""
        length = np.maximum(until - self.now, 0.0)
        self.blocked = self.blocked + length
        self.waited = self.waited + np.clip(waiting, 0.0, length)
        self.now = np.maximum(self.now, until)

    def see(self, flows: Sequence[Flow], carried: Carried) -> None:
        """Remember the step's first collective and the end of its last, for pacing."""
        size = self.now.shape
        over = np.broadcast_to(carried.end_ns[-1], size)
        if self.seen is not None:
            self.seen = self.seen._replace(over_ns=over)
            return
        last, end = (np.broadcast_to(a[0], size) for a in (carried.last_ns, carried.end_ns))
        self.seen = Seen(carried.enter_ns[0], last, end, flows[0].duration_ns, over)
