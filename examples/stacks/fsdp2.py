"""Fully sharded data parallelism, as `fully_shard` does it (FSDP2).

evenstep run -- torchrun --nproc-per-node 2 examples/stacks/fsdp2.py --slow-rank 1
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workload import Delay, batch, options, perceptron, ranks_together


def train(steps: int, delay: Delay) -> None:
    """Every layer is gathered before it is used, and its gradients are scattered after."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = perceptron()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        delay()
        loss = model(batch(step, delay.rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    args = options(__doc__ or "").parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay)


if __name__ == "__main__":
    main()
