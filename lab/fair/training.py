"""A rank that trains for real: a small model, its gradients averaged over gloo, bucket by bucket.

The emulated link decides when a bucket is through; then gloo does what the bucket was for. So the
losses are those of real data-parallel training, whatever is paced.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lab.scenario import Job

BATCH = 16
RATE = 0.01


class Training:
    """A stack of square layers, one bucket each."""

    def __init__(self, job: Job, rank: int, store: Path, *, seed: int) -> None:
        import torch
        from torch import distributed

        self._torch, self._distributed = torch, distributed
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=job.ranks
        )
        self._world = job.ranks
        width = max(4, round(math.sqrt(job.gradient_bytes / job.buckets / 4)))
        layers: list[Any] = []
        for _ in range(job.buckets):
            layers += [torch.nn.Linear(width, width, bias=False), torch.nn.Tanh()]
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=RATE)
        self._data = torch.Generator().manual_seed(seed + rank)
        self._width = width
        self._loss: Any = None

    def forward(self) -> float:
        """A batch through the model; the loss."""
        batch = self._torch.randn(BATCH, self._width, generator=self._data)
        self._loss = (self._model(batch) - batch.flip(1)).square().mean()
        return float(self._loss.item())

    def backward(self) -> None:
        """This rank's gradients."""
        self._optimizer.zero_grad()
        self._loss.backward()

    def reduce(self, bucket: int) -> None:
        """Average the gradient of a bucket over the ranks: the last layer's is the first."""
        parameters = list(self._model.parameters())
        gradient = parameters[len(parameters) - 1 - bucket].grad
        self._distributed.all_reduce(gradient)
        gradient /= self._world

    def update(self) -> None:
        """Take the step."""
        self._optimizer.step()

    def close(self) -> None:
        """Leave the group."""
        self._distributed.destroy_process_group()
