"""Facts about host and devices, one module per source; `all_sources` has them in order."""

from __future__ import annotations

from evenstep.host.sources.source import Source, SourceUnavailable

__all__ = ["Source", "SourceUnavailable", "all_sources"]


def all_sources(*, thread_id: int, device_index: int | None) -> list[Source]:
    """All sources. `thread_id` is the training thread's native number; `device_index` its GPU in
    torch's numbering, or None for all visible GPUs."""
    from evenstep.host.sources.allocator import AllocatorSource
    from evenstep.host.sources.amdgpu import AmdgpuSource
    from evenstep.host.sources.cpu import CpuSource, RaplSource
    from evenstep.host.sources.nccl_ras import NcclRas
    from evenstep.host.sources.nic import InfinibandSource, NicSource
    from evenstep.host.sources.nvml import NvmlSource

    return [
        CpuSource(thread_id),
        NicSource(),
        InfinibandSource(),
        RaplSource(),
        AllocatorSource(device_index),
        NcclRas(),
        NvmlSource(device_index),
        AmdgpuSource(device_index),
    ]
