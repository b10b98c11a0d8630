"""NVIDIA's management library through ctypes, and what it says of GPUs: clocks, power, throttling.

Signatures, units and codes are those of `nvml.h` (NVML API reference, release 550). NVML creates no
CUDA context and needs none.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from evenstep.host.sources.source import NVIDIA, Reading, Source, SourceUnavailable, pick, visible

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 18

_MEANING = {
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    FUNCTION_NOT_FOUND: "not known to this driver",
    GPU_IS_LOST: "the GPU has fallen off the bus",
    VERSION_MISMATCH: "the driver and its library have different versions",
}

_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, also that of a UUID
NVLINK_MAX_LINKS = 18
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_BEFORE = {REASONS: "nvmlDeviceGetCurrentClocksThrottleReasons"}  # release 535
_REMOTE_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH

Handle = Any  # an opaque pointer
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
#: Bits of `gpu.throttle_reasons_bits` (nvmlClocksEventReasons)
POWER_CAP, HARDWARE_SLOWDOWN = 0x04, 0x08
THERMAL = 0x20 | 0x40  # by software, by hardware
POWER_BRAKE = 0x80  # requested by the power supply


class PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`, third version."""

    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


class Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last sampling period with a kernel running."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlError(Exception):
    """A failed call; `code` is the `nvmlReturn_t`."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {_MEANING.get(code, 'failed')} (NVML error {code})")
        self.code = code


class Nvml:
    """An initialised library. `library` is the loaded object, or anything with its functions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        try:
            self.call("nvmlInit_v2")
        except NvmlError as error:
            raise SourceUnavailable(f"NVML does not start: {error}") from error

    @classmethod
    def load(cls) -> Nvml:
        """Load the driver's library. Raises `SourceUnavailable` where there is none."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise SourceUnavailable("this host has no NVIDIA driver (libnvidia-ml.so.1)") from error
        return cls(library)

    def close(self) -> None:
        """Shut the library down; it counts its users."""
        self.call("nvmlShutdown")

    def call(self, function: str, *arguments: Any) -> None:
        """Call by name. Raises `NvmlError` for any code but success."""
        entry = getattr(self._library, function, None)
        code = FUNCTION_NOT_FOUND if entry is None else int(entry(*arguments))
        if code == FUNCTION_NOT_FOUND and function in _BEFORE:
            self.call(_BEFORE[function], *arguments)
        elif code:
            raise NvmlError(function, code)

    def number(self, function: str, handle: Handle, *selectors: int, wide: bool = False) -> int:
        """The value of a call that returns one unsigned number, `unsigned long long` if wide."""
        out = ctypes.c_ulonglong() if wide else ctypes.c_uint()
        self.call(function, handle, *map(ctypes.c_uint, selectors), ctypes.byref(out))
        return out.value

    def handles(self) -> list[Handle]:
        """Every GPU of the host, by PCI address."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        for index, handle in enumerate(found):
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return found

    def mig_parent(self, uuid: str) -> Handle:
        """The GPU of a slice (`MIG-…`): clocks and power are those of the whole GPU."""
        part, whole = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(part))
        self.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(whole))
        return whole

    def text(self, function: str, handle: Handle) -> str:
        buffer = ctypes.create_string_buffer(_NAME_BYTES)
        self.call(function, handle, buffer, ctypes.c_uint(_NAME_BYTES))
        return buffer.value.decode(errors="replace")

    def busy_percent(self, handle: Handle) -> int:
        """Share of the last sampling period in which any kernel ran."""
        out = Utilization()
        self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(out))
        return int(out.gpu)

    def pci_address(self, handle: Handle) -> str:
        """Address as sysfs writes it: `0000:17:00.0`."""
        out = PciInfo()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(out))
        return sysfs_address(out.busId.decode())

    def nvlinks(self, handle: Handle) -> dict[str, int]:
        """Number of active NVLinks by peer: `switch`, or the PCI address of the other GPU."""
        peers: dict[str, int] = {}
        for link in range(NVLINK_MAX_LINKS):
            try:
                if self.number("nvmlDeviceGetNvLinkState", handle, link):
                    peer = self._peer(handle, link)
                    peers[peer] = peers.get(peer, 0) + 1
            except NvmlError:  # fewer links than the maximum, or none at all
                break
        return peers

    def _peer(self, handle: Handle, link: int) -> str:
        if self.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_SWITCH:
            return "switch"
        out = PciInfo()
        name = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
        self.call(name, handle, ctypes.c_uint(link), ctypes.byref(out))
        return sysfs_address(out.busId.decode())


def sysfs_address(bus_id: str) -> str:
    """NVML's `00000000:3B:00.0` as sysfs writes it: lower case, a domain of four digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


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
