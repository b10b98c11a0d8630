"""Work that grows slowly on one place, against worlds whose losses are known."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.modes.thermal_drift import _rise, drifts
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.synthetic import BOOT_NS, MS, World, with_rows

STEPS = 160


def drifting(ranks, top_ms, course, noise=0.01, *, computing=True):
    """Eight ranks on two nodes; the given ones get slower as `course` of the run (0 to 1) says."""
    world = World(ranks=8, steps=STEPS, ranks_per_node=4, noise=noise)
    table = world.everywhere()
    table[:, ranks] = (top_ms * MS * course(np.linspace(0, 1, STEPS)))[:, None]
    return world.delayed(Phase.BACKWARD, table, computing=computing)


def linear(time):
    return time


def late(time):
    return np.clip(2 * time - 1, 0, 1)


def saturating(time):
    return 1 - np.exp(-4 * time)


def sampled(world, rank, **course):
    """The world's trace with samples of metrics over its time."""
    trace = world.trace()
    trace = replace(trace, names=("", *(name.replace("__", ".") for name in course)))
    times = np.linspace(BOOT_NS, trace.events.exit_ns.max(), 20).astype(np.int64)
    for number, (first, last) in enumerate(course.values(), 1):
        values = np.linspace(first, last, 20)
        trace = with_rows(
            trace, rank=rank, kind=Kind.SAMPLE, name=number, enter_ns=times, exit_ns=times,
            bytes_in=values.view(np.uint64),
        )  # fmt: skip
    return trace


@pytest.mark.parametrize("course", [linear, late, saturating])
def test_a_rank_that_slows_down_is_named_with_its_cost(course, worst):
    world = drifting([3], 30, course)
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("thermal_drift", [3])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_work_that_wanders_on_all_ranks_drifts_on_none():
    """First-order noise of .97: of the ranks one ends slower than it began, others quicker."""
    told = []
    for seed in range(12):
        wander = np.random.default_rng(seed).standard_normal((STEPS, 16))
        for step in range(1, STEPS):
            wander[step] = 0.97 * wander[step - 1] + (1 - 0.97**2) ** 0.5 * wander[step]
        world = World(ranks=16, steps=STEPS).delayed(Phase.BACKWARD, (4 + wander) * 1.5 * MS)
        told.append(bool(drifts(open_case(world.trace()))))
    assert sum(told) <= 1


def test_a_node_drifts_as_a_whole_where_no_rank_of_it_clearly_does():
    world = drifting([4, 5, 6, 7], 14, linear, noise=0.1)
    assert sorted(one.rank for one in drifts(open_case(world.trace()))) == [4, 5, 6, 7]


def test_a_drift_costs_its_rise_also_where_noise_hides_its_single_steps():
    world = World(ranks=16, steps=STEPS, ranks_per_node=4, noise=0.15)
    table = world.everywhere()
    table[:, 4:8] = (14 * MS * linear(np.linspace(0, 1, STEPS)))[:, None]
    slower = world.delayed(Phase.BACKWARD, table, computing=True)
    (finding,) = [one for one in diagnose(slower.trace()).findings if one.mode == "thermal_drift"]
    assert sorted(finding.where.ranks) == [4, 5, 6, 7]
    assert finding.severity == pytest.approx(slower.injected_share(), rel=0.15)


@pytest.mark.parametrize(
    "course",
    [
        np.arange(14) / 13,
        np.maximum(np.arange(14) - 3, 0) / 10,
        np.maximum(np.arange(14) - 7, 0) / 6,
        1 - np.exp(-np.arange(14) / 4),
    ],
)
@pytest.mark.parametrize("first", [0.0, -0.5])
def test_a_rise_is_that_of_its_steps_wherever_it_begins(course, first):
    """Of few steps, of which the first may be short; what bends is told to a step's rise."""
    risen = _rise(np.arange(14), course + np.where(np.arange(14) > 0, 0.0, first))
    assert risen == pytest.approx(course, abs=0.06)


def test_a_rank_that_was_late_before_it_slowed_down_a_little_is_a_straggler(worst):
    world = drifting([3], 30, lambda time: 1 + 0.2 * time)
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("straggler", [3])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_a_node_that_slows_down_is_one_finding(worst):
    world = drifting([4, 5, 6, 7], 25, linear)
    finding = worst(world)
    assert finding.mode == "thermal_drift"
    assert (sorted(finding.where.ranks), finding.where.nodes) == ([4, 5, 6, 7], ["node1"])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_a_rank_of_the_same_node_that_hardly_slows_down_is_not_named_beside_one_that_does(worst):
    world = drifting([5], 40, linear)
    world = world.delayed(Phase.BACKWARD, drifting([6], 6, linear).delays[0].ns)
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("thermal_drift", [5])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_ranks_of_hosts_that_nobody_names_drift_together():
    world = drifting([4, 5, 6, 7], 25, linear)
    trace = world.trace()
    for info in trace.ranks.values():
        info.facts["node"] = ""
    (finding,) = [one for one in diagnose(trace).findings if one.mode == "thermal_drift"]
    assert sorted(finding.where.ranks) == [4, 5, 6, 7]
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_the_onset_is_where_the_growth_begins(worst):
    ((first, last),) = worst(drifting([3], 30, late)).when.steps
    assert STEPS / 2 < first < 0.65 * STEPS
    assert last == STEPS - 1


@pytest.mark.parametrize(
    "course", [lambda t: t > 0.5, lambda t: (t > 0.3) & (t < 0.6), lambda t: 1 + 0 * t]
)
def test_a_sudden_or_steady_slowness_is_no_drift(course, worst):
    assert worst(drifting([3], 30, lambda t: course(t).astype(float))).mode == "straggler"


def test_a_rank_that_is_late_while_the_others_grow_faster_does_not_drift(worst):
    world = World(ranks=2, steps=STEPS, noise=0.01)
    table = world.everywhere()
    course = np.linspace(0, 1, STEPS)
    table[:, 0], table[:, 1] = 20 * MS * (1 - course), 25 * MS + MS * course
    finding = worst(world.delayed(Phase.BACKWARD, table, computing=True))
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])


def test_clocks_and_temperatures_are_the_evidence(evidence):
    world = drifting([3], 30, linear)
    trace = sampled(world, 3, gpu__temperature_celsius=(60, 90), gpu__sm_clock_mhz=(1980, 1500))
    finding = diagnose(trace).findings[0]
    assert "its clock falls from" in finding.cause
    # medians of the last of four quarters of 20 samples, 60 to 90 °C
    assert evidence(finding)["temperature"] == pytest.approx(60 + 30 * 17 / 19, abs=0.1)


def test_without_samples_heat_is_not_claimed(worst):
    assert "not sampled" in worst(drifting([3], 30, linear)).cause


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_noise_that_wanders_is_rarely_a_drift(memory):
    """What keeps its level for half a run, as with a memory of .98, is one there in three times."""
    random, found = np.random.default_rng(0), 0
    for seed in range(6):
        wander = random.standard_normal((STEPS, 8))
        for i in range(1, STEPS):
            wander[i] = memory * wander[i - 1] + wander[i] * np.sqrt(1 - memory**2)
        world = World(ranks=8, steps=STEPS, noise=0.005, seed=seed, buckets=2)
        case = open_case(world.delayed(Phase.BACKWARD, (8 + 2 * wander) * MS).trace())
        found += bool(drifts(case))
    assert found <= 1


def test_a_process_that_stands_still_ever_longer_does_not_heat():
    finding = diagnose(drifting([2], 40, linear, computing=False).trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [2])


def suddenly(time):
    return (time >= 0.5).astype(float)


@pytest.mark.parametrize("course", [linear, late])
def test_what_slows_all_ranks_down_is_a_loss_of_nobody(course, worst):
    """Machines that share a fan or a power limit have no others beside them."""
    world = drifting(list(range(8)), 40, course)
    finding = worst(world)
    assert (finding.mode, list(finding.where.ranks)) == ("thermal_drift", [])
    assert [one.metric for one in finding.evidence] == ["growth_of_own_work"]
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def in_stages(time):
    return np.searchsorted([0.3, 0.55, 0.8], time) / 3


@pytest.mark.parametrize("course", [suddenly, in_stages])
def test_batches_that_are_longer_from_a_step_on_are_no_loss(course):
    """A curriculum of lengths: what else is slow is found beside it."""
    world = drifting(list(range(8)), 40, course)
    assert not diagnose(world.trace()).findings
    late = np.zeros((STEPS, 8))
    late[:, 5] = 30 * MS
    (found,) = diagnose(world.delayed(Phase.BACKWARD, late).trace()).findings
    assert (found.mode, found.where.ranks) == ("straggler", [5])


@pytest.mark.parametrize("steps", [12, 16])
@pytest.mark.parametrize(("course", "drifts"), [(linear, True), (suddenly, False)])
def test_few_steps_tell_what_grows_from_what_jumps(course, drifts, steps):
    grown = 40 * MS * course(np.linspace(0, 1, steps))[:, None]
    world = World(steps=steps, ranks=8, noise=0.005).delayed(Phase.BACKWARD, grown)
    found = [one.mode for one in diagnose(world.trace()).findings]
    assert found == ["thermal_drift"] * drifts


@pytest.mark.parametrize("course", [suddenly, in_stages])
def test_a_node_that_is_slow_in_proportion_to_its_work_does_not_drift(course, worst):
    """Longer batches take a slow node longer, too."""
    everybody = drifting(list(range(8)), 100, course)
    slow = np.zeros((STEPS, 8))
    slow[:, 4:] = 0.3 * (100 + 100 * course(np.linspace(0, 1, STEPS)))[:, None] * MS
    finding = worst(everybody.delayed(Phase.BACKWARD, slow))
    assert (finding.mode, sorted(finding.where.ranks)) == ("straggler", [4, 5, 6, 7])


def test_of_a_job_of_one_rank_nothing_is_said_of_all_ranks():
    world = World(steps=STEPS, ranks=1, noise=0.01)
    growing = 30 * MS * linear(np.linspace(0, 1, STEPS))[:, None]
    found = diagnose(world.delayed(Phase.BACKWARD, growing, computing=True).trace()).findings[0]
    assert (found.mode, found.title) == ("thermal_drift", "Slowing down")
    assert found.cause.startswith("it works longer than at the beginning")


def test_a_half_that_slows_down_leaves_the_other_as_it_is():
    """With noise of 30 % the middle of all 16 is at first that of all, then the last of eight."""
    world = World(ranks=16, steps=80, ranks_per_node=8, noise=0.3)
    table = world.everywhere()
    table[:, 8:] = 60 * MS * linear(np.linspace(0, 1, 80))[:, None]
    found = diagnose(world.delayed(Phase.BACKWARD, table, computing=True).trace()).findings
    drifted = [sorted(one.where.ranks) for one in found if one.mode == "thermal_drift"]
    assert drifted == [list(range(8, 16))]


def test_a_rank_that_slows_down_slows_not_all_of_them():
    found = diagnose(drifting([3], 30, linear).trace()).findings
    assert [one.where.ranks for one in found if one.mode == "thermal_drift"] == [[3]]
