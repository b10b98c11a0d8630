"""Fully sharded data parallelism, as `FullyShardedDataParallel` does it (FSDP1).

evenstep run -- torchrun --nproc-per-node 2 examples/stacks/fsdp1.py --slow-rank 1
"""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from workload import Block, Delay, batch, options, perceptron, ranks_together


def train(steps: int, delay: Delay) -> None:
    """Every layer is gathered before it is used, and its gradients are scattered after."""
    model = FullyShardedDataParallel(
        perceptron(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
    )
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
