"""The four callbacks against the real packages, and what a trace of each says."""

import numpy as np
import pytest

from evenstep.trace.spool.layout import Kind, Phase
from tests.frameworks.conftest import ACCUMULATED, BATCH, JOBS, STEPS


@pytest.fixture(params=list(JOBS))
def observed(request, job):
    return job(request.param)


def test_the_wait_is_the_delay_that_was_injected(observed):
    assert observed.wait_ns == pytest.approx(observed.late_ns, rel=0.10)


def test_a_step_is_an_update_of_the_parameters_not_a_batch(observed):
    steps = observed.trace.of_kind(Kind.STEP)
    assert np.bincount(steps.rank).tolist() == [STEPS, STEPS]


def test_the_batch_is_known(observed):
    """Loaders may read ahead, so that only the whole run is exact."""
    steps = observed.trace.of_kind(Kind.STEP)
    whole = 2 * STEPS * ACCUMULATED * BATCH
    assert steps.payload.sum() == whole
    assert np.median(steps.payload) == ACCUMULATED * BATCH
    assert observed.diagnosis.summary["throughput"]["unit"] == "samples/s"


def test_forward_and_backward_are_those_of_each_batch(observed):
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert len(observed.phases(phase)) == STEPS * ACCUMULATED


def test_a_checkpoint_is_one_phase_on_every_rank(observed):
    """What is counted inside of it is not counted twice: leaf times add up to no more than it."""
    for rank in range(2):
        saves = observed.phases(Phase.CHECKPOINT, rank)
        first = saves.select(saves.step == saves.step.min())
        assert first.enter_ns[0] == first.enter_ns.min()
        assert first.exit_ns[0] == first.exit_ns.max()
        assert first.group_seq.sum() <= first.exit_ns[0] - first.enter_ns[0]


@pytest.mark.parametrize("package", ["lightning", "transformers", "accelerate"])
def test_an_evaluation_is_one_phase_that_contains_its_input(package, job):
    observed = job(package)
    evaluation, inputs = observed.phases(Phase.EVALUATION), observed.phases(Phase.INPUT)
    begin, end = evaluation.enter_ns[0], evaluation.exit_ns[0]
    inside = (inputs.enter_ns >= begin) & (inputs.exit_ns <= end)
    assert inside.sum() >= 10  # its batches
    training = observed.phases(Phase.BACKWARD)
    assert not ((training.enter_ns > begin) & (training.exit_ns < end)).any()


def test_a_version_that_was_tested_says_nothing(observed):
    assert not [line for line in observed.diagnosis.limits if line.startswith("callback")]


def test_what_the_trainer_logs_is_beside_its_times(job):
    trace = job("transformers").trace
    markers = trace.of_kind(Kind.MARKER)
    assert {"loss", "grad_norm"} <= {trace.names[name] for name in markers.name}
