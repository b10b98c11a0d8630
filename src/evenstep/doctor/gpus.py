"""GPUs: memory errors, power and clocks held down, links missing, errors in the kernel's log."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, Severity, Subject, listed, or_ok
from evenstep.doctor.host import Host, kernel_log
from evenstep.host.sources.nvml_library import Nvml, NvmlError

_NVML = "NVML API reference"
_MEMORY = Subject("gpus.memory_errors", "NVIDIA GPU Memory Error Management")
_POWER = Subject("gpus.power", _NVML)
_ALIKE = Subject("gpus.alike", _NVML)
_PERSISTENCE = Subject("gpus.persistence", "NVIDIA Driver Persistence guide")
_XID = Subject("gpus.xid", "NVIDIA XID Errors guide")
_UNCORRECTED, _VOLATILE = 1, 0
_POWER_SHARE = 0.97  # of the default limit
#: nvmlClocksEventReasons: hardware slowdown, thermal (software, hardware), power brake.
_SLOWED = {0x8: "hardware slowdown", 0x20: "software thermal slowdown",
           0x40: "hardware thermal slowdown", 0x80: "power brake"}  # fmt: skip


class Xid(NamedTuple):
    """What an error number of the driver stands for."""

    meaning: str
    severity: Severity
    mend: str


_DRAIN = "drain the node; nvidia-smi -r resets the GPU, a reboot if that fails"
_JOB = "look in the job's log: usually its own fault"
#: NVIDIA XID Errors guide; numbers that are not listed are shown as advice.
XIDS = {
    13: Xid("a kernel accessed memory it should not", Severity.ADVICE, _JOB),
    31: Xid("a kernel accessed memory that is not mapped", Severity.ADVICE, _JOB),
    43: Xid("a job of the GPU was stopped", Severity.ADVICE, _JOB),
    45: Xid("a job was cleaned up after another error", Severity.ADVICE, _JOB),
    48: Xid("memory error of two bits", Severity.PROBLEM, _DRAIN),
    61: Xid("fault of a microcontroller", Severity.PROBLEM, _DRAIN),
    62: Xid("fault of a microcontroller", Severity.PROBLEM, _DRAIN),
    63: Xid("a memory row was remapped, or a page retired", Severity.WARNING,
            "reset the GPU when its jobs have ended: nvidia-smi -r"),
    64: Xid("a memory row could not be remapped", Severity.PROBLEM, "replace the GPU"),
    74: Xid("NVLink error", Severity.PROBLEM, _DRAIN),
    79: Xid("the GPU has fallen off the bus", Severity.PROBLEM, _DRAIN),
    92: Xid("many single-bit memory errors", Severity.WARNING, "watch it, run DCGM's diagnosis"),
    94: Xid("a memory error, contained in one job", Severity.WARNING,
            "reset the GPU when its jobs have ended: nvidia-smi -r"),
    95: Xid("a memory error, not contained", Severity.PROBLEM, _DRAIN),
    119: Xid("the GPU's system processor does not answer", Severity.PROBLEM, _DRAIN),
    120: Xid("fault of the GPU's system processor", Severity.PROBLEM, _DRAIN),
}  # fmt: skip


def checks(host: Host) -> Iterator[Check]:
    """All of them."""
    yield from _xids(host)
    if host.nvml is None:
        for subject in (_MEMORY, _POWER, _ALIKE, _PERSISTENCE):
            yield subject.skipped(host.nvml_reason)
        return
    handles = host.nvml.handles()
    named = [(f"GPU {index}", handle) for index, handle in enumerate(handles)]
    if not named:
        yield _MEMORY.skipped("the driver knows no GPU")
        return
    yield from or_ok(_memory(host.nvml, named), _MEMORY.ok("no memory error is pending"))
    yield from or_ok(_power(host.nvml, named), _POWER.ok("full power, no slowdown"))
    yield from or_ok(_alike(host.nvml, named), _ALIKE.ok(f"{len(named)} alike"))
    yield _persistence(host.nvml, named)


Named = list[tuple[str, Any]]


def _ask(nvml: Nvml, function: str, handle: Any, *selectors: int, wide: bool = False) -> int | None:
    """A number, or None where this GPU or driver does not know it."""
    try:
        return nvml.number(function, handle, *selectors, wide=wide)
    except NvmlError:
        return None


def _memory(nvml: Nvml, named: Named) -> Iterator[Check]:
    for name, handle in named:
        errors = _ask(
            nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, wide=True
        )
        if errors:
            yield _MEMORY.problem(
                f"{name} has had {errors} memory errors that could not be corrected",
                "a job that meets one ends, or goes on with wrong numbers",
                f"{_DRAIN}; nvidia-smi -q -d ECC shows where",
            )
        if _ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle) or _remap_pending(
            nvml, handle
        ):
            yield _MEMORY.warning(
                f"{name} waits for a reset to take bad memory out of use",
                "until then the bad memory stays in use",
                "nvidia-smi -r, when its jobs have ended",
            )


def _remap_pending(nvml: Nvml, handle: Any) -> bool:
    """`nvmlDeviceGetRemappedRows`: corrected, uncorrected, pending, failed."""
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
            yield _POWER.warning(
                f"{name} is limited to {limit / 1000:g} of {default / 1000:g} W",
                "it computes slower than the others, and they wait for it",
                f"nvidia-smi -i {index} -pl {default // 1000}",
            )
        reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle, wide=True)
        if reasons is None:
            function = "nvmlDeviceGetCurrentClocksThrottleReasons"
            reasons = _ask(nvml, function, handle, wide=True)
        words = [word for bit, word in _SLOWED.items() if (reasons or 0) & bit]
        if words:
            yield _POWER.problem(
                f"{name} is held down: {listed(words)}",
                "its clocks fall to half or less, and all other ranks wait",
                f"check fans, inlet and power supply; nvidia-smi -i {index} -q -d PERFORMANCE",
            )


def _alike(nvml: Nvml, named: Named) -> Iterator[Check]:
    models = Counter(nvml.text("nvmlDeviceGetName", handle) for _, handle in named)
    if len(models) > 1:
        yield _ALIKE.warning(
            listed(f"{n} × {model}" for model, n in models.items()),
            "the slower ones set the pace of synchronous training",
            "CUDA_VISIBLE_DEVICES with GPUs of one kind",
        )
    active = {name: sum(nvml.nvlinks(handle).values()) for name, handle in named}
    most = max(active.values())
    fewer = {name: links for name, links in active.items() if links < most}
    if fewer:
        yield _ALIKE.problem(
            listed(f"{name} has {n} active NVLinks" for name, n in fewer.items())
            + f", others {most}",
            "collectives within the node are as fast as the GPU with the fewest",
            "nvidia-smi nvlink --status; restart nvidia-fabricmanager, then reset the GPU",
        )


def _persistence(nvml: Nvml, named: Named) -> Check:
    off = [
        name for name, handle in named if _ask(nvml, "nvmlDeviceGetPersistenceMode", handle) == 0
    ]
    if off:
        return _PERSISTENCE.advice(
            f"off on {listed(off)}",
            "each first use loads the driver anew, for seconds, and forgets limits and clocks",
            "nvidia-smi -pm 1, or start nvidia-persistenced",
        )
    return _PERSISTENCE.ok("on")


def _xids(host: Host) -> Iterator[Check]:
    """Errors the driver has written to the kernel's log."""
    if not host.children("proc/driver/nvidia/gpus"):
        yield _XID.skipped("there is no NVIDIA driver here")
        return
    log = kernel_log(host)
    if log is None:
        yield _XID.skipped("the kernel's log cannot be read; try as root, or: dmesg | grep Xid")
        return
    pattern = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,4})")
    seen = Counter((m[1], int(m[2])) for line in log if (m := pattern.search(line)))
    yield from or_ok((_xid(*key, times) for key, times in seen.items()), _XID.ok("none"))


def _xid(address: str, number: int, times: int) -> Check:
    known = XIDS.get(number)
    meaning = known.meaning if known else "see NVIDIA's list"
    return _XID.of(
        known.severity if known else Severity.ADVICE,
        f"Xid {number} on {address}, {times} times: {meaning}",
        "the driver has seen the GPU fail, or a job misuse it",
        known.mend if known else "look the number up in NVIDIA's XID guide",
    )
