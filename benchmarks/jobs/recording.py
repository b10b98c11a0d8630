"""One rank that issues asynchronous all-reduces and ends steps: what the training thread pays.

Each figure is a comparison within one process, in random order, of calls and steps that are
recorded with ones that are not: compiled kernels pass those on, Python's own are taken from the
dispatcher. What it costs to be passed on is measured by the recorder itself and added. All figures
are thread time of the training thread: on a busy machine the clock says more about the others.
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
from evenstep.agent.recording.phases import Word
from evenstep.attachment import agent
from evenstep.hooks.torch import thrift

PAUSE_S = 0.005  # as between two buckets of a backward: caches have forgotten us
COLLECTIVES = 64  # of a step that is ended
PER_STEP = 10  # collectives of a step of the loop that is paid for as a whole


class Job:
    """The rank's part, on its attached agent."""

    def __init__(self) -> None:
        attached = agent.current()
        if attached is None:
            raise RuntimeError("evenstep is not attached")
        self._tensor = torch.ones(1)
        self._recorder = attached.recorder
        self._hooks: Any = attached._hooks["torch"]
        self._order = random.Random(1)

    @property
    def passing_ns(self) -> float:
        """What a call that is passed on costs more than one without kernels, caches being cold."""
        return self._recorder.cost.cold_ns if self._hooks._native is not None else 0.0

    def record(self, on: bool) -> None:
        """Record what comes, or none of it."""
        hooks, kernels = self._hooks, self._hooks._kernels
        hooks._observer.armed = on
        if hooks._native is not None:
            self._recorder.words[Word.ARMED] = int(on)
        elif on:
            kernels.resume()
        elif not kernels.resting:
            kernels.rest()

    def compared(self, run: Callable[[bool], float], pairs: int) -> float:
        """What it takes more where it is recorded: the median over pairs, in random order."""
        found = []
        for _ in range(pairs):
            took = {}
            for on in self._order.sample((True, False), 2):
                self.record(on)
                took[on] = run(on)
            found.append(took[True] - took[False])
        self.record(True)
        return statistics.median(found)

    def issuing_ns(self, calls: int, pause_s: float) -> float:
        """Mean thread time of issuing a call, after a pause before each."""
        total = 0
        for _ in range(calls):
            if pause_s:
                time.sleep(pause_s)
            start = time.thread_time_ns()
            work = dist.all_reduce(self._tensor, async_op=True)
            total += time.thread_time_ns() - start
            work.wait()
        return total / calls

    def ending_ns(self) -> int:
        """Thread time of ending a step of many collectives, after a pause."""
        for _ in range(COLLECTIVES):
            dist.all_reduce(self._tensor, async_op=True).wait()
        time.sleep(PAUSE_S)
        start = time.thread_time_ns()
        evenstep.step()
        return time.thread_time_ns() - start

    def step_ns(self, on: bool) -> int:
        """Thread time of a whole step: pauses, collectives, waits, and its end where it is seen."""
        start = time.thread_time_ns()
        works = []
        for _ in range(PER_STEP):
            time.sleep(PAUSE_S)
            works.append(dist.all_reduce(self._tensor, async_op=True))
        for work in works:
            work.wait()
        if on:
            evenstep.step()
        return time.thread_time_ns() - start


def main() -> None:
    """Measure as the arguments say and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", choices=("python", "compiled"), required=True)
    parser.add_argument("--pairs", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    thrift.BUDGET = 1.0  # nothing is spared: it is to be measured
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if not evenstep.attach(out=out, compiled=args.state == "compiled", share=False):
            raise RuntimeError("evenstep did not attach")
        job = Job()
        for _ in range(8):
            job.step_ns(True)
        figures: dict[str, Any] = {
            "hot_ns": job.compared(lambda _: job.issuing_ns(100, 0.0), args.pairs),
            "cold_ns": job.compared(lambda _: job.issuing_ns(1, PAUSE_S), 4 * args.pairs),
            "end_ns": [job.ending_ns() for _ in range(args.pairs)],
        }
        first = job._recorder.stack.step
        figures["paid_ns"] = job.compared(job.step_ns, args.pairs)
        passing_ns = job.passing_ns
        evenstep.detach()
        figures["cold_ns"] += passing_ns
        figures["paid_ns"] += PER_STEP * passing_ns
        print(json.dumps(figures | _said(out, first)))
    dist.destroy_process_group()


def _said(out: Path, first: int) -> dict[str, Any]:
    """What the trace says the compared steps cost, and by what it was recorded."""
    trace = evenstep.load(out)
    steps = trace.summaries["first_step"] > first  # a step's own end is told by the next
    facts = trace.ranks[0].facts
    return {
        "said_ns": float(trace.summaries["agent_ns"][steps].mean()),
        "mechanism": facts["hooks"]["mechanism"],
        "each_ns": facts["cost"]["ns_per_collective"],
    }


if __name__ == "__main__":
    main()
