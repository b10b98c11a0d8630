import os

import pytest

from evenstep.doctor import kernel, limits, network, pcie, processors, versions
from evenstep.doctor.check import Severity
from evenstep.doctor.host import kernel_log
from tests.doctor.fake_machine import GPU, NIC, PORT, space

CLOCK = "sys/devices/system/clocksource/clocksource0"
PAGES = "sys/kernel/mm/transparent_hugepage"
CPU = "sys/devices/system/cpu/cpu0/cpufreq"
LIMITS = "Limit  Soft Limit  Hard Limit  Units\n"
SLOT = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0"
OK, ADVICE, WARNING, PROBLEM = Severity.OK, Severity.ADVICE, Severity.WARNING, Severity.PROBLEM


@pytest.mark.parametrize("room", [kernel, limits, network, pcie, processors])
def test_a_healthy_machine_has_nothing_wrong(host, severities, room):
    assert set(severities(room.checks(host())).values()) == {OK}


@pytest.mark.parametrize(
    ("room", "files", "name", "severity"),
    [
        (kernel, {f"{CLOCK}/current_clocksource": "hpet"}, "kernel.clock", PROBLEM),
        (kernel, {f"{CLOCK}/current_clocksource": "xen"}, "kernel.clock", WARNING),
        (kernel, {f"{CPU}/scaling_governor": "powersave"}, "kernel.governor", ADVICE),
        (kernel, {f"{CPU}/scaling_governor": "powersave", f"{CPU}/scaling_driver": "acpi-cpufreq"},
         "kernel.governor", PROBLEM),
        (kernel, {f"{PAGES}/enabled": "[always] never", f"{PAGES}/defrag": "[always] never"},
         "kernel.huge_pages", WARNING),
        (kernel, {f"{PAGES}/enabled": "always madvise [never]"}, "kernel.huge_pages", ADVICE),
        (limits, {"proc/self/limits": LIMITS + "Max locked memory  65536 65536 bytes"},
         "limits.locked_memory", PROBLEM),
        (limits, {"proc/self/mountinfo": "1 0 0:1 / / rw - nfs4 server:/home rw"},
         "limits.spool", ADVICE),
        (network, {f"{PORT}/state": "1: DOWN"}, "network.links", WARNING),
        (network, {f"{NIC}/net/ib0/mtu": 1500}, "network.mtu", ADVICE),
        (network, {f"{NIC}/net/ib0/statistics/rx_errors": 500}, "network.errors", WARNING),
        (network, {f"{PORT}/counters/symbol_error": 9}, "network.rdma_counters", WARNING),
        (network, {f"{PORT}/hw_counters/local_ack_timeout_err": 9}, "network.rdma_counters",
         ADVICE),
        (network, {"etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gpu012 # of the installer"},
         "network.gloo_address", ADVICE),
        (pcie, {f"{NIC}/current_link_width": 8}, "pcie.links", PROBLEM),
        (pcie, {f"{NIC}/current_link_speed": "16.0 GT/s PCIe"}, "pcie.links", PROBLEM),
        (pcie, {f"{GPU}/current_link_speed": "2.5 GT/s PCIe"}, "pcie.links", ADVICE),
        (pcie, {"proc/modules": ""}, "pcie.gpu_direct_rdma", WARNING),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_alone(host, severities, room, files, name, severity):
    found = severities(room.checks(host(files=files)))
    assert found[name] == severity
    assert {s for other, s in found.items() if other != name} <= {OK}


@pytest.mark.parametrize(
    ("options", "name", "severity"),
    [  # eight cores
        ({"planned_ranks": 9}, "processors.threads", PROBLEM),
        ({"planned_ranks": 4}, "processors.threads", WARNING),
        ({"planned_ranks": 4, "environ": {"OMP_NUM_THREADS": "3"}}, "processors.threads", PROBLEM),
        ({"planned_ranks": 4, "environ": {"OMP_NUM_THREADS": "2"}}, "processors.threads", OK),
        ({"planned_ranks": 4, "environ": {"TORCHELASTIC_RUN_ID": "x"}}, "processors.threads", OK),
        ({"planned_ranks": 8, "environ": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE"}},
         "processors.waiting", WARNING),
        ({"planned_ranks": 9, "environ": {"PMI_RANK": "0"}}, "processors.waiting", PROBLEM),
    ],
)  # fmt: skip
def test_threads_are_held_against_the_cores(host, severities, options, name, severity):
    assert severities(processors.checks(host(**options)))[name] == severity


def test_a_quota_below_the_processors_lowers_the_threads_that_fit(host):
    group = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/", f"{group}/cpu.max": "400000 100000",
        f"{group}/cpu.stat": "nr_throttled 7\nthrottled_usec 2500000",
    }  # fmt: skip
    found = {c.name: c for c in processors.checks(host(files=files, planned_ranks=4))}
    assert "4 cores" in found["processors.threads"].found
    assert "throttled 7 times, 2.5 s" in found["processors.quota"].found


@pytest.mark.parametrize(
    ("size", "free", "severity"),
    [(67_108_864, 67_108_864, PROBLEM), (8 * 10**9, 10**8, WARNING), (8 * 10**9, 7 * 10**9, OK)],
)
def test_shared_memory_must_hold_a_gigabyte(host, severities, size, free, severity):
    given = host(statvfs=lambda _: space(size, free))
    assert severities(limits.checks(given))["limits.shared_memory"] == severity


def test_adapters_with_different_mtus_are_a_problem(host, severities):
    other = f"{NIC[:-1]}1"
    files = {f"{other}/net/ib1/{name}": value for name, value in
             {"speed": 400_000, "mtu": 1500, "operstate": "up", "statistics/rx_packets": 1,
              "device": f"-> {other}"}.items()}  # fmt: skip
    files["sys/class/net/ib1"] = f"-> {other}/net/ib1"
    checks = list(network.checks(host(files=files)))
    assert severities(checks)["network.mtu"] == PROBLEM
    assert "ip link set ib1 mtu 4092" in [check.mend for check in checks]


def test_a_narrow_slot_is_told_from_a_link_that_fell_back(host):
    files = {f"{SLOT}/max_link_width": 8, f"{NIC}/current_link_width": 8,
             "sys/bus/pci/devices/0000:02:01.0": f"-> {SLOT}"}  # fmt: skip
    found = [c for c in pcie.checks(host(files=files)) if c.name == "pcie.links" and c.why]
    assert [check.severity for check in found] == [ADVICE]
    assert "its slot allows 8" in found[0].found


@pytest.mark.parametrize(
    ("packages", "name", "severity"),
    [
        ({"torch": "2.13.0+cpu"}, "versions.torch", OK),
        ({"torch": "2.4.1"}, "versions.torch", WARNING),
        ({"torch": "3.0.0"}, "versions.torch", ADVICE),
        ({"python": "3.9.2"}, "versions.python", PROBLEM),
        ({"python": "3.14.0"}, "versions.python", OK),
        ({"nvidia-nccl-cu12": "2.27.3"}, "versions.nccl", OK),
        ({"nvidia-nccl-cu12": "2.27.3", "nvidia-nccl-cu11": "2.21.5"}, "versions.nccl", WARNING),
    ],
)
def test_versions_are_held_against_those_tested(host, severities, packages, name, severity):
    assert severities(versions.checks(host(packages=packages)))[name] == severity


def test_messages_of_the_kernel_are_read_without_their_head(host):
    given = host(files={"dev/kmsg": "4,1,2,-;NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off"})
    assert kernel_log(given) == ["NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off"]


def test_a_record_that_the_kernel_overwrote_does_not_end_its_log(host, monkeypatch):
    read, failures = os.read, [BrokenPipeError()]

    def overwritten_once(descriptor, size):
        if failures:
            raise failures.pop()
        return read(descriptor, size)

    given = host(files={"dev/kmsg": "4,1,2,-;after it"})
    monkeypatch.setattr("evenstep.doctor.host.os.read", overwritten_once)
    assert kernel_log(given) == ["after it"]
