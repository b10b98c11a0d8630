import pytest

from evenstep.errors import ConfigError
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import MS, scenario

JOB = (
    "cluster.nodes=8", "work.forward_ms=60", "work.backward_ms=90", "work.buckets=3",
    "work.gradient_bytes=1800MB", "collectives.algorithm=ring", "run.steps=20", "run.warm_up=5",
)  # fmt: skip


def step_ms(*sets):
    return simulate(scenario(*JOB, *sets)).step_time.mean_ns / MS


def test_urgent_buckets_hide_all_but_two_layers_of_the_forward():
    """Bucket 0 goes first, as nothing else is there; then those of layers 0 … b-2, then only two
    layers of the forward and one of the backward keep the link idle: m + (2F + B)/b."""
    found = simulate(scenario(*JOB, "strategy.kind=priority"))
    m = 3 * found.collectives[0].alone_ns / MS
    assert found.step_time.mean_ns / MS == pytest.approx(m + (2 * 60 + 90) / 3, rel=1e-3)


def test_gradients_of_several_micro_batches_are_sent_during_the_last():
    """The link is idle during all but the first forward and the last backward of the step, too."""
    found = simulate(scenario(*JOB, "strategy.kind=priority", "work.micro_batches=2"))
    m = 3 * found.collectives[0].alone_ns / MS
    expected = m + (60 + 90) / 2 + (2 * 60 + 90) / 3 / 2
    assert found.step_time.mean_ns / MS == pytest.approx(expected, rel=1e-3)


def test_priority_is_never_slower_than_sending_in_order():
    for size in ("10MB", "300MB", "900MB", "3000MB"):
        both = [step_ms(f"work.gradient_bytes={size}", f"strategy.kind={kind}")
                for kind in ("priority", "synchronous")]  # fmt: skip
        assert both[0] <= both[1] * (1 + 1e-9)


def test_a_step_is_never_shorter_than_its_compute_or_its_transfers():
    found = simulate(scenario(*JOB, "strategy.kind=priority"))
    m = 3 * found.collectives[0].alone_ns / MS
    assert found.step_time.mean_ns / MS >= max(150, m)


def test_priority_needs_buckets_that_overlap():
    with pytest.raises(ConfigError, match="with work"):
        scenario(*JOB, "strategy.kind=priority", "work.overlap=false")
