import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.sentences import partial
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World, with_missing

WORLDS = st.builds(
    World,
    ranks=st.sampled_from([2, 3, 4, 8, 12]),
    steps=st.sampled_from([20, 60]),
    style=st.sampled_from(["overlapped", "blocking", "gathered", "grid"]),
    noise=st.floats(0, 0.02),
    seed=st.integers(0, 10**6),
    exit_lag_ns=st.sampled_from([0.0, 0.3 * MS]),
    ranks_per_node=st.sampled_from([2, 64]),
    clocks=st.just({1: (1e9, 2e-5), 2: (-4e8, -3e-5)}),
)


@settings(max_examples=12, deadline=None)
@given(WORLDS)
def test_noise_alone_never_has_a_culprit_nor_a_finding_above_the_threshold(world):
    found = diagnose(world.trace()).findings
    assert all(finding.severity < 0.05 for finding in found)
    assert not any(finding.where.ranks for finding in found if finding.severity >= 0.02)


@settings(max_examples=12, deadline=None)
@given(WORLDS, st.integers(0, 1), st.sampled_from(list(Phase)), st.floats(0, 200))
def test_time_is_lost_once_and_shares_add_up(world, rank, phase, delay_ms):
    diagnosis = diagnose(world.slow(rank, phase, delay_ms * MS).trace())
    assert sum(finding.severity for finding in diagnosis.findings) <= 1 + 1e-3
    assert sum(diagnosis.summary["shares"].values()) == pytest.approx(1, abs=1e-9)


def test_a_healthy_run_is_told_to_be_healthy():
    verdict = diagnose(World(noise=0.005).trace()).verdict
    assert verdict.startswith("Nothing costs 5 % of step time or more: the parts are healthy")
    assert "fabric" not in verdict  # all ranks share one host


def test_noise_grows_into_amplification_without_a_culprit(worst):
    finding = worst(World(ranks=32, noise=0.15))
    assert (finding.mode, finding.layer) == ("synchronization_amplification", "coupling")
    assert finding.where.ranks == ()


def test_shares_are_those_of_the_program():
    shares = diagnose(World().trace()).summary["shares"]
    # 0.2 ms input, 64 ms compute and one exposed transfer of 0.5 ms
    assert shares["compute"] == pytest.approx(64 / 64.7)
    assert shares["exposed_communication"] == pytest.approx(0.5 / 64.7)
    assert shares["input"] == pytest.approx(0.2 / 64.7)


def test_that_throughput_is_in_steps_for_lack_of_a_ranks_batch_is_said():
    lacking = with_missing(World(ranks=4, samples=8).trace(), 2)
    told = "throughput is in steps"
    for trace, says in ((lacking, True), (World().trace(), False)):
        diagnosis = diagnose(trace)
        assert any(limit.startswith(told) for limit in diagnosis.limits) == says
        assert (told in partial(diagnosis.summary, diagnosis.limits)) == says


def test_throughput_counts_samples_where_every_rank_knows_them():
    rate = diagnose(World(ranks=4, samples=8).trace()).summary["throughput"]
    assert rate == {"value": pytest.approx(4 * 8 / 64.7e-3), "unit": "samples/s"}
    assert diagnose(World().trace()).summary["throughput"]["unit"] == "steps/s"
