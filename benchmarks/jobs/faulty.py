"""A rank of a small data-parallel job with one fault from a list, whose truth is known.

Compute is slept, so that four ranks fit on two cores; what a fault does is real: a rank that sleeps
or works longer, a loader that stalls, a collector that runs, a checkpoint that is written. `faults`
says each in the laboratory's vocabulary (`lab.faults`).
"""

from __future__ import annotations

import argparse
import gc
import io
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.ranks import go_first
from lab.faults import Fault, RankFaults

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.020, 0.030, 0.004
LAYERS, WIDTH = 4, 128
SEED = 17
ALONE = 20  # steps from one checkpoint, or evaluation, to the next


def faults(delay_ms: float, steps: int, world: int) -> dict[str, Fault | None]:
    """What goes wrong under each name. `delay_ms` is its size per step, on average."""
    slow = partial(Fault, kind="slow_rank", ranks="1")
    alone = partial(Fault, every=ALONE, first_step=ALONE // 2, delay_ms=ALONE * delay_ms)
    return {
        "slow-forward": slow(phase="forward", delay_ms=delay_ms),
        "slow-backward": slow(delay_ms=delay_ms),
        "slow-optimizer": slow(phase="optimizer", delay_ms=delay_ms),
        "slow-input": Fault(kind="input_stall", ranks="1", delay_ms=delay_ms),
        "rotate": Fault(kind="rotating_rank", delay_ms=delay_ms),
        "burst": slow(every=30, during=10, delay_ms=3 * delay_ms),
        "transient": slow(every=15, first_step=7, delay_ms=15 * delay_ms),
        "collect": Fault(kind="collector", every=6, delay_ms=6 * delay_ms / world),
        "save": alone(kind="checkpoint"),
        "evaluate": alone(kind="evaluation"),
        "warm": slow(ramp_steps=steps, delay_ms=delay_ms),
        "oscillate": Fault(kind="slow_rank", ranks="all", phase="forward", every=3,
                           delay_ms=3 * delay_ms),
        "lengths": Fault(kind="uneven_lengths", delay_ms=2 * delay_ms),
        "healthy": None,
    }  # fmt: skip


class Troubles:
    """What goes wrong on this rank, step by step."""

    def __init__(self, fault: Fault | None) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self._faults = RankFaults([fault] if fault else [], rank, world, seed=SEED)
        collects = fault is not None and fault.kind == "collector"
        self._garbage = [[] for _ in range(900_000)] if collects else []
        self.step = 0

    def sleep(self, phase: str) -> None:
        """Be late in a phase, if it is time."""
        extra_s = self._faults.extra_s(phase, self.step)
        if extra_s > 0:
            time.sleep(extra_s)

    def outside(self, model: nn.Module) -> None:
        """What happens between two steps."""
        if pause_s := self._faults.collects_s(self.step):
            _at_least(pause_s, gc.collect)
        if save_s := self._faults.alone_s("checkpoint", self.step):
            _at_least(save_s, lambda: torch.save(model.state_dict(), _Slow()))
        if evaluate_s := self._faults.alone_s("evaluation", self.step):
            model.eval()
            with torch.no_grad():
                _at_least(evaluate_s, lambda: model.module(torch.randn(8, WIDTH)))
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
    def forward(ctx: Any, x: torch.Tensor, troubles: Troubles, last: bool) -> torch.Tensor:
        ctx.troubles, ctx.last = troubles, last
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(BACKWARD_S / LAYERS)
        if ctx.last:
            ctx.troubles.sleep("backward")
        return gradient, None, None


class Layers(nn.Module):
    """Linear layers of one bucket each."""

    def __init__(self, troubles: Troubles) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self._troubles = troubles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(FORWARD_S)
            self._troubles.sleep("forward")
        for index, layer in enumerate(self.layers):
            x = Stage.apply(torch.relu(layer(x)), self._troubles, index == LAYERS - 1)
        return x


class Samples(IterableDataset[torch.Tensor]):
    """Batches; one rank's come late."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self._troubles.sleep("input")
            yield torch.randn(WIDTH)


class Slowed(torch.optim.SGD):
    """An optimizer that takes its time."""

    troubles: Troubles

    def step(self, closure: Any = None) -> Any:
        time.sleep(OPTIMIZER_S)
        self.troubles.sleep("optimizer")
        return super().step(closure)


def main() -> None:
    """Train with the fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=tuple(faults(0.0, 1, 1)), required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--first", action="store_true", help="before other work of the machine")
    args = parser.parse_args()
    if args.first:
        go_first()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    known = faults(args.delay_ms, args.steps, dist.get_world_size())
    troubles = Troubles(known[args.fault])
    bucket_mb = WIDTH * WIDTH * 4 / (1 << 20)
    model = DistributedDataParallel(Layers(troubles), bucket_cap_mb=bucket_mb)
    optimizer = Slowed(model.parameters(), lr=1e-3)
    optimizer.troubles = troubles
    batches = iter(DataLoader(Samples(troubles), batch_size=1))
    for step in range(args.steps):
        troubles.step = step
        model(next(batches)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        troubles.outside(model)
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads drop their last work; at exit that could abort the process


if __name__ == "__main__":
    main()
