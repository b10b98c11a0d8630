"""Gradient accumulation and two optimizers: several backwards, one step, gradients sent once.

evenstep run -- torchrun --nproc-per-node 2 examples/stacks/accumulation.py --slow-rank 1
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel
from workload import Delay, batch, options, perceptron, ranks_together

MICRO_STEPS = 3


def train(steps: int, delay: Delay) -> None:
    """The slow rank sleeps once in a step, in the middle of its accumulation."""
    model = DistributedDataParallel(perceptron(), bucket_cap_mb=1)
    matrices = [part for part in model.parameters() if part.ndim > 1]
    biases = [part for part in model.parameters() if part.ndim == 1]
    optimizers = [torch.optim.AdamW(matrices, lr=1e-3), torch.optim.SGD(biases, lr=1e-2)]
    for step in range(steps):
        for micro in range(MICRO_STEPS):
            last = micro == MICRO_STEPS - 1
            with nullcontext() if last else model.no_sync():
                loss = model(batch(MICRO_STEPS * step + micro, delay.rank)).square().mean()
                (loss / MICRO_STEPS).backward()
            if micro == 1:
                delay()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    args = options(__doc__ or "").parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay)


if __name__ == "__main__":
    main()
