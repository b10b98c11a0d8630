import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.formulas import pipeline
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import MS, scenario

QUICK = ("cluster.nic_latency_us=0", "fabric.latency_us=0", "run.steps=1", "work.kind=pipeline")


def length(stages, batches, *sets, hop_ms=0.0):
    """Of a step whose micro-batches take 1 ms forward and 2 ms backward."""
    asked = scenario(
        f"cluster.nodes={stages}", *QUICK, f"work.pipeline_parallel={stages}",
        f"work.micro_batches={batches}", f"work.forward_ms={batches}",
        f"work.backward_ms={2 * batches}", f"work.message_bytes={round(hop_ms * 12.5e6)}", *sets,
    )  # fmt: skip
    return simulate(asked).step_time.mean_ns / MS


@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 4), (4, 8), (8, 3)])
def test_a_pipeline_has_its_bubble(stages, batches):
    """(m + p - 1)(f + b), Narayanan et al. 2021."""
    assert length(stages, batches) == pytest.approx((batches + stages - 1) * 3)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 6))
def test_chunks_shorten_the_bubble_as_published(stages, groups, interleaved):
    """(m + (p - 1)/v) t, Narayanan et al. 2021, section 2.2."""
    batches = groups * stages
    closed = pipeline(batches, stages=stages, interleaved=interleaved, per_micro_batch=3.0)
    assert length(stages, batches, f"work.interleaved={interleaved}") == pytest.approx(closed)


def test_chunks_send_more_often():
    """With free hops chunks are faster; with dear ones their many hops cost more."""
    assert length(4, 4, "work.interleaved=4") < length(4, 4)
    assert length(4, 4, "work.interleaved=4", hop_ms=3.0) > length(4, 4, hop_ms=3.0)


def test_all_forwards_first_have_the_same_bubble():
    assert length(4, 8, "work.schedule=gpipe") == pytest.approx(length(4, 8))


@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (8, 16)])
def test_gradients_of_weights_fill_the_bubble(stages, batches):
    """m (f + b + w) + (p - 1)(f + b - w), Qi et al. 2023, ZB-H1; here f = b = w."""
    found = length(stages, batches, "work.schedule=zero_bubble")
    assert found == pytest.approx(3 * batches + stages - 1)


def test_chunks_need_whole_groups_of_micro_batches():
    with pytest.raises(ConfigError, match="multiple of the 4 stages, found 6"):
        scenario("cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=4",
                 "work.micro_batches=6", "work.interleaved=2")  # fmt: skip
