"""What an AMD GPU's sysfs says of its clocks, on a tree of plain files.

Offsets and bits are the kernel's: struct gpu_metrics_v1_3 in kgd_pp_interface.h, SMU_THROTTLER_* in
amdgpu_smu.h.
"""

import struct

import pytest

from evenstep.host.sources.amdgpu import AmdgpuSource, highest_mhz, throttle_reasons

TEMP_HOTSPOT, PPT0, TDC_GFX, PROCHOT_GFX = 1 << 36, 1 << 0, 1 << 16, 1 << 47
LEVELS = "0: 500Mhz\n1: 1700Mhz *\n2: 2100Mhz\n"


def metrics(bits, version=(1, 3), size=120):
    return struct.pack("<HBB", size, *version) + bytes(108) + struct.pack("<Q", bits)


@pytest.fixture
def device(tmp_path):
    """The folder of a host's only GPU."""
    folder = tmp_path / "sys/class/drm/card0/device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1002\n")
    (folder / "pp_dpm_sclk").write_text(LEVELS)
    (folder / "gpu_busy_percent").write_text("97\n")
    return folder


def read(tmp_path):
    source = AmdgpuSource(sysroot=str(tmp_path), environ={})
    source.open()
    return {metric: value for metric, _, value in source.read()}


@pytest.mark.parametrize(
    ("bits", "which"),
    [(TEMP_HOTSPOT, "thermal_throttle"), (PPT0, "power_throttle"), (TDC_GFX, "power_throttle"),
     (PROCHOT_GFX, "hardware_slowdown"), (0, None)],
)  # fmt: skip
def test_a_gpu_says_what_holds_its_clocks(tmp_path, device, bits, which):
    (device / "gpu_metrics").write_bytes(metrics(bits))
    flags = {name: value for name, value in read(tmp_path).items() if name.endswith("_flag")}
    assert len(flags) == 3
    assert [name for name, value in flags.items() if value] == [f"gpu.{which}_flag"] * bool(which)


def test_the_highest_clock_level_is_told(tmp_path, device):
    assert highest_mhz(device) == 2100
    assert read(tmp_path)["gpu.sm_clock_max_mhz"] == 2100


@pytest.mark.parametrize(
    "table",
    [b"", metrics(PPT0)[:60], metrics(PPT0, version=(1, 4)), metrics(PPT0, version=(2, 3)),
     metrics((1 << 64) - 1)],
    ids=["empty", "cut short", "MI300's", "an APU's", "not filled in"],
)  # fmt: skip
def test_a_table_that_says_nothing_of_it_is_left_unread(tmp_path, device, table):
    (device / "gpu_metrics").write_bytes(table)
    assert throttle_reasons(device) is None
    assert not any(name.endswith("_flag") for name in read(tmp_path))
