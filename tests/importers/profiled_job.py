"""Two ranks of gloo under torch.profiler; rank 1 takes longer in its forward.

python -m tests.importers.profiled_job FOLDER   (writes FOLDER/rank-N.json.gz)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

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


def main(folder: Path) -> None:
    """Fork the ranks, so that torch is imported once."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            rank_main(rank, folder)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
