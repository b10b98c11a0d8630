"""One rank that issues asynchronous all-reduces and ends steps: what the training thread pays.

Alone in its process in one of three states, since compiled kernels stay registered once they were:
nothing, evenstep by Python's own kernels, evenstep by compiled ones. All figures are thread time of
the training thread: on a busy machine the clock says more about the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import evenstep
from evenstep.attachment import agent

PAUSE_S = 0.005  # as between two buckets of a backward: caches have forgotten us
COLLECTIVES = 64  # of a step that is ended
PER_STEP = 10  # collectives of a step of the loop that is paid for as a whole


class Job:
    """The rank's part."""

    def __init__(self, *, watched: bool) -> None:
        self._tensor = torch.ones(1)
        self._watched = watched

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

    def ending_ns(self, steps: int) -> list[int]:
        """Thread time of ending a step of so many collectives, each after a pause."""
        found = []
        for _ in range(steps):
            for _ in range(COLLECTIVES):
                dist.all_reduce(self._tensor, async_op=True).wait()
            time.sleep(PAUSE_S)
            start = time.thread_time_ns()
            if self._watched:
                evenstep.step()
            found.append(time.thread_time_ns() - start)
        return found

    def loop_ns(self, steps: int) -> float:
        """Mean thread time of a whole step: pauses, collectives, waits, its end."""
        start = time.thread_time_ns()
        for _ in range(steps):
            works = []
            for _ in range(PER_STEP):
                time.sleep(PAUSE_S)
                works.append(dist.all_reduce(self._tensor, async_op=True))
            for work in works:
                work.wait()
            if self._watched:
                evenstep.step()
        return (time.thread_time_ns() - start) / steps


def main() -> None:
    """Measure as the arguments say and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", choices=("nothing", "python", "compiled"), required=True)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    watched = args.state != "nothing"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if watched and not evenstep.attach(out=out, compiled=args.state == "compiled", share=False):
            raise RuntimeError("evenstep did not attach")
        job = Job(watched=watched)
        job.loop_ns(5)
        figures: dict[str, Any] = {
            "hot_ns": job.issuing_ns(4000, 0.0),
            "cold_ns": job.issuing_ns(200, PAUSE_S),
            "end_ns": job.ending_ns(args.steps),
        }
        first = agent.current().recorder.stack.step if watched else 0
        figures["loop_ns"] = job.loop_ns(args.steps)
        if watched:
            evenstep.detach()
            figures |= _said(out, first)
        print(json.dumps(figures))
    dist.destroy_process_group()


def _said(out: Path, first: int) -> dict[str, Any]:
    """What the trace says the loop's steps cost, and by what it was recorded."""
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
