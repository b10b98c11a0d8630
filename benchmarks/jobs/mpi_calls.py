"""Small all-reduces of two mpi4py ranks: alone, wrapped in Python, and with evenstep.

Each rank has a core of its own. The three take turns in random order, the same on every rank,
within one process. Each turn makes chunks of 16 calls, the last of a chunk being of another size,
so that with evenstep a chunk is a step. The figures are medians over chunks, of all calls but those
at the ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import evenstep
from evenstep.hooks.mpi.methods import assign
from evenstep.hooks.wrapping import replace_attribute

CHUNK = 16  # more equal calls in a row would each be taken for a step
LEARNT = 16  # chunks until what repeats is known, and a few more
SETTLE_S = 0.3  # an attached agent reads the machine's layout once, on its background thread
STATES = ("bare", "wrapper", "evenstep")


class Turns:
    """Runs the states in turn and keeps their figures, in ns per call and of a step's end."""

    def __init__(self, chunks: int, folder: Path) -> None:
        self.ns: dict[str, list[float]] = {state: [] for state in STATES}
        self.end_ns: dict[str, list[float]] = {state: [] for state in STATES}
        self._chunks = chunks
        self._folder = folder
        self._attached = 0
        self._small, self._large = np.ones(8, "f4"), np.ones(16, "f4")
        self._answer = np.zeros(16, "f4")

    def play(self, state: str) -> None:
        """One turn: switch, settle, measure, switch back."""
        leave = self._enter(state)
        MPI.COMM_WORLD.Barrier()
        time.sleep(SETTLE_S)
        for _ in range(LEARNT):
            self._chunk()
        figures = [self._chunk() for _ in range(self._chunks)]
        calls, ends = zip(*figures, strict=True)
        self.ns[state].append(statistics.median(calls))
        self.end_ns[state].append(statistics.median(ends))
        MPI.COMM_WORLD.Barrier()
        leave()

    def _enter(self, state: str) -> Callable[[], Any]:
        if state == "bare":
            return lambda: None
        if state == "wrapper":
            return wrapped()
        self._attached += 1
        out = self._folder / f"run-{self._attached}"
        sizes: dict[str, Any] = {"ring_bytes": 1_000_000, "summary_bytes": 1_000_000}
        if not evenstep.attach(out=out, **sizes):
            raise RuntimeError("evenstep did not attach")
        return evenstep.detach

    def _chunk(self) -> tuple[float, float]:
        call, small, answer = MPI.COMM_WORLD.Allreduce, self._small, self._answer[:8]
        call(small, answer)
        start = time.perf_counter_ns()
        for _ in range(CHUNK - 2):
            call(small, answer)
        end = time.perf_counter_ns()
        call(self._large, self._answer)
        return (end - start) / (CHUNK - 2), time.perf_counter_ns() - end


def wrapped() -> Callable[[], None]:
    """Put a function that does nothing but call it around the method; how to undo that."""
    original = MPI.Comm.__dict__["Allreduce"]

    def method(communicator: Any, *args: Any, **kwargs: Any) -> Any:
        return original(communicator, *args, **kwargs)

    return replace_attribute(MPI.Comm, "Allreduce", method, assign)


def main() -> None:
    """Measure as the arguments say; rank 0 prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunks", type=int, default=200)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[MPI.COMM_WORLD.Get_rank() % len(cores)]})
    order = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(args.chunks, Path(folder))
        for _ in range(args.rounds):
            for state in order.sample(STATES, len(STATES)):
                turns.play(state)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps({"calls": turns.ns, "ends": turns.end_ns}), flush=True)


if __name__ == "__main__":
    main()
