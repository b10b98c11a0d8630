"""One rank issuing small all-reduces: alone, with the bare mechanism, reading, and with evenstep.

The four take turns in random order, the same on every rank, within one process; each turn issues
chunks of 64, and its figure is the median over chunks. With evenstep every chunk is one step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import evenstep
from benchmarks.jobs import mechanism

CHUNK = 64
SETTLE_S = 0.3  # an attached agent reads the machine's layout once, on its background thread
STATES = ("bare", "mechanism", "reading", "evenstep")


class Turns:
    """Runs the states in turn and keeps their figures, in ns per call."""

    def __init__(self, call: Callable[[], Any], chunks: int, folder: Path) -> None:
        self.ns: dict[str, list[float]] = {state: [] for state in STATES}
        self.step_ns: list[float] = []
        self._call = call
        self._chunks = chunks
        self._folder = folder
        self._attached = 0

    def play(self, state: str) -> None:
        """One turn: switch, settle, measure, switch back."""
        leave = self._enter(state)
        dist.barrier()
        time.sleep(SETTLE_S)
        for _ in range(CHUNK):
            self._call()
        figures = [self._chunk(state) for _ in range(self._chunks)]
        self.ns[state].append(statistics.median(figures))
        dist.barrier()
        leave()

    def _enter(self, state: str) -> Callable[[], Any]:
        if state in ("mechanism", "reading"):
            return mechanism.install(torch, reading=state == "reading")
        if state == "evenstep":
            self._attached += 1
            out = self._folder / f"run-{self._attached}"
            small = {"ring_bytes": 1_000_000, "summary_bytes": 1_000_000}
            if not evenstep.attach(out=out, compiled=False, **small):
                raise RuntimeError("evenstep did not attach")
            return evenstep.detach
        return lambda: None

    def _chunk(self, state: str) -> float:
        call = self._call
        start = time.perf_counter_ns()
        for _ in range(CHUNK):
            call()
        end = time.perf_counter_ns()
        if state == "evenstep":
            evenstep.step()
            self.step_ns.append(time.perf_counter_ns() - end)
        return (end - start) / CHUNK


def main() -> None:
    """Measure as the arguments say; rank 0 prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("fake", "gloo"), required=True)
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunks", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    connect(args.backend)
    tensor = torch.zeros(1)
    issue = dist.all_reduce

    def call() -> None:
        issue(tensor, async_op=not args.blocking)

    order = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(call, args.chunks, Path(folder) / f"rank-{dist.get_rank()}")
        for _ in range(args.rounds):
            for state in order.sample(STATES, len(STATES)):
                turns.play(state)
    if dist.get_rank() == 0:
        print(json.dumps({**turns.ns, "step": turns.step_ns}))
    dist.destroy_process_group()


def connect(backend: str) -> None:
    """Join the process group: four ranks of which three are pretended, or the real ones."""
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    else:
        dist.init_process_group("gloo")


if __name__ == "__main__":
    main()
