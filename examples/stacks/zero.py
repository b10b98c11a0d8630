"""ZeRO stage 1: every rank keeps the optimizer's state of a part of the parameters.

evenstep run -- torchrun --nproc-per-node 2 examples/stacks/zero.py --slow-rank 1
"""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from workload import Delay, batch, options, perceptron, ranks_together


def train(steps: int, delay: Delay) -> None:
    """DDP averages the gradients; each rank updates its part and broadcasts it."""
    model = DistributedDataParallel(perceptron(), bucket_cap_mb=1)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
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
