"""A rank whose loop marks its steps in a way of its own, or not at all; the last rank is late.

torchrun … -m benchmarks.jobs.unmarked LOOP
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
COMPUTE_S, LATE_S = 0.008, 0.03


class Averaging(torch.optim.SGD):
    """An optimizer whose step calls the one it replaces."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """The update, and what is its own."""
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.999)
        return result


def subclass(work: Callable[[], None]) -> None:
    """DDP with such an optimizer."""
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = Averaging(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        work()
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()


def hand_written(work: Callable[[], None]) -> None:
    """Gradients averaged and applied by the script itself."""
    model = torch.nn.Linear(16, 16)
    for _ in range(STEPS):
        work()
        model(torch.ones(4, 16)).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.data.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None


def ring(work: Callable[[], None]) -> None:
    """Every rank sends to the next and receives from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for _ in range(STEPS):
        work()
        out, found = torch.ones(256), torch.empty(256)
        sends = [dist.P2POp(dist.isend, out, (rank + 1) % world)]
        sends.append(dist.P2POp(dist.irecv, found, (rank - 1) % world))
        for request in dist.batch_isend_irecv(sends):
            request.wait()


def pipeline(work: Callable[[], None]) -> None:
    """Activations go down the ranks, gradients come back."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for _ in range(STEPS):
        if rank:
            dist.recv(torch.empty(256), rank - 1)
        work()
        if rank < world - 1:
            dist.send(torch.ones(256), rank + 1)
            dist.recv(torch.empty(256), rank + 1)
        if rank:
            dist.send(torch.ones(256), rank - 1)


def barrier(work: Callable[[], None]) -> None:
    """Nothing but a barrier."""
    for _ in range(STEPS):
        work()
        dist.barrier()


def subgroups(work: Callable[[], None]) -> None:
    """Halves meet first, then all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    halves = [
        dist.new_group(list(range(0, world // 2))),
        dist.new_group(list(range(world // 2, world))),
    ]
    for _ in range(STEPS):
        work()
        dist.all_reduce(torch.ones(256), group=halves[rank >= world // 2])
        dist.all_reduce(torch.ones(64))


LOOPS: dict[str, Callable[[Callable[[], None]], None]] = {
    "subclass of an optimizer": subclass,
    "hand-written update": hand_written,
    "ring": ring,
    "pipeline": pipeline,
    "barrier": barrier,
    "subgroups": subgroups,
}


def main() -> None:
    """Run the loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    loop = parser.parse_args().loop
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    late = dist.get_rank() == dist.get_world_size() - 1

    def work() -> None:
        time.sleep(COMPUTE_S + LATE_S * late)

    LOOPS[loop](work)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
