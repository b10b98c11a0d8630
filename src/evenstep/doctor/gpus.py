"""Checks of GPUs: memory errors, reduced power or clocks, missing links, Xid errors."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.doctor.check import TEXTS, Check, Severity, fine, or_ok, skip, wrong
from evenstep.doctor.host import Host, kernel_log
from evenstep.host.sources.nvml import REASONS, Nvml, NvmlError

_UNCORRECTED, _VOLATILE = 1, 0
_POWER_SHARE = 0.97  # of the default limit
#: nvmlClocksEventReasons: hardware slowdown, thermal (software, hardware), power brake.
_SLOWED = {0x8: "hardware slowdown", 0x20: "software thermal slowdown",
           0x40: "hardware thermal slowdown", 0x80: "power brake"}  # fmt: skip

_DRAIN: str = TEXTS["gpus"]["xid"]["drain"]
#: Severity, meaning and remedy of an error number of the driver: NVIDIA XID Errors guide.
XIDS: Mapping[str, Sequence[str]] = TEXTS["gpus"]["xid"]["numbers"]
_UNKNOWN = ("advice", "see NVIDIA's list", "look up the number in NVIDIA's XID guide")


def checks(host: Host) -> Iterator[Check]:
    yield from _xids(host)
    if host.nvml is None:
        names = ("memory_errors", "power", "alike")
        yield from (skip(f"gpus.{name}", host.nvml_reason) for name in names)
        return
    named = [(f"GPU {index}", handle) for index, handle in enumerate(host.nvml.handles())]
    if not named:
        yield skip("gpus.memory_errors", "the driver has no GPU")
        return
    none = fine("gpus.memory_errors", "no memory errors pending")
    yield from or_ok(_memory(host.nvml, named), none)
    yield from or_ok(_power(host.nvml, named), fine("gpus.power", "full power, no slowdown"))
    yield from or_ok(_alike(host.nvml, named), fine("gpus.alike", f"{len(named)} alike"))


Named = list[tuple[str, Any]]


def _ask(nvml: Nvml, function: str, handle: Any, *selectors: int, wide: bool = False) -> int | None:
    """Return a number from NVML; None if the GPU or driver does not provide it."""
    try:
        return nvml.number(function, handle, *selectors, wide=wide)
    except NvmlError:
        return None


def _memory(nvml: Nvml, named: Named) -> Iterator[Check]:
    for name, handle in named:
        which = (_UNCORRECTED, _VOLATILE)
        if errors := _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, *which, wide=True):
            yield wrong("gpus.memory_errors.uncorrected", name=name, errors=errors, drain=_DRAIN)
        retired = _ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
        if retired or _remap_pending(nvml, handle):
            yield wrong("gpus.memory_errors.pending", name=name)


def _remap_pending(nvml: Nvml, handle: Any) -> bool:
    """Whether row remapping is pending (third value of `nvmlDeviceGetRemappedRows`)."""
    out = [ctypes.c_uint() for _ in range(4)]
    try:
        nvml.call("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, out))
    except NvmlError:
        return False
    return bool(out[2].value)


def _power(nvml: Nvml, named: Named) -> Iterator[Check]:
    for index, (name, handle) in enumerate(named):
        limit = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
        default = _ask(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
        if limit and default and limit < _POWER_SHARE * default:
            watts = {"limit_w": limit / 1000, "default_w": default / 1000}
            yield wrong("gpus.power.limited", name=name, index=index, **watts)
        reasons = _ask(nvml, REASONS, handle, wide=True)
        if words := [word for bit, word in _SLOWED.items() if (reasons or 0) & bit]:
            yield wrong("gpus.power.held_down", name=name, reasons=words, index=index)


def _alike(nvml: Nvml, named: Named) -> Iterator[Check]:
    models = Counter(nvml.text("nvmlDeviceGetName", handle) for _, handle in named)
    if len(models) > 1:
        yield wrong("gpus.alike.models", models=[f"{n} × {name}" for name, n in models.items()])
    active = {name: sum(nvml.nvlinks(handle).values()) for name, handle in named}
    most = max(active.values())
    if fewer := [f"{name} has {n} active NVLinks" for name, n in active.items() if n < most]:
        yield wrong("gpus.alike.links", fewer=fewer, most=most)


def _xids(host: Host) -> Iterator[Check]:
    if not host.children("proc/driver/nvidia/gpus"):
        yield skip("gpus.xid", "there is no NVIDIA driver here")
        return
    log = kernel_log(host)
    if log is None:
        why = "the kernel log cannot be read; try as root, or: dmesg | grep Xid"
        yield skip("gpus.xid", why)
        return
    pattern = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,4})")
    seen = Counter((m[1], int(m[2])) for line in log if (m := pattern.search(line)))
    yield from or_ok((_xid(*key, times) for key, times in seen.items()), fine("gpus.xid", "none"))


def _xid(address: str, number: int, times: int) -> Check:
    severity, meaning, mend = XIDS.get(str(number), _UNKNOWN)
    facts = {"number": number, "address": address, "times": times, "meaning": meaning}
    found = wrong("gpus.xid.seen", **facts, mend=mend.format(drain=_DRAIN))
    return replace(found, severity=Severity[severity.upper()])
