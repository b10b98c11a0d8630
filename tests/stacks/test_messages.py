"""What a slow stage of a pipeline costs, against the same pipeline without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from tests.stacks.pipelines import Pipeline

PIPELINES = st.builds(
    Pipeline,
    stages=st.integers(2, 4),
    micro_batches=st.integers(2, 6),
    transfer_ms=st.sampled_from([0.1, 2.0]),
    posted_early=st.booleans(),
)


def worst(trace):
    return diagnose(trace).to_json()["findings"][0]


@settings(max_examples=25)
@given(PIPELINES, st.integers(0, 3), st.sampled_from([3.0, 20.0]))
def test_a_slow_stage_is_told_by_a_good_part_of_its_cost_and_no_more(pipeline, stage, slower_ms):
    # Slow in forward only: what a stage has too much is taken from all it does.
    slow = pipeline.slow(stage % pipeline.stages, slower_ms)
    cost = 1 - pipeline.length_ms() / slow.length_ms()
    found = worst(slow.trace())
    assert found["mode"] == "workload_imbalance"
    assert found["where"]["ranks"] == [stage % pipeline.stages]
    assert cost / 3 <= found["severity"] <= 1.02 * cost


def test_early_receives_cost_no_more_than_those_posted_when_they_are_needed():
    late = Pipeline().slow(0, 20.0)
    early = replace(late, posted_early=True)
    severities = [worst(world.trace())["severity"] for world in (late, early)]
    assert severities[0] == pytest.approx(severities[1], abs=0.01)


def test_in_a_pipeline_of_equal_stages_nobody_is_late():
    found = diagnose(Pipeline().trace()).to_json()["findings"]
    assert not [finding for finding in found if finding["where"]["ranks"]]
