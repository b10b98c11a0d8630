"""DeepSpeed: ZeRO with accumulated gradients, two groups of parameters and a checkpoint.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/frameworks/deepspeed_engine.py --out run
    evenstep diagnose run

The last rank is late.
"""

from __future__ import annotations

import argparse
import tempfile

import deepspeed
import torch
import torch.distributed as dist
from late import Late, Points, leave, network
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from evenstep.frameworks.deepspeed import observe

BATCH, ACCUMULATED = 8, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the run's folder; by default evenstep-runs/run-…")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--pause-ms", type=float, default=50.0, help="of the last rank, in every step"
    )
    parser.add_argument("--stage", type=int, default=1, choices=(0, 1, 2, 3), help="of ZeRO")
    args = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    ranks = dist.get_world_size()
    is_last = dist.get_rank() == ranks - 1
    late = Late(args.pause_ms if is_last else 0, batches=ACCUMULATED)
    model = network(late)
    weights = [part for part in model.parameters() if part.dim() > 1]
    biases = [part for part in model.parameters() if part.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(groups, lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": ACCUMULATED,
            "zero_optimization": {"stage": args.stage},
        },
    )
    observe(engine, **({"out": args.out} if args.out else {}))
    batches = args.steps * ACCUMULATED
    data = Points(batches * BATCH * ranks)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    for batch, (x, y) in enumerate(loader, start=1):
        loss = functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        if batch == batches // 2:
            engine.save_checkpoint(shared_folder())
    late.report()
    leave()


def shared_folder() -> str:
    """A folder of rank 0's making that all ranks write to."""
    name = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    return str(name[0])


if __name__ == "__main__":
    main()
