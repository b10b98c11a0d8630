"""Two ranks of one script, spawned by it. Rank 1 is slow.

python -m tests.agent.pair_job FOLDER [shared]        (writes FOLDER/results.json)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import evenstep
from tests.agent.training import leave, model_and_optimizer, train

STEPS = 30  # within the windows that are recorded on any machine
SHARED_STEPS = 400
LATE_STEPS = 4


def rank_main(rank, folder, scene):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    results = together(rank, folder) if scene == "shared" else each_alone(rank, folder)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    leave()


def each_alone(rank, folder):
    """Losses in every mode, and with a rank that attaches late."""
    results = {}
    for mode in ("without", "off", "observe", "on"):
        if mode != "without":
            evenstep.attach(out=folder / mode, pace_mode=mode, sample_period_s=0.1)
        results[mode] = train(STEPS, rank=rank, between=lambda step: time.sleep(0.01 * rank))
        evenstep.detach()
    results["late"] = late_attach(rank, folder)
    evenstep.attach(out=None)  # the default folder; nobody detaches: the process ends
    train(2, rank=rank)
    return results


def together(rank, folder):
    """The ranks pace by a shared plan; rank 1 always enters late."""
    evenstep.attach(out=folder / "shared", pace_mode="on", pace_sharing=True, sample_period_s=0.05)
    losses = train(SHARED_STEPS, rank=rank, between=lambda step: time.sleep(0.01 * rank))
    evenstep.detach()
    return {"shared": losses}


def late_attach(rank, folder):
    """Rank 1 attaches `LATE_STEPS` steps after rank 0, and a group is made afterwards."""
    parts = model_and_optimizer()
    if rank == 0:
        evenstep.attach(out=folder / "late")
    train(LATE_STEPS, rank=rank, parts=parts)
    if rank == 1:
        evenstep.attach(out=folder / "late")
    train(LATE_STEPS, rank=rank, first=LATE_STEPS, parts=parts)
    group = dist.new_group([0, 1], group_desc="made late")
    dist.all_reduce(torch.ones(3), group=group)
    train(1, rank=rank, parts=parts)
    evenstep.detach()


if __name__ == "__main__":
    folder, *scene = sys.argv[1:]
    torch.multiprocessing.spawn(rank_main, (Path(folder), *(scene or ["alone"])), nprocs=2)
