"""Three ranks of gloo that hang: rank 2 leaves one all-reduce out. Each dumps its flight recorder.

TORCH_FR_BUFFER_SIZE=64 python -m tests.importers.hanging_job FOLDER   (writes FOLDER/fr_rank_N)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.forks import fork_ranks

RANKS = 3
ABSENT = 2
STEPS = 8
HUNG_S = 1.0
PATIENCE_S = 60.0


def rank_main(rank: int, folder: Path) -> None:
    """Some steps together, then a collective that one rank does not enter."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(1000))
    if rank != ABSENT:
        dist.all_reduce(torch.ones(50), async_op=True)
    time.sleep(HUNG_S)
    recorded = torch._C._distributed_c10d._dump_fr_trace()
    (folder / f"fr_rank_{rank}").write_bytes(recorded)
    due = time.monotonic() + PATIENCE_S
    while len([*folder.glob("fr_rank_*")]) < RANKS and time.monotonic() < due:
        time.sleep(0.01)  # who left now would end the collective of those that have not dumped yet


if __name__ == "__main__":
    fork_ranks(rank_main, RANKS, Path(sys.argv[1]))
