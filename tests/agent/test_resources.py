from __future__ import annotations

import mmap
import os
import resource
import threading
from types import SimpleNamespace

import pytest

from evenstep.host.cgroup import CpuController
from evenstep.host.resources import LAP_FIELDS, CpuContention, ResourceMeter
from tests.agent.fake_host import plant


class Usage:
    """`getrusage` whose counters are set by the test."""

    def __init__(self) -> None:
        self.whole = self.own = usage()

    def __call__(self, who: int) -> SimpleNamespace:
        return self.own if who == resource.RUSAGE_THREAD else self.whole


def usage(utime=0.0, stime=0.0, nivcsw=0, nvcsw=0, minflt=0, majflt=0):
    fields = {"utime": utime, "stime": stime, "nivcsw": nivcsw, "nvcsw": nvcsw}
    fields |= {"minflt": minflt, "majflt": majflt}
    return SimpleNamespace(**{f"ru_{name}": value for name, value in fields.items()})


def test_a_lap_holds_what_was_added_since_the_last_one():
    counters = Usage()
    meter = ResourceMeter(counters)
    counters.whole = usage(utime=2.0, stime=0.5, nivcsw=3, nvcsw=4, minflt=5, majflt=6)
    counters.own = usage(utime=1.0, nivcsw=1, nvcsw=2)
    lap = dict(zip(LAP_FIELDS, meter.lap(), strict=True))
    assert lap == {
        "cpu_ns": 2_500_000_000,
        "involuntary_switches": 3,
        "voluntary_switches": 4,
        "minor_faults": 5,
        "major_faults": 6,
        "thread_cpu_ns": 1_000_000_000,
        "thread_involuntary_switches": 1,
        "thread_voluntary_switches": 2,
    }
    assert meter.lap() == (0,) * 8


def test_another_thread_gets_no_difference_to_a_strangers_counters():
    counters = Usage()
    counters.own = usage(utime=9.0, nvcsw=9)
    meter = ResourceMeter(counters)
    laps = []
    thread = threading.Thread(target=lambda: laps.append(meter.lap()))
    thread.start()
    thread.join()
    assert laps == [(0,) * 8]


def test_touching_fresh_memory_shows_as_minor_faults():
    meter = ResourceMeter()
    with mmap.mmap(-1, 256 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as block:
        block.madvise(mmap.MADV_NOHUGEPAGE)
        block[:: mmap.PAGESIZE] = bytes(256)
        lap = dict(zip(LAP_FIELDS, meter.lap(), strict=True))
    assert lap["minor_faults"] >= 256  # one per page


def test_contention_reads_delay_pressure_and_running_tasks(tmp_path):
    own = threading.get_native_id()
    root = plant(
        tmp_path,
        {
            "proc/loadavg": "2.50 1.00 0.50 9/811 4242",
            f"proc/self/task/{own}/schedstat": "5000 700 12",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=21",
        },
    )
    facts = CpuContention(own, sysroot=root).runnable()
    assert facts["running_tasks"] == 9
    assert (facts["running_ns"], facts["run_delay_ns"]) == (5000, 700)
    assert facts["pressure_ns"] == 21_000  # the kernel counts microseconds
    assert facts["allowed_cores"] == len(os.sched_getaffinity(0))


def test_what_the_kernel_does_not_tell_is_left_out(tmp_path):
    own = threading.get_native_id()
    root = plant(tmp_path, {f"proc/self/task/{own}/schedstat": "0 0 1"})  # accounting is off
    assert CpuContention(own, sysroot=root).runnable().keys() == {"online_cores", "allowed_cores"}


def test_this_kernel_answers_for_a_real_thread():
    facts = CpuContention(threading.get_native_id()).runnable()
    assert 1 <= facts["allowed_cores"] <= facts["online_cores"]
    assert facts["running_tasks"] >= 1  # at least this one


def test_the_lowest_quota_on_the_way_up_binds(tmp_path):
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/job",
            "sys/fs/cgroup/cpu.stat": "usage_usec 1",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000",
            "sys/fs/cgroup/pod/cpu.stat": "nr_throttled 7\nthrottled_usec 90",
            "sys/fs/cgroup/pod/job/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/job/cpu.stat": "nr_throttled 0\nthrottled_usec 0",
        },
    )
    controller = CpuController(root)
    assert controller.quota_cores() == 1.5
    assert controller.throttled() == (7, 90_000)


@pytest.mark.parametrize(("quota_us", "cores"), [(250_000, 2.5), (-1, None)])
def test_version_one_tells_the_same_in_other_files(tmp_path, quota_us, cores):
    group = "sys/fs/cgroup/cpu,cpuacct/job"
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_throttled 0\nthrottled_time 0",
            f"{group}/cpu.cfs_quota_us": quota_us,
            f"{group}/cpu.cfs_period_us": 100_000,
            f"{group}/cpu.stat": "nr_throttled 2\nthrottled_time 31",
        },
    )
    assert CpuController(root).quota_cores() == cores
    assert CpuController(root).throttled() == (2, 31)


@pytest.mark.parametrize("path", ["/not/mounted/here", "/../../elsewhere"])
def test_in_a_container_the_mount_is_the_group(tmp_path, path):
    root = plant(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{path}",
            "sys/fs/cgroup/cpu.stat": "nr_throttled 1\nthrottled_usec 2",
            "sys/fs/cgroup/cpu.max": "400000 100000",
        },
    )
    assert CpuController(root).quota_cores() == 4.0


def test_without_a_controller_nothing_is_claimed(tmp_path):
    controller = CpuController(str(tmp_path))
    assert (controller.quota_cores(), controller.throttled()) == (None, None)
