"""A run folder of a few ranks, written by the spools themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import StepSummary, SummaryLog

STEPS = 4
WORLD = 3


def identity(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": "r", "rank": rank, "world": WORLD, "hostname": f"h{rank // 2}", "boot_id": "b",
        **changes,
    }  # fmt: skip


def write_rank(path: Path, rank: int, *, first: int = 0, **changes: Any) -> Path:
    """One rank's closed spool: `STEPS` steps from `first` on, an all-reduce in each, a summary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    spool = Spool.create(path, identity(rank, **changes), ring_bytes=1, summary_bytes=1)
    summaries = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
    spool.name_id(f"only rank {rank} has this")
    name = spool.name_id("shared")
    other = spool.add_group({"uid": f"own {rank}", "name": "solo", "ranks": str(rank)})
    group = spool.add_group({"uid": "world", "name": "dp", "ranks": f"0-{WORLD - 1}"})
    assert (other, group) == (1, 2)
    for step in range(STEPS - first):
        enter = 1000 * (first + step) + rank
        spool.put(
            enter,
            enter + 1,
            Kind.COLLECTIVE,
            Op.ALL_REDUCE,
            step,
            0,
            group,
            first + step,
            name=name,
        )
        summaries.append(
            StepSummary(step, step, 1000 * (first + step), 1000 * (first + step + 1), 0)
        )
    spool.add_fact("closed", {"reason": "exit"})
    summaries.release()
    spool.shut()
    return path


def write_run(root: Path, ranks: range = range(WORLD), *, attempt: int = 0) -> Path:
    """A run folder with the spools of `ranks`; returns it."""
    for rank in ranks:
        write_rank(root / f"attempt-{attempt:03d}" / f"rank-{rank:05d}.spool", rank)
    return root
