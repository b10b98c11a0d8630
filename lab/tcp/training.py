"""A data-parallel job of torch as anybody writes one: `python training.py JOB.json`.

It knows nothing of pacing, blocks or arms. Its compute is slept, so that many ranks fit on few
cores, or spent on matrices for real; gradients go through DDP's buckets on gloo. What goes wrong on
purpose is in the file beside the rest.
"""

from __future__ import annotations

import gc
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from lab.fair.rank import lengths
from lab.faults import RankFaults
from lab.tcp.order import Order

FORWARD_SHARE, OPTIMIZER_SHARE = 0.35, 0.05  # of a step's compute; the rest is backward
_MATRIX = 128


class Work:
    """What a rank does with its time."""

    def __init__(self, order: Order, rank: int) -> None:
        self.order, self.rank, self.step = order, rank, 0
        self.faults = RankFaults(order.faults, rank, order.job.ranks, seed=order.seed)
        self._seconds = 0.0
        self._lengths = lengths(order.job, f"{order.seed}/{order.number}/{rank}")
        self._matrix = torch.randn(_MATRIX, _MATRIX) / _MATRIX
        collects = any(fault.kind == "collector" for fault in order.faults)
        self._garbage: list[list[int]] = [[] for _ in range(300_000)] if collects else []

    def begin(self, step: int) -> None:
        """A step begins: how long it computes is drawn."""
        self.step = step
        self._seconds = next(self._lengths)

    def phase(self, name: str, share: float) -> None:
        """Spend a phase's part of the step, and what a fault adds."""
        self.spend(self._seconds * share + self.faults.extra_s(name, self.step))

    def spend(self, seconds: float) -> None:
        """Sleep, or compute for that much processor time."""
        if seconds <= 0:
            return
        if self.order.job.work == "sleep":
            time.sleep(seconds)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            self._matrix = torch.tanh(self._matrix @ self._matrix)

    def outside(self, model: nn.Module) -> None:
        """What happens between two steps."""
        at_least(self.faults.collects_s(self.step), gc.collect)
        at_least(self.faults.alone_s("checkpoint", self.step), lambda: saved(model))
        evaluation_s = self.faults.alone_s("evaluation", self.step)
        if evaluation_s > 0:
            model.eval()
            at_least(evaluation_s, lambda: time.sleep(0.001))
            model.train()


def at_least(seconds: float, act: Callable[[], Any]) -> None:
    """Repeat an action until that much time has passed; none for no time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        act()


def saved(model: nn.Module) -> None:
    """A checkpoint on a slow disk."""
    torch.save(model.state_dict(), io.BytesIO())
    time.sleep(0.001)


class Spend(torch.autograd.Function):  # type: ignore[misc]  # torch is not checked
    """Passes everything through; its backward takes the step's time for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Work) -> torch.Tensor:
        ctx.work = work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.work.phase("backward", 1 - FORWARD_SHARE - OPTIMIZER_SHARE)
        return gradient, None


class Model(nn.Module):  # type: ignore[misc]
    """Parameters of one bucket each, used one after the other; then the backward that takes time.

    All gradients are ready at the end of backward: the exchange follows the compute.
    """

    def __init__(self, work: Work, sizes: list[int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self._work.phase("forward", FORWARD_SHARE)
        for weight in self.weights:
            x = x + weight.mean()
        return Spend.apply(x, self._work)


class Samples(IterableDataset[torch.Tensor]):  # type: ignore[misc]
    """Batches; some ranks' come late."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self._work.faults.extra_s("input", self._work.step))
            yield torch.randn(8)


def by_server(bucket: Any) -> Any:
    """A hook of DDP's: all ranks send a bucket to rank 0 at once, which sends back the mean."""
    mine: torch.Tensor = bucket.buffer()
    leads, world = dist.get_rank() == 0, dist.get_world_size()
    parts = [torch.empty_like(mine) for _ in range(world)] if leads else None
    dist.gather(mine, parts, dst=0)
    if parts is not None:
        torch.mean(torch.stack(parts), 0, out=mine)
    dist.broadcast(mine, 0)
    done: Any = torch.futures.Future()
    done.set_result(mine)
    return done


def main(path: str) -> None:
    """Train for as many steps as asked, or until somebody ends it."""
    order = Order.read(Path(path))
    torch.set_num_threads(1)
    torch.manual_seed(order.seed)
    dist.init_process_group("gloo")
    work = Work(order, dist.get_rank())
    sizes = order.bucket_elements
    model = DistributedDataParallel(Model(work, sizes), bucket_cap_mb=4 * sizes[-1] / (1 << 20))
    if order.job.exchange == "gather":
        # Without annotations: as text, which they are here, DDP does not know them.
        model.register_comm_hook(None, lambda _, bucket: by_server(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Samples(work), batch_size=1))
    time.sleep(order.job.start_ms * 1e-3)
    step = 0
    while step < order.steps or not order.steps:
        work.begin(step)
        model(next(batches)).square().mean().backward()
        optimizer.step()
        work.phase("optimizer", OPTIMIZER_SHARE)
        optimizer.zero_grad()
        work.outside(model)
        step += 1
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads drop their last work; at exit that could abort the process


if __name__ == "__main__":
    main(sys.argv[1])
