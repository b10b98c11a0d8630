"""Files of a host that does not exist, as a healthy machine has them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from evenstep.doctor.host import Host

#: Two processors, four cores each; a GPU and an adapter below one PCIe switch.
GPU = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
NIC = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0"
PORT = f"{NIC}/infiniband/mlx5_0/ports/1"
HEALTHY: dict[str, object] = {
    "proc/sys/kernel/hostname": "gpu012",
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7",
    "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\n"
    "Max locked memory  unlimited  unlimited  bytes",
    "proc/modules": "nvidia_peermem 16384 0 - Live 0x0",
    "proc/driver/nvidia/gpus/0000:03:00.0/information": "Model: H100",
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never",
    f"{GPU}/vendor": "0x10de",
    f"{GPU}/class": "0x030200",
    f"{GPU}/numa_node": 0,
    f"{GPU}/current_link_width": 16,
    f"{GPU}/max_link_width": 16,
    f"{GPU}/current_link_speed": "32.0 GT/s PCIe",
    f"{GPU}/max_link_speed": "32.0 GT/s PCIe",
    f"sys/bus/pci/devices/{Path(GPU).name}": f"-> {GPU}",
    f"{NIC}/class": "0x020700",
    f"{NIC}/numa_node": 0,
    f"{NIC}/current_link_width": 16,
    f"{NIC}/max_link_width": 16,
    f"{NIC}/current_link_speed": "32.0 GT/s PCIe",
    f"{NIC}/max_link_speed": "32.0 GT/s PCIe",
    f"{NIC}/net/ib0/speed": 400_000,
    f"{NIC}/net/ib0/mtu": 4092,
    f"{NIC}/net/ib0/operstate": "up",
    f"{NIC}/net/ib0/statistics/rx_packets": 1_000_000,
    f"{NIC}/net/ib0/device": f"-> {NIC}",
    "sys/class/net/ib0": f"-> {NIC}/net/ib0",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/link_layer": "InfiniBand",
    f"{PORT}/counters/symbol_error": 0,
    f"{NIC}/infiniband/mlx5_0/device": f"-> {NIC}",
    "sys/class/infiniband/mlx5_0": f"-> {NIC}/infiniband/mlx5_0",
    f"sys/bus/pci/devices/{Path(NIC).name}": f"-> {NIC}",
}


def machine(root: Path, **options: object) -> Host:
    """The healthy machine, with `files` changed or, where None, taken away."""
    files = HEALTHY | dict(options.pop("files", {}))  # type: ignore[call-overload]
    for name, content in files.items():
        place = root / name
        if content is None or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if str(content).startswith("-> "):
            place.symlink_to(root / str(content)[3:])
        else:
            place.write_text(f"{content}\n")
    shared = space(8_000_000_000)
    return Host(**({"root": root, "statvfs": lambda _: shared, "planned_ranks": 1} | options))


def space(size_bytes: int, free_bytes: int | None = None) -> os.statvfs_result:
    """What `statvfs` says of a filesystem so large."""
    free = size_bytes if free_bytes is None else free_bytes
    return SimpleNamespace(f_frsize=1, f_blocks=size_bytes, f_bavail=free)  # type: ignore[return-value]
