"""Checks of kernel settings: clock source, frequency governor, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from evenstep.doctor.check import Check, fine, skip, wrong
from evenstep.doctor.host import Host

#: Read without leaving user space (vDSO), 20 to 50 ns.
_FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_CLOCK_FOLDER = "sys/devices/system/clocksource/clocksource0"
_PAGES_FOLDER = "sys/kernel/mm/transparent_hugepage"


def checks(host: Host) -> Iterator[Check]:
    yield _clock(host)
    yield _governor(host)
    yield _pages(host)
    yield _balancing(host)
    yield _memory(host)


def _clock(host: Host) -> Check:
    now = host.text(f"{_CLOCK_FOLDER}/current_clocksource")
    others = (host.text(f"{_CLOCK_FOLDER}/available_clocksource") or "").split()
    if now is None:
        return skip("kernel.clock", "/sys does not show the clock source")
    better = next((name for name in _FAST_CLOCKS if name in others and name != now), None)
    mend = (
        f"echo {better} > /{_CLOCK_FOLDER}/current_clocksource"
        if better
        else "look for the reason: dmesg | grep -i -e tsc -e clocksource"
    )
    if now in _SLOW_CLOCKS:
        return wrong("kernel.clock.slow", now=now, mend=mend)
    if now not in _FAST_CLOCKS:
        return wrong("kernel.clock.system_call", now=now, mend=mend)
    return fine("kernel.clock", now)


def _governor(host: Host) -> Check:
    base = "sys/devices/system/cpu"
    names = [name for name in host.children(base) if re.fullmatch(r"cpu\d+", name)]
    governors = (host.text(f"{base}/{name}/cpufreq/scaling_governor") for name in names)
    found = Counter(filter(None, governors))
    if not found:
        why = "software cannot set frequencies on this host (usual in VMs)"
        return skip("kernel.governor", why)
    driver = host.text(f"{base}/{names[0]}/cpufreq/scaling_driver") or ""
    said = ", ".join(f"{governor} on {n}" for governor, n in found.most_common())
    mend = "cpupower frequency-set --governor performance"
    if len(found) > 1:
        return wrong("kernel.governor.differ", said=said, mend=mend)
    governor = next(iter(found))
    if governor == "performance":
        return fine("kernel.governor", said)
    own = driver in ("intel_pstate", "amd-pstate-epp")  # with these "powersave" follows the load
    if governor == "powersave" and not own:
        return wrong("kernel.governor.lowest", said=said, mend=mend)
    return wrong("kernel.governor.follows", said=said, mend=mend)


def _pages(host: Host) -> Check:
    enabled = _choice(host.text(f"{_PAGES_FOLDER}/enabled"))
    defrag = _choice(host.text(f"{_PAGES_FOLDER}/defrag"))
    if enabled is None:
        return skip("kernel.huge_pages", "the kernel has no transparent huge pages")
    if enabled == "always" and defrag == "always":
        return wrong("kernel.huge_pages.compacted", folder=_PAGES_FOLDER)
    if enabled == "never":
        return wrong("kernel.huge_pages.never", folder=_PAGES_FOLDER)
    return fine("kernel.huge_pages", f"{enabled}, defrag {defrag or 'not known'}")


def _choice(text: str | None) -> str | None:
    """Return the selected word of "always [madvise] never"."""
    match = re.search(r"\[([\w+]+)\]", text or "")
    return match[1] if match else None


def _balancing(host: Host) -> Check:
    value = host.number("proc/sys/kernel/numa_balancing")
    nodes = [n for n in host.children("sys/devices/system/node") if re.fullmatch(r"node\d+", n)]
    if value is None:
        why = "the kernel does not balance memory between NUMA nodes"
        return skip("kernel.numa_balancing", why)
    if value and len(nodes) > 1:
        return wrong("kernel.numa_balancing.on", nodes=len(nodes))
    return fine("kernel.numa_balancing", "off" if not value else "on, with one NUMA node")


def _memory(host: Host) -> Check:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.text("proc/meminfo") or "", re.MULTILINE)
    kibibytes = {name: int(value) for name, value in pairs}
    total, left = kibibytes.get("MemTotal", 0), kibibytes.get("MemAvailable")
    if not total or left is None:
        return skip("kernel.memory", "/proc/meminfo cannot be read")
    swapped = kibibytes.get("SwapTotal", 0) - kibibytes.get("SwapFree", 0)
    said = f"{left * 1024 / 1e9:.0f} of {total * 1024 / 1e9:.0f} GB are available"
    if swapped * 10 > total:
        return wrong("kernel.memory.swapped", swapped_gb=swapped * 1024 / 1000000000.0)
    if left * 20 < total:
        return wrong("kernel.memory.full", said=said)
    return fine("kernel.memory", said)
