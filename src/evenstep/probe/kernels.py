"""What is timed on one rank alone: a matrix product and copies. Torch is imported by who calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FEWEST, MOST = 10, 400  # repeats
_WARM_UP = 3

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """Where a rank computes, and how large its work is there."""

    torch: Any
    kind: str  # "cpu" or "cuda" (also AMD's)
    index: int = 0
    in_job: bool = False  # beside a job, which needs the memory and the time

    @property
    def place(self) -> Any:
        """As torch names it."""
        return self.torch.device(self.kind, self.index if self.kind != "cpu" else None)

    @property
    def side(self) -> int:
        """Of the square matrices: 5 ms on a core, 2 ms on a GPU of a thousand TFLOP/s; in a job an
        eighth of it."""
        return (512 if self.kind == "cpu" else 8_192) // (2 if self.in_job else 1)

    @property
    def copied_bytes(self) -> int:
        """Beyond all caches; in a job beyond a core's own, or a GPU's."""
        if self.in_job:
            return 16_000_000 if self.kind == "cpu" else 64_000_000
        return 64_000_000 if self.kind == "cpu" else 1_000_000_000

    def wait(self) -> None:
        """Until everything launched has ended."""
        if self.kind != "cpu":
            self.torch.cuda.synchronize(self.place)

    def describe(self) -> str:
        """Name of the device."""
        if self.kind == "cpu":
            return f"cpu, {self.torch.get_num_threads()} threads"
        return str(self.torch.cuda.get_device_name(self.place))


def choose(torch: Any, wanted: str, local_rank: int) -> ProbeDevice:
    """The device a rank is to use: its GPU where there is one and nothing else is asked for."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return ProbeDevice(torch, "cpu")
    index = local_rank % max(torch.cuda.device_count(), 1)
    torch.cuda.set_device(index)
    return ProbeDevice(torch, "cuda", index)


def multiply(torch: Any, a: Any, b: Any, out: Any) -> None:
    """One matrix product."""
    torch.mm(a, b, out=out)


def gemm(device: ProbeDevice, budget_ns: int) -> list[int]:
    """Times of a matrix product, ns: 2 side³ operations, single precision or bfloat16."""
    return timed(product(device), device, budget_ns)


def copy(device: ProbeDevice, budget_ns: int) -> list[int]:
    """Times of a copy in memory, ns: it reads and writes `copied_bytes` each."""
    return timed(memory_copy(device), device, budget_ns)


def product(device: ProbeDevice) -> Work:
    """A matrix product whose operands are made already."""
    torch = device.torch
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    shape = (device.side, device.side)
    a, b, out = (torch.ones(shape, dtype=dtype, device=device.place) for _ in range(3))
    return lambda: multiply(torch, a, b, out)


def memory_copy(device: ProbeDevice) -> Work:
    """A copy within the device's memory."""
    torch = device.torch
    source = torch.ones(device.copied_bytes, dtype=torch.uint8, device=device.place)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def host_copy(device: ProbeDevice) -> Work:
    """A copy of `copied_bytes` from pinned memory of the host to the device."""
    torch = device.torch
    source = torch.ones(device.copied_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros_like(source, device=device.place)
    return lambda: target.copy_(source, non_blocking=True)


def timed(
    work: Work,
    device: ProbeDevice,
    budget_ns: int,
    *,
    warm_up: int = _WARM_UP,
    fewest: int = FEWEST,
) -> list[int]:
    """Times in ns of as many repeats as fit into the budget, at least `fewest`."""
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
