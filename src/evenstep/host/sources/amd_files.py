"""Two files of an AMD GPU that are not single numbers: its clock levels, and `gpu_metrics`.

Layouts and bits are those of the kernel: `kgd_pp_interface.h` (struct gpu_metrics_v1_3) and
`amdgpu_smu.h` (SMU_THROTTLER_…_BIT). Tables of another version are left unread: their fields lie
elsewhere, and most have no throttle bits that mean the same on every model.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

_HEADER = struct.Struct("<HBB")  # bytes of the table, format, content
_READ = (1, 3)
_BYTES = 120
_THROTTLE = struct.Struct("<112xQ")
_LEVEL = re.compile(r"^\d+:\s*(\d+)\s*MHz", re.IGNORECASE | re.MULTILINE)


def _bits(first: int, last: int) -> int:
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1)


POWER = _bits(0, 7) | _bits(16, 23)  # package power; current of a rail
THERMAL = _bits(32, 45)  # a sensor or a voltage regulator is too hot
HARDWARE = _bits(46, 47)  # PROCHOT: somebody outside pulled the line


def throttled(device: Path) -> int | None:
    """What holds the clocks back, as bits of the kernel's; None where this GPU does not say."""
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
    try:
        levels = _LEVEL.findall((device / "pp_dpm_sclk").read_text())
    except OSError:
        return None
    return max(map(int, levels)) if levels else None
