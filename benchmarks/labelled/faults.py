"""Examples from real gloo jobs with a real fault, observed and diagnosed as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.labelled.example import Example, Label
from benchmarks.ranks import JobError, environment

JOB = "benchmarks.jobs.faulty"
DELAYS_MS = (8.0, 25.0)  # per step, on average, beside 54 ms of work
ONE, FIRST = frozenset({1}), frozenset({0})


class Truth(NamedTuple):
    """The mode a fault belongs to, and whose it is; None: nobody's in particular."""

    mode: str | None
    culprits: frozenset[int] | None = None


TRUTH = {
    "slow-forward": Truth("straggler", ONE),
    "slow-backward": Truth("straggler", ONE),
    "slow-optimizer": Truth("straggler", ONE),
    "slow-input": Truth("input_pipeline", ONE),
    "rotate": Truth("straggler"),
    "burst": Truth("straggler", ONE),
    "transient": Truth("straggler", ONE),
    "collect": Truth("runtime_jitter"),
    "save": Truth("checkpoint_stall", FIRST),
    "evaluate": Truth("checkpoint_stall", FIRST),
    "warm": Truth("thermal_drift", ONE),
    "oscillate": Truth("synchronization_oscillation"),
    "lengths": Truth("workload_imbalance"),
}


def disturbed(worlds: tuple[int, ...]) -> Iterator[Example]:
    """Every fault × size × number of ranks."""
    for fault, truth in TRUTH.items():
        for delay_ms in DELAYS_MS:
            for world in worlds:
                yield Example(
                    name=f"{fault}, {delay_ms:g} ms, {world} ranks, load {os.getloadavg()[0]:.1f}",
                    label=_label(truth, world),
                    diagnosis=partial(observed, fault, delay_ms, world),
                )


def healthy(worlds: tuple[int, ...], repeats: int) -> Iterator[Example]:
    """The same job without a fault."""
    for world in worlds:
        for _ in range(repeats):
            yield Example(
                name=f"healthy, {world} ranks, load {os.getloadavg()[0]:.1f}",
                label=_label(Truth(None), world),
                diagnosis=partial(observed, "healthy", 0.0, world),
            )


def _label(truth: Truth, world: int) -> Label:
    """Where ranks and what else runs need more cores than there are, they do compete for them: that
    is no mistake of the diagnosis."""
    crowded = world + os.getloadavg()[0] > len(os.sched_getaffinity(0))
    besides = frozenset({"runtime_jitter"} if crowded else ())
    return Label(mode=truth.mode, culprits=truth.culprits, besides=besides)


def observed(fault: str, delay_ms: float, world: int) -> dict[str, Any]:
    """Run the job under `evenstep run`; what `evenstep diagnose --json` says of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        job = ["-m", JOB, "--fault", fault, "--delay-ms", str(delay_ms)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        evenstep = [sys.executable, "-m", "evenstep"]
        _said([*evenstep, "run", "--out", run, "--", sys.executable, *launcher, *job], folder)
        found: dict[str, Any] = json.loads(_said([*evenstep, "diagnose", run, "--json"], folder))
        return found


def _said(command: list[str], folder: str) -> str:
    """Output of a command; findings above the threshold are no failure."""
    done = subprocess.run(
        command, env=environment(EVENSTEP_VERDICT="0"), cwd=folder, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise JobError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
