"""A host that runs ahead of its device: steps and phases are told when the device has done them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.importers.merging import completion
from evenstep.importers.opening import open_trace
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.importers.profiles import Profile

STEPS, FORWARD_US, BACKWARD_US, MOVED_US, LATE_US = 16, 4_000, 6_000, 1_000, 2_000
UPDATED_US = 200
LAUNCHED_US = 300  # of host time, for a whole step
WORLD, SLOW = 3, 1


def ahead(rank, slow=SLOW, *, marked=True):
    """A host that launches all steps at once; its device then works on them one after the other."""
    profile, free = Profile(rank, WORLD), LAUNCHED_US
    for number in range(STEPS):
        begin = LAUNCHED_US * number
        profile.step(number, begin, LAUNCHED_US - 1)
        profile.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + 1, 40)
        if marked:
            profile.note("## forward ##", begin + 50, 50)
            profile.note("## backward ##", begin + 110, 90)
        work = BACKWARD_US + (LATE_US if rank == slow else 0)
        profile.kernel("gemm", begin + 60, free, FORWARD_US)
        profile.kernel("gemm_backward", begin + 120, free + FORWARD_US, work)
        end = free + FORWARD_US + BACKWARD_US + (LATE_US if slow is not None else 0) + MOVED_US
        entered = free + FORWARD_US + work
        profile.collective(begin + 140, entered, end - entered)
        free = end
        if not marked:  # the profiler marks the optimizer by itself, and nothing else
            profile.note("Optimizer.step#SGD.step", begin + 210, 20)
            profile.kernel("sgd", begin + 215, end, UPDATED_US)
            free += UPDATED_US
    return profile


@pytest.fixture
def trace(tmp_path):
    return open_trace([ahead(rank).write(tmp_path / f"rank-{rank}.json") for rank in range(WORLD)])


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), max_size=20),
       st.lists(st.integers(0, 2000), min_size=2, max_size=10), st.integers(0, 600))  # fmt: skip
def test_moments_keep_their_order_and_never_come_earlier(kernels, moments, lag):
    launched = np.sort(np.array([at for at, _ in kernels], np.int64))
    lengths = np.array([length for _, length in kernels], np.int64)
    kernels = Columns(
        {"launched_ns": launched, "start_ns": launched, "end_ns": launched + lengths,
         "stream": launched * 0}
    )  # fmt: skip
    done = completion(kernels, launched < 0)._replace(began_ns=1000, lag_ns=lag)
    times = np.sort(np.array(moments, np.int64))
    assert (np.diff(done.at(times)) >= 0).all()
    assert (done.at(times) >= times).all()


def test_a_call_is_entered_when_compute_has_come_to_it_whatever_its_stream_still_does():
    """Two calls after one kernel, the second behind the first in their stream; then one in another
    stream, which was free, that began as the second ended: compute waited for that, also before a
    receive."""
    kernels = Columns(
        {"launched_ns": np.array([0, 1, 2]), "start_ns": np.array([10, 110_000, 210_000]),
         "end_ns": np.array([110_000, 210_000, 310_000]), "stream": np.array([7, 20, 20])}
    )  # fmt: skip
    done = completion(kernels, np.array([False, True, True]))
    began = np.array([110_000, 210_000, 310_000])
    free, received = np.array([True, False, True]), np.zeros(3, bool)
    entered = done.entered(np.array([1, 2, 3]), began, free, received)
    assert entered.tolist() == [110_000, 110_000, 310_000]
    received[2] = True
    assert done.entered(np.array([1, 2, 3]), began, free, received).tolist() == entered.tolist()


def test_a_queued_kernel_waits_for_its_stream_though_that_takes_microseconds_to_begin_it(tmp_path):
    """99 % of queued kernels begin within 9 µs of the one before, on an H200."""
    profile = Profile()
    profile.step(0, 0, 9_000)
    profile.kernel("gemm", 10, 100, 1_000)
    profile.collective(20, 1_100, 3_000)
    profile.kernel("gemm", 40, 1_100, 1_000)
    profile.collective(60, 4_109, 500)
    profile.kernel("sgd", 80, 4_610, 100)
    calls = open_trace([profile.write(tmp_path / "0.json")]).of_kind(Kind.COLLECTIVE)
    assert np.diff(calls.enter_ns).tolist() == [1_000_000]


def test_a_kernel_waits_for_the_one_before_in_its_group_though_its_stream_is_free(tmp_path):
    """A prefetch follows a reduction, which waits for the other member; more is computed then."""
    profile = Profile()
    profile.step(0, 0, 9_000)
    profile.kernel("gemm", 10, 100, 1_000)
    profile.collective(20, 1_100, 3_000, "_reduce_scatter_base", stream=28)
    profile.collective(30, 4_104, 500, "_allgather_base", stream=24)
    profile.kernel("gemm", 40, 1_100, 2_000)
    profile.kernel("sgd", 80, 4_610, 100)
    calls = open_trace([profile.write(tmp_path / "0.json")]).of_kind(Kind.COLLECTIVE)
    assert np.diff(calls.enter_ns).tolist() == [0]


STAGES, MICRO, STAGE_US, SENT_US = 3, 6, 2_000, 50


def pipeline(tmp_path, own_us):
    """Batches through stages whose hosts post every receive of a step at once; each begins in its
    stream as the one before is over. `own_us`: of a stage, for a batch."""
    profiles = [Profile(stage, STAGES) for stage in range(STAGES)]
    free = LAUNCHED_US
    for number in range(STEPS):
        begin, done = LAUNCHED_US * number, np.zeros((STAGES, MICRO), int)
        for stage, profile in enumerate(profiles):
            profile.step(number, begin, LAUNCHED_US - 1)
            over = posted = free
            for batch in range(MICRO):
                called = begin + 10 + 40 * batch
                if stage:
                    came = int(done[stage - 1, batch]) + SENT_US
                    peers = {"Src Rank": stage - 1, "Dst Rank": stage}
                    profile.collective(called, posted, came - posted, "recv", **peers)
                    over, posted = max(over, came), came
                profile.kernel("gemm", called + 11, over, own_us[stage])
                over = done[stage, batch] = over + own_us[stage]
                if stage < STAGES - 1:
                    peers = {"Src Rank": stage, "Dst Rank": stage + 1}
                    profile.collective(called + 12, int(over), SENT_US, "send", **peers)
        end = int(done[:, -1].max()) + MOVED_US
        for stage, profile in enumerate(profiles):
            entered = int(done[stage, -1])
            profile.collective(begin + 260, entered, end - entered)
        free = end
    paths = [each.write(tmp_path / f"{stage}.json") for stage, each in enumerate(profiles)]
    return open_trace(paths), free / STEPS


def test_a_receive_is_entered_when_compute_has_come_to_it_though_it_was_over_before(tmp_path):
    messages = pipeline(tmp_path, [STAGE_US, STAGE_US, 2 * STAGE_US])[0].of_kind(
        Kind.POINT_TO_POINT
    )
    late = messages.select((messages["rank"] == 2) & (messages.step == 5)).sorted_by("group_seq")
    assert np.diff(late.enter_ns)[1:].tolist() == [2 * STAGE_US * 1000] * (MICRO - 2)
    assert (late.enter_ns[1:] > late.device_exit_ns[1:]).all()
    assert (late.exit_ns >= late.enter_ns).all()


def test_a_slow_stage_is_found_though_receives_are_posted_ahead_of_it(tmp_path):
    trace, step_us = pipeline(tmp_path, [STAGE_US, STAGE_US, 2 * STAGE_US])
    worst = diagnose(trace).findings[0]
    assert list(worst.where.ranks) == [2]
    assert worst.severity == pytest.approx(MICRO * STAGE_US / step_us, rel=0.05)


def test_a_pipeline_of_equal_stages_has_none_that_is_slow(tmp_path):
    trace, _ = pipeline(tmp_path, [STAGE_US] * STAGES)
    assert not [each for each in diagnose(trace).findings if each.where.ranks]


def test_a_step_lasts_as_long_as_its_device_works(trace):
    steps = trace.of_kind(Kind.STEP)
    length = (steps.exit_ns - steps.enter_ns)[(steps["rank"] == SLOW) & (steps.step > 0)]
    whole_us = FORWARD_US + BACKWARD_US + LATE_US + MOVED_US
    assert length.tolist() == [whole_us * 1000] * (STEPS - 1)


def test_what_ran_before_the_first_launch_on_record_is_of_no_step(tmp_path):
    """A profiler started while the host was steps ahead: what runs then has no launch."""
    kept, paths = 6, []
    for rank in range(WORLD):
        profile, start = ahead(rank), LAUNCHED_US * kept
        launched = [each for each in profile.events if each["cat"] != "kernel"]
        ran = [each for each in profile.events if each["cat"] == "kernel" and each["ts"] >= start]
        profile.events = [each for each in launched if each["ts"] >= start] + ran
        paths.append(profile.write(tmp_path / f"{rank}.json"))
    trace = open_trace(paths)
    steps = trace.of_kind(Kind.STEP)
    whole_us = FORWARD_US + BACKWARD_US + LATE_US + MOVED_US
    assert steps.step.tolist() == list(range(kept, STEPS)) * WORLD
    assert (steps.exit_ns - steps.enter_ns).tolist() == [whole_us * 1000] * len(steps)
    spans = trace.of_kind(Kind.SPAN)
    assert np.unique(spans.step).tolist() == list(range(kept - 1, STEPS))
    worst = diagnose(trace).findings[0]
    assert list(worst.where.ranks) == [SLOW]
    assert worst.severity == pytest.approx(LATE_US / whole_us, rel=0.02)


@pytest.mark.parametrize("unit_us", [0.001, 0.25, 1.0])
def test_what_a_device_came_to_at_once_stays_in_order_of_issue_however_stamps_are_cut(
    tmp_path, unit_us
):
    """A reduction of what a kernel computed, and a prefetch that waits for the same kernel though
    more was launched before it: both begin as it ends, which its stamps tell to within a unit."""
    random, profile, free = np.random.default_rng(7), Profile(), 100.0

    def cut(time):
        return float(np.floor(time / unit_us) * unit_us)

    for number in range(STEPS):
        begin, over = 3_000 * number, free + random.uniform(1_000, 1_100)
        profile.step(number, begin, 2_999)
        profile.kernel("gemm", begin + 10, cut(free), round(over - free, 3))
        profile.collective(begin + 20, cut(over), 200, "_reduce_scatter_base", stream=28)
        profile.kernel("gemm", begin + 40, cut(over), 1_000)
        profile.collective(begin + 60, cut(over), 250, "_allgather_base", stream=24)
        free = max(over + 1_000, begin + 3_000)
    calls = open_trace([profile.write(tmp_path / "0.json")]).of_kind(Kind.COLLECTIVE)
    reduced, gathered = (
        calls.select(calls.op == int(op)) for op in (Op.REDUCE_SCATTER, Op.ALL_GATHER)
    )
    assert len(reduced) == len(gathered) == STEPS
    assert (reduced.enter_ns <= gathered.enter_ns).all()
    assert (reduced.seq < gathered.seq).all()


def test_a_kernel_counts_in_the_phase_that_launched_it(trace):
    phases = trace.of_kind(Kind.PHASE)
    mine = (phases["rank"] == SLOW) & (phases.step == 5)
    lasted = dict(zip(phases.op[mine].tolist(), phases.group_seq[mine].tolist(), strict=True))
    assert lasted == {
        Phase.FORWARD: FORWARD_US * 1000,
        Phase.BACKWARD: (BACKWARD_US + LATE_US) * 1000,
        Phase.SYNC: MOVED_US * 1000,
    }


def test_without_marks_of_ones_own_kernels_are_the_compute(tmp_path):
    paths = [ahead(rank, marked=False).write(tmp_path / f"{rank}.json") for rank in range(WORLD)]
    whole = FORWARD_US + BACKWARD_US + LATE_US + MOVED_US + UPDATED_US
    computed = FORWARD_US + BACKWARD_US + LATE_US / WORLD + UPDATED_US
    shares = diagnose(open_trace(paths)).summary["shares"]
    assert shares["compute"] == pytest.approx(computed / whole, rel=0.01)


def test_without_marks_an_excess_is_in_kernels_if_they_take_longer(tmp_path):
    paths = [ahead(rank, marked=False).write(tmp_path / f"{rank}.json") for rank in range(WORLD)]
    worst = diagnose(open_trace(paths)).findings[0]
    assert worst.title == f"Slow kernels on rank {SLOW}"
    assert "2 ms more in kernels" in worst.cause


def test_without_marks_a_device_without_work_is_idle(tmp_path):
    paths = []
    for rank in range(WORLD):
        profile, free = Profile(rank, WORLD), 0
        for number in range(STEPS):
            begun = free + (LATE_US if rank == SLOW else 0)  # the host is late
            profile.step(number, free, LATE_US + FORWARD_US + MOVED_US + UPDATED_US)
            profile.kernel("gemm", begun, begun + 5, FORWARD_US)
            end = free + LATE_US + FORWARD_US + MOVED_US
            profile.collective(begun + 10, begun + 5 + FORWARD_US, end - begun - 5 - FORWARD_US)
            profile.kernel("sgd", begun + 50, end, UPDATED_US)
            free = end + UPDATED_US
        paths.append(profile.write(tmp_path / f"{rank}.json"))
    worst = diagnose(open_trace(paths)).findings[0]
    assert worst.title == f"Idle device on rank {SLOW}"


def test_noise_of_busy_devices_is_no_matter_of_hosts(tmp_path):
    length = np.random.default_rng(3).normal(FORWARD_US, 200, (STEPS, WORLD)).astype(int)
    paths, free = [], np.cumsum(length.max(axis=1) + MOVED_US)
    for rank in range(WORLD):
        profile = Profile(rank, WORLD)
        for number, end in enumerate(free):
            begin = end - MOVED_US - length[number].max()
            profile.step(number, 10 * number, 9)
            profile.kernel("gemm", 10 * number + 1, int(begin), int(length[number, rank]))
            entered = int(begin + length[number, rank])
            profile.collective(10 * number + 3, entered, int(end - entered))
        paths.append(profile.write(tmp_path / f"{rank}.json"))
    found = diagnose(open_trace(paths)).findings
    noise = next(one for one in found if one.mode == "synchronization_amplification")
    assert noise.options[0].action.startswith("give ranks equal work")


def test_shares_are_those_of_the_device(trace):
    whole = FORWARD_US + BACKWARD_US + LATE_US + MOVED_US
    late = LATE_US * (WORLD - 1) / WORLD  # of a mean rank, spent waiting
    shares = diagnose(trace).summary["shares"]
    assert shares["wait"] == pytest.approx(late / whole, rel=0.01)
    assert shares["exposed_communication"] == pytest.approx(MOVED_US / whole, rel=0.01)
    assert shares["compute"] == pytest.approx((whole - late - MOVED_US) / whole, rel=0.01)


def test_who_is_late_on_the_device_is_late_in_the_phase_that_launched_it(trace):
    worst = diagnose(trace).findings[0]
    assert list(worst.where.ranks) == [SLOW]
    assert "inside backward" in worst.cause
    whole = FORWARD_US + BACKWARD_US + LATE_US + MOVED_US
    assert worst.severity == pytest.approx(LATE_US / whole, rel=0.02)
