"""Two ranks of gloo under torch.profiler; rank 1 takes longer in its forward.

python -m tests.importers.profiled_job FOLDER   (writes FOLDER/rank-N.json.gz)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from tests.forks import fork_ranks

RANKS, SLOW, STEPS = 2, 1, 16
WORK_S, LATE_S = 0.02, 0.02


class Model(torch.nn.Linear):
    """One layer, and the time a forward takes."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(WORK_S + (LATE_S if dist.get_rank() == SLOW else 0))
        return super().forward(batch)


def rank_main(rank: int, folder: Path) -> None:
    """Train for some steps, and keep all but the first two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(Model(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank-{rank}.json.gz")),
    ) as profiler:
        for _ in range(STEPS + 2):
            optimizer.zero_grad()
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    fork_ranks(rank_main, RANKS, Path(sys.argv[1]))
