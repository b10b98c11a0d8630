"""Ranks that write their spools on demand, as a job does: with known times, and no job."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, StepSummary, SummaryLog

MS = 1_000_000
STEP_NS = 100 * MS
AHEAD_NS = 60_000 * MS  # steps end that much later than now: who looks late finds no rank silent


class LiveRank:
    """One rank. Its steps take 100 ms: `own` ms of backward, the rest it is blocked."""

    def __init__(
        self, run: Path, rank: int, *, world=4, attempt=0, summary_bytes=1 << 18, **identity
    ):
        described = {
            "run_id": "r", "rank": rank, "world": world, "hostname": hostname(),
            "boot_id": boot_id(), "pid": os.getpid(),
            "anchor_monotonic_ns": time.monotonic_ns(), **identity,
        }  # fmt: skip
        path = RunFolder(run).spool_path(attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.spool = Spool.create(path, described, ring_bytes=1 << 16, summary_bytes=summary_bytes)
        self._log = SummaryLog(self.spool.summary_view(), self.spool.regions.summary_capacity)
        weakref.finalize(self, _shut, self._log, self.spool)  # whose files no process may keep
        self.step = 0
        self._start_ns = time.monotonic_ns() + AHEAD_NS

    def steps(self, count, *, own_ms=60, input_ms=0, known=True, **counted):
        """Finish so many steps; `counted` are counters of each, in ns."""
        for _ in range(count):
            phases = [0] * len(Phase)
            phases[Phase.BACKWARD] = (own_ms - input_ms) * MS
            phases[Phase.INPUT] = input_ms * MS
            phases[Phase.SYNC] = STEP_NS - own_ms * MS
            values = {"wait_ns": phases[Phase.SYNC] - 10 * MS, "wait_known": 1} if known else {}
            values |= counted
            counters = [values.get(name, 0) for name in COUNTERS]
            end_ns = self._start_ns + STEP_NS
            self._log.append(
                StepSummary(self.step, self.step, self._start_ns, end_ns, 0, phases, counters)
            )
            self.step, self._start_ns = self.step + 1, end_ns
        return self

    def wait(self, pause_s):
        """Nothing happens for a while."""
        self._start_ns += int(pause_s * 1e9)

    def enters(self, op=Op.ALL_REDUCE):
        """Begin an operation that does not end."""
        self.spool.put(self._start_ns, 0, Kind.COLLECTIVE, op, self.step, 0, 1, 7)
        return self

    def ends(self, at_ns=99, **facts):
        """Close the trace."""
        for key, value in {**facts, "closed": {"reason": "exit", "monotonic_ns": at_ns}}.items():
            self.spool.add_fact(key, value)
        _shut(self._log, self.spool)


def _shut(log, spool):
    log.release()
    spool.shut()


def job(run, *, late=None, steps=40, world=4, **identity):
    """Ranks that all have taken their steps; `late` works 90 ms, the others 60."""
    ranks = [LiveRank(run, rank, world=world, **identity) for rank in range(world)]
    for rank, live in enumerate(ranks):
        live.steps(steps, own_ms=90 if rank == late else 60)
    return ranks
