"""A training that can be stopped and resumed: told by SIGUSR1 it writes a checkpoint and leaves.

It knows nothing of evenstep. Ranks are told by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

told_to_stop = False


def hear(_number: int, _frame: object) -> None:
    """Note that the time is nearly up; the step that runs is finished first."""
    global told_to_stop
    told_to_stop = True


def main() -> None:
    """Train to the last step, or until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()
    signal.signal(signal.SIGUSR1, hear)
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if gpu else "gloo")
    train(args, torch.device("cuda" if gpu else "cpu"))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads end


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Every rank takes the same steps, and stops after the same one."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    first = resume(args.checkpoint, model, optimizer)
    batch = torch.randn(32, 64, device=device)
    for step in range(first, args.steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        stop = torch.tensor([float(told_to_stop)], device=device)
        dist.all_reduce(stop)  # a signal does not reach all ranks at the same moment
        if stop.item() or step + 1 == args.steps:
            save(args.checkpoint, step + 1, model, optimizer)
            if dist.get_rank() == 0:
                print(f"stopped after step {step}", flush=True)
            return


def resume(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The first step that is still to be taken."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint whole or not at all."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
