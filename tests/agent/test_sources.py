from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.host.sources import SourceUnavailable, all_sources
from evenstep.host.sources.allocator import AllocatorSource
from evenstep.host.sources.amdgpu import AmdgpuSource
from evenstep.host.sources.cpu import CpuSource, RaplSource
from evenstep.host.sources.nic import (
    InfinibandSource,
    NicSource,
    interfaces,
    ports,
    protocol_counters,
)
from evenstep.host.sources.nvml import NvmlSource, sysfs_address, throttling
from evenstep.host.sources.source import NVIDIA, pick, visible
from tests.agent.fake_host import plant, two_node_host
from tests.agent.fake_nvml import LOST, NOT_SUPPORTED, FakeGpu, FakeNvml


def values(source):
    """Opened and read once: {(metric, device): value}."""
    source.open()
    return {(metric, device): value for metric, device, value in source.read()}


@pytest.fixture
def bare(tmp_path):
    """A host that shows nothing at all."""
    return str(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        lambda root: CpuSource(1, sysroot=root),
        lambda root: NicSource(sysroot=root),
        lambda root: InfinibandSource(sysroot=root),
        lambda root: RaplSource(sysroot=root),
        lambda root: AmdgpuSource(sysroot=root),
    ],
)
def test_an_absent_source_says_so_in_one_sentence(bare, source):
    with pytest.raises(SourceUnavailable, match=r"^[^.\n]+[^.\n]$"):
        source(bare).open()


def test_every_source_is_in_the_list_under_a_name_of_its_own():
    names = [source.name for source in all_sources(thread_id=1, device_index=0)]
    assert len(set(names)) == len(names) == 8


# NIC: expected numbers are those planted.


def nic_host(root, **files):
    return plant(
        root,
        {
            "sys/class/net/lo/statistics/rx_bytes": 7,
            "sys/class/net/eth0/statistics/tx_bytes": 11,
            "sys/class/net/eth0/statistics/rx_dropped": 3,
        }
        | files,
    )


def test_interfaces_report_bytes_and_drops_under_their_own_number(tmp_path):
    found = values(NicSource(sysroot=nic_host(tmp_path)))
    assert found["nic.sent_bytes", 0] == 11
    assert found["nic.receive_dropped_packets", 0] == 3
    assert found["nic.received_bytes", 1] == 7


def test_virtual_interfaces_are_left_out_where_there_are_physical_ones(tmp_path):
    physical = {"sys/class/net/eth0/device/vendor": "0x15b3"}
    pods = {"sys/class/net/veth1/statistics/rx_bytes": 0}
    assert interfaces(nic_host(tmp_path, **physical, **pods)) == ["eth0", "lo"]


def test_a_container_shows_its_virtual_interface(tmp_path):
    assert interfaces(nic_host(tmp_path)) == ["eth0", "lo"]


def test_tcp_losses_and_congestion_marks_belong_to_the_host(tmp_path):
    tables = {
        "proc/net/snmp": "Tcp: MaxConn OutSegs RetransSegs\nTcp: -1 500 4",
        "proc/net/netstat": "TcpExt: TCPTimeouts\nTcpExt: 2\nIpExt: InCEPkts\nIpExt: 9",
    }
    found = values(NicSource(sysroot=nic_host(tmp_path, **tables)))
    assert found["tcp.retransmitted_segments", -1] == 4
    assert found["tcp.timeouts_count", -1] == 2
    assert found["ip.received_marked_packets", -1] == 9
    assert ("tcp.delivered_marked_segments", -1) not in found  # an older kernel


@given(st.text())
def test_no_protocol_table_breaks_the_reader(text):
    tables = protocol_counters(text).values()
    assert all(isinstance(value, str) for table in tables for value in table.values())


# InfiniBand


def test_infiniband_words_become_bytes_and_congestion_is_told(tmp_path):
    port = "sys/class/infiniband/mlx5_0/ports/1"
    root = plant(
        tmp_path,
        {
            f"{port}/counters/port_xmit_data": 100,
            f"{port}/counters/port_xmit_wait": 12,
            f"{port}/hw_counters/np_cnp_sent": 5,
            f"{port}/hw_counters/np_ecn_marked_roce_packets": 6,
            f"{port}/hw_counters/out_of_sequence": 2,
        },
    )
    found = values(InfinibandSource(sysroot=root))
    assert found["ib.sent_bytes", 0] == 400  # InfiniBand counts words of four bytes
    assert found["ib.transmit_wait_ticks", 0] == 12
    assert found["ib.congestion_notices_sent_packets", 0] == 5
    assert found["ib.received_marked_packets", 0] == 6
    assert found["ib.out_of_sequence_packets", 0] == 2


def test_an_adapter_with_byte_counters_of_its_own_is_not_multiplied(tmp_path):
    port = "sys/class/infiniband/rdmap0s6/ports/1"
    root = plant(
        tmp_path,
        {f"{port}/hw_counters/tx_bytes": 100, f"{port}/hw_counters/retrans_pkts": 3},
    )
    found = values(InfinibandSource(sysroot=root))
    assert found["ib.sent_bytes", 0] == 100
    assert found["ib.retransmitted_packets", 0] == 3


def test_ports_are_numbered_naturally(tmp_path):
    files = {f"sys/class/infiniband/mlx5_{n}/ports/1/rate": "" for n in (10, 2)}
    assert ports(plant(tmp_path, files)) == [("mlx5_2", "1"), ("mlx5_10", "1")]


def test_a_device_without_counters_is_absent(tmp_path):
    root = plant(tmp_path, {"sys/class/infiniband/rxe0/ports/1/rate": "10 Gb/sec"})
    with pytest.raises(SourceUnavailable, match="no counters"):
        InfinibandSource(sysroot=root).open()


# RAPL


def package(root, energy_uj, number=0):
    zone = f"sys/class/powercap/intel-rapl:{number}"
    return plant(
        root,
        {
            f"{zone}/name": f"package-{number}",
            f"{zone}/max_energy_range_uj": 1_000_000,
            f"{zone}/energy_uj": energy_uj,
        },
    )


def test_energy_keeps_growing_when_the_counter_wraps(tmp_path):
    source = RaplSource(sysroot=package(tmp_path, 900_000))
    source.open()
    assert source.read() == [("cpu.package_energy_joules", 0, 0.9)]
    package(tmp_path, 200_000)
    assert source.read() == [("cpu.package_energy_joules", 0, 1.2)]  # 0.9 + 0.1 to the top + 0.2


@given(used=st.lists(st.integers(0, 999_999), max_size=30))
def test_no_sequence_of_readings_loses_energy(tmp_path_factory, used):
    folder = tmp_path_factory.mktemp("rapl")
    source = RaplSource(sysroot=package(folder, 0))
    source.open()
    total = 0
    for amount in used:
        total += amount
        package(folder, total % 1_000_000)
        source.read()
    assert source.read()[0][2] == total / 1e6


def test_memory_belongs_to_its_package_and_the_second_view_is_not_counted(tmp_path):
    dram = "sys/class/powercap/intel-rapl:1:0"
    again = "sys/class/powercap/intel-rapl-mmio:0"
    root = package(tmp_path, 5_000_000, number=1)
    plant(tmp_path, {f"{dram}/name": "dram", f"{dram}/energy_uj": 2_000_000})
    plant(tmp_path, {f"{again}/name": "package-0", f"{again}/energy_uj": 1})
    assert values(RaplSource(sysroot=root)) == {
        ("cpu.package_energy_joules", 1): 5.0,
        ("cpu.dram_energy_joules", 1): 2.0,
    }


def test_counters_for_root_only_are_absent_with_that_reason(tmp_path):
    root = plant(tmp_path, {"sys/class/powercap/intel-rapl:0/name": "package-0"})
    with pytest.raises(SourceUnavailable, match="for root only"):
        RaplSource(sysroot=root).open()


# Allocator


class FakeCuda:
    """As much of torch.cuda as the source may touch."""

    def __init__(self, initialized):
        self.initialized = initialized

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        return 2

    def memory_stats_as_nested_dict(self, device):
        sizes = {"all": {"current": 10 + device}}
        return {"num_alloc_retries": device, "num_ooms": 0, "reserved_bytes": sizes}


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda(initialized=True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


def test_the_allocator_is_left_alone_until_the_job_uses_cuda(cuda):
    cuda.initialized = False
    with pytest.raises(SourceUnavailable) as absent:
        AllocatorSource().open()
    assert absent.value.may_come


def test_the_allocator_tells_retries_of_each_device(cuda):
    found = values(AllocatorSource())
    assert found["allocator.retries_count", 1] == 1
    assert found["allocator.reserved_bytes", 1] == 11
    assert ("allocator.device_frees_count", 1) not in found  # an older torch


def test_only_this_ranks_device_is_asked(cuda):
    assert {device for _, device in values(AllocatorSource(1))} == {1}


# NVML: raw answers are in the units of nvml.h (mW, mJ, MHz, °C).


def busy_gpu(**changes):
    answers = {
        "nvmlDeviceGetClockInfo": {1: 1200, 2: 2600},
        "nvmlDeviceGetMaxClockInfo": {1: 1980},
        "nvmlDeviceGetTemperature": 83,
        "nvmlDeviceGetPowerUsage": 650_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": 2**40,
        "nvmlDeviceGetUtilizationRates": 97,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x20,
    }
    return FakeGpu(answers=answers, **changes)


def test_a_gpu_tells_clocks_heat_power_and_what_holds_it_back():
    found = values(NvmlSource(0, library=FakeNvml([busy_gpu()]), environ={}))
    assert found == {
        ("gpu.sm_clock_mhz", 0): 1200,
        ("gpu.sm_clock_max_mhz", 0): 1980,
        ("gpu.memory_clock_mhz", 0): 2600,
        ("gpu.temperature_celsius", 0): 83,
        ("gpu.power_watts", 0): 650.0,
        ("gpu.power_limit_watts", 0): 700.0,
        ("gpu.energy_joules", 0): 2**40 / 1000,  # does not fit into 32 bits
        ("gpu.busy_percent", 0): 97,
        ("gpu.throttle_reasons_bits", 0): 0x20,
        ("gpu.thermal_throttle_flag", 0): True,
        ("gpu.power_throttle_flag", 0): False,
        ("gpu.hardware_slowdown_flag", 0): False,
    }


@pytest.mark.parametrize(
    ("bits", "flags"),  # of nvmlClocksEventReasons: (thermal, power, hardware)
    [(0x1, (0, 0, 0)), (0x4, (0, 1, 0)), (0x8, (0, 0, 1)), (0x48, (1, 0, 1)), (0x80, (0, 1, 0))],
)
def test_throttle_reasons_are_sorted_by_what_they_mean(bits, flags):
    assert tuple(value for _, _, value in throttling(0, bits)) == (bits, *flags)


def test_a_driver_before_535_is_asked_by_the_old_name():
    gpu = FakeGpu(answers={"nvmlDeviceGetCurrentClocksThrottleReasons": 0x4})
    library = FakeNvml([gpu], absent=("nvmlDeviceGetCurrentClocksEventReasons",))
    source = NvmlSource(0, library=library, environ={})
    assert values(source)["gpu.power_throttle_flag", 0] is True


def test_what_a_gpu_does_not_support_is_missing_and_the_rest_is_read():
    gpu = busy_gpu(refusals={"nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED})
    source = NvmlSource(0, library=FakeNvml([gpu]), environ={})
    found = values(source)
    assert ("gpu.energy_joules", 0) not in found
    assert ("gpu.power_watts", 0) in found


def test_a_lost_gpu_ends_the_source_with_that_reason():
    gpu = busy_gpu()
    source = NvmlSource(0, library=FakeNvml([gpu]), environ={})
    source.open()
    gpu.refusals["nvmlDeviceGetTemperature"] = LOST
    with pytest.raises(SourceUnavailable, match="fallen off the bus"):
        source.read()


def test_a_driver_that_is_not_loaded_is_the_reason():
    with pytest.raises(SourceUnavailable, match="driver is not loaded"):
        NvmlSource(library=FakeNvml([], start=9)).open()


def test_closing_gives_the_driver_back():
    source = NvmlSource(library=FakeNvml([busy_gpu()]), environ={})
    source.open()
    source.close()
    source.close()
    assert source._library.open == 0


def host_of_three():
    names = ("GPU-aa11", "GPU-bb22", "GPU-cc33")
    return FakeNvml(
        [FakeGpu(uuid=n, answers={"nvmlDeviceGetTemperature": i}) for i, n in enumerate(names)]
    )


@pytest.mark.parametrize(
    ("devices", "index", "physical"),  # the numbering of CUDA's programming guide
    [("2,0", 0, 2), ("2,0", 1, 0), ("GPU-bb", 0, 1), ("MIG-1234", 0, 0)],
)
def test_a_gpu_is_found_through_what_the_process_may_see(devices, index, physical):
    environ = {"CUDA_VISIBLE_DEVICES": devices}
    found = values(NvmlSource(index, library=host_of_three(), environ=environ))
    assert found["gpu.temperature_celsius", index] == physical


@pytest.mark.parametrize("devices", ["", "-1", "1"])
def test_a_gpu_the_process_cannot_see_is_absent(devices):
    source = NvmlSource(1, library=host_of_three(), environ={"CUDA_VISIBLE_DEVICES": devices})
    with pytest.raises(SourceUnavailable, match="no GPU number 1"):
        source.open()


def test_without_a_number_all_visible_gpus_are_read():
    found = values(NvmlSource(library=host_of_three(), environ={"CUDA_VISIBLE_DEVICES": "0,2"}))
    assert [found["gpu.temperature_celsius", device] for device in (0, 1)] == [0, 2]


@given(st.text(alphabet="0123-, GPUabc"), st.integers(0, 4))
def test_any_setting_of_visible_devices_picks_existing_gpus(text, count):
    names = [f"GPU-{n}" for n in range(count)]
    picked = pick(visible({"CUDA_VISIBLE_DEVICES": text}, NVIDIA), names)
    assert all(0 <= position < count for position in picked)


def test_bus_ids_of_nvml_become_those_of_sysfs():
    assert sysfs_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert sysfs_address("00010000:01:00.0") == "10000:01:00.0"


# AMD: units of the kernel's hwmon (Hz, µW, m°C).


@pytest.fixture
def amd_host(tmp_path):
    root = two_node_host(tmp_path, vendor="0x1002")
    for card, sensor in (("card0", "power1_average"), ("card1", "power1_input")):
        monitor = f"sys/class/drm/{card}/device/hwmon/hwmon3"
        plant(
            tmp_path,
            {
                f"{monitor}/freq1_input": 1_700_000_000,
                f"{monitor}/{sensor}": 450_000_000,
                f"{monitor}/temp1_label": "edge",
                f"{monitor}/temp1_input": 61_000,
                f"{monitor}/temp2_label": "junction",
                f"{monitor}/temp2_input": 88_000,
                f"sys/class/drm/{card}/device/gpu_busy_percent": 90 + int(card[-1]),
                f"sys/class/drm/{card}/device/unique_id": f"aa{card[-1]}",
            },
        )
    return root


@pytest.mark.parametrize("index", [0, 1])
def test_an_amd_gpu_tells_the_same_metrics_in_the_same_units(amd_host, index):
    assert values(AmdgpuSource(index, sysroot=amd_host, environ={})) == {
        ("gpu.busy_percent", index): 90 + index,
        ("gpu.sm_clock_mhz", index): pytest.approx(1700),
        ("gpu.power_watts", index): pytest.approx(450),
        ("gpu.temperature_celsius", index): pytest.approx(61),
        ("gpu.hotspot_celsius", index): pytest.approx(88),
    }


@pytest.mark.parametrize("devices", ["1", "GPU-aa1"])
def test_an_amd_gpu_is_found_by_number_or_name(amd_host, devices):
    source = AmdgpuSource(0, sysroot=amd_host, environ={"ROCR_VISIBLE_DEVICES": devices})
    assert values(source)["gpu.busy_percent", 0] == 91
