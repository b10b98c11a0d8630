"""One rank on NCCL whose step of some 20 ms is matrices on a device; what observing it changes.

Prints step times with and without evenstep, and what a Kineto trace of the same steps says of each
collective beside what was recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import evenstep
from evenstep.trace.spool.layout import Flag, Kind

SIZE, BUCKETS, BLOCK = 4096, 8, 20


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
    """Blocks of steps with and without, in turn; then one block under Kineto too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) / SIZE
    buckets = [torch.ones(1 << 22, device="cuda") for _ in range(BUCKETS)]
    repeats = calibrated(matrix, buckets)
    times: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as name:
        for block in range(2 * args.blocks):
            on = block % 2 == 1
            if on:
                evenstep.attach(out=Path(name) / str(block))
            step(matrix, buckets, repeats)
            took = [step(matrix, buckets, repeats) for _ in range(BLOCK)]
            times["on" if on else "off"].append(sorted(took)[BLOCK // 2])
            evenstep.detach()
        stamps = beside_kineto(Path(name), matrix, buckets, repeats)
    print(json.dumps({**times, "stamps": stamps, "device": torch.cuda.get_device_name()}))
    os._exit(0)


def calibrated(matrix: torch.Tensor, buckets: list[torch.Tensor]) -> int:
    """Multiplications before each bucket that make a step of about 20 ms."""
    step(matrix, buckets, 1)
    once = min(step(matrix, buckets, 1) for _ in range(5))
    return max(1, round(0.02 / once))


def beside_kineto(
    folder: Path, matrix: torch.Tensor, buckets: list[torch.Tensor], repeats: int
) -> list[dict[str, float]]:
    """Each collective's length and the pause before it, as recorded and as Kineto has it (µs)."""
    evenstep.attach(out=folder / "stamps")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(BLOCK):
            step(matrix, buckets, repeats)
    evenstep.detach()
    events = sorted(
        (event for event in profile.events() if "ncclDevKernel" in event.name),
        key=lambda event: event.time_range.start,
    )
    theirs = [(event.time_range.start, event.time_range.end) for event in events]
    rows = evenstep.load(folder / "stamps").of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows.flags & int(Flag.ON_DEVICE)) != 0)
    ours = [
        (int(begin) / 1e3, int(end) / 1e3)
        for begin, end in zip(rows.device_enter_ns, rows.device_exit_ns, strict=True)
    ]
    return [compared(ours[i - 1 : i + 1], theirs[i - 1 : i + 1]) for i in range(1, len(theirs))]


def compared(ours: Any, theirs: Any) -> dict[str, float]:
    """Differences of two collectives in a row: the second's length, and end to end."""
    return {
        "length_us": (ours[1][1] - ours[1][0]) - (theirs[1][1] - theirs[1][0]),
        "between_ends_us": (ours[1][1] - ours[0][1]) - (theirs[1][1] - theirs[0][1]),
    }


if __name__ == "__main__":
    main()
