"""Nodes of a job that never ran: ranks that finish a step a second, and what sums them up.

Each node has a folder of its own, as on its own disk; what it sums up goes to the run's folder.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Phase
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, StepSummary, SummaryLog
from evenstep.watch.run import LiveRun
from evenstep.watch.tree import encode, summary_path, write_summary

RANKS_PER_NODE = 8
STEP_NS = 1_000_000_000
LATE_NS = 300_000_000
BEFORE = 40  # steps before anybody looks


class Rank:
    """One rank's spool; the late one works longer, the others wait for it."""

    def __init__(self, run: Path, rank: int, world: int) -> None:
        path = RunFolder(run).spool_path(0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        node = f"node{rank // RANKS_PER_NODE:04d}"
        described = {
            "run_id": "live", "rank": rank, "world": world, "hostname": node, "boot_id": node,
            "pid": os.getpid(),
        }  # fmt: skip
        self._spool = Spool.create(path, described, ring_bytes=1 << 12, summary_bytes=1 << 16)
        self._log = SummaryLog(self._spool.summary_view(), self._spool.regions.summary_capacity)
        own = STEP_NS // 2 + LATE_NS * (rank == world // 3) + rank % 7 * 1_000_000
        self._phases = [0] * len(Phase)
        self._phases[Phase.BACKWARD], self._phases[Phase.SYNC] = own, STEP_NS - own
        values = {"wait_ns": STEP_NS - own, "wait_known": 1}
        self._counters = [values.get(name, 0) for name in COUNTERS]
        self._step = 0

    def step(self) -> None:
        """Finish a step."""
        now = time.monotonic_ns()
        self._log.append(
            StepSummary(self._step, self._step, now - STEP_NS, now, 0, self._phases, self._counters)
        )
        self._step += 1


def main() -> None:
    """Go on until killed; print how long a round of all nodes takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--disks", type=Path, required=True, help="the nodes' own")
    parser.add_argument("--ranks", type=int, required=True)
    args = parser.parse_args()
    nodes, ranks = {}, []
    for rank in range(args.ranks):
        disk = args.disks / f"node{rank // RANKS_PER_NODE:04d}"
        nodes.setdefault(disk.name, LiveRun(disk))
        ranks.append(Rank(disk, rank, args.ranks))
    for _ in range(BEFORE):
        for each in ranks:
            each.step()
    while True:
        due = time.monotonic() + 1.0
        started = time.process_time()
        for each in ranks:
            each.step()
        for name, run in nodes.items():
            run.refresh()
            write_summary(summary_path(args.run, name), encode(run, name))
        print(f"{(time.process_time() - started) / len(nodes):.6f}", flush=True)
        time.sleep(max(due - time.monotonic(), 0.0))


if __name__ == "__main__":
    main()
