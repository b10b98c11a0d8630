"""A rank of a small data-parallel job with a disturbance whose truth is known.

sleep     rank 1 sleeps 50 ms inside backward, before the first bucket
rotate    the same, each step on the next rank
collect   rank 1 collects garbage for at least 200 ms with a bucket in flight, every other step
healthy   nobody is disturbed; steps are real compute on a core for each rank, for a time instead of
          a number of steps; how long the training thread waited for its core is the truth
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SLEEP_S = 0.050
PAUSE_S = 0.220
LAYERS = 8
WIDTH = 256
SCENARIOS = ("sleep", "rotate", "collect", "healthy")


class InBackward(torch.autograd.Function):
    """Passes everything through; calls `act` in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, act: Callable[[], None]) -> torch.Tensor:
        ctx.act = act
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.act()
        return gradient, None


class Layers(nn.Module):
    """Linear layers of one bucket each; `act` happens in backward above layer `above`."""

    def __init__(self, above: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self._above = above
        self._act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if index == self._above:
                x = InBackward.apply(x, self._act)
        return x


class Disturbance:
    """What happens inside backward of a step, by scenario and rank."""

    def __init__(self, scenario: str) -> None:
        self.step = 0
        self.pauses_s: list[float] = []
        self._scenario = scenario
        self._rank = dist.get_rank()
        self._garbage = _garbage() if scenario == "collect" and self._rank == 1 else []

    def act(self) -> None:
        """The disturbance of this step, if it has one."""
        turn = 1 if self._scenario == "sleep" else self.step % dist.get_world_size()
        if self._scenario in ("sleep", "rotate") and self._rank == turn:
            time.sleep(SLEEP_S)
        if self._garbage and self.step % 2:
            start = time.perf_counter()
            gc.collect()
            self.pauses_s.append(time.perf_counter() - start)


def _garbage() -> list[list[int]]:
    """So many live containers that a full collection takes longer than `PAUSE_S`."""
    kept: list[list[int]] = []
    gc.disable()
    while True:
        kept += [[] for _ in range(500_000)]
        start = time.perf_counter()
        gc.collect()
        if time.perf_counter() - start > PAUSE_S:
            gc.enable()
            return kept


def core_wait_s() -> float:
    """How long this thread was ready to run and had no core (Linux, sched-stats.rst)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def train(disturbance: Disturbance, scenario: str, steps: int, seconds: float) -> int:
    """Steps until their number, or the time rank 0 has measured, is reached; how many."""
    above = LAYERS // 2 if scenario == "collect" else LAYERS - 1
    model = DistributedDataParallel(
        Layers(above, disturbance.act), bucket_cap_mb=WIDTH * WIDTH * 4 / (1 << 20)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(1024 if scenario == "healthy" else 32, WIDTH)
    start = time.monotonic()
    going = True
    while going:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        disturbance.step += 1
        going = disturbance.step < steps
        if seconds and disturbance.step % 50 == 0:
            flag = torch.tensor([float(time.monotonic() - start < seconds)])
            dist.broadcast(flag, 0)
            going = bool(flag.item())
    return disturbance.step


def main() -> None:
    """Run the scenario; the disturbed rank writes what really happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--truth", type=Path, required=True)
    args = parser.parse_args()
    if args.scenario == "healthy":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    disturbance = Disturbance(args.scenario)
    steps = 1 << 30 if args.seconds else args.steps
    begun, before = time.monotonic(), core_wait_s()
    done = train(disturbance, args.scenario, steps, args.seconds)
    waited = (core_wait_s() - before) / (time.monotonic() - begun)
    if dist.get_rank() == 1:
        truth = {
            "steps": done,
            "shortest_pause_s": min(disturbance.pauses_s, default=None),
            "core_wait": waited,
        }
        args.truth.write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
