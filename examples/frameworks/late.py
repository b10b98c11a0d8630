"""What the examples share: data, a small model, and a rank that is late by a measured time."""

from __future__ import annotations

import json
import statistics
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH = 64


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Random points, and the length of each: something to regress."""

    def __init__(self, number: int) -> None:
        self.x = torch.randn(number, WIDTH, generator=torch.Generator().manual_seed(0))
        self.y = self.x.norm(dim=1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Late(nn.Module):
    """Hands its input on; while training, in the last batch of each step, only after a pause."""

    def __init__(self, pause_ms: float, *, batches: int = 1) -> None:
        super().__init__()
        self.pause_ms = pause_ms
        self.batches = batches  # of a step
        self.seen = 0
        self.paused_ns: list[int] = []  # as measured

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        if self.training and self.pause_ms and self.seen % self.batches == 0:
            begun = time.monotonic_ns()
            time.sleep(self.pause_ms / 1e3)
            self.paused_ns.append(time.monotonic_ns() - begun)
        return x

    def measured(self) -> dict[str, float]:
        """What the pause of a step was, as this rank has measured it; nothing without one."""
        return {"late_ns": statistics.median(self.paused_ns)} if self.paused_ns else {}

    def report(self) -> None:
        """The same as one line of JSON, on the rank that was late."""
        if self.paused_ns:
            print(json.dumps(self.measured()), flush=True)


def leave() -> None:
    """Leave the group, once gloo's threads have dropped what was sent last: they want the
    interpreter's lock for that, and whoever takes their group away while holding it waits for ever.
    """
    time.sleep(0.3)
    torch.distributed.destroy_process_group()


def network(late: Late) -> nn.Module:
    """Two layers, with a pause before the first."""
    return nn.Sequential(late, nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))
