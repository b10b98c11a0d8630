"""AMD GPUs from sysfs: clocks and what holds them back, temperature, power, how busy they are.

Files and units are those of the kernel's amdgpu documentation (thermal.rst). Why a clock is low is
told by models whose `gpu_metrics` has version 1.3 only (see `amd_files`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from evenstep.host.sources.amd_files import HARDWARE, POWER, THERMAL, highest_mhz, throttled
from evenstep.host.sources.source import Reading, Source, SourceUnavailable
from evenstep.host.sources.visible import AMD, pick, visible
from evenstep.host.sysfs import children, read_int, read_text, target

_VENDOR = 0x1002

_MONITORED = (  # metric, files of the hwmon folder, factor to the unit in the name
    ("gpu.sm_clock_mhz", ("freq1_input",), 1e-6),  # Hz, graphics and compute
    ("gpu.memory_clock_mhz", ("freq2_input",), 1e-6),
    ("gpu.power_watts", ("power1_average", "power1_input"), 1e-6),  # µW; newer models: input
    ("gpu.power_limit_watts", ("power1_cap",), 1e-6),
)
_SENSORS = {"edge": "gpu.temperature_celsius", "junction": "gpu.hotspot_celsius"}


def cards(sysroot: str = "/") -> list[Path]:
    """Device folders of all AMD GPUs of the host, by PCI address."""
    base = Path(sysroot) / "sys/class/drm"
    names = [name for name in children(str(base)) if name.startswith("card") and "-" not in name]
    devices = [base / name / "device" for name in names]
    found = [device for device in devices if read_int(str(device / "vendor")) == _VENDOR]
    return sorted(found, key=lambda device: target(str(device)) or "")


class AmdgpuSource(Source):
    """`gpu.*` of one GPU as torch numbers it, or of all that the process can see."""

    name = "amdgpu"

    def __init__(
        self,
        device_index: int | None = None,
        *,
        sysroot: str = "/",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._device_index = device_index
        self._sysroot = sysroot
        self._environ = environ
        self._files: list[tuple[str, int, str, float]] = []  # metric, device, file, factor
        self._constant: list[Reading] = []
        self._throttled: list[tuple[int, Path]] = []  # device, folder: those that tell

    def open(self) -> None:
        found = cards(self._sysroot)
        if not found:
            raise SourceUnavailable("this host has no AMD GPU")
        names = [f"GPU-{(read_text(str(c / 'unique_id')) or '').removeprefix('0x')}" for c in found]
        for index, position in enumerate(pick(visible(self._environ, AMD), names)):
            if self._device_index in (None, index):
                self._choose(index, found[position])
        if not self._files:
            raise SourceUnavailable("this process can see no AMD GPU with readable sensors")

    def _choose(self, index: int, device: Path) -> None:
        self._add("gpu.busy_percent", index, (device / "gpu_busy_percent",), 1)
        highest = highest_mhz(device)
        if highest is not None:
            self._constant.append(("gpu.sm_clock_max_mhz", index, highest))
        if throttled(device) is not None:
            self._throttled.append((index, device))
        for monitor in children(str(device / "hwmon")):
            folder = device / "hwmon" / monitor
            for metric, names, factor in _MONITORED:
                self._add(metric, index, tuple(folder / name for name in names), factor)
            for sensor in (1, 2):
                label = read_text(str(folder / f"temp{sensor}_label")) or ""
                if label in _SENSORS:
                    self._add(_SENSORS[label], index, (folder / f"temp{sensor}_input",), 1e-3)

    def _add(self, metric: str, index: int, files: tuple[Path, ...], factor: float) -> None:
        file = next((str(file) for file in files if read_int(str(file)) is not None), None)
        if file:
            self._files.append((metric, index, file, factor))

    def read(self) -> list[Reading]:
        values = ((entry, read_int(entry[2])) for entry in self._files)
        found = [(metric, i, v * factor) for (metric, i, _, factor), v in values if v is not None]
        for index, device in self._throttled:
            found += throttling(index, throttled(device) or 0)
        return found + self._constant


def throttling(index: int, bits: int) -> list[Reading]:
    """Whether heat, power or the hardware's own protection hold the clocks, as on NVIDIA."""
    return [
        ("gpu.thermal_throttle_flag", index, bool(bits & THERMAL)),
        ("gpu.power_throttle_flag", index, bool(bits & POWER)),
        ("gpu.hardware_slowdown_flag", index, bool(bits & HARDWARE)),
    ]
