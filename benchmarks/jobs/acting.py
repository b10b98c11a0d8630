"""A gloo rank that allocates as scripts do, with `act` as it is told; rank 0 prints what came."""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.agent.actions.garbage import resident_bytes
from evenstep.attachment import agent

KEPT = 200_000  # objects that stay: modules, data sets, configurations
MADE = 1_500  # cycles of a step …
LASTING = 40  # … which are gone so many steps later, as what is cached is


class Node:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.itself = self


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--act", required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    evenstep.attach(out=args.out, act=args.act, verdict=False, sample_period_s=1.0)
    dist.init_process_group("gloo")
    kept = [[n] for n in range(KEPT)]
    torch.manual_seed(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(16, 128) + dist.get_rank()
    recent: deque[list[Node]] = deque(maxlen=LASTING)
    times, losses, resident = [], [], 0
    for step in range(args.steps):
        begin = time.monotonic_ns()
        recent.append([Node() for _ in range(MADE)])
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        times.append(time.monotonic_ns() - begin)
        losses.append(loss.item())
        if step == args.steps // 4:
            resident = resident_bytes()
    grown = resident_bytes() / resident - 1
    attached = agent.current()
    told = attached._conductor.account_of() if attached is not None else []
    evenstep.detach()
    dist.barrier()
    dist.destroy_process_group()
    found = {"times_ns": times, "losses": losses, "grown": grown, "told": told, "kept": len(kept)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
