"""AMD GPUs from sysfs: clocks and reasons for throttling, temperature, power, utilization.

Files and units are those of the kernel's amdgpu documentation (thermal.rst). Reasons for throttling
are read on models with version 1.3 of `gpu_metrics` only. Its layout and bits are those of
`kgd_pp_interface.h` (struct gpu_metrics_v1_3) and `amdgpu_smu.h` (SMU_THROTTLER_…_BIT); in other
versions the fields are elsewhere, and most have no bits with the same meaning on every model.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from evenstep.host.sources.source import AMD, FileSource, Reading, SourceUnavailable, pick, visible
from evenstep.host.sysfs import children, read_int, read_text, target

_VENDOR = 0x1002

_MONITORED = (  # metric, files of the hwmon folder, factor to the unit in the name
    ("gpu.sm_clock_mhz", ("freq1_input",), 1e-6),  # Hz, graphics and compute
    ("gpu.memory_clock_mhz", ("freq2_input",), 1e-6),
    ("gpu.power_watts", ("power1_average", "power1_input"), 1e-6),  # µW; newer models: input
    ("gpu.power_limit_watts", ("power1_cap",), 1e-6),
)
_SENSORS = {"edge": "gpu.temperature_celsius", "junction": "gpu.hotspot_celsius"}

_HEADER = struct.Struct("<HBB")  # bytes of the table, format, content
_READ = (1, 3)
_BYTES = 120
_THROTTLE = struct.Struct("<112xQ")
_LEVEL = re.compile(r"^\d+:\s*(\d+)\s*MHz", re.IGNORECASE | re.MULTILINE)


def _bits(first: int, last: int) -> int:
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1)


POWER = _bits(0, 7) | _bits(16, 23)  # package power; current of a rail
THERMAL = _bits(32, 45)  # a sensor or a voltage regulator is too hot
HARDWARE = _bits(46, 47)  # PROCHOT: requested by another component


def throttle_reasons(device: Path) -> int | None:
    """Reasons for throttling as bits of the kernel's; None where this GPU does not report them."""
    try:
        table = (device / "gpu_metrics").read_bytes()
    except OSError:
        return None
    if len(table) < _BYTES:
        return None
    size, *version = _HEADER.unpack_from(table)
    if tuple(version) != _READ or size < _BYTES:
        return None
    bits: int = _THROTTLE.unpack_from(table)[0]
    return None if bits == _bits(0, 63) else bits  # all ones: the firmware does not fill it in


def highest_mhz(device: Path) -> int | None:
    """The highest of the clock levels of `pp_dpm_sclk`."""
    levels = _LEVEL.findall(read_text(str(device / "pp_dpm_sclk")) or "")
    return max(map(int, levels)) if levels else None


def cards(sysroot: str = "/") -> list[Path]:
    """Device folders of all AMD GPUs of the host, by PCI address."""
    base = Path(sysroot) / "sys/class/drm"
    names = [name for name in children(str(base)) if name.startswith("card") and "-" not in name]
    devices = [base / name / "device" for name in names]
    found = [device for device in devices if read_int(str(device / "vendor")) == _VENDOR]
    return sorted(found, key=lambda device: target(str(device)) or "")


class AmdgpuSource(FileSource):
    """`gpu.*` of one GPU in torch's numbering, or of all visible ones."""

    name = "amdgpu"

    def __init__(
        self,
        device_index: int | None = None,
        *,
        sysroot: str = "/",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(sysroot=sysroot)
        self._device_index = device_index
        self._environ = environ
        self._constant: list[Reading] = []
        self._throttled: list[tuple[int, Path]] = []  # device and folder, of GPUs that report it

    def open(self) -> None:
        found = cards(str(self._sysroot))
        if not found:
            raise SourceUnavailable("this host has no AMD GPU")
        names = [f"GPU-{(read_text(str(c / 'unique_id')) or '').removeprefix('0x')}" for c in found]
        for index, position in enumerate(pick(visible(self._environ, AMD), names)):
            if self._device_index in (None, index):
                self._choose(index, found[position])
        if not self._files:
            raise SourceUnavailable("this process can see no AMD GPU with readable sensors")

    def _choose(self, index: int, device: Path) -> None:
        self.add("gpu.busy_percent", index, [(device / "gpu_busy_percent", 1)])
        highest = highest_mhz(device)
        if highest is not None:
            self._constant.append(("gpu.sm_clock_max_mhz", index, highest))
        if throttle_reasons(device) is not None:
            self._throttled.append((index, device))
        for monitor in children(str(device / "hwmon")):
            folder = device / "hwmon" / monitor
            for metric, names, factor in _MONITORED:
                self.add(metric, index, [(folder / name, factor) for name in names])
            for sensor in (1, 2):
                label = read_text(str(folder / f"temp{sensor}_label")) or ""
                if label in _SENSORS:
                    self.add(_SENSORS[label], index, [(folder / f"temp{sensor}_input", 1e-3)])

    def read(self) -> list[Reading]:
        found = super().read()
        for index, device in self._throttled:
            found += throttling(index, throttle_reasons(device) or 0)
        return found + self._constant


def throttling(index: int, bits: int) -> list[Reading]:
    """Whether heat, power or the hardware's own protection limit the clocks, as on NVIDIA."""
    return [
        ("gpu.thermal_throttle_flag", index, bool(bits & THERMAL)),
        ("gpu.power_throttle_flag", index, bool(bits & POWER)),
        ("gpu.hardware_slowdown_flag", index, bool(bits & HARDWARE)),
    ]
