"""A rank of a small data-parallel job with one fault from a list, whose truth is known.

Compute is slept, so that four ranks fit on two cores; what a fault does is real: a rank that sleeps
or works longer, a loader that stalls, a collector that runs, a checkpoint that is written.

slow-forward, slow-backward, slow-optimizer   rank 1, in every step
slow-input     rank 1's loader takes longer
rotate         each step another rank, inside backward
burst          rank 1, ten steps of every thirty
transient      rank 1, every fifteenth step
collect        every rank collects garbage, each at steps of its own
save           rank 0 saves a checkpoint every twentieth step
evaluate       rank 0 evaluates alone every twentieth step
warm           rank 1 works longer and longer
oscillate      every third step is longer on all ranks
lengths        every rank's batch has another length in every step
healthy        nothing
"""

from __future__ import annotations

import argparse
import gc
import io
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.020, 0.030, 0.004
LAYERS, WIDTH = 4, 128
RANK = 1  # the one with the fault, where it is one's
FAULTS = (
    "slow-forward", "slow-backward", "slow-optimizer", "slow-input", "rotate", "burst",
    "transient", "collect", "save", "evaluate", "warm", "oscillate", "lengths", "healthy",
)  # fmt: skip


class Fault:
    """What goes wrong on this rank, by step. `delay_s` is the fault's size per step, on average."""

    def __init__(self, name: str, delay_s: float, steps: int) -> None:
        self.name, self.delay_s, self.steps = name, delay_s, steps
        self.step = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._random = torch.Generator().manual_seed(17 + self.rank)
        self._garbage = [[] for _ in range(900_000)] if name == "collect" else []
        self.length = 1.0

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step = step
        if self.name == "lengths":
            spread = torch.rand(1, generator=self._random).item() - 0.5
            self.length = 1 + 2 * self.delay_s / (FORWARD_S + BACKWARD_S) * spread

    def extra_s(self, phase: str) -> float:
        """How much longer this phase of the step takes here."""
        mine = self.rank == RANK
        if self.name == f"slow-{phase}" and mine:
            return self.delay_s
        if phase == "backward" and self.name in ("rotate", "burst", "transient", "warm"):
            return self._in_backward(mine)
        if phase == "forward" and self.name == "oscillate" and self.step % 3 == 0:
            return 3 * self.delay_s
        return 0.0

    def _in_backward(self, mine: bool) -> float:
        late = {
            "rotate": self.step % self.world == self.rank,
            "burst": mine and self.step % 30 < 10,
            "transient": mine and self.step % 15 == 7,
            "warm": mine,
        }[self.name]
        size = {"burst": 3.0, "transient": 15.0, "warm": 2 * self.step / self.steps}
        return late * self.delay_s * size.get(self.name, 1.0)

    def outside(self, model: nn.Module) -> None:
        """What happens between two steps."""
        if self.name == "collect" and self.step % 6 == (2 * self.rank) % 6:
            _at_least(6 * self.delay_s / self.world, gc.collect)
        if self.rank or self.step % 20 != 10:
            return
        if self.name == "save":
            _at_least(20 * self.delay_s, lambda: torch.save(model.state_dict(), _Slow()))
        if self.name == "evaluate":
            model.eval()
            with torch.no_grad():
                _at_least(20 * self.delay_s, lambda: model.module(torch.randn(8, WIDTH)))
            model.train()


def _at_least(seconds: float, act: Any) -> None:
    """Repeat an action until that much time has passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        act()


class _Slow(io.BytesIO):
    """A file on a slow disk."""

    def write(self, data: Any) -> int:
        time.sleep(0.001)
        return super().write(data)


class Stage(torch.autograd.Function):
    """Sleeps for its share of backward, and for the fault's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fault: Fault, last: bool) -> torch.Tensor:
        ctx.fault, ctx.last = fault, last
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        fault = ctx.fault
        time.sleep(BACKWARD_S * fault.length / LAYERS)
        extra = fault.extra_s("backward") if ctx.last else 0.0
        if extra > 0:
            time.sleep(extra)
        return gradient, None, None


class Layers(nn.Module):
    """Linear layers of one bucket each."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self._fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(FORWARD_S * self._fault.length + self._fault.extra_s("forward"))
        for index, layer in enumerate(self.layers):
            x = Stage.apply(torch.relu(layer(x)), self._fault, index == LAYERS - 1)
        return x


class Samples(IterableDataset[torch.Tensor]):
    """Batches; one rank's come late."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self._fault.extra_s("input"))
            yield torch.randn(WIDTH)


class Slowed(torch.optim.SGD):
    """An optimizer that takes its time."""

    fault: Fault

    def step(self, closure: Any = None) -> Any:
        time.sleep(OPTIMIZER_S + self.fault.extra_s("optimizer"))
        return super().step(closure)


def main() -> None:
    """Train with the fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    fault = Fault(args.fault, args.delay_ms / 1e3, args.steps)
    bucket_mb = WIDTH * WIDTH * 4 / (1 << 20)
    model = DistributedDataParallel(Layers(fault), bucket_cap_mb=bucket_mb)
    optimizer = Slowed(model.parameters(), lr=1e-3)
    optimizer.fault = fault
    batches = iter(DataLoader(Samples(fault), batch_size=1))
    for step in range(args.steps):
        fault.begin(step)
        model(next(batches)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        fault.outside(model)
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads drop their last work; at exit that could abort the process


if __name__ == "__main__":
    main()
