import pytest

from evenstep.doctor import gpus, versions
from evenstep.doctor.check import Severity
from evenstep.host.sources.nvml import Nvml
from tests.agent.fake_nvml import FakeGpu, FakeNvml

#: `nvmlReturn_t` NVML_ERROR_NOT_SUPPORTED
NOT_SUPPORTED = 3
HEALTHY = {
    "nvmlDeviceGetTotalEccErrors": 0, "nvmlDeviceGetRetiredPagesPendingStatus": 0,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000, "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
}  # fmt: skip


class Driver(FakeNvml):
    """The fake, with the name and the calls that only the doctor makes."""

    def nvmlDeviceGetName(self, handle, buffer, size):  # noqa: N802
        buffer.value = str(self.gpus[handle.value - 1].answers.get("name", "H100")).encode()
        return 0

    def nvmlDeviceGetRemappedRows(self, handle, corrected, uncorrected, pending, failed):  # noqa: N802
        pending._obj.value = self.gpus[handle.value - 1].answers.get("remap_pending", 0)
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, out):  # noqa: N802
        out._obj.value = 12_040
        return 0


def machine_with(host, *answers, **options):
    cards = [
        FakeGpu(uuid=f"GPU-{i}", answers=HEALTHY | one, links=["switch"] * one.get("links", 0))
        for i, one in enumerate(answers)
    ]
    return host(nvml=Nvml(Driver(cards)), **options)


def test_a_healthy_gpu_has_nothing_wrong(host, severities):
    found = severities(gpus.checks(machine_with(host, {}, {})))
    assert set(found.values()) == {Severity.OK}


@pytest.mark.parametrize(
    ("answers", "name", "severity"),
    [
        ({"nvmlDeviceGetTotalEccErrors": 2}, "gpus.memory_errors", Severity.PROBLEM),
        ({"remap_pending": 1}, "gpus.memory_errors", Severity.WARNING),
        ({"nvmlDeviceGetEnforcedPowerLimit": 400_000}, "gpus.power", Severity.WARNING),
        ({"nvmlDeviceGetCurrentClocksEventReasons": 0x40}, "gpus.power", Severity.PROBLEM),
        ({"name": "A100"}, "gpus.alike", Severity.WARNING),
    ],
)
def test_what_is_wrong_with_a_gpu_is_found(host, severities, answers, name, severity):
    assert severities(gpus.checks(machine_with(host, {}, answers)))[name] == severity


@pytest.mark.parametrize(
    ("number", "severity"),  # NVIDIA XID Errors guide
    [(79, Severity.PROBLEM), (63, Severity.WARNING), (31, Severity.ADVICE), (999, Severity.ADVICE)],
)
def test_errors_of_the_driver_are_read_from_the_kernels_log(host, severities, number, severity):
    line = f"4,1,2,-;NVRM: Xid (PCI:0000:03:00): {number}, pid=1"
    found = severities(gpus.checks(machine_with(host, {}, files={"dev/kmsg": line})))
    assert found["gpus.xid"] == severity


@pytest.mark.parametrize(("built", "severity"), [("13.0", "problem"), ("12.8", "ok")])
def test_a_torch_newer_than_the_driver_is_a_problem(host, built, severity):
    # CUDA Compatibility: within a major version any driver of it will do
    given = machine_with(host, {}, packages={"torch-cuda": built})
    (check,) = [one for one in versions.checks(given) if one.name == "versions.driver"]
    assert check.severity.word == severity


def test_without_a_driver_the_reason_is_told(host):
    found = [c for c in gpus.checks(host()) if c.name == "gpus.power"]
    assert [(c.severity, c.found) for c in found] == [(Severity.SKIPPED, "NVML was not used")]
