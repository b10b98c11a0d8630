"""The probe inside a job: what this rank's machine can do, every so many steps, between two steps.

All ranks measure after the same steps, each by itself and on its training thread, so nobody waits
for it but by as much as its own machine is slower. A device is waited for first: it measures alone.
"""

from __future__ import annotations

from typing import Any

from evenstep.probe import kernels

#: What each measurement may take, warm-up included; a repeat under way is finished: < 20 ms in all.
BUDGET_NS = {"compute": 4_000_000, "memory": 6_000_000, "host_copy": 4_000_000}


class PeriodicProbe:
    """Measures after every `every` steps on a device of `torch`; `index` None is the processor."""

    def __init__(self, torch: Any, index: int | None, *, every: int) -> None:
        self._device = kernels.ProbeDevice(
            torch, "cpu" if index is None else "cuda", index or 0, in_job=True
        )
        self._every = every
        self._works: dict[str, kernels.Work] = {}

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


def _works(device: kernels.ProbeDevice) -> dict[str, kernels.Work]:
    works = {"compute": kernels.product(device), "memory": kernels.memory_copy(device)}
    if device.kind != "cpu":
        works["host_copy"] = kernels.host_copy(device)
    return works


def _median(name: str, work: kernels.Work, device: kernels.ProbeDevice) -> float:
    times = kernels.timed(work, device, BUDGET_NS[name], warm_up=1, fewest=1)
    return float(sorted(times)[len(times) // 2])
