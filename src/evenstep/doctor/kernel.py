"""Checks of kernel settings: clock source, frequency governor, huge pages."""

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
