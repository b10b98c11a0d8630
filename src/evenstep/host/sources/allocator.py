"""Torch's caching allocator on CUDA or ROCm: retries, out-of-memory events, calls to the driver.

Read only once the job itself has initialised CUDA.
"""

from __future__ import annotations

import sys
from typing import Any

from evenstep.host.sources.source import Reading, Source, SourceUnavailable

_COUNTERS = (  # of torch.cuda.memory_stats; the last two since torch 2.3
    ("allocator.retries_count", "num_alloc_retries"),  # freed its cache and tried again: a stall
    ("allocator.out_of_memory_count", "num_ooms"),
    ("allocator.device_allocations_count", "num_device_alloc"),
    ("allocator.device_frees_count", "num_device_free"),
)
_SIZES = (
    ("allocator.reserved_bytes", "reserved_bytes"),
    ("allocator.allocated_bytes", "allocated_bytes"),
)


class AllocatorSource(Source):
    """`allocator.*` of one device, or of all that the process can see."""

    name = "allocator"

    def __init__(self, device_index: int | None = None) -> None:
        self._device_index = device_index
        self._cuda: Any = None

    def open(self) -> None:
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            raise SourceUnavailable("the job does not use CUDA or ROCm", may_come=True)
        self._cuda = cuda

    def read(self) -> list[Reading]:
        only = self._device_index
        devices = range(self._cuda.device_count()) if only is None else (only,)
        return [reading for device in devices for reading in self._of(device)]

    def _of(self, device: int) -> list[Reading]:
        stats: dict[str, Any] = self._cuda.memory_stats_as_nested_dict(device)
        found: list[Reading] = [(m, device, stats[key]) for m, key in _COUNTERS if key in stats]
        for metric, key in _SIZES:
            if key in stats:
                found.append((metric, device, stats[key]["all"]["current"]))
        return found
