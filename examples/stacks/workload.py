"""What the examples of stacks share: options, a small model, and a delay that times itself.

`--slow-rank 1 --delay-ms 40` has rank 1 sleep 40 ms in every step. What it really slept, by its own
clock, is printed at the end, to compare with what a diagnosis says.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 64
BATCH = 32


class Delay:
    """A pause of this rank, if it is the slow one, with the time that each one really took."""

    def __init__(self, rank: int, *, slow_rank: int | None, delay_ms: float) -> None:
        self.rank = rank
        self.seconds = delay_ms / 1000 if rank == slow_rank else 0.0
        self.slept_ns: list[int] = []

    def __call__(self) -> None:
        if self.seconds:
            start = time.perf_counter_ns()
            time.sleep(self.seconds)
            self.slept_ns.append(time.perf_counter_ns() - start)

    def say(self) -> None:
        """Print what was slept, as one line of JSON."""
        if self.slept_ns:
            print(json.dumps({"slow_rank": self.rank, "slept_ns": self.slept_ns}), flush=True)


class Block(nn.Module):
    """A residual layer of a perceptron."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.up(x)
        return x + self.down(hidden.relu())


def perceptron(layers: int = 4) -> nn.Sequential:
    """The model that the examples train; the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers)))


def batch(step: int, rank: int) -> Tensor:
    """A rank's inputs of a step."""
    places = torch.arange(BATCH * WIDTH, dtype=torch.float32)
    return torch.sin(places + 100 * step + 1000 * rank).reshape(BATCH, WIDTH)


def options(description: str) -> argparse.ArgumentParser:
    """The options all examples have."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--slow-rank", type=int, help="this rank sleeps in every step")
    parser.add_argument("--delay-ms", type=float, default=40.0, help="how long it sleeps")
    return parser


@contextmanager
def ranks_together(args: argparse.Namespace) -> Iterator[Delay]:
    """The default process group, on CPUs, while the block runs; yields this rank's delay."""
    torch.set_num_threads(1)  # ranks are processes: more threads would only compete with them
    dist.init_process_group("gloo")
    delay = Delay(dist.get_rank(), slow_rank=args.slow_rank, delay_ms=args.delay_ms)
    yield delay
    delay.say()
    dist.barrier()  # nobody leaves while others still talk to it
    gc.collect()  # the model goes before its groups: else gloo may abort the process at its end
    dist.destroy_process_group()
