"""One rank that issues asynchronous all-reduces and ends steps: what the training thread pays.

Each figure is a comparison within one process, in random order, of calls and steps that are
recorded with ones that go as without evenstep: this thread's calls pass no kernel of ours, and
`Work.wait` is torch's own. All figures are thread time of the training thread: on a busy machine
the clock says more about the others.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import evenstep
from evenstep.agent.recording.recorder import COST_SAMPLE, COST_WINDOW
from evenstep.attachment import agent
from evenstep.hooks.torch import thrift

PAUSE_S = 0.005  # as between two buckets of a backward: caches have forgotten us
COLLECTIVES = 64  # of a step that is ended
#: Loops that are paid for as a whole: collectives of a step, and the pause before each of them.
LOOPS = {"cold": (10, 0.0038), "dense": (64, 0.0006), "hot": (64, 0.0)}
BLOCK = 5  # steps in a row with evenstep, or without
PLAIN_WAIT = vars(Work)["wait"]  # torch's own


class Job:
    """The rank's part, on its attached agent."""

    def __init__(self) -> None:
        attached = agent.current()
        if attached is None:
            raise RuntimeError("evenstep is not attached")
        self._tensor = torch.ones(1)
        self._recorder = attached.recorder
        self._order = random.Random(1)
        self._ends: dict[bool, list[int]] = {True: [], False: []}  # see `steps_ns`

    @contextmanager
    def recorded(self, on: bool) -> Iterator[None]:
        """Record what this thread does meanwhile, or have it go as without evenstep."""
        if on:
            yield
            return
        ours, key = vars(Work)["wait"], torch._C.DispatchKey.BackendSelect
        Work.wait = PLAIN_WAIT
        try:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                yield
        finally:
            Work.wait = ours

    def compared(self, run: Callable[[bool], float], pairs: int) -> tuple[float, float]:
        """What it takes more where it is recorded: a mean over pairs, in random order, without the
        tenth at each end, and its standard error (Tukey and McLaughlin, 1963)."""
        found = []
        for _ in range(pairs):
            took = {}
            for on in self._order.sample((True, False), 2):
                with self.recorded(on):
                    took[on] = run(on)
            found.append(took[True] - took[False])
        found.sort()
        cut = pairs // 10
        kept = found[cut : pairs - cut]
        outer = [kept[0]] * cut + kept + [kept[-1]] * cut
        return statistics.fmean(kept), statistics.stdev(outer) * pairs**0.5 / len(kept)

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

    def steps_ns(self, on: bool, collectives: int, pause_s: float) -> float:
        """Mean thread time of issuing and waiting in a step. What ends it, where it is seen, is
        kept apart: it costs some steps ten times as much, which no trimmed mean counts."""
        total = 0
        for _ in range(BLOCK):
            works = []
            for _ in range(collectives):
                if pause_s:
                    time.sleep(pause_s)
                start = time.thread_time_ns()
                works.append(dist.all_reduce(self._tensor, async_op=True))
                total += time.thread_time_ns() - start
            start = time.thread_time_ns()
            for work in works:
                work.wait()
            waited = time.thread_time_ns()
            total += waited - start
            if on:
                evenstep.step()
            self._ends[on].append(time.thread_time_ns() - waited)
        return total / BLOCK

    def paid(self, loop: str, pairs: int) -> dict[str, float | int]:
        """What a step of a loop pays, and which steps those were, once what is said of them is a
        mean of their own samples."""
        collectives, pause_s = LOOPS[loop]
        for _ in range(COST_SAMPLE * COST_WINDOW // (collectives * BLOCK) + 1):
            self.steps_ns(True, collectives, pause_s)
        first = self._recorder.step
        self._ends = {True: [], False: []}
        paid_ns, error_ns = self.compared(lambda on: self.steps_ns(on, collectives, pause_s), pairs)
        ended = self._ends[True]
        paid_ns += statistics.fmean(ended) - statistics.fmean(self._ends[False])
        error_ns = math.hypot(error_ns, statistics.stdev(ended) / len(ended) ** 0.5)
        return {
            "paid_ns": paid_ns, "error_ns": error_ns, "first": first, "end": self._recorder.step
        }  # fmt: skip


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
        for _ in range(4):
            job.steps_ns(True, *LOOPS["cold"])
        figures: dict[str, Any] = {
            "hot_ns": job.compared(lambda _: job.issuing_ns(100, 0.0), args.pairs)[0],
            "cold_ns": job.compared(lambda _: job.issuing_ns(1, PAUSE_S), 4 * args.pairs)[0],
            "end_ns": [job.ending_ns() for _ in range(args.pairs)],
        }
        loops = {loop: job.paid(loop, args.pairs // 2) for loop in LOOPS}
        evenstep.detach()
        figures["loops"] = {loop: paid | _said(out, paid) for loop, paid in loops.items()}
        print(json.dumps(figures))
    dist.destroy_process_group()


def _said(out: Path, paid: dict[str, Any]) -> dict[str, float]:
    """What the trace says a step of those compared cost."""
    summaries = evenstep.load(out).summaries
    step = summaries["first_step"]
    steps = (step > paid["first"]) & (step < paid["end"])  # what ends a step is told by the next
    return {"said_ns": float(summaries["agent_ns"][steps].mean())}


if __name__ == "__main__":
    main()
