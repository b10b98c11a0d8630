"""What is timed on one rank alone: a matrix product and copies. Torch is imported by who calls.

Also inside a job, every so many steps, between two of them: all ranks measure after the same steps,
each by itself and on its training thread, so nobody waits for it but by as much as its own machine
is slower. A device is waited for first: it measures alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_high
from typing import Any

FEWEST, MOST = 10, 400  # repeats
_WARM_UP = 3
#: What each measurement may take, warm-up included; a repeat under way is finished: < 20 ms in all.
BUDGET_NS = {"compute": 4_000_000, "memory": 6_000_000, "host_copy": 4_000_000}

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


def product(device: ProbeDevice) -> Work:
    """A matrix product of 2 side³ operations, whose operands are made already."""
    torch = device.torch
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    shape = (device.side, device.side)
    a, b, out = (torch.ones(shape, dtype=dtype, device=device.place) for _ in range(3))
    return lambda: multiply(torch, a, b, out)


def memory_copy(device: ProbeDevice) -> Work:
    """A copy within the device's memory: it reads and writes `copied_bytes` each."""
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


class PeriodicProbe:
    """Measures after every `every` steps on a device of `torch`; `index` None is the processor."""

    def __init__(self, torch: Any, index: int | None, *, every: int) -> None:
        self._device = ProbeDevice(
            torch, "cpu" if index is None else "cuda", index or 0, in_job=True
        )
        self._every = every
        self._works: dict[str, Work] = {}

    def after(self, steps: int) -> dict[str, float]:
        """Median time of each measurement, ns, by its metric; nothing where none is due.

        The first call makes the buffers: 33 MB of memory; of a GPU's 230 MB, and 64 MB pinned.
        While a CUDA graph is captured nothing is done, for it would become a part of it.
        """
        device = self._device
        if device.kind != "cpu" and device.torch.cuda.is_current_stream_capturing():
            return {}
        if not self._works:
            self._works = _works(device)
        if steps % self._every:
            return {}
        device.wait()  # for what the job has launched: no part of the budget
        return {
            f"probe.{name}_ns": _median(name, work, device) for name, work in self._works.items()
        }


def _works(device: ProbeDevice) -> dict[str, Work]:
    works = {"compute": product(device), "memory": memory_copy(device)}
    return works if device.kind == "cpu" else {**works, "host_copy": host_copy(device)}


def _median(name: str, work: Work, device: ProbeDevice) -> float:
    return float(median_high(timed(work, device, BUDGET_NS[name], warm_up=1, fewest=1)))
