"""Two ranks that train until they are told to stop. Rank 1 is slow.

python -m tests.cli.controlled_job FOLDER        (writes FOLDER/results.json)

Each scene attaches in mode `observe` and ends when FOLDER/SCENE.stop exists. The same steps are
then taken again without evenstep.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import evenstep
from tests.agent.training import leave, model_and_optimizer, train
from tests.forks import fork_ranks

SLOW_S = 0.04  # asleep: several turns of whatever else a busy machine runs
ROUND_STEPS = 16


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for scene, sharing in (("alone", False), ("together", True)):
        evenstep.attach(
            out=folder / scene, pace_mode="observe", pace_sharing=sharing, sample_period_s=0.05
        )
        results[scene] = until(folder / f"{scene}.stop", rank)
        evenstep.detach()
    steps = len(results["alone"])
    results["without"] = train(steps, rank=rank)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    leave()


def until(stop, rank):
    """The losses of all steps until the file is there; both ranks stop after the same one.

    Nobody's patience ends it: a test that acts late still meets a job. It ends with its starter.
    """
    losses, parts = [], model_and_optimizer()
    starter = os.getppid()
    told, one = torch.zeros(1), torch.ones(1)

    def between(step):
        dist.all_reduce(one)  # right after the gradients': it shows what a transfer takes
        time.sleep(SLOW_S * rank)

    while not told.item():
        losses += train(ROUND_STEPS, rank=rank, first=len(losses), parts=parts, between=between)
        over = stop.exists() or os.getppid() != starter
        told = torch.tensor([float(over and rank == 0)])
        dist.all_reduce(told)
    return losses


if __name__ == "__main__":
    fork_ranks(rank_main, 2, Path(sys.argv[1]))
