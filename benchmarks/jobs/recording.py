"""One rank that issues asynchronous all-reduces and ends steps: what the training thread pays.

Each figure is a comparison within one process, in random order, of calls and steps that are
recorded with ones that go as without evenstep: this thread's calls pass no kernel of ours, and
`Work.wait` is torch's own. What goes without evenstep is compared with itself as well, which tells
the error of the comparison. All figures are thread time of the training thread: on a busy machine
the clock says more about the others.

On gloo a call wakes another thread, which takes a time that scatters by many times our cost. On
torch's `fake` backend nothing is moved, and its futures are complete: what is paid for the call
itself is the same.
"""

from __future__ import annotations

import argparse
import json
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
from torch.testing._internal.distributed.fake_pg import FakeStore

import evenstep
from benchmarks.measure import trimmed
from benchmarks.ranks import go_first
from evenstep.agent.recording.recorder import COST_SAMPLE, COST_WINDOW
from evenstep.attachment import agent
from evenstep.hooks.torch import dispatcher

PAUSE_S = 0.005  # as between two buckets of a backward: caches have forgotten us
COLLECTIVES = 64  # of a step that is ended
#: Loops that are paid for as a whole: collectives of a step, and the pause before each of them.
LOOPS = {"cold": (10, 0.0038), "dense": (64, 0.0006), "hot": (64, 0.0)}
BLOCKS = 10  # of comparisons: their scatter is the error
PLAIN_WAIT = vars(Work)["wait"]  # torch's own

#: Runs something once, recorded or not; returns its thread time (ns).
Run = Callable[[bool], float]


class Job:
    """The rank's part, on its attached agent."""

    def __init__(self) -> None:
        attached = agent.current()
        if attached is None:
            raise RuntimeError("evenstep is not attached")
        self._tensor = torch.ones(1)
        self._recorder = attached.recorder
        self._order = random.Random(1)
        self._ends: dict[bool, list[float]] = {True: [], False: []}  # see `step_ns`

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

    def compared(self, run: Run, rounds: int) -> tuple[float, float]:
        """What it takes more where it is recorded, and without evenstep once more than once: means
        over rounds of one recorded run and two others, in random order, without the tenth at each
        end."""
        more, null = [], []
        for _ in range(rounds):
            took: dict[bool, list[float]] = {True: [], False: []}
            for on in self._order.sample((True, False, False), 3):
                with self.recorded(on):
                    took[on].append(run(on))
            first, second = took[False]
            more.append(took[True][0] - (first + second) / 2)
            null.append(first - second)
        return trimmed(more), trimmed(null)

    def added(self, run: Run, rounds: int) -> dict[str, list[float]]:
        """Those means of each block."""
        blocks = [self.compared(run, rounds // BLOCKS) for _ in range(BLOCKS)]
        return dict(zip(("more", "null"), map(list, zip(*blocks, strict=True)), strict=True))

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

    def step_ns(self, on: bool, collectives: int, pause_s: float) -> float:
        """Thread time of issuing and waiting in a step. What ends it, where it is seen, is kept
        apart: it costs some steps ten times as much, which no trimmed mean counts."""
        total, works = 0, []
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
        if on:
            evenstep.step()
        self._ends[on].append(time.thread_time_ns() - waited)
        return total + waited - start

    def paid(self, loop: str, rounds: int) -> dict[str, list[Any]]:
        """What a step of a loop pays in each block, and which steps those were, once what is said
        of them is a mean of their own samples."""
        collectives, pause_s = LOOPS[loop]
        for _ in range(COST_SAMPLE * COST_WINDOW // collectives + 1):
            self.step_ns(True, collectives, pause_s)
        found: dict[str, list[Any]] = {"paid": [], "null": [], "steps": []}
        rounds = rounds if pause_s else 10 * rounds  # those take no time
        for _ in range(BLOCKS):
            first = self._recorder.step
            self._ends = {True: [], False: []}
            more, null = self.compared(
                lambda on: self.step_ns(on, collectives, pause_s), rounds // BLOCKS
            )
            ended, left = (statistics.fmean(self._ends[on]) for on in (True, False))
            found["paid"].append(more + ended - left)
            found["null"].append(null)
            found["steps"].append((first, self._recorder.step))
        return found


def main() -> None:
    """Measure as the arguments say and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", choices=("python", "compiled"), required=True)
    parser.add_argument("--backend", choices=("fake", "gloo"), default="fake")
    parser.add_argument("--steps", type=int, default=150, help="recorded, of each loop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dispatcher.BUDGET = 1.0  # nothing is spared: it is to be measured
    store = FakeStore() if args.backend == "fake" else dist.HashStore()
    dist.init_process_group(args.backend, store=store, rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if not evenstep.attach(out=out, compiled=args.state == "compiled", share=False):
            raise RuntimeError("evenstep did not attach")
        job = Job()
        go_first()  # this thread, which mostly sleeps: figures resolve on a loaded machine, too
        for _ in range(20):
            job.step_ns(True, *LOOPS["cold"])
        figures: dict[str, Any] = {
            "hot": job.added(lambda _: job.issuing_ns(100, 0.0), args.steps),
            "cold": job.added(lambda _: job.issuing_ns(1, PAUSE_S), 4 * args.steps),
            "end_ns": [job.ending_ns() for _ in range(args.steps)],
        }
        loops = {loop: job.paid(loop, args.steps) for loop in LOOPS}
        evenstep.detach()
        figures["loops"] = {loop: paid | _said(out, paid) for loop, paid in loops.items()}
        print(json.dumps(figures))
    dist.destroy_process_group()


def _said(out: Path, paid: dict[str, Any]) -> dict[str, list[float]]:
    """What the trace says a step of each block cost."""
    summaries = evenstep.load(out).summaries
    step, told = summaries["first_step"], summaries["agent_ns"]
    # what ends a step is told by the next
    blocks = ((step > first) & (step <= end) for first, end in paid["steps"])
    return {"said": [float(told[those].mean()) for those in blocks]}


if __name__ == "__main__":
    main()
