"""Several ranks on one device, of which one may be late, or die.

NCCL refuses two ranks on one device of a host, so each rank gives itself another host's name; they
talk over the loopback interface. Without CUDA's multi-process service their kernels take turns of
milliseconds: start `nvidia-cuda-mps-control -d` first. Rank 0 prints the mean of its step times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep

WIDTH, BATCH, LAYERS, MICRO_BATCHES = 1024, 256, 8, 4
LAYER_MS = 1.0  # of a layer's forward; backward takes twice as long
WARM_UP, PROFILED = 10, 12


class Held(torch.autograd.Function):
    """Nothing is computed; the stream waits for so many cycles forward and backward.

    A device that computes for several ranks is slower for each: waiting takes as long as alone.
    """

    @staticmethod
    def forward(ctx: Any, batch: torch.Tensor, forward: int, backward: int) -> torch.Tensor:
        """Hold the stream, and pass the batch on."""
        ctx.cycles = backward
        torch.cuda._sleep(forward)
        return batch.view_as(batch)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Hold the stream."""
        torch.cuda._sleep(ctx.cycles)
        return gradient, None, None


class Layers(torch.nn.Module):
    """Linear layers that take a known time; one of them is late in backward."""

    def __init__(self, late_cycles: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)
        )
        once = cycles_of(LAYER_MS / 1e3)
        self.cycles = [[once, 2 * once] for _ in range(LAYERS)]
        self.cycles[LAYERS // 2][1] += late_cycles

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Apply all layers."""
        for layer, cycles in zip(self.layers, self.cycles, strict=True):
            batch = Held.apply(torch.tanh(layer(batch)), *cycles)
        return batch


class Job:
    """One rank: its model, its place, and one way to train it."""

    def __init__(self, way: str, late_cycles: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        model = Layers(late_cycles).cuda()
        self.train = getattr(self, way)
        if way == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
        self.model: Any = DistributedDataParallel(model) if way == "ddp" else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, batch: torch.Tensor) -> None:
        """One step, to its end on the device."""
        self.optimizer.zero_grad()
        self.train(batch.cuda(non_blocking=True))
        self.optimizer.step()
        torch.cuda.current_stream().synchronize()

    def ddp(self, batch: torch.Tensor) -> None:
        """The same model on all ranks, gradients summed in buckets."""
        self.model(batch).square().mean().backward()

    fsdp = ddp

    def pipeline(self, batch: torch.Tensor) -> None:
        """A stage on each rank: all micro-batches forward, then all backward."""
        rank, last = self.rank, self.rank == self.world - 1
        entered, left = [], []
        for _ in range(MICRO_BATCHES):
            activation = batch.clone()
            if rank:
                dist.recv(activation, rank - 1)
            entered.append(activation.requires_grad_())
            left.append(self.model(entered[-1]))
            if not last:
                dist.send(left[-1].detach(), rank + 1)
        for activation, result in zip(entered, left, strict=True):
            gradient = torch.ones_like(result)
            if not last:
                dist.recv(gradient, rank + 1)
            result.backward(gradient)
            if rank:
                dist.send(activation.grad, rank - 1)

    def ring(self, batch: torch.Tensor) -> None:
        """Blocks go round while each rank computes on the one it has, as in ring attention."""
        following, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        losses = []
        for _ in range(self.world):
            arriving = torch.empty_like(batch)
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, batch, following), dist.P2POp(dist.irecv, arriving, before)]
            )
            losses.append(self.model(batch).square().mean())
            for work in works:
                work.wait()
            batch = arriving
        torch.stack(losses).sum().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)


def batches(pause_s: float) -> Iterator[torch.Tensor]:
    """Random batches, each after a pause."""
    while True:
        time.sleep(pause_s)
        yield torch.randn(BATCH, WIDTH)


def cycles_of(seconds: float) -> int:
    """Cycles of the device that take so long."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    return round(seconds * 1e3 * 20_000_000 / begin.elapsed_time(end))


def main() -> None:
    """Train, recorded; print the mean step time in ms, without the first steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("ddp", "fsdp", "pipeline", "ring"))
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--stream-ms", type=float, default=0.0, help="more on its device, a step")
    parser.add_argument("--loader-ms", type=float, default=0.0, help="more in its loader, a step")
    parser.add_argument("--dies-at", type=int, default=-1, help="step in which it is killed")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kineto", type=Path, help="folder of the last steps' profiles")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    torch.cuda.set_device(0)
    dist.init_process_group(args.backend)
    evenstep.attach(out=args.out)
    late = rank == args.late_rank
    times = {"pipeline": MICRO_BATCHES, "ring": dist.get_world_size()}.get(args.way, 1)
    job = Job(args.way, cycles_of(args.stream_ms / 1e3 / times) if late and args.stream_ms else 0)
    loader = batches(args.loader_ms / 1e3 if late else 0.0)
    times_s = []
    profile = torch.profiler.profile()
    for step in range(args.steps):
        if args.kineto and step == args.steps - PROFILED:
            profile.start()
        if late and step == args.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.perf_counter()
        with torch.profiler.record_function(f"ProfilerStep#{step}"):
            job.step(next(loader))
        times_s.append(time.perf_counter() - began)
    if args.kineto:
        torch.cuda.synchronize()
        profile.stop()
        args.kineto.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(args.kineto / f"rank{rank}.json.gz"))
    counted = times_s[WARM_UP : args.steps - PROFILED]
    evenstep.detach()
    print(json.dumps({"step_ms": 1e3 * sum(counted) / len(counted)}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
