"""Mixed precision with a gradient scaler, and activations recomputed in backward.

    evenstep run -- torchrun --nproc-per-node 2 examples/stacks/mixed_precision.py --slow-rank 1

The scaler starts so high that the first steps overflow and are skipped.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from workload import Delay, batch, options, perceptron, ranks_together

SCALE = 2.0**127  # gradients overflow until it has been halved a few times


class Recomputed(nn.Module):
    """Layers that keep only their inputs, and compute the rest again when backward needs it."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def train(steps: int, delay: Delay) -> int:
    """Train, and return how many steps the scaler has skipped."""
    model = DistributedDataParallel(Recomputed(perceptron()), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    skipped = 0
    for step in range(steps):
        delay()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch(step, delay.rank)).float().square().sum()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad()
    return skipped


def main() -> None:
    args = options(__doc__ or "").parse_args()
    with ranks_together(args) as delay:
        skipped = train(args.steps, delay)
        print(json.dumps({"skipped": skipped}), flush=True)


if __name__ == "__main__":
    main()
