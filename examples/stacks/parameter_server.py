"""An asynchronous parameter server over torch RPC: nobody waits for anybody.

    torchrun --nproc-per-node 3 examples/stacks/parameter_server.py --slow-rank 2

Rank 0 keeps the parameters, the others compute gradients. The server tells each update how stale it
was: how many updates others have made since its worker fetched the parameters. There is no process
group and no collective, so the script attaches evenstep itself and marks its own steps.
"""

from __future__ import annotations

import json
import os
import threading
import time

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from workload import Delay, batch, options, perceptron

import evenstep

SERVER = "rank-0"


class Server:
    """Parameters, and how many updates they have had."""

    def __init__(self) -> None:
        self.model = perceptron()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.version = 0
        self.staleness: dict[int, list[int]] = {}  # by rank, in order
        self.lock = threading.Lock()  # calls of several workers run at once

    def pull(self) -> tuple[int, list[Tensor]]:
        """The parameters as they are now, and their version."""
        with self.lock:
            return self.version, [part.detach().clone() for part in self.model.parameters()]

    def push(self, rank: int, version: int, gradients: list[Tensor]) -> int:
        """Apply gradients of a version's parameters; returns how stale they were."""
        with self.lock:
            stale = self.version - version
            for part, gradient in zip(self.model.parameters(), gradients, strict=True):
                part.grad = gradient
            self.optimizer.step()
            self.version += 1
            self.staleness.setdefault(rank, []).append(stale)
            return stale


server = Server()


def pull() -> tuple[int, list[Tensor]]:
    """`Server.pull`, called from afar."""
    return server.pull()


def push(rank: int, version: int, gradients: list[Tensor]) -> int:
    """`Server.push`, called from afar."""
    return server.push(rank, version, gradients)


def load(model: nn.Module, parameters: list[Tensor]) -> None:
    """Put fetched parameters into a model."""
    with torch.no_grad():
        for mine, fetched in zip(model.parameters(), parameters, strict=True):
            mine.copy_(fetched)


def work(seconds: float, delay: Delay) -> None:
    """A worker's life: fetch, compute, send, for so many seconds."""
    model = perceptron()
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        version, parameters = rpc.rpc_sync(SERVER, pull)
        load(model, parameters)
        delay()
        loss = model(batch(step, delay.rank)).square().mean()
        gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        stale = rpc.rpc_sync(SERVER, push, args=(delay.rank, version, gradients))
        evenstep.log(staleness=stale, loss=loss.item())
        evenstep.step()
        step += 1


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long workers work")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    evenstep.attach()
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=world)
    delay = Delay(rank, slow_rank=args.slow_rank, delay_ms=args.delay_ms)
    if rank > 0:
        work(args.seconds, delay)
    rpc.shutdown()  # waits until all are done
    if rank == 0:
        print(json.dumps({"staleness": server.staleness}), flush=True)
    delay.say()


if __name__ == "__main__":
    main()
