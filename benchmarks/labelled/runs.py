"""Causes that concern a run as a whole: hangs, restarts, sizes, updates that nobody waits for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.labelled.example import Label
from benchmarks.labelled.ordinary import Made, Random, ordinary
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import RankInfo, Trace
from tests.diagnose.attempts_run import CHECKPOINT_NS, STEP_NS, Start, write
from tests.diagnose.synthetic import MS, TYPES, with_rows

SECOND = 1_000_000_000


def hanging(random: Random, severity: float) -> Made:
    """After some steps one rank does not come to a collective, or calls another one."""
    world = replace(ordinary(random, 0.02), style="blocking", tensor_parallel=1, clocks={})
    world = replace(world, ranks=max(world.ranks, 3), steps=min(world.steps, 160))
    rank, absent = int(random.integers(world.ranks)), bool(random.integers(2))
    still_ns = max(30 * SECOND, severity * world.length_ns() / (1 - severity))

    def trace() -> Trace:
        found = world.trace()
        end = int(found.events.exit_ns.max())
        for other in range(world.ranks):
            op = Op.BARRIER if other == rank else Op.ALL_REDUCE
            if other != rank or not absent:
                found = with_rows(
                    found, rank=other, kind=Kind.COLLECTIVE, op=op, group=0, group_seq=10**6,
                    step=world.steps, enter_ns=end + MS, bytes_in=4096,
                )  # fmt: skip
        for info in found.ranks.values():
            info.closed = False
        heard = int(end + still_ns)
        return with_rows(found, kind=Kind.SAMPLE, rank=0, enter_ns=heard, step=world.steps)

    lost = still_ns / (still_ns + world.length_ns())
    return Made(Label(mode="hang", culprits=frozenset({rank}), lost=lost), trace)


def serving(random: Random, severity: float) -> Made:
    """Ranks pass updates to a server at their own pace, one of them at a much slower one."""
    ranks = int(random.choice([4, 8, 12]))
    length = np.full(ranks, float(random.uniform(20, 200)))
    slow = int(random.integers(ranks))
    length[slow] *= 6 + 40 * severity
    trace = _at_own_pace(length, int(random.integers(200, 400)), random)
    return Made(Label(mode="async_staleness", culprits=frozenset({slow})), lambda: trace)


def _at_own_pace(lengths_ms: Any, steps: int, random: Random) -> Trace:
    tables = []
    for rank, length in enumerate(lengths_ms):
        number = int(steps * min(lengths_ms) / length)
        end = np.cumsum(length * MS * (1 + 0.05 * random.standard_normal(number)))
        for kind, op in ((Kind.STEP, 0), (Kind.POINT_TO_POINT, Op.SEND)):
            given = {
                "rank": rank, "kind": kind, "op": op, "step": np.arange(number), "group": -1,
                "enter_ns": SECOND + np.append(0, end[:-1]), "exit_ns": SECOND + end,
            }  # fmt: skip
            table = {}
            for name in EVENT_COLUMNS:
                values = np.broadcast_to(np.asarray(given.get(name, 0)), number)
                table[name] = values.astype(TYPES[name])
            tables.append(Columns(table))
    ranks = {
        rank: RankInfo(rank, {"rank": rank, "hostname": "h", "boot_id": "b"})
        for rank in range(len(lengths_ms))
    }
    events = Columns.concatenate(tables).sorted_by("rank", "enter_ns")
    return Trace({}, len(ranks), 0, ranks, events)


def restarted(random: Random, severity: float) -> Made:
    """A run that stops twice, some steps after its last checkpoint, and begins again."""
    from evenstep.diagnose.measure import attempts

    steps, every = int(random.integers(60, 120)), 20
    saved = list(range(every - 1, steps, every))
    ran_s = (steps * STEP_NS + len(saved) * CHECKPOINT_NS) / 1e9
    lost_steps = steps - 1 - saved[-1]
    gap_s = max(5.0, (severity * 3 * ran_s - 2 * lost_steps) / 2 / (1 - severity))
    starts = [Start(number * (ran_s + gap_s), steps, saved) for number in range(3)]

    def trace() -> Trace:
        from evenstep.trace.loading import load

        with tempfile.TemporaryDirectory() as folder:
            root = write(Path(folder) / "run", starts)
            return attempts.with_attempts(load(root), root)

    lost = 2 * (lost_steps + gap_s) / (3 * ran_s + 2 * gap_s)
    return Made(Label(mode="restart_amplification", lost=lost), trace)


def collapsing(random: Random, severity: float) -> Made:
    """Runs at 2 to 16 ranks whose exchange grows with the square of the ranks."""
    base = ordinary(random, 0.01)
    base = replace(
        base, style="blocking", tensor_parallel=1, clocks={}, samples=8, noise=0.003,
        steps=60, ranks_per_node=64,
    )  # fmt: skip
    per_bucket = severity / (1 - severity) * 64 * MS * base.pace / base.buckets
    sizes = [
        replace(base, ranks=ranks, transfer_ns=per_bucket * (ranks / 16) ** 2)
        for ranks in (2, 4, 8, 16)
    ]
    lost = sizes[-1].lost_against(sizes[0])
    label = Label(mode="scaling_collapse", lost=lost)
    return Made(label, lambda: [world.trace() for world in sizes])


CAUSES: dict[str, Callable[[Random, float], Made]] = {
    "hanging": hanging,
    "serving": serving,
    "restarted": restarted,
    "collapsing": collapsing,
}
