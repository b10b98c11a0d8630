"""A run folder with several attempts whose losses are known by arithmetic."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS, PHASES, StepSummary, SummaryLog

STEP_NS = 1_000_000_000
CHECKPOINT_NS = 2_000_000_000


class Start(NamedTuple):
    """One attempt: when it starts, its steps, and after which of them a checkpoint is written."""

    at_s: float
    steps: int
    checkpoints: Sequence[int] = ()
    first_progress: int | None = None  # logged as global_step
    uneven_ns: int = 0  # every other step is so much longer
    joules: float = 0.0
    samples: int = 0  # of a rank in a step
    lost: Mapping[int, int] = {}  # by rank: first steps whose summaries cannot be read
    facts: Mapping[int, Mapping[str, Any]] = {}  # of the ranks that did not end in order


def write(root: Path, attempts: Sequence[Start], *, world: int = 2) -> Path:
    for number, start in enumerate(attempts):
        for rank in range(world):
            path = root / f"attempt-{number:03d}" / f"rank-{rank:05d}.spool"
            path.parent.mkdir(parents=True, exist_ok=True)
            _rank(path, rank, world, start)
    return root


def _rank(path: Path, rank: int, world: int, start: Start) -> None:
    identity = {"run_id": "r", "rank": rank, "world": world, "hostname": "h", "boot_id": "b"}
    spool = Spool.create(path, identity, ring_bytes=1 << 18, summary_bytes=1 << 18)
    log = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
    count, energy = spool.name_id("global_step"), spool.name_id("gpu.energy_joules")
    wall, now = int(start.at_s * 1e9), 5 * STEP_NS  # monotonic clocks begin anywhere
    for step in range(start.steps):
        phases = [0] * PHASES
        length = STEP_NS + start.uneven_ns * (step % 2)
        if step in start.checkpoints:
            phases[Phase.CHECKPOINT] = CHECKPOINT_NS
            length += CHECKPOINT_NS
        end = now + length
        spool.put(now, end, Kind.STEP, 0, step)
        if start.first_progress is not None:
            spool.put(
                now, now, Kind.MARKER, 0, step, name=count,
                bytes_in=_bits(start.first_progress + step),
            )  # fmt: skip
        if start.joules:
            joules = start.joules * step / (start.steps - 1)
            spool.put(now, now, Kind.SAMPLE, 0, step, name=energy, bytes_in=_bits(joules))
        wall += length
        if step >= start.lost.get(rank, 0):
            counters = [start.samples * (name == "samples") for name in COUNTERS]
            log.append(StepSummary(step, step, now, end, wall, phases, counters))
        now = end
    for name, fact in start.facts.get(rank, {"closed": {"reason": "exit"}}).items():
        spool.add_fact(name, fact)
    log.release()
    spool.shut()


def _bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
