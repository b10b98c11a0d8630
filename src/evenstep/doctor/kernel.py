"""How the kernel is set: clock, frequency, memory pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from evenstep.doctor.check import Check, Subject
from evenstep.doctor.host import Host

_CLOCK = Subject("kernel.clock", "Linux kernel, timekeeping; AWS EC2, Manage the clock source")
_GOVERNOR = Subject("kernel.governor", "Linux kernel, CPU Performance Scaling")
_PAGES = Subject("kernel.huge_pages", "Linux kernel, Transparent Hugepage Support")
_BALANCING = Subject(
    "kernel.numa_balancing", "AMD Instinct system optimization guide, NUMA auto-balancing"
)
_MEMORY = Subject("kernel.memory", "Linux kernel, /proc/meminfo")
#: Read without leaving user space (vDSO), 20 to 50 ns.
_FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_CLOCK_FOLDER = "sys/devices/system/clocksource/clocksource0"
_PAGES_FOLDER = "sys/kernel/mm/transparent_hugepage"


def checks(host: Host) -> Iterator[Check]:
    """All of them."""
    yield _clock(host)
    yield _governor(host)
    yield _pages(host)
    yield _balancing(host)
    yield _memory(host)


def _clock(host: Host) -> Check:
    now = host.text(f"{_CLOCK_FOLDER}/current_clocksource")
    others = (host.text(f"{_CLOCK_FOLDER}/available_clocksource") or "").split()
    if now is None:
        return _CLOCK.skipped("/sys does not tell the clock source")
    better = next((name for name in _FAST_CLOCKS if name in others and name != now), None)
    mend = (
        f"echo {better} > /{_CLOCK_FOLDER}/current_clocksource"
        if better
        else "look for the reason: dmesg | grep -i -e tsc -e clocksource"
    )
    if now in _SLOW_CLOCKS:
        return _CLOCK.problem(
            now,
            "each reading takes about a microsecond instead of 25 ns, and serialises on one device",
            mend,
        )
    if now not in _FAST_CLOCKS:
        return _CLOCK.warning(now, "each reading is a system call, several times as long", mend)
    return _CLOCK.ok(now)


def _governor(host: Host) -> Check:
    base = "sys/devices/system/cpu"
    names = [name for name in host.children(base) if re.fullmatch(r"cpu\d+", name)]
    found = Counter(
        text for n in names if (text := host.text(f"{base}/{n}/cpufreq/scaling_governor"))
    )
    if not found:
        return _GOVERNOR.skipped("the host does not let software choose frequencies (usual in VMs)")
    driver = host.text(f"{base}/{names[0]}/cpufreq/scaling_driver") or ""
    said = ", ".join(f"{governor} on {n}" for governor, n in found.most_common())
    mend = "cpupower frequency-set --governor performance"
    if len(found) > 1:
        return _GOVERNOR.warning(
            said, "ranks on processors with different governors run at different speeds", mend
        )
    governor = next(iter(found))
    if governor == "performance":
        return _GOVERNOR.ok(said)
    own = driver in ("intel_pstate", "amd-pstate-epp")  # there "powersave" still goes up by itself
    if governor == "powersave" and not own:
        return _GOVERNOR.problem(said, "processors stay at their lowest frequency", mend)
    return _GOVERNOR.advice(
        said, "frequency follows the load: short bursts, as between kernels, run slower", mend
    )


def _pages(host: Host) -> Check:
    enabled = _choice(host.text(f"{_PAGES_FOLDER}/enabled"))
    defrag = _choice(host.text(f"{_PAGES_FOLDER}/defrag"))
    if enabled is None:
        return _PAGES.skipped("the kernel has no transparent huge pages")
    if enabled == "always" and defrag == "always":
        return _PAGES.warning(
            "enabled and defrag are both always",
            "a page fault may wait while memory is compacted: pauses of milliseconds on one rank",
            f"echo madvise > /{_PAGES_FOLDER}/defrag",
        )
    if enabled == "never":
        return _PAGES.advice(
            "never",
            "large host buffers (loaders, offloaded optimizers) then cost more translation misses",
            f"echo madvise > /{_PAGES_FOLDER}/enabled",
        )
    return _PAGES.ok(f"{enabled}, defrag {defrag or 'not known'}")


def _choice(text: str | None) -> str | None:
    """The word in brackets of "always [madvise] never"."""
    match = re.search(r"\[([\w+]+)\]", text or "")
    return match[1] if match else None


def _balancing(host: Host) -> Check:
    value = host.number("proc/sys/kernel/numa_balancing")
    nodes = [n for n in host.children("sys/devices/system/node") if re.fullmatch(r"node\d+", n)]
    if value is None:
        return _BALANCING.skipped("the kernel does not balance memory between NUMA nodes")
    if value and len(nodes) > 1:
        return _BALANCING.advice(
            f"on, with {len(nodes)} NUMA nodes",
            "pages are unmapped and moved while ranks run, which stalls them",
            "sysctl -w kernel.numa_balancing=0",
        )
    return _BALANCING.ok("off" if not value else "on, with one NUMA node")


def _memory(host: Host) -> Check:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", host.text("proc/meminfo") or "", re.MULTILINE)
    kibibytes = {name: int(value) for name, value in pairs}
    total, left = kibibytes.get("MemTotal", 0), kibibytes.get("MemAvailable")
    if not total or left is None:
        return _MEMORY.skipped("/proc/meminfo cannot be read")
    swapped = kibibytes.get("SwapTotal", 0) - kibibytes.get("SwapFree", 0)
    said = f"{left * 1024 / 1e9:.0f} of {total * 1024 / 1e9:.0f} GB are available"
    if swapped * 10 > total:
        return _MEMORY.warning(
            f"{swapped * 1024 / 1e9:.1f} GB are swapped out",
            "a rank that touches a swapped page waits for the disk, and all others for it",
            "swapoff -a (needs the memory), or end what uses it",
        )
    if left * 20 < total:
        return _MEMORY.warning(
            said,
            "the kernel will kill a rank, or stall all in reclaiming",
            "find what uses it: ps aux --sort=-rss | head",
        )
    return _MEMORY.ok(said)
