"""A small data-parallel script as a user has it, with one fault on rank 1, for one tool at a time.

backward   rank 1 sleeps 40 ms inside backward, every step
loader     rank 1's batches come 40 ms late
collector  rank 1 collects garbage for 240 ms, every sixth step

The other rank does none of it. evenstep needs no line here; the other tools get those that their
own documentation asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTS = ("backward", "loader", "collector")
LATE_S, COLLECTS_S, EVERY = 0.040, 0.240, 6
WIDTH, COMPUTE_S = 256, 0.015
PROFILED = 12  # steps of torch.profiler, from the tenth


class Work(torch.autograd.Function):
    """Takes its time in backward, longer where it is to be late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, late: bool) -> torch.Tensor:
        ctx.late = late
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(COMPUTE_S + (LATE_S if ctx.late else 0.0))
        return gradient, None


class Model(nn.Module):
    """Three layers, the first of which is late in backward."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        self.late = late

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(COMPUTE_S)
        return self.layers(Work.apply(self.layers(x), self.late)).square().mean()


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Random batches, late ones on rank 1 where that is the fault."""

    def __init__(self, steps: int, late: bool) -> None:
        self.steps, self.late = steps, late

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.late:
            time.sleep(LATE_S)
        return torch.randn(WIDTH)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tool", choices=("none", "traceml", "profiler"), default="none")
    parser.add_argument("--traces", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = int(os.environ["RANK"]) == 1
    model = DistributedDataParallel(Model(late=mine and args.fault == "backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Batches(args.steps, mine and args.fault == "loader"))
    garbage = [[] for _ in range(900_000)] if mine and args.fault == "collector" else []
    gc.freeze() if not garbage else None
    with _tool(args, model) as step:
        for number, batch in enumerate(loader):
            with step(number):
                loss = model(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if garbage and number % EVERY == 0:
                    _collect(COLLECTS_S)
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads drop their last work; at exit that could abort the process


def _collect(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gc.collect()


@contextlib.contextmanager
def _tool(args: argparse.Namespace, model: nn.Module) -> Iterator[Any]:
    """What to enter around each step."""
    if args.tool == "traceml":
        import traceml_ai

        traceml_ai.init(mode="auto")
        yield lambda number: traceml_ai.trace_step(model)
        return
    if args.tool == "none":
        yield lambda number: contextlib.nullcontext()
        return
    from torch.profiler import ProfilerActivity, profile, schedule

    place = str(args.traces / f"rank-{os.environ['RANK']}.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=9, warmup=1, active=PROFILED, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(place),
    ) as profiler:

        @contextlib.contextmanager
        def step(number: int) -> Iterator[None]:
            yield
            profiler.step()

        yield step


if __name__ == "__main__":
    main()
