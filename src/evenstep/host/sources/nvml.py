"""NVIDIA GPUs: clocks and reasons for throttling, temperature, power and energy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from evenstep.host.sources.nvml_library import GPU_IS_LOST, REASONS, Handle, Nvml, NvmlError
from evenstep.host.sources.source import NVIDIA, Reading, Source, SourceUnavailable, pick, visible

_SM, _MEMORY = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU

#: Bits of `gpu.throttle_reasons_bits` (nvmlClocksEventReasons)
POWER_CAP, HARDWARE_SLOWDOWN = 0x04, 0x08
THERMAL = 0x20 | 0x40  # by software, by hardware
POWER_BRAKE = 0x80  # requested by the power supply

_READINGS = (  # metric, function, selectors, wide, factor to the unit in the name
    ("gpu.sm_clock_mhz", "nvmlDeviceGetClockInfo", (_SM,), False, 1),
    ("gpu.sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_SM,), False, 1),
    ("gpu.memory_clock_mhz", "nvmlDeviceGetClockInfo", (_MEMORY,), False, 1),
    ("gpu.temperature_celsius", "nvmlDeviceGetTemperature", (_GPU_SENSOR,), False, 1),
    ("gpu.power_watts", "nvmlDeviceGetPowerUsage", (), False, 1e-3),
    ("gpu.power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), False, 1e-3),
    ("gpu.energy_joules", "nvmlDeviceGetTotalEnergyConsumption", (), True, 1e-3),
)


class NvmlSource(Source):
    """`gpu.*` of one GPU in torch's numbering, or of all visible ones, in PCI order: CUDA's order
    differs on a host with different models. Metrics that a GPU lacks are left out."""

    name = "nvml"

    def __init__(
        self,
        device_index: int | None = None,
        *,
        library: Any = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._device_index = device_index
        self._library = library
        self._environ = environ
        self._nvml: Nvml | None = None
        self._devices: list[tuple[int, Handle]] = []  # the first is torch's index

    def open(self) -> None:
        self._nvml = Nvml(self._library) if self._library is not None else Nvml.load()
        try:
            handles = visible_handles(self._nvml, self._environ)
        except NvmlError as error:
            raise SourceUnavailable(f"NVML does not list the GPUs: {error}") from error
        only = self._device_index
        self._devices = [(i, h) for i, h in enumerate(handles) if only is None or i == only]
        if not self._devices:
            which = "no GPU" if only is None else f"no GPU number {only}"
            raise SourceUnavailable(f"NVML runs, but this process can see {which}")

    def read(self) -> list[Reading]:
        if self._nvml is None:
            return []
        nvml = self._nvml
        return [reading for i, handle in self._devices for reading in self._of(nvml, i, handle)]

    def close(self) -> None:
        if self._nvml:
            self._nvml.close()
            self._nvml = None

    def _of(self, nvml: Nvml, index: int, handle: Handle) -> list[Reading]:
        calls: list[tuple[str, float, Callable[[], int]]] = [
            (metric, factor, partial(nvml.number, function, handle, *selectors, wide=wide))
            for metric, function, selectors, wide, factor in _READINGS
        ]
        calls.append(("gpu.busy_percent", 1, partial(nvml.busy_percent, handle)))
        asked = ((metric, factor, _ask(call)) for metric, factor, call in calls)
        found = [
            (metric, index, value * factor) for metric, factor, value in asked if value is not None
        ]
        reasons = _ask(partial(nvml.number, REASONS, handle, wide=True))
        return found if reasons is None else found + throttling(index, reasons)


def _ask(call: Callable[[], int]) -> int | None:
    """The value of a call, None if it fails; a lost GPU ends the source."""
    try:
        return call()
    except NvmlError as error:
        if error.code == GPU_IS_LOST:
            raise SourceUnavailable(str(error)) from error
        return None


def throttling(index: int, reasons: int) -> list[Reading]:
    """The mask, and whether heat, power or the hardware's own protection limit the clocks."""
    return [
        ("gpu.throttle_reasons_bits", index, reasons),
        ("gpu.thermal_throttle_flag", index, bool(reasons & THERMAL)),
        ("gpu.power_throttle_flag", index, bool(reasons & (POWER_CAP | POWER_BRAKE))),
        ("gpu.hardware_slowdown_flag", index, bool(reasons & HARDWARE_SLOWDOWN)),
    ]


def visible_handles(nvml: Nvml, environ: Mapping[str, str]) -> list[Any]:
    """Handles of the GPUs that this process can see, in its own numbering."""
    tokens = visible(environ, NVIDIA)
    if tokens and tokens[0].startswith("MIG-"):  # a process gets one slice at most
        return [nvml.mig_parent(tokens[0])]
    handles = nvml.handles()
    by_name = tokens is not None and not all(token.isdigit() for token in tokens)
    names = [nvml.text("nvmlDeviceGetUUID", h) if by_name else "" for h in handles]
    return [handles[position] for position in pick(tokens, names)]
