"""Steps and phases of a profile: marked, or found where nobody marked them."""

import numpy as np
import pytest

from evenstep.importers.draft import FIRST_NS
from evenstep.importers.kineto.launches import lookup
from evenstep.importers.kineto.names import phase
from evenstep.importers.kineto.steps import Steps
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Flag, Kind, Phase
from tests.importers.profiles import Profile, two_steps


@pytest.fixture
def opened(tmp_path):
    return lambda profile: open_trace([profile.write(tmp_path / "rank-0.json")])


def named(trace):
    """Phases by name: (start, length, leaf time) in µs after the first event."""
    rows = trace.of_kind(Kind.PHASE)
    times = (rows.enter_ns - FIRST_NS, rows.exit_ns - rows.enter_ns, rows.group_seq.astype(int))
    table = (np.stack(times, axis=1) // 1000).tolist()
    return [(Phase(op).name, *row) for op, row in zip(rows.op, table, strict=True)]


def test_steps_keep_the_profilers_numbers(opened):
    steps = opened(two_steps()).of_kind(Kind.STEP)
    assert list(steps.step) == [3, 4]
    assert list(steps.exit_ns - steps.enter_ns) == [1_000_000, 1_000_000]


def test_without_marks_a_step_ends_when_the_first_optimizer_does(opened):
    profile = Profile()
    for begin in (0, 100, 220):
        profile.note("Optimizer.step#Adam.step", begin, 10)
        profile.note("Optimizer.step#Other.step", begin + 20, 10)
    trace = opened(profile)
    steps = trace.of_kind(Kind.STEP)
    assert list(steps.exit_ns - steps.enter_ns) == [100_000, 120_000]
    assert "a step is what lies between two ends of Adam.step" in trace.limits[0]


def test_without_anything_all_is_one_step(opened):
    profile = Profile()
    profile.host("aten::mm", 10, 90)
    trace = opened(profile)
    assert list(trace.of_kind(Kind.STEP).step) == [0]
    assert "marks neither steps nor optimizers: all of it is taken as one step" in trace.limits[0]


def test_without_anything_the_training_thread_is_not_that_of_autograd(opened):
    profile = Profile()
    profile.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 20)
    profile.host("aten::mm", 40, 20)
    for at in range(100, 200, 20):
        profile.host("autograd::engine::evaluate_function: MmBackward0", at, 15, tid=2)
        profile.host("MmBackward0", at + 1, 13, tid=2)
    assert ("INPUT", 0, 20, 20) in named(opened(profile))


def test_what_a_step_launched_belongs_to_it_however_late_it_runs(opened):
    profile = two_steps()
    profile.kernel("late", 3900, 4700, 50)
    spans = opened(profile).of_kind(Kind.SPAN)
    assert list(spans.step[spans.exit_ns - spans.enter_ns == 50_000]) == [3]


@pytest.mark.parametrize("aside", [False, True])
def test_the_first_step_begins_when_a_device_that_lags_behind_comes_to_it(opened, aside):
    """Steps of 1 ms on the device, 5 ms after the host: the capture lacks what ran then, but not
    what a stream of its own did at once."""
    profile = Profile()
    if aside:
        profile.kernel("copy_in", 5, 15, 3, stream=9)
    for number in range(3):
        profile.step(number, 100 * number, 100)
        profile.kernel("gemm", 100 * number + 20, 5000 + 1000 * number, 1000)
    steps = opened(profile).of_kind(Kind.STEP)
    assert (steps.exit_ns - steps.enter_ns).tolist() == [1_000_000] * 3


def test_a_first_kernel_that_begins_late_moves_the_host_time_before_it_by_its_lag_at_most(opened):
    """200 ms of loading, then a call of 1 µs and a kernel 59 µs after its end."""
    profile = Profile()
    profile.step(0, 0, 200_050)
    profile.kernel("gemm", 200_000, 200_060, 1000)
    steps = opened(profile).of_kind(Kind.STEP)
    assert (steps.exit_ns - steps.enter_ns).tolist() == [(200_060 + 1000 - 59) * 1000]


def test_what_lies_outside_every_step_is_in_none_that_has_a_record(opened):
    profile = two_steps()
    profile.collective(2000, 2010, 5)
    profile.collective(5500, 5510, 5)
    trace = opened(profile)
    assert sorted(trace.of_kind(Kind.COLLECTIVE).step) == [2, 3, 4, 5]
    assert list(trace.of_kind(Kind.STEP).step) == [3, 4]


def test_marked_phases_count_their_leaf_time(opened):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 10)
    profile.note("## forward ##", 20, 30)
    profile.note("DistributedDataParallel.forward", 25, 20)
    assert named(opened(profile)) == [
        ("INPUT", 5, 10, 10), ("FORWARD", 20, 30, 10), ("FORWARD", 25, 20, 20),
    ]  # fmt: skip


def test_a_backward_nobody_marked_is_where_autograd_works(opened):
    profile = Profile()
    profile.step(0, 0, 200)
    profile.note("DistributedDataParallel.forward", 10, 40)
    for begin in (60, 80, 100):
        profile.host("autograd::engine::evaluate_function: MmBackward0", begin, 15, tid=2)
    profile.note("Optimizer.step#SGD.step", 150, 20)
    trace = opened(profile)
    assert named(trace)[1] == ("BACKWARD", 60, 55, 55)
    assert trace.of_kind(Kind.PHASE).flags[1] & Flag.INFERRED


def test_two_backwards_with_a_forward_between_are_two(opened):
    profile = Profile()
    profile.step(0, 0, 200)
    for begin in (10, 100):
        profile.note("DistributedDataParallel.forward", begin, 30)
        profile.host("autograd::engine::evaluate_function: MmBackward0", begin + 40, 15)
    assert [name for name, *_ in named(opened(profile))] == ["FORWARD", "BACKWARD"] * 2


def test_a_forward_nobody_marked_is_what_lies_before_the_backward(opened):
    profile = Profile()
    profile.step(0, 0, 200)
    profile.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 20)
    profile.host("autograd::engine::evaluate_function: MmBackward0", 80, 15)
    assert named(opened(profile))[1] == ("FORWARD", 20, 60, 60)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Optimizer.zero_grad#SGD", Phase.OPTIMIZER), ("## optimizer ##", Phase.OPTIMIZER),
        ("## data_load ##", Phase.INPUT), ("[pl][profile]run_training_batch", None),
        ("[pl][module]train_dataloader_next", Phase.INPUT), ("FullyShardedDataParallel.forward",
        Phase.FORWARD), ("[pl][profile][Strategy]DDPStrategy.backward", Phase.BACKWARD),
        ("save_checkpoint", Phase.CHECKPOINT), ("## Request wait() ##", None),
        ("evaluate", Phase.EVALUATION), ("nccl:all_reduce", None), ("ProfilerStep#4", None),
    ],
)  # fmt: skip
def test_annotations_mark_phases_by_their_usual_names(name, expected):
    assert phase(name) is expected


@pytest.mark.parametrize(("first", "before", "after"), [(3, 2, 5), (0, 3, 2)])
def test_a_time_in_no_step_has_a_number_that_no_step_has(first, before, after):
    steps = Steps(np.array([first, first + 1]), np.array([10, 20]), np.array([20, 30]), 1)
    at = steps.at(np.array([9, 10, 19, 20, 30, 31]))
    assert at.tolist() == [before, first, first, first + 1, first + 1, after]


def test_keys_find_their_last_row_and_no_key_finds_none():
    found = lookup(np.array([3, 0, 3]), np.array([0, 3, 5, -1]))
    assert found.tolist() == [1, 2, -1, -1]
    assert lookup(np.array([], int), np.array([0, 1])).tolist() == [-1, -1]
