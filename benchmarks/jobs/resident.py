"""A rank that issues collectives until its ring and its single-step summaries have wrapped."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import evenstep
from benchmarks.jobs.collectives import connect

PER_STEP = 10


def main() -> None:
    """Print resident memory in bytes, and how much of it is the spool's mapping."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    connect("fake")
    tensor = torch.zeros(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.attach and not evenstep.attach(out=Path(folder) / "run"):
            raise RuntimeError("evenstep did not attach")
        for _ in range(args.steps):
            for _ in range(PER_STEP):
                dist.all_reduce(tensor)
            evenstep.step()
        files = list((Path(folder) / "run").glob("attempt-*/*.spool"))
        print(
            json.dumps(
                {
                    "resident": resident_bytes(),
                    "mapped": mapped_bytes(".spool"),
                    "disk": sum(file.stat().st_blocks * 512 for file in files),
                }
            )
        )
        evenstep.detach()


def resident_bytes() -> int:
    """Anonymous, file-backed and shared pages of this process in memory (proc(5), status)."""
    rows = Path("/proc/self/status").read_text().splitlines()
    parts = ("RssAnon:", "RssFile:", "RssShmem:")
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith(parts))


def mapped_bytes(suffix: str) -> int:
    """Of it, pages of files whose name ends so (proc(5), smaps)."""
    total = 0
    inside = False
    for row in Path("/proc/self/smaps").read_text().splitlines():
        if not row.split(" ", 1)[0].endswith(":"):
            inside = row.endswith(suffix)
        elif inside and row.startswith("Rss:"):
            total += int(row.split()[1]) * 1024
    return total


if __name__ == "__main__":
    main()
