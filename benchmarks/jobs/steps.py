"""A rank of a data-parallel job that is timed in blocks of steps, watched by a tool or by nobody.

Its compute is a sleep, in forward and between the buckets of backward, plus a small model; with
`--compute` it is a larger model and no sleep. With `--tool evenstep` blocks with and without the
agent alternate in random order, the same on every rank, until the ratio is known well enough or
time is up. Other tools watch the whole run, and so it is one of a set of unpaired runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import paired_ratio

BLOCK = 5
LAYERS = 10
FORWARD_S, BACKWARD_S, SLEEPS = 0.024, 0.008, 5  # of the slower form; see `--scale`
HALF_WIDTH = 0.005
FEWEST_PAIRS, CHECK_PAIRS = 30, 10
WARM_UP = 10
SCALE = 1.0
TOOLS = ("evenstep", "none", "profiler", "traceml")


class SleepInBackward(torch.autograd.Function):
    """Passes everything through; its backward sleeps, as a device's kernels would take time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SCALE * BACKWARD_S)
        return gradient


class Layers(nn.Module):
    """Linear layers, each of them a bucket of its own."""

    def __init__(self, width: int, *, sleeps: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self._sleeps = sleeps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._sleeps:
            time.sleep(SCALE * FORWARD_S)
        for index, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if self._sleeps and index % (LAYERS // SLEEPS) == 1:
                x = SleepInBackward.apply(x)
        return x


class Job:
    """The training loop, one step at a time. `wrap` makes the context a tool wants around it."""

    def __init__(self, *, compute: bool, wrap: Callable[[nn.Module], Any] | None = None) -> None:
        width, batch = (256, 512) if compute else (128, 32)
        bucket_mb = width * width * 4 / (1 << 20)
        self.model = DistributedDataParallel(
            Layers(width, sleeps=not compute), bucket_cap_mb=bucket_mb
        )
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._batch = torch.randn(batch, width)
        self._wrap = wrap

    def step(self) -> None:
        """Forward, backward, optimizer."""
        if self._wrap is None:
            self._train()
            return
        with self._wrap(self.model):
            self._train()

    def _train(self) -> None:
        loss = self.model(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def block(self) -> tuple[float, float]:
        """Seconds per step of a block, and the least of a step in the training thread's time.

        All ranks begin together; the first step is not timed. What else runs on the machine only
        adds to a thread's time, by cold caches: so the least of a block says what the step takes.
        """
        dist.barrier()
        self.step()
        start, busy = time.perf_counter(), [time.thread_time()]
        for _ in range(BLOCK):
            self.step()
            busy.append(time.thread_time())
        return (time.perf_counter() - start) / BLOCK, min(map(float.__sub__, busy[1:], busy))

    @property
    def buckets(self) -> int:
        """How many buckets the gradients travel in."""
        sizes = self.model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
        return len(str(sizes).split(","))


def alternate(job: Job, minutes: float) -> dict[str, Any]:
    """Blocks with and without evenstep, until the ratio is known or the time is up."""
    import evenstep
    from benchmarks.jobs.toggle import Toggle

    folder = tempfile.TemporaryDirectory()
    if not evenstep.attach(out=Path(folder.name) / "run", verdict=False):
        raise RuntimeError("evenstep did not attach")
    toggle = Toggle(torch)
    times: dict[bool, list[float]] = {True: [], False: []}
    processor: dict[bool, list[float]] = {True: [], False: []}
    own: list[tuple[float, float]] = []
    order = random.Random(1)
    deadline = time.monotonic() + minutes * 60
    going = True
    while going:
        for _ in range(CHECK_PAIRS):
            for on in order.sample((True, False), 2):
                toggle.switch(on)
                before = own_threads()
                elapsed, busy = job.block()
                times[on].append(elapsed)
                processor[on].append(busy)
                if on:
                    spent, switches = map(float.__sub__, own_threads(), before)
                    own.append((spent / (BLOCK + 1), switches / (BLOCK + 1)))
                toggle.check()
        going = _agreed(_unsettled(times) and time.monotonic() < deadline)
    toggle.switch(True)
    evenstep.detach()
    folder.cleanup()
    return {
        "on": times[True],
        "off": times[False],
        "on_processor": processor[True],
        "off_processor": processor[False],
        "own_threads": own,
    }


def own_threads() -> tuple[float, float]:
    """Processor seconds of evenstep's threads so far, and how often they were given a core
    (Linux, sched-stats.rst)."""
    numbers = [t.native_id for t in threading.enumerate() if t.name.startswith("evenstep-")]
    rows = [Path(f"/proc/self/task/{number}/schedstat").read_text().split() for number in numbers]
    return sum(int(row[0]) for row in rows) / 1e9, float(sum(int(row[2]) for row in rows))


def _unsettled(times: dict[bool, list[float]]) -> bool:
    if len(times[True]) < FEWEST_PAIRS:
        return True
    return paired_ratio(times[True], times[False]).half_width > HALF_WIDTH


def _agreed(mine: bool) -> bool:
    """Rank 0's answer, on every rank."""
    flag = torch.tensor([float(mine)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def watched(job: Job, blocks: int, tool: str) -> dict[str, Any]:
    """A whole run under one tool, or under none."""
    with _profiler() if tool == "profiler" else contextlib.nullcontext():
        times = [job.block()[0] for _ in range(blocks)]
    return {"times": times}


@contextlib.contextmanager
def _profiler() -> Iterator[None]:
    """torch.profiler over every step, as it is recommended for CPU work."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]):
        yield


def compute() -> None:
    """Hold the interpreter's lock as a script's own Python would, without end."""
    number = 1
    while True:
        number = number * 3 % 1_000_003


def main() -> None:
    """Measure as the arguments say; rank 0 writes or prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sleeps")
    parser.add_argument("--beside", action="store_true", help="a Python thread computes meanwhile")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--result", type=Path, help="file for the figures instead of the output")
    args = parser.parse_args()
    global SCALE
    SCALE = args.scale
    if args.beside:
        threading.Thread(target=compute, daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    wrap = None
    if args.tool == "traceml":
        import traceml_ai

        traceml_ai.init(mode="auto")
        wrap = traceml_ai.trace_step
    job = Job(compute=args.compute, wrap=wrap)
    for _ in range(WARM_UP):
        job.step()
    evenstep = args.tool == "evenstep"
    figures = alternate(job, args.minutes) if evenstep else watched(job, args.blocks, args.tool)
    if dist.get_rank() == 0:
        text = json.dumps({**figures, "buckets": job.buckets})
        if args.result:
            args.result.write_text(text)
        else:
            print(text)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
