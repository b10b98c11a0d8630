"""Energy of the processor packages, from the kernel's powercap interface (RAPL, Intel and AMD)."""

from __future__ import annotations

from pathlib import Path

from evenstep.host.sources.source import Reading, Source, SourceUnavailable
from evenstep.host.sysfs import children, read_int, read_text

_METRICS = {  # by the zone's name; core and uncore are parts of the package
    "package": "cpu.package_energy_joules",
    "dram": "cpu.dram_energy_joules",
    "psys": "cpu.platform_energy_joules",
}


class Zone:
    """One energy counter, which wraps at `range_uj` (at 500 W and 32 bits every nine minutes);
    unwrapped as long as it is read in time."""

    def __init__(self, path: str, *, metric: str, device: int) -> None:
        self.metric = metric
        self.device = device
        self._path = path
        self._range_uj = read_int(f"{path}/max_energy_range_uj") or 0
        self._last_uj = self.counter_uj() or 0
        self._total_uj = self._last_uj

    def counter_uj(self) -> int | None:
        """The counter's value; None if unreadable."""
        return read_int(f"{self._path}/energy_uj")

    def joules(self) -> float | None:
        """Energy since the counter's zero, corrected for wraps since `open`."""
        now_uj = self.counter_uj()
        if now_uj is None:
            return None
        wrapped = now_uj < self._last_uj
        self._total_uj += now_uj - self._last_uj + (self._range_uj if wrapped else 0)
        self._last_uj = now_uj
        return self._total_uj / 1e6


class RaplSource(Source):
    """`cpu.*_energy_joules` per package."""

    name = "rapl"

    def __init__(self, *, sysroot: str = "/") -> None:
        self._base = Path(sysroot) / "sys/class/powercap"
        self._zones: list[Zone] = []

    def open(self) -> None:
        zones = [zone for name in children(str(self._base)) if (zone := self._zone(name))]
        if not zones:
            raise SourceUnavailable("this host has no RAPL energy counters in /sys/class/powercap")
        self._zones = [zone for zone in zones if zone.counter_uj() is not None]
        if not self._zones:
            raise SourceUnavailable("the RAPL energy counters of this host are for root only")

    def _zone(self, folder: str) -> Zone | None:
        """The zone `intel-rapl:PACKAGE[:PART]`, if it has one of our metrics. `intel-rapl-mmio` has
        the same packages a second time."""
        control, _, numbers = folder.partition(":")
        label = (read_text(f"{self._base}/{folder}/name") or "").partition("-")[0]
        if control != "intel-rapl" or not numbers or label not in _METRICS:
            return None
        package = int(numbers.partition(":")[0])
        return Zone(f"{self._base}/{folder}", metric=_METRICS[label], device=package)

    def read(self) -> list[Reading]:
        values = ((zone, zone.joules()) for zone in self._zones)
        return [(zone.metric, zone.device, joules) for zone, joules in values if joules is not None]
