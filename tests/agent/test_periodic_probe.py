"""The probe inside a job: two ranks of gloo that measure their machine every few steps."""

from statistics import median

import pytest

from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.trace.spool.layout import Kind
from tests.agent.conftest import finish
from tests.agent.probe_job import EVERY, PAUSE_S, STEPS
from tests.forks import start


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    return finish(start("tests.agent.probe_job", folder, cwd=folder), folder)


def test_both_ranks_measure_after_the_same_steps(job):
    trace = job.trace("slow")
    for metric in ("probe.compute_ns", "probe.memory_ns"):
        found = metric_samples(trace, metric)
        for rank in (0, 1):
            steps = found.step[found.rank == rank].tolist()
            assert steps == list(range(EVERY, STEPS + 1, EVERY))
        assert (found.value > 0).all()
    assert not metric_samples(trace, "probe.host_copy_ns")  # there is no device


def test_what_a_machine_takes_longer_shows_in_its_probe(job):
    found = metric_samples(job.trace("slow"), "probe.compute_ns")
    assert found.value[found.rank == 1].min() > PAUSE_S * 1e9


def test_what_the_probe_takes_counts_as_cost_of_ours(job):
    trace = job.trace("slow")
    steps = trace.summaries[trace.summary_rank == 0]
    cost = dict(zip(steps["first_step"].tolist(), steps["agent_ns"].tolist(), strict=True))
    probed = [cost[step] for step in range(EVERY, STEPS, EVERY)]
    others = [cost[step] for step in cost if step > 1 and step % EVERY]  # 1: it makes its buffers
    assert median(probed) > 3 * median(others)


def test_a_probe_that_fails_is_given_up_and_the_job_is_observed_on(job):
    trace = job.trace("broken")
    assert "no memory left" in trace.ranks[1].facts["periodic probe"]
    assert set(metric_samples(trace, "probe.memory_ns").rank.tolist()) == {0}
    steps = trace.of_kind(Kind.STEP)
    assert [int((steps["rank"] == rank).sum()) for rank in (0, 1)] == [STEPS, STEPS]
