"""Pipeline parallelism: one stage of the model per rank, micro-batches passed along.

    evenstep run -- torchrun --nproc-per-node 2 examples/stacks/pipeline.py --slow-rank 0

The slow rank's stage sleeps in the forward of every micro-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from workload import Delay, batch, options, perceptron, ranks_together

MICRO_BATCHES = 4


class Stage(nn.Module):
    """Some consecutive layers of the model, and the delay where this rank is the slow one."""

    def __init__(self, layers: nn.Sequential, delay: Delay) -> None:
        super().__init__()
        self.layers = layers
        self.delay = delay

    def forward(self, x: Tensor) -> Tensor:
        self.delay()
        result: Tensor = self.layers(x)
        return result


def train(steps: int, delay: Delay) -> None:
    """Activations go to the next rank, gradients to the one before."""
    stages = torch.distributed.get_world_size()
    model = Stage(perceptron(layers=2 * stages)[2 * delay.rank : 2 * delay.rank + 2], delay)
    stage = PipelineStage(model, delay.rank, stages, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, MICRO_BATCHES, loss_fn=lambda y, target: (y - target).square().mean()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = batch(step, 0)
        first, last = delay.rank == 0, delay.rank == stages - 1
        schedule.step(*[x] * first, target=x if last else None)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = options(__doc__ or "")
    parser.set_defaults(delay_ms=10.0)
    args = parser.parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay)


if __name__ == "__main__":
    main()
