"""A library that answers like libnvidia-ml: C calling convention, values from Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, LOST = 0, 2, 3, 6, 15


@dataclass
class FakeGpu:
    """One GPU: raw answers (a number, or by selector) and refusals by function."""

    uuid: str = "GPU-0"
    bus_id: str = "00000000:03:00.0"
    answers: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)  # "switch" or the bus id of the other GPU


class FakeNvml:
    """Has the functions a driver has, except those named in `absent`."""

    def __init__(self, gpus: list[FakeGpu], *, absent: tuple[str, ...] = (), start: int = 0):
        self.gpus = gpus
        self.absent = absent
        self.start = start
        self.open = 0  # initialisations not shut down yet

    def __getattr__(self, function: str) -> Callable[..., int]:
        if function in self.absent or not function.startswith("nvml"):
            raise AttributeError(function)
        special = {
            "nvmlInit_v2": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount_v2": self._count,
            "nvmlDeviceGetHandleByIndex_v2": self._by_index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": self._parent,
        }
        if function in special:
            return special[function]
        return lambda handle, *rest: self._ask(function, self.gpus[handle.value - 1], *rest)

    def _init(self) -> int:
        self.open += not self.start
        return self.start

    def _shutdown(self) -> int:
        self.open -= 1
        return SUCCESS

    def _count(self, out: Any) -> int:
        out._obj.value = len(self.gpus)
        return SUCCESS

    def _by_index(self, index: Any, out: Any) -> int:
        out._obj.value = index.value + 1
        return SUCCESS

    def _by_uuid(self, uuid: Any, out: Any) -> int:
        out._obj.value = 1
        return SUCCESS if uuid.value.startswith(b"MIG-") else NOT_FOUND

    def _parent(self, part: Any, out: Any) -> int:
        out._obj.value = part.value
        return SUCCESS

    def _ask(self, function: str, gpu: FakeGpu, *rest: Any) -> int:
        if function in gpu.refusals:
            return gpu.refusals[function]
        if function == "nvmlDeviceGetUUID":
            rest[0].value = gpu.uuid.encode()
        elif function == "nvmlDeviceGetName":
            rest[0].value = b"Test GPU"
        elif function == "nvmlDeviceGetPciInfo_v3":
            rest[0]._obj.busId = gpu.bus_id.encode()
        elif "NvLink" in function:
            return self._link(function, gpu, rest[0].value, rest[1]._obj)
        elif function == "nvmlDeviceGetUtilizationRates":
            rest[0]._obj.gpu = gpu.answers.get(function, 0)
        else:
            selectors = tuple(selector.value for selector in rest[:-1])
            answer = gpu.answers.get(function, 0)
            rest[-1]._obj.value = answer[selectors[0]] if isinstance(answer, dict) else answer
        return SUCCESS

    def _link(self, function: str, gpu: FakeGpu, link: int, out: Any) -> int:
        if link >= len(gpu.links):
            return INVALID_ARGUMENT
        if function == "nvmlDeviceGetNvLinkState":
            out.value = 1
        elif function == "nvmlDeviceGetNvLinkRemoteDeviceType":
            out.value = 2 if gpu.links[link] == "switch" else 0
        else:
            out.busId = gpu.links[link].encode()
        return SUCCESS
