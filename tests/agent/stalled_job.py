"""One rank of three, of which rank 1 never comes to the last all-reduce.

python -m tests.agent.stalled_job FOLDER RANK
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import evenstep
from tests.agent.training import train

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    evenstep.attach(out=folder)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=3, timeout=timedelta(seconds=400)
    )
    train(20, rank=rank)
    if rank == 1:
        time.sleep(400)
    dist.all_reduce(torch.ones(1000))
