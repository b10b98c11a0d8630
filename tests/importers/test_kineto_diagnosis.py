"""From Kineto files to the verdict: the rank that is late on its device, and where."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind
from evenstep.trace.store.reading import load_store
from evenstep.trace.store.writing import write_store
from tests.importers.profiles import Profile

WORLD, STEPS, LATE_US, STEP_US = 4, 40, 3_000, 13_000


def device_job(rank, slow, **stated):
    """Compute of 8 ms (rank `slow`: 3 ms more), then an all-reduce that all leave together."""
    profile = Profile(rank, WORLD)
    for number in range(STEPS):
        begin, work = STEP_US * number, 8_000 + 40 * ((7 * rank + 3 * number) % 5)
        work += LATE_US if rank == slow else 0
        profile.step(number + 5, begin, STEP_US - 1)
        profile.note("## forward ##", begin + 10, 2_450)
        profile.note("## backward ##", begin + 2_470, 100)
        profile.kernel("gemm", begin + 30, begin + 60, 2_400)
        profile.kernel("gemm_backward", begin + 2_500, begin + 2_460, work - 2_400)
        left = STEP_US - 500 - 60 - work
        sequence = dict.fromkeys(stated, number)
        profile.collective(begin + 2_550, begin + 60 + work, left, elements=10**6, **sequence)
    return profile


@pytest.fixture(params=[{}, {"Seq": True}], ids=["counted", "numbered"])
def diagnosis(tmp_path, request):
    for rank in range(WORLD):
        device_job(rank, slow=2, **request.param).write(tmp_path / f"rank-{rank}.json.gz")
    return diagnose(open_trace([tmp_path]))


def test_the_late_rank_is_named_with_its_phase(diagnosis):
    worst = diagnosis.findings[0]
    assert (worst.mode, list(worst.where.ranks)) == ("straggler", [2])
    assert "backward" in worst.cause


def test_what_it_costs_is_what_was_put_in(diagnosis):
    assert diagnosis.findings[0].severity == pytest.approx(LATE_US / STEP_US, rel=0.1)


def graph_job(rank, slow, layers=4):
    """A step is one launch of a CUDA graph: layers of 2 ms (rank `slow`: 1 ms more), behind each of
    which its gradients are reduced in 1 ms, on a stream of their own."""
    profile, step_us = Profile(rank, WORLD), layers * 3_000 + 2_000
    own = 3_000 if rank == slow else 2_000
    for number in range(8):
        at, kernels = 100 + step_us * number, []
        profile.step(number + 5, at - 100, step_us - 10)
        profile.note("Optimizer.step#SGD.step", at + 1_000, 100)
        for layer in range(layers):
            start = max(at + (layer + 1) * own, at + layer * 3_000 + 1_000 * (layer > 0))
            end = at + (layer + 1) * 3_000 + 1_000
            kernels.append(("gemm", at + layer * own, own, 7))
            kernels.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end - start, 20))
        profile.graph(at - 80, kernels)
    return profile


@pytest.fixture(params=["a graph's launch", "no launches"])
def one_launch_or_none(request, tmp_path):
    """A folder of profiles, rank 2 slow, whose kernels share a launch or have none."""
    for rank in range(WORLD):
        profile = graph_job(rank, slow=2)
        if request.param == "no launches":
            profile.events = [event for event in profile.events if event["cat"] == "kernel"]
        profile.write(tmp_path / f"rank-{rank}.json.gz")
    return tmp_path


def test_kernels_that_are_not_launched_one_by_one_are_told_apart(one_launch_or_none):
    worst = diagnose(open_trace([one_launch_or_none])).findings[0]
    assert (worst.mode, list(worst.where.ranks)) == ("straggler", [2])
    assert worst.severity == pytest.approx(4_000 / 14_000, rel=0.1)


def test_a_rank_comes_to_communication_when_it_has_computed_not_when_it_begins(one_launch_or_none):
    calls = open_trace([one_launch_or_none]).of_kind(Kind.COLLECTIVE)
    early, late = (calls.select(calls["rank"] == rank).enter_ns[:4] for rank in (0, 2))
    assert np.diff(early).tolist() == [2_000_000] * 3  # though each waits for the one before it
    assert np.diff(late).tolist() == [3_000_000] * 3


@pytest.mark.parametrize("alone", [0, 1])
def test_profiles_without_collectives_are_read(tmp_path, alone):
    paths = []
    for rank in range(2):
        profile = Profile(rank)
        profile.kernel("gemm", 10, 20, 30)
        if rank < alone:
            profile.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 11, 50, 9)
        paths.append(profile.write(tmp_path / f"{rank}.json"))
    assert len(open_trace(paths).ranks) == 2


def host_bound_job(rank, slow, gap_us=10, more_us=5, layers=4, kernels=20):
    """Steps of kernels of 1 µs, each launched 10 µs after the one before (by rank `slow`: 15 µs),
    with an all-reduce of 20 µs behind each layer; hosts wait for nothing but the end of it all."""
    profile, gap = Profile(rank, WORLD), gap_us + more_us * (rank == slow)
    own, latest = gap * kernels + 10, (gap_us + more_us) * kernels + 10
    for number in range(8):
        issued, ends = number * layers * own, number * layers * latest
        profile.step(number + 5, issued, layers * own - 1)
        for layer in range(layers):
            free = max(ends + layer * latest + 20, issued)  # as the all-reduce before is over
            launches = [issued + layer * own + gap * turn for turn in range(kernels)]
            for launched in launches:
                free = max(free, launched + 5) + 1
                profile.kernel("add", launched, free - 1, 1)
            over = ends + (layer + 1) * latest + 20
            profile.collective(launches[-1] + gap - 5, free, over - free)
    issued = 8 * layers * own
    profile.host("cudaDeviceSynchronize", issued, over + 5 - issued, "cuda_runtime")
    return profile


def test_a_slow_host_costs_no_more_than_the_others_hosts_would_take_without_it(tmp_path):
    """Devices that wait for a slow host have little to do, but their own hosts are hardly faster:
    a step of 4 × 310 µs takes 4 × 210 µs without rank 2, not the 4 × 40 µs of the devices."""
    for rank in range(WORLD):
        host_bound_job(rank, slow=2).write(tmp_path / f"rank-{rank}.json.gz")
    trace = open_trace([tmp_path])
    write_store(trace, tmp_path / "store")
    for each in (trace, load_store(tmp_path / "store")):
        late = next(f for f in diagnose(each).findings if f.where.ranks)
        assert list(late.where.ranks) == [2]
        assert late.options[0].gain == pytest.approx(100 / 310, rel=0.1)


def alone(length_us):
    """One of two ranks, whose host runs ahead: a step computes for 600 µs, then exchanges messages
    of which nothing tells the other side, for 400 µs, and reduces for 20 µs; `length_us` is what
    its host stands still before each step."""
    profile, host, free = Profile(0), 0, 0
    for number in range(6):
        stands = length_us(number)
        begin, host = host, max(host, free * (stands > 0)) + stands + 50
        profile.step(number + 50, begin, host - begin - 1)
        profile.kernel("gemm", host - 40, max(free, host - 30), 600)
        free = max(free, host - 30) + 601
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        profile.kernel(name, host - 30, free, 400, stream=24)
        profile.collective(host - 25, free + 401, 20)
        free += 422
    return profile


def test_messages_of_unknown_partners_are_not_idleness_of_the_device(tmp_path):
    found = diagnose(open_trace([alone(lambda _: 0).write(tmp_path / "rank-0.json")]))
    assert not any("issue work" in one.cause for one in found.findings)
    assert found.summary["shares"]["exposed_communication"] == pytest.approx(0.4, abs=0.05)


def test_one_step_in_which_the_host_stands_still_is_that_not_launch_bound(tmp_path):
    profile = alone(lambda number: 3_000 if number == 3 else 0)
    worst = diagnose(open_trace([profile.write(tmp_path / "rank-0.json")])).findings[0]
    assert worst.title == "Slow step 53"
    assert worst.severity == pytest.approx(3 / 9, abs=0.05)
    assert "rank 0 has more work in step 53" in worst.cause
