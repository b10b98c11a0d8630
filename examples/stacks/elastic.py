"""A job that survives the crash of a rank: it starts again and resumes from its checkpoint.

    evenstep run -- torchrun --nproc-per-node 2 --max-restarts 1 examples/stacks/elastic.py

In the first attempt one rank crashes. How many steps there are in all, and which this is, the
script logs, so that a diagnosis knows which steps had to be done again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workload import Delay, batch, options, perceptron, ranks_together

import evenstep

EVERY = 8  # steps between checkpoints


def resume(model: nn.Module, path: Path) -> int:
    """Load the last checkpoint, if there is one; returns the step to go on with."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    return int(saved["step"])


def save(model: nn.Module, path: Path, step: int) -> None:
    """Write a checkpoint, whole or not at all."""
    scratch = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "step": step}, scratch)
    scratch.replace(path)


def train(steps: int, delay: Delay, *, path: Path, crash_at: int) -> None:
    """Train to the end, over however many attempts; the last rank crashes once."""
    if delay.rank == 0:
        print(json.dumps({"began": time.time()}), flush=True)
    model = perceptron()
    first = resume(model, path)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    fated = delay.rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    for step in range(first, steps):
        delay()
        loss = ddp(batch(step, delay.rank)).square().mean()
        loss.backward()
        evenstep.log(global_step=step)
        optimizer.step()
        optimizer.zero_grad()
        if delay.rank == 0:
            print(json.dumps({"step": step, "ended": time.time()}), flush=True)
            if (step + 1) % EVERY == 0:
                save(model, path, step + 1)
        if fated and step == crash_at:
            os._exit(1)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--crash-at", type=int, default=20, help="rank 1 crashes after this step")
    parser.add_argument("--checkpoint", type=Path, help="default: named after the job or launcher")
    args = parser.parse_args()
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")  # without a name another job's is found
    job = str(os.getppid()) if job == "none" else job
    path = args.checkpoint or Path(tempfile.gettempdir()) / f"elastic-{job}.pt"
    with ranks_together(args) as delay:
        train(args.steps, delay, path=path, crash_at=args.crash_at)


if __name__ == "__main__":
    main()
