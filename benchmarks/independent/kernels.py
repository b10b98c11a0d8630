"""How busy devices were, as their driver says it and an agent samples it: `gpu.busy_percent`.

NVML's utilization is the percentage of the last sixth of a second to second, by product, in which
one or more kernels were executing (`nvmlUtilization_t`); a collective's kernel executes from when
its rank's stream begins it until it is over. Each rank looks once a second, beginning at some
moment, and records what it sees when that has changed, else every tenth time.
"""

from __future__ import annotations

import numpy as np

from benchmarks.independent.job import Job
from benchmarks.independent.machine import SAMPLE

METRIC, PERIOD_S, REPEAT = "gpu.busy_percent", 1.0, 10


def sample_busy(job: Job) -> None:
    """Put the samples of all ranks on the tape; half of all jobs have no such driver."""
    rng = job.rng(METRIC)
    if not job.spec.on_device or rng.random() < 0.5:
        return
    window_s = float(rng.uniform(1 / 6, 1.0))
    until = float(job.machine.now.min())
    busy = _busy(job)
    ends = np.array(job.step_ends)
    for rank, first in enumerate(rng.uniform(0, PERIOD_S, job.spec.world).tolist()):
        at = np.arange(first, until, PERIOD_S)
        at = at[at > window_s]
        known = np.interp([at - window_s, at], *busy[rank])
        value = np.round(100 * np.clip(np.diff(known, axis=0)[0] / window_s, 0, 1))
        step = np.minimum(np.searchsorted(ends[:, rank], at), job.spec.steps - 1)
        seen = None
        for turn, (when, shown) in enumerate(zip(at.tolist(), value.tolist(), strict=True)):
            if shown != seen or turn % REPEAT == 0:
                job.machine.note(
                    np.array([rank]), SAMPLE, name=job.name(METRIC), device=0,
                    enter=np.array([when]), exit=np.array([when]),
                    bytes_in=np.array([shown]).astype("<f8").view("<u8"),
                )["step"] = int(step[turn])  # fmt: skip
            seen = shown


def _busy(job: Job) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each rank moments, and for how long kernels had executed by then, in seconds.

    Kernels of a piece of work are spread over it evenly; those of collectives run beside them.
    """
    world = job.spec.world
    columns = [np.concatenate(part) for part in zip(*job.machine.executed, strict=True)]
    found = []
    for rank in range(world):
        mine = columns[0] == rank
        start, end, seconds = (column[mine] for column in columns[1:])
        whole = np.isnan(seconds)  # a collective
        rate = np.where(whole, 0.0, seconds / np.maximum(end - start, 1e-12))
        when = np.concatenate([start, end])
        order = np.argsort(when, kind="stable")
        flights = np.concatenate([whole, -1 * whole])[order].cumsum() > 0
        density = np.concatenate([rate, -rate])[order].cumsum()
        when = when[order]
        share = np.where(flights, 1.0, np.clip(density, 0.0, 1.0))
        done = np.append(0.0, np.cumsum(share[:-1] * np.diff(when)))
        found.append((when, done))
    return found
