"""Local SGD with an outer optimizer (DiLoCo): ranks train alone and meet once in a round.

    evenstep run -- torchrun --nproc-per-node 2 examples/stacks/local_sgd.py --slow-rank 1

After Douillard et al. 2023: AdamW inside, Nesterov momentum on the averaged change outside. The
script logs how many local steps each update is away from the last meeting.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from workload import Delay, batch, options, perceptron, ranks_together

import evenstep

ROUND = 4  # local steps between two meetings


class Outer:
    """What all ranks agree on: parameters as of the last meeting, moved by the mean change."""

    def __init__(self, model: nn.Module) -> None:
        self.local = list(model.parameters())
        self.shared = [part.detach().clone().requires_grad_() for part in self.local]
        self.optimizer = torch.optim.SGD(self.shared, lr=0.7, momentum=0.9, nesterov=True)

    def meet(self) -> None:
        """Average how far the ranks have come, step, and start again from the result."""
        with torch.no_grad():
            change = [old - new for old, new in zip(self.shared, self.local, strict=True)]
            flat = torch.cat([part.flatten() for part in change])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            parts = flat.split([part.numel() for part in change])
            for shared, part in zip(self.shared, parts, strict=True):
                shared.grad = part.view_as(shared)
        self.optimizer.step()
        with torch.no_grad():
            for shared, mine in zip(self.shared, self.local, strict=True):
                mine.copy_(shared)


def train(steps: int, delay: Delay) -> None:
    """Rounds of local steps, each ended by a meeting of all ranks."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = Outer(model)
    for step in range(steps):
        delay()
        loss = model(batch(step, delay.rank)).square().mean()
        loss.backward()
        evenstep.log(staleness=step % ROUND)  # local steps since the last meeting
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % ROUND == 0:
            outer.meet()


def main() -> None:
    args = options(__doc__ or "").parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay)


if __name__ == "__main__":
    main()
