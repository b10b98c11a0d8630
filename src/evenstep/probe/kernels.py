"""Measurements of one rank alone: a matrix product and copies; the caller imports torch.

Inside a job all ranks measure after the same steps, on their training threads and without
communication, so a rank delays the others only by as much as its machine is slower. The device is
synchronized first, so that it runs nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_high
from typing import Any

FEWEST, MOST = 10, 400  # repeats
#: Time of each measurement with warm-up; the last repeat may exceed it: < 20 ms in total.
BUDGET_NS = {"compute": 4_000_000, "memory": 6_000_000, "host_copy": 4_000_000}

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """The device of a rank, and the size of the measurements on it."""

    torch: Any
    kind: str  # "cpu" or "cuda" (also AMD's)
    index: int = 0
    in_job: bool = False  # within a job, which needs memory and time

    @property
    def place(self) -> Any:
        return self.torch.device(self.kind, self.index if self.kind != "cpu" else None)

    @property
    def side(self) -> int:
        """Side of the square matrices: 5 ms on a core, 2 ms on a GPU with 1,000 TFLOP/s; in a job
        an eighth of that."""
        return (512 if self.kind == "cpu" else 8_192) // (2 if self.in_job else 1)

    @property
    def copied_bytes(self) -> int:
        """Bytes of a copy: beyond all caches; in a job beyond those of a core or GPU."""
        if self.in_job:
            return 16_000_000 if self.kind == "cpu" else 64_000_000
        return 64_000_000 if self.kind == "cpu" else 1_000_000_000

    def wait(self) -> None:
        if self.kind != "cpu":
            self.torch.cuda.synchronize(self.place)

    def describe(self) -> str:
        if self.kind == "cpu":
            return f"cpu, {self.torch.get_num_threads()} threads"
        return str(self.torch.cuda.get_device_name(self.place))


def choose(torch: Any, wanted: str, local_rank: int) -> ProbeDevice:
    """Return the device of a rank: its GPU if there is one, unless "cpu" is wanted."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return ProbeDevice(torch, "cpu")
    index = local_rank % max(torch.cuda.device_count(), 1)
    torch.cuda.set_device(index)
    return ProbeDevice(torch, "cuda", index)


def multiply(torch: Any, a: Any, b: Any, out: Any) -> None:
    torch.mm(a, b, out=out)


def product(device: ProbeDevice) -> Work:
    """Return a matrix product of 2 side³ operations with preallocated operands."""
    torch = device.torch
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    shape = (device.side, device.side)
    a, b, out = (torch.ones(shape, dtype=dtype, device=device.place) for _ in range(3))
    return lambda: multiply(torch, a, b, out)


def memory_copy(device: ProbeDevice, *, from_host: bool = False) -> Work:
    """Return a copy of `copied_bytes` within the device's memory, or from pinned host memory."""
    torch = device.torch
    place = {"pin_memory": True} if from_host else {"device": device.place}
    source = torch.ones(device.copied_bytes, dtype=torch.uint8, **place)
    target = torch.zeros_like(source, device=device.place)
    return lambda: target.copy_(source, non_blocking=True)


def time_repeats(
    work: Work, device: ProbeDevice, budget_ns: int, *, warm_up: int = 3, fewest: int = FEWEST
) -> list[int]:
    """Return the times (ns) of as many repeats as fit into the budget, at least `fewest`."""
    end, found = time.perf_counter_ns() + budget_ns, list[int]()
    for _ in range(warm_up):
        work()
    device.wait()
    while len(found) < fewest or (time.perf_counter_ns() + found[-1] < end and len(found) < MOST):
        start = time.perf_counter_ns()
        work()
        device.wait()
        found.append(time.perf_counter_ns() - start)
    return found


class PeriodicProbe:
    """Measurements after every `every` steps on GPU `index` of torch, or on the CPU if None."""

    def __init__(self, torch: Any, index: int | None, *, every: int) -> None:
        kind = "cpu" if index is None else "cuda"
        self._device = ProbeDevice(torch, kind, index or 0, in_job=True)
        self._every = every
        self._works: dict[str, Work] = {}

    def after(self, steps: int) -> dict[str, float]:
        """Median time (ns) of each measurement by metric; {} if none is due or a CUDA graph is
        captured. The first call allocates 33 MB, on a GPU 230 MB and 64 MB pinned."""
        device = self._device
        if device.kind != "cpu" and device.torch.cuda.is_current_stream_capturing():
            return {}
        if not self._works:
            self._works = {"compute": product(device), "memory": memory_copy(device)}
            if device.kind != "cpu":
                self._works["host_copy"] = memory_copy(device, from_host=True)
        if steps % self._every:
            return {}
        device.wait()  # for the job's kernels, which are not part of the budget
        times = {
            name: time_repeats(work, device, BUDGET_NS[name], warm_up=1, fewest=1)
            for name, work in self._works.items()
        }
        return {f"probe.{name}_ns": float(median_high(each)) for name, each in times.items()}
