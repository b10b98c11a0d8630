"""Ranks that train until they are told to stop, while somebody else changes how they act.

Rank 0 counts the steps that have ended in COUNTER; all stop together when STOP exists. With LINK,
two jobs share an emulated link: they compute and send by sleeping, and sending takes twice as long
while the other job sends, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import struct
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from benchmarks.ranks import go_first
from evenstep.attachment import agent

ROUND_STEPS = 32  # between two looks at STOP
LATE_S = 0.002  # rank 1 is late, so that there is something to hold
#: A step on an emulated link: on it for so much of the time that the two jobs meet again and again.
COMPUTE_S, SPREAD, SEND_S, SLICE_S = 0.035, 0.5, 0.03, 0.001


class Link:
    """An emulated link of two jobs that share it equally; one byte of its file is 1 while a job is
    on it."""

    def __init__(self, path: Path, job: int, rank: int) -> None:
        with path.open("r+b") as file:
            self._sends = mmap.mmap(file.fileno(), 2)
        self._job, self._rank = job, rank
        self._draw = random.Random(job)  # all ranks of a job draw the same

    def compute(self) -> None:
        """What precedes the exchange."""
        time.sleep(COMPUTE_S * self._draw.uniform(1 - SPREAD, 1 + SPREAD))

    def send(self, grad: torch.Tensor) -> torch.Tensor:
        """The exchange: from the last gradient on, when the first bucket has been given away."""
        self._sends[self._job] |= self._rank == 0
        left, before = SEND_S, time.monotonic()
        while left > 0:
            time.sleep(min(left, SLICE_S))
            now = time.monotonic()
            left -= (now - before) / (1 + self._sends[1 - self._job])
            before = now
        self._sends[self._job] &= self._rank != 0
        return grad


def main() -> None:
    """Train until told to stop; rank 0 prints how many steps that were."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--counter", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--link", type=Path)
    parser.add_argument("--job", type=int, default=0, help="which of the two on the link")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.link:
        go_first()  # it sleeps for most of the time
    before = state()
    evenstep.attach(out=args.out, pace_mode="observe", pace_sharing=args.together, verdict=False)
    dist.init_process_group("gloo")
    attached = agent.current()
    link = args.link and Link(args.link, args.job, dist.get_rank())
    steps = _train(args.stop, args.counter, dist.get_rank(), link)
    failure = attached.failure if attached is not None else "not attached"
    evenstep.detach()
    left = [str(new) for old, new in zip(before, state(), strict=True) if old != new]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"steps": steps, "failure": failure, "left": left}), flush=True)


def state() -> tuple[object, ...]:
    """What of a process an action changes: its collector, where its threads may run and how many
    torch uses, and what it has of ours: threads, open files, sockets without connection, and memory
    shared with others."""
    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    masks = {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in threads}
    datagrams = {row.split()[9] for row in Path("/proc/net/udp").read_text().splitlines()[1:]}
    opened = [
        each
        for each in map(_target, os.listdir("/proc/self/fd"))  # noqa: PTH208
        if _ours(each) or each.removeprefix("socket:[").rstrip("]") in datagrams
    ]
    mapped = [row for row in Path("/proc/self/maps").read_text().splitlines() if _ours(row)]
    named = [each.name for each in threading.enumerate()]
    collector = gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()
    cores = sorted(masks), torch.get_num_threads(), torch.get_num_interop_threads()
    return collector, cores, sorted(named), sorted(opened), mapped


def _ours(path: str) -> bool:
    return ".spool" in path or "/dev/shm/evenstep" in path or "inotify" in path


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    except OSError:  # that of the listing itself
        return ""


def _train(stop: Path, counter: Path, rank: int, link: Link | None) -> int:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    if link is not None:
        layers[0].weight.register_hook(link.send)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, told = torch.ones(16, 256), torch.zeros(1)
    steps = 0
    with counter.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), struct.calcsize("q"))
        while not told.item():
            for _ in range(ROUND_STEPS):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                if link is not None:
                    link.compute()
                loss.backward()
                time.sleep(LATE_S * (rank == 1))
                optimizer.step()
                steps += 1
                if rank == 0:
                    struct.pack_into("q", shared, 0, steps)
            told = torch.tensor([float(rank == 0 and os.path.exists(stop))])  # noqa: PTH110
            dist.all_reduce(told)
    return steps


if __name__ == "__main__":
    main()
