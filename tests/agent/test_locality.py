from __future__ import annotations

import json

import pytest

from evenstep.host.locality import PciPlace, distance, locality
from evenstep.host.sources.nvml import Nvml
from evenstep.host.sysfs import read_int, read_text
from evenstep.trace.ranks import natural
from tests.agent.fake_host import GPU_0, NIC_0, plant, two_node_host
from tests.agent.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture
def host(tmp_path):
    return two_node_host(tmp_path)


@pytest.fixture
def nvml():
    linked = FakeGpu(bus_id="00000000:03:00.0", links=["switch"] * 18)
    paired = FakeGpu(bus_id="00000000:83:00.0", links=["00000000:03:00.0"] * 4)
    return Nvml(FakeNvml([linked, paired]))


def test_distances_are_those_of_the_drawing(host):
    assert locality(0, host)["gpu_nic"] == {
        "0000:03:00.0": {"ens1": "PIX", "ens2": "SYS"},
        "0000:83:00.0": {"ens1": "SYS", "ens2": "PHB"},
    }


def test_gpus_of_different_processors_are_far_apart(host):
    assert locality(0, host)["gpu_gpu"] == {
        "0000:03:00.0": {"0000:83:00.0": "SYS"},
        "0000:83:00.0": {"0000:03:00.0": "SYS"},
    }


def test_the_host_and_its_processors_are_described(host):
    facts = locality(None, host, affinity=[0, 1, 2, 7])
    assert facts["hostname"] == "gpu012"
    assert facts["cpu"] == {
        "model": "Test CPU 9000",
        "online": "0-7",
        "allowed": "0-2,7",
        "quota_cores": None,
    }
    assert facts["numa"] == [{"node": 0, "cpus": "0-3"}, {"node": 1, "cpus": "4-7"}]


def test_adapters_carry_speed_driver_and_their_infiniband_device(host):
    first = locality(0, host)["nics"][0]
    assert first == {
        "name": "ens1",
        "index": 0,
        "pci": "0000:04:00.0",
        "numa_node": 0,
        "speed_gbps": 400.0,
        "driver": "mlx5_core",
        "ib_device": "mlx5_0",
    }


def test_infiniband_ports_are_numbered_like_their_samples(host):
    assert locality(0, host)["ib_ports"][1] == {
        "name": "mlx5_1/1",
        "index": 1,
        "rate_gbps": 400.0,
        "link_layer": "InfiniBand",
    }


def test_an_infiniband_device_without_an_interface_is_an_adapter_too(tmp_path):
    root = two_node_host(tmp_path)
    (tmp_path / "sys/class/net/ens1").unlink()
    assert locality(0, root)["gpu_nic"]["0000:03:00.0"]["mlx5_0"] == "PIX"


def test_a_gpu_on_half_its_lanes_shows_it(host):
    gpu = locality(0, host)["gpus"][1]
    assert (gpu["pcie_lanes"], gpu["pcie_lanes_max"]) == (8, 16)


def test_nvml_adds_names_and_links(host, nvml):
    first, second = locality(0, host, nvml)["gpus"]
    assert first["name"] == "Test GPU"
    assert first["nvlinks"] == {"switch": 18}
    assert second["nvlinks"] == {"0000:03:00.0": 4}


def test_this_ranks_gpu_is_the_one_it_may_see(host, nvml):
    facts = locality(0, host, nvml, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert facts["gpu"] == "0000:83:00.0"


def test_an_amd_gpu_is_found_without_any_library(tmp_path):
    root = two_node_host(tmp_path, vendor="0x1002")
    facts = locality(1, root, environ={})
    assert facts["gpu"] == "0000:83:00.0"
    assert facts["gpus"][0]["vendor"] == "amd"


def test_without_nvml_the_missing_links_have_a_reason(host):
    facts = locality(0, host)
    assert facts["unknown"]["gpus.nvlinks"] == "NVML is not available"
    assert "cannot be mapped" in facts["unknown"]["gpu"]


def test_an_nvml_that_fails_costs_its_own_facts_only(host):
    library = FakeNvml([FakeGpu(refusals={"nvmlDeviceGetPciInfo_v3": 999})])
    facts = locality(0, host, Nvml(library))
    assert "NVML error 999" in facts["unknown"]["gpus.nvlinks"]
    assert len(facts["gpu_nic"]) == 2


def test_a_bare_host_gives_reasons_and_no_error(tmp_path):
    facts = locality(None, str(tmp_path))
    assert facts["unknown"].keys() == {"hostname", "boot_id", "cpu.model", "numa"}
    assert facts["gpus"] == facts["nics"] == []


def test_this_machine_can_be_described_as_json():
    facts = locality(None)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["hostname"]


def place(root, *bridges, node=None):
    return PciPlace(root, bridges, "device", node)


@pytest.mark.parametrize(
    ("a", "b", "level"),  # by the legend of `nvidia-smi topo -m`
    [
        (place("r", "p", "up", "d1"), place("r", "p", "up", "d2"), "PIX"),
        (place("r", "p"), place("r", "p"), "PIX"),  # two functions of one card
        (place("r", "p", "up", "d1", "up2", "d3"), place("r", "p", "up", "d2"), "PXB"),
        (place("r", "p1", "up", "d"), place("r", "p2"), "PHB"),
        (place("r"), place("r"), "PHB"),  # a virtual machine's flat tree
        (place("r1", "p", node=0), place("r2", "p", node=0), "NODE"),
        (place("r1", "p", node=0), place("r2", "p", node=1), "SYS"),
        (place("r1", "p", node=0), place("r2", "p"), None),
    ],
)
def test_each_level_is_told_from_the_next(a, b, level):
    assert distance(a, b, one_node=False) == distance(b, a, one_node=False) == level


def test_with_one_numa_node_nothing_is_further_than_that_node():
    assert distance(place("r1"), place("r2"), one_node=True) == "NODE"


def test_unknown_numa_nodes_are_said_to_be_unknown(tmp_path):
    root = two_node_host(tmp_path)
    plant(tmp_path, {f"{GPU_0}/numa_node": -1, f"{NIC_0}/numa_node": -1})
    facts = locality(0, root)
    assert facts["gpu_nic"]["0000:03:00.0"] == {"ens1": "PIX"}
    assert "firmware" in facts["unknown"]["numa_node"]


def test_a_virtio_adapter_sits_where_its_pci_function_does(tmp_path):
    folder = "sys/devices/pci0000:00/0000:00:03.0/virtio2"
    plant(tmp_path, {f"{folder}/net/eth0/mtu": 1500})
    found = PciPlace.of(str(tmp_path / folder))
    assert found == PciPlace("pci0000:00", (), "0000:00:03.0", None)


def test_names_are_sorted_by_their_numbers():
    assert sorted(["card10", "card2", "lo", "eth0"], key=natural) == [
        "card2",
        "card10",
        "eth0",
        "lo",
    ]


@pytest.mark.parametrize(
    ("text", "number"), [("42", 42), ("0x10de", 0x10DE), ("-1", -1), ("N/A", None), ("", None)]
)
def test_a_file_holds_a_number_or_nothing(tmp_path, text, number):
    root = plant(tmp_path, {"file": text})
    assert read_int(f"{root}/file") == number


def test_a_folder_or_nothing_reads_as_nothing(tmp_path):
    assert read_text(str(tmp_path)) is None
    assert read_text(str(tmp_path / "absent")) is None
