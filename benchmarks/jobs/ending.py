"""A rank of a job that ends badly: the last rank dies, or stands still, in a known way and place.

torchrun … -m benchmarks.jobs.ending FOLDER WAY [--step N] [--stop SECONDS]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

COMPUTE_S = 0.02  # of a step


def main() -> None:
    """Train until the step at which it happens, and on where nothing stops it."""
    args = parsed()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.step + args.after):
        if step == args.step and rank == world - 1:
            (args.folder / "began").write_text(str(time.monotonic_ns()))
            culprit(args.way, args.stop)
        time.sleep(COMPUTE_S)
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        if step >= args.step and rank == world - 1 and args.way == "mismatch":
            dist.all_reduce(torch.ones(7, dtype=torch.float64))
        elif not (step == args.step and rank == world - 1 and args.way == "skipped"):
            dist.all_reduce(torch.ones(5))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("way")
    parser.add_argument("--step", type=int, default=40)
    parser.add_argument("--after", type=int, default=100000)
    parser.add_argument("--stop", type=float, default=2.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


def culprit(way: str, stop_s: float) -> None:
    """What the last rank does at that step."""
    if way in DEATHS:
        DEATHS[way]()
    if way == "stopped":  # and somebody else ends the job before it goes on
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "loop":
        endless_loop()
    elif way == "asleep":
        time.sleep(stop_s)


def endless_loop() -> None:
    """What a forgotten condition makes of a loop."""
    number = 0
    while True:
        number += 1


def segfault() -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


def out_of_memory() -> None:
    """Ask for more than there is."""
    torch.empty(1 << 50)


def broken_batch() -> None:
    """An exception of the script's own."""
    raise ValueError("the batch has no labels")


DEATHS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": segfault,
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
    "exception": broken_batch,
    "out of memory": out_of_memory,
    "killed from outside": lambda: subprocess.run(["kill", "-9", str(os.getpid())], check=True),
}

if __name__ == "__main__":
    main()
