import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate import formulas

TIMES = st.floats(0, 10)


def by_buckets(forward, backward, transfer, buckets):
    """Every bucket in turn: sent when it is ready and the one before has gone."""
    sent = 0.0
    for bucket in range(1, buckets + 1):
        sent = max(sent, backward * bucket / buckets) + transfer / buckets
    return forward + max(sent, backward)


@given(TIMES, TIMES, TIMES, st.integers(1, 60))
def test_overlap_agrees_with_sending_bucket_by_bucket(forward, backward, transfer, buckets):
    step = formulas.overlapped_step(
        forward=forward, backward=backward, transfer=transfer, buckets=buckets
    )
    assert step.time == pytest.approx(by_buckets(forward, backward, transfer, buckets))


#: 10 buckets of 10 MB, 64 ranks, 10 GB/s, 2 µs a message, in ms.
BUCKETS_MS = 10 * 2 * 63 * (2e-3 + 10e6 / 64 / 10e9 * 1e3)


@pytest.mark.parametrize(
    ("forward", "backward", "time"),
    [(50, 100, 152.2207), (50, 10, 73.2075), (60, 120, 182.2207), (60, 12, 83.4075)],
    ids=["A", "B", "C, a rank 1.2 × slower", "D, a rank 1.2 × slower"],
)
def test_the_exact_workload_with_overlap_is_met(forward, backward, time):
    step = formulas.overlapped_step(
        forward=forward, backward=backward, transfer=BUCKETS_MS, buckets=10
    )
    assert step.time == pytest.approx(time, abs=1e-3)


def test_hidden_communication_costs_nothing():
    assert formulas.serial(compute=2.0, transfer=1.0, hidden=1.0).efficiency == 1
    assert formulas.serial(compute=2.0, transfer=2.0).efficiency == 0.5


def test_gpt3_needs_the_arithmetic_its_paper_says():
    # Brown et al. 2020, table D.1: 3.14·10^23 FLOP for 174.6 B parameters and 300 B tokens
    assert formulas.transformer_flops(174.6e9, 300e9) == pytest.approx(3.14e23, rel=0.01)


def test_megatrons_count_is_six_per_parameter_and_a_little():
    flops = formulas.megatron_flops(1, layers=96, hidden=12288, sequence=2048, vocabulary=51200)
    parameters = 12 * 96 * 12288**2  # of the layers
    assert flops == pytest.approx(6 * parameters * (1 + 2048 / 6 / 12288 + 0.0036), rel=1e-3)


def test_a_pipeline_fills_once():
    assert formulas.pipeline(8, stages=4, per_micro_batch=1.0) == 11
    assert formulas.pipeline(8, stages=5, interleaved=4, per_micro_batch=1.0) == 9
