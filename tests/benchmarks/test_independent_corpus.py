"""The laws of the independent corpus's own generator: closed forms and hand-worked runs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import evenstep
from benchmarks.independent.case import Case, run
from benchmarks.independent.cases import build
from benchmarks.independent.faults import SlowIssue, SlowRanks
from benchmarks.independent.job import Spec, World, shapley
from benchmarks.independent.judge import judged
from benchmarks.independent.machine import ALL_REDUCE, SAMPLE, Communicator, Machine
from benchmarks.independent.pipelines import bubble, schedule
from evenstep.trace.spool.layout import Kind

QUIET = Spec(seed=1, world=2, per_node=2, steps=4, noise_cv=0, spread=0, transfer_cv=0)


def test_two_ranks_meet_when_the_later_has_entered():
    machine = Machine(2, on_device=False)
    both = Communicator(0, "default_pg", np.array([[0, 1]]), link="node")
    machine.work(machine.everyone, np.array([1.0, 3.0]), None)
    machine.collective(both, ALL_REDUCE, 8, np.array([0.5]), np.zeros(2), blocking=True)
    assert machine.host.tolist() == [3.5, 3.5]
    assert machine.blocked.tolist() == [2.5, 0.5]


def test_a_collective_queues_behind_the_one_before_it():
    machine = Machine(2, on_device=False)
    both = Communicator(0, "default_pg", np.array([[0, 1]]), link="node")
    first = machine.collective(both, ALL_REDUCE, 8, np.array([2.0]), np.zeros(2), blocking=False)
    machine.work(machine.everyone, np.array([1.0, 1.0]), None)
    second = machine.collective(both, ALL_REDUCE, 8, np.array([2.0]), np.zeros(2), blocking=False)
    machine.wait([first, second], np.zeros(2))
    assert machine.host.tolist() == [4.0, 4.0]


def test_a_device_works_behind_its_host_and_no_faster():
    machine = Machine(1, on_device=True)
    for _ in range(3):
        machine.work(machine.everyone, np.array([1.0]), np.array([2.0]))
    assert machine.host[0] == 3.0
    assert machine.device[0] == pytest.approx(6.0, abs=1e-4)


@pytest.mark.parametrize(("kernels", "stamped"), [(False, 1.0), (True, 2.0)])
def test_a_kernel_begins_once_the_one_before_it_is_over(kernels, stamped):
    """Compute comes to the second all-reduce after 1 s, when the first has one of its 2 s left."""
    machine = Machine(1, True, [], kernels)
    alone = Communicator(0, "default_pg", np.array([[0]]), link="node")
    machine.collective(alone, ALL_REDUCE, 8, np.array([2.0]), np.zeros(1), blocking=False)
    machine.work(machine.everyone, np.array([0.1]), np.array([1.0]))
    machine.collective(alone, ALL_REDUCE, 8, np.array([2.0]), np.zeros(1), blocking=False)
    assert machine.tape[-1]["device_enter"] == pytest.approx(stamped, abs=1e-4)
    assert machine.tape[-1]["device_exit"] == pytest.approx(4.0, abs=1e-4)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("stack", ["ddp", "fsdp", "tensor", "hierarchical", "moe"])
def test_without_a_fault_nothing_is_lost(stack, on_device):
    shape = {"tp": 2, "experts": 2}
    spec = Spec(seed=3, world=4, per_node=2, steps=5, on_device=on_device, shape=shape)
    case = Case(0, "hosts", stack, "none", spec, (SlowRanks((), ranks=(1,), strength=0.0),))
    assert case.loss == 0.0


def test_a_blocking_job_pays_all_that_its_slow_rank_works_more():
    spec = replace(QUIET, blocking=True, shape={"buckets": 1})
    slow = SlowRanks(("straggler",), (1,), ranks=(1,), strength=0.5)
    longer = run("ddp", spec, World((slow,))).took_s - run("ddp", spec, World()).took_s
    assert longer == pytest.approx(4 * 0.5 * spec.step_s, rel=0.01)


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 4), (4, 12)])
def test_an_even_pipeline_idles_as_its_closed_form_says(kind, stages, micro):
    shape = {"stages": stages, "micro": micro, "schedule": kind}
    spec = replace(QUIET, world=stages, per_node=stages, steps=1, step_s=10.0, shape=shape)
    job = run("pipeline", spec, World(no_transfer=True))
    busy = 0.95 * spec.step_s
    idle = 1 - busy / (job.took_s - (0.004 + 0.03) * spec.step_s)
    assert idle == pytest.approx(bubble(stages, micro), abs=1e-3)


def test_a_stage_runs_every_micro_batch_once_each_way():
    for stage in range(4):
        order = schedule("1f1b", stage, 4, 6)
        assert sorted(order) == sorted([(way, i) for way in "FB" for i in range(6)])
        assert all(order.index(("F", i)) < order.index(("B", i)) for i in range(6))


def test_values_of_two_causes_add_up_to_the_loss():
    a, b = shapley((10.0, 12.0, 13.0, 14.0))
    assert a + b == 4.0
    assert (a, b) == (1.5, 2.5)


@cache
def first(which):
    """The first case of a kind: of many numbers none can be made."""
    return next(case for number in range(400) if (case := build(number, which)) is not None)


@pytest.mark.parametrize("which", ["hosts/fsdp", "device/ddp", "pipelines/pipeline/host"])
def test_a_case_is_a_trace_that_loads_whole(tmp_path, which):
    case = first(which)
    case.write(tmp_path)
    trace = evenstep.load(tmp_path)
    assert trace.limits == []
    assert trace.world == len(trace.ranks) == case.spec.world
    assert len(trace.events) == sum(len(row["ranks"]) for row in case.recorded.machine.tape)
    assert len(trace.summaries) == case.spec.world * case.spec.steps


def test_the_trace_is_as_long_as_the_run(tmp_path):
    case = first("hosts/fsdp")
    case.write(tmp_path)
    events = evenstep.load(tmp_path).of_kind(Kind.STEP)
    ends = [events.exit_ns[events["rank"] == rank][-1] for rank in range(case.spec.world)]
    starts = [events.enter_ns[events["rank"] == rank][0] for rank in range(case.spec.world)]
    took_s = np.mean(np.array(ends) - np.array(starts)) / 1e9
    assert took_s == pytest.approx(case.took_s, abs=2e-3)  # ranks start within 2 ms


def test_the_same_number_is_the_same_case(tmp_path):
    for name in ("a", "b"):
        build(12).write(tmp_path / name)
    files = [sorted((tmp_path / name).rglob("*.spool")) for name in ("a", "b")]
    assert [one.read_bytes() for one in files[0]] == [one.read_bytes() for one in files[1]]


@pytest.mark.parametrize("number", [266, 590])
def test_pipelines_that_mark_nothing_are_diagnosed_right(number):
    """What is handed over and asked for in the same moment stands in the order of the calls."""
    verdict = judged(build(number))
    assert verdict.right
    assert verdict.identity == pytest.approx(0, abs=0.005)


SLOW_HOSTS = SlowIssue(("runtime_jitter",), None, strength=0.5, ranks=(0, 1))
FED_LATE = replace(QUIET, on_device=True, step_s=0.5, shape={"buckets": 1})


def test_drivers_say_for_how_long_kernels_ran():
    """Hosts take 1.5 times the 95 % of .5 s in forward and backward, and .2 % for input; what else
    a step takes, the all-reduce and the optimizer, kernels take."""
    spec = replace(FED_LATE, steps=60, seed=next(n for n in range(9) if sampled(n)))
    job = run("ddp", spec, World((SLOW_HOSTS,)), record=True)
    rows = [row for row in job.machine.tape if row["kind"] == SAMPLE and row["ranks"][0] == 0]
    busy, at = (np.array([row[name][0] for row in rows]) for name in ("bytes_in", "enter"))
    busy = np.average(busy.view("<f8")[:-1], weights=np.diff(at))
    step_s = job.took_s / 60
    idle_s = 0.5 * 0.95 * 0.5 + 0.004 * 0.5
    assert busy / 100 == pytest.approx(1 - idle_s / step_s, abs=0.02)


def sampled(seed):
    job = run("ddp", replace(FED_LATE, seed=seed), World(), record=True)
    return any(row["kind"] == SAMPLE for row in job.machine.tape)


def test_only_a_driver_tells_what_devices_that_are_always_fed_too_late_have_to_do():
    """Without one, the run in which they have nothing to do leaves the same trace."""
    blind, seeing = (next(n for n in range(9) if sampled(n) == told) for told in (False, True))
    specs = [replace(FED_LATE, seed=number, steps=20) for number in (blind, seeing)]
    cases = [Case(0, "device", "ddp", "launch_all", spec, (SLOW_HOSTS,)) for spec in specs]
    assert max(cases[0].unknown) > 2 * cases[0].loss
    assert min(cases[0].unknown) < 0.01
    assert cases[1].unknown == []


def test_devices_of_hosts_whose_clocks_drift_idle_as_long_as_their_driver_says():
    """Over 31 s clocks of two hosts, each up to 50 ppm off, part by about a millisecond."""
    spec = replace(FED_LATE, steps=60, per_node=1, blocking=True, noise_cv=0.02)
    seed = next(number for number in range(9) if sampled(number))
    verdict = judged(
        Case(0, "device", "ddp", "launch_all", replace(spec, seed=seed), (SLOW_HOSTS,))
    )
    assert verdict.said[0]["mode"] == "runtime_jitter"
    assert verdict.error == pytest.approx(0.0, abs=0.1)
