"""Two ranks that probe their machine every few steps. Rank 1 is late, and computes slowly.

python -m tests.agent.probe_job FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import evenstep
from evenstep.probe import measurements
from tests.agent.training import leave, train
from tests.forks import fork_ranks

STEPS, EVERY = 12, 3
PAUSE_S = 0.02  # added to each matrix product: many times its length, also on a busy machine


def slowly(torch, a, b, out):
    torch.mm(a, b, out=out)
    time.sleep(PAUSE_S)


def broken(torch, a, b, out):
    raise RuntimeError("no memory left")


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    usual = measurements.multiply
    for scene, multiply in (("slow", slowly), ("broken", broken)):
        measurements.multiply = multiply if rank == 1 else usual
        evenstep.attach(out=folder / scene, probe_every=EVERY)
        train(STEPS, rank=rank, between=lambda step: time.sleep(0.02 * rank))
        evenstep.detach()
    leave()


if __name__ == "__main__":
    fork_ranks(rank_main, 2, Path(sys.argv[1]))
    Path(sys.argv[1], "results.json").write_text("{}")
