"""What a slow stage of a pipeline costs, against the same pipeline without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure import grid
from tests.diagnose.pipelines import Pipeline

PIPELINES = st.builds(
    Pipeline,
    stages=st.integers(2, 4),
    micro_batches=st.integers(2, 6),
    transfer_ms=st.sampled_from([0.1, 2.0]),
    posted_early=st.booleans(),
    on_device=st.booleans(),
).filter(lambda one: not (one.posted_early and one.on_device))  # one transfer less is told of these


def worst(trace):
    return diagnose(trace).to_json()["findings"][0]


@settings(max_examples=22)
@given(PIPELINES, st.integers(0, 3), st.sampled_from([3.0, 20.0]))
@example(Pipeline(stages=2, micro_batches=2), 1, 3.0)
def test_a_stage_slow_in_forward_is_told_by_what_it_costs(pipeline, stage, slower_ms):
    slow = pipeline.slow(stage % pipeline.stages, slower_ms)
    cost = 1 - pipeline.length_ms() / slow.length_ms()
    found = worst(slow.trace())
    assert found["mode"] == "workload_imbalance"
    assert found["where"]["ranks"] == [stage % pipeline.stages]
    assert found["severity"] == pytest.approx(cost, rel=0.1)


def test_a_first_and_a_last_stage_that_are_slow_are_both_told_and_inner_ones_may_be_machines():
    calm = Pipeline(stages=4)
    assert worst(replace(calm, slower={2: 5.0, 3: 5.0}).trace())["mode"] == "straggler"
    slow = replace(calm, slower={0: 3.0, 3: 5.0})
    found = diagnose(slow.trace()).to_json()["findings"][:2]
    assert [each["where"]["groups"] for each in found] == [["stage 3"], ["stage 0"]]
    cost = 1 - calm.length_ms() / slow.length_ms()
    assert sum(each["severity"] for each in found) == pytest.approx(cost, rel=0.1)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("micro_batches", [2, 8])
def test_stops_of_all_stages_cost_what_they_last_wherever_the_stages_wait(device, micro_batches):
    """Every fifth step but the first, as what a program does after a step is seen in the next."""
    calm = Pipeline(stages=4, micro_batches=micro_batches, steps=41, on_device=device)
    stops = replace(calm, stops_ms=dict.fromkeys(range(5, 41, 5), 60.0))
    found = worst(stops.trace())
    assert found["mode"] == "synchronization_oscillation"
    assert found["severity"] == pytest.approx(1 - calm.length_ms() / stops.length_ms(), rel=0.05)


def test_early_receives_cost_no_more_than_those_posted_when_they_are_needed():
    late = Pipeline().slow(0, 20.0)
    early = replace(late, posted_early=True)
    severities = [worst(world.trace())["severity"] for world in (late, early)]
    assert severities[0] == pytest.approx(severities[1], abs=0.01)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("device", [False, True])
def test_in_a_pipeline_of_equal_stages_nobody_is_late(device, early):
    pipeline = Pipeline(stages=4, posted_early=early, on_device=device)
    found = diagnose(pipeline.trace()).to_json()["findings"]
    assert not [finding for finding in found if finding["where"]["ranks"]]


@pytest.mark.parametrize("link", [(0, 1), (2, 3)])
@pytest.mark.parametrize(
    ("device", "since", "often"),
    [(False, 0, "every step"), (True, 0, "every step"), (True, 12, "40 % of the steps")],
)
def test_a_slow_link_within_one_host_is_named_with_its_stages(link, device, since, often):
    """For all of the run, or from the thirteenth step on."""
    calm = Pipeline(stages=4, on_device=device, steps=20)
    slow = replace(calm, slow_link={link: 6.0}, slow_from={link: since})
    finding = diagnose(slow.trace()).findings[0]
    assert finding.mode == "fabric_contention"
    assert finding.title == f"Slow messages between ranks {link[0]} and {link[1]}"
    assert f"slower in {often}:" in finding.cause
    assert finding.severity == pytest.approx(1 - calm.length_ms() / slow.length_ms(), rel=0.1)


@pytest.mark.parametrize("since", [12, 22, 36])
def test_where_all_links_become_slow_together_none_is_named(since):
    links = {(stage, stage + 1): 6.0 for stage in range(3)}
    slow = Pipeline(stages=4, on_device=True, steps=40, slow_link=links)
    slow = replace(slow, slow_from=dict.fromkeys(links, since))
    assert "fabric_contention" not in {one.mode for one in diagnose(slow.trace()).findings}


def test_of_two_slow_links_the_costlier_is_told_with_its_own_steps_and_times():
    """One of 6 ms more in the last half of 40 steps, and one of 2 ms more in all."""
    slow = Pipeline(stages=4, on_device=True, steps=40, slow_link={(0, 1): 6.0, (2, 3): 2.0})
    finding = diagnose(replace(slow, slow_from={(0, 1): 20}).trace()).findings[0]
    assert finding.title == "Slow messages between ranks 0 and 1"
    assert "slower in 50 % of the steps:" in finding.cause
    assert "take 6.5 ms" in finding.observation


def test_a_slow_link_of_a_run_too_large_to_hold_is_slow_in_the_steps_between_those_held():
    trace = Pipeline(stages=4, on_device=True, steps=80, slow_link={(0, 1): 6.0}).trace()
    with pytest.MonkeyPatch.context() as small:
        small.setattr(grid, "WINDOW_RECORDS", len(trace.events) // 3)
        small.setattr(grid, "_SAMPLE_RECORDS", len(trace.events) // 4)
        finding = diagnose(trace).findings[0]
    assert "slower in every step:" in finding.cause
    assert finding.when.pattern == "chronic"
