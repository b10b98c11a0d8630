"""One rank on NCCL whose step of some 20 ms is matrices on a device; what observing it changes.

Prints step times with and without evenstep, in pairs of blocks whose order is a coin's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import evenstep

SIZE, BUCKETS = 4096, 8
WARM_UP, BLOCK = 50, 50  # steps: attaching takes the first half second of a background thread


def step(matrix: torch.Tensor, buckets: list[torch.Tensor], repeats: int) -> float:
    """Seconds one step takes, to its end on the device."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for bucket in buckets:
        for _ in range(repeats):
            matrix = matrix @ matrix
        dist.all_reduce(bucket, async_op=True)
    torch.cuda.synchronize()
    evenstep.step()
    return time.perf_counter() - began


def main() -> None:
    """Blocks of steps with and without."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) / SIZE
    buckets = [torch.ones(1 << 22, device="cuda") for _ in range(BUCKETS)]
    repeats = calibrated(matrix, buckets)
    times: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        for block in range(args.blocks):
            first = random.random() < 0.5
            for on in (first, not first):
                if on:
                    evenstep.attach(out=Path(name) / str(block))
                took = [step(matrix, buckets, repeats) for _ in range(WARM_UP + BLOCK)]
                times[on].append(sum(took[WARM_UP:]) / BLOCK)
                evenstep.detach()
    device = torch.cuda.get_device_name()
    print(json.dumps({"on": times[True], "off": times[False], "device": device}))
    os._exit(0)


def calibrated(matrix: torch.Tensor, buckets: list[torch.Tensor]) -> int:
    """Multiplications before each bucket that make a step of about 20 ms."""
    step(matrix, buckets, 1)
    once = min(step(matrix, buckets, 1) for _ in range(5))
    return max(1, round(0.02 / once))


if __name__ == "__main__":
    main()
