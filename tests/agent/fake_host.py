"""Files of a host that does not exist, planted below a temporary folder."""

from __future__ import annotations

from pathlib import Path


def plant(root: Path, files: dict[str, object]) -> str:
    """Write each file (value as text); `-> elsewhere` makes a link to a path below `root`."""
    for name, content in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if str(content).startswith("-> "):
            place.symlink_to(root / str(content)[3:])
        else:
            place.write_text(f"{content}\n")
    return str(root)


#: Two NUMA nodes. On the first a GPU and an adapter share a PCIe switch; on the second the GPU is
#: below a switch and the adapter on a root port of its own:
#:
#:     pci0000:00 ─ 00:01.0 ─ 01:00.0 (switch) ┬ 02:00.0 ─ 03:00.0 GPU
#:     (node 0)                                └ 02:01.0 ─ 04:00.0 ens1
#:
#:     pci0000:80 ┬ 80:01.0 ─ 81:00.0 (switch) ─ 82:00.0 ─ 83:00.0 GPU
#:     (node 1)   └ 80:03.0 ─ 90:00.0 ens2
GPU_0 = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
NIC_0 = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0"
GPU_1 = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0"
NIC_1 = "sys/devices/pci0000:80/0000:80:03.0/0000:90:00.0"


def two_node_host(root: Path, *, vendor: str = "0x10de") -> str:
    """A host with two processors, two GPUs of `vendor` and two adapters, as drawn above."""
    files: dict[str, object] = {
        "proc/sys/kernel/hostname": "gpu012",
        "proc/sys/kernel/random/boot_id": "6b0f3a52-0000-4000-8000-000000000001",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Test CPU 9000",
        "sys/devices/system/cpu/online": "0-7",
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node1/cpulist": "4-7",
        "sys/class/net/lo/statistics/rx_bytes": 0,
        "sys/bus/pci/drivers/mlx5_core/bind": "",
    }
    for node, (gpu, nic) in enumerate([(GPU_0, NIC_0), (GPU_1, NIC_1)]):
        files |= _gpu(gpu, node, vendor) | _nic(nic, node, f"ens{node + 1}", f"mlx5_{node}")
    return plant(root, files)


def _gpu(device: str, node: int, vendor: str) -> dict[str, object]:
    return {
        f"{device}/vendor": vendor,
        f"{device}/class": "0x030200",
        f"{device}/numa_node": node,
        f"{device}/current_link_width": 8 if node else 16,
        f"{device}/max_link_width": 16,
        f"sys/bus/pci/devices/{Path(device).name}": f"-> {device}",
        f"sys/class/drm/card{node}/device": f"-> {device}",
    }


def _nic(device: str, node: int, name: str, ib_device: str) -> dict[str, object]:
    return {
        f"{device}/vendor": "0x15b3",
        f"{device}/class": "0x020000",
        f"{device}/numa_node": node,
        f"{device}/driver": "-> sys/bus/pci/drivers/mlx5_core",
        f"{device}/net/{name}/speed": 400_000,
        f"{device}/net/{name}/device": f"-> {device}",
        f"{device}/net/{name}/statistics/rx_bytes": 1,
        f"sys/class/net/{name}": f"-> {device}/net/{name}",
        f"{device}/infiniband/{ib_device}/ports/1/rate": "400 Gb/sec (4X NDR)",
        f"{device}/infiniband/{ib_device}/ports/1/link_layer": "InfiniBand",
        f"{device}/infiniband/{ib_device}/device": f"-> {device}",
        f"sys/class/infiniband/{ib_device}": f"-> {device}/infiniband/{ib_device}",
        f"sys/bus/pci/devices/{Path(device).name}": f"-> {device}",
    }
