from __future__ import annotations

import mmap
import os
import threading
from types import SimpleNamespace

import pytest

from evenstep.host.resources import (
    ResourceMeter,
    ResourceUse,
    resources_used,
)
from evenstep.host.sources.cpu import CpuController, CpuSource
from evenstep.host.sysfs import read_text
from tests.agent.fake_host import plant


def usage(utime=0.0, stime=0.0, nivcsw=0, nvcsw=0, minflt=0, majflt=0):
    fields = {"utime": utime, "stime": stime, "nivcsw": nivcsw, "nvcsw": nvcsw}
    fields |= {"minflt": minflt, "majflt": majflt}
    return SimpleNamespace(**{f"ru_{name}": value for name, value in fields.items()})


def lowest_free_descriptor():
    found = os.dup(0)
    os.close(found)
    return found


def test_what_was_used_lies_between_two_moments(tmp_path):
    account = tmp_path / "proc/self/task/7/schedstat"
    account.parent.mkdir(parents=True)
    account.write_text("5000 700 12\n")
    later = usage(utime=2.0, stime=0.5, nivcsw=3, nvcsw=4, minflt=5, majflt=6)
    moments = iter([usage(utime=1.0), later])
    meter = ResourceMeter(7, sysroot=str(tmp_path), usage=lambda _: next(moments))
    before = meter.now()
    account.write_text("9000 950 14\n")
    assert resources_used(before, meter.now()) == ResourceUse(1_500_000_000, 5, 6, 3, 4, 250)
    meter.close()


def test_a_thread_that_has_no_account_was_never_kept_waiting():
    meter = ResourceMeter(1 << 30)
    assert resources_used(meter.now(), meter.now()).run_delay_ns == 0


def test_touching_fresh_memory_shows_as_minor_faults():
    meter = ResourceMeter(threading.get_native_id())
    with mmap.mmap(-1, 256 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as block:
        block.madvise(mmap.MADV_NOHUGEPAGE)
        before = meter.now()
        block[:: mmap.PAGESIZE] = bytes(256)
        assert resources_used(before, meter.now()).minor_faults >= 256  # one per page
    meter.close()


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 20_000])
def test_a_file_read_without_giving_the_lock_away_is_read_whole(tmp_path, length):
    (tmp_path / "file").write_text("7" * length + "\n")
    assert read_text(f"{tmp_path}/file", held=True) == "7" * length


@pytest.mark.parametrize("name", ["absent", ""])  # the folder itself opens, and cannot be read
def test_what_cannot_be_read_without_giving_the_lock_away_is_none(tmp_path, name):
    before = lowest_free_descriptor()
    assert read_text(f"{tmp_path}/{name}", held=True) is None
    assert lowest_free_descriptor() <= before


def test_contention_reads_pressure_and_running_tasks(tmp_path):
    own = threading.get_native_id()
    root = plant(
        tmp_path,
        {
            "proc/loadavg": "2.50 1.00 0.50 9/811 4242",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=21",
        },
    )
    facts = CpuSource(own, sysroot=root).runnable()
    assert facts["running_tasks"] == 9
    assert facts["pressure_ns"] == 21_000  # the kernel counts microseconds
    assert facts["allowed_cores"] == len(os.sched_getaffinity(0))


def test_what_children_of_the_training_thread_need_is_their_run_and_their_wait(tmp_path):
    own = threading.get_native_id()
    accounts = {"7": "500 40 3", "8": "20 1 1"}
    files = {f"proc/{child}/schedstat": text for child, text in accounts.items()}
    files[f"proc/self/task/{own}/children"] = "7 8 9"  # the last has just ended
    facts = CpuSource(own, sysroot=plant(tmp_path, files)).runnable()
    assert facts["children_ns"] == 561


def test_what_the_kernel_does_not_tell_is_left_out(tmp_path):
    facts = CpuSource(threading.get_native_id(), sysroot=str(tmp_path)).runnable()
    assert facts.keys() == {"online_cores", "allowed_cores"}


def test_this_kernel_answers_for_a_real_thread():
    facts = CpuSource(threading.get_native_id()).runnable()
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


def test_a_meter_that_is_closed_from_two_threads_closes_its_file_once(monkeypatch):
    meter = ResourceMeter(threading.get_native_id())
    closed = []

    def close(descriptor):
        closed.append(descriptor)
        if len(closed) == 1:
            meter.close()  # as another thread may, while the first is in the system call

    real = os.close
    monkeypatch.setattr(os, "close", close)
    meter.close()
    monkeypatch.undo()
    real(closed[0])
    assert len(closed) == 1
