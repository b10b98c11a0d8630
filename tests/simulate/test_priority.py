import pytest

from evenstep.errors import ConfigError
from evenstep.simulate import simulation
from evenstep.simulate.simulation import simulate
from evenstep.simulate.wires.world_python import PythonWorld
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


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "tree", "direct"])
def test_urgent_buckets_go_one_at_a_time_where_their_messages_share_links(algorithm):
    sets = (
        "strategy.kind=priority", f"collectives.algorithm={algorithm}", "fabric.kind=leaf_spine",
        "fabric.nodes_per_leaf=2", "fabric.oversubscription=2", "job.placement=random",
    )  # fmt: skip
    found = simulate(scenario(*JOB, *sets))
    m = 3 * found.collectives[0].alone_ns / MS
    assert found.step_time.mean_ns / MS == pytest.approx(m + (2 * 60 + 90) / 3, rel=1e-3)


def test_urgent_buckets_beside_a_neighbour_take_longer_and_the_same_without_a_compiler(monkeypatch):
    sets = ("cluster.nodes=10", "job.ranks=8", "fabric.kind=leaf_spine", "strategy.kind=priority",
            "fabric.nodes_per_leaf=2", "fabric.oversubscription=2", "run.steps=4",
            "run.warm_up=0", "collectives.launch_us=300", "work.gradient_bytes=90MB",
            "work.forward_ms=6", "work.backward_ms=9")  # fmt: skip
    given = {"noise": [{"kind": "normal", "sigma": 0.2}]}
    near = {"neighbours": [{"nodes": "1,3", "compute_ms": 1, "message_bytes": 10**8}]}
    alone, beside = (simulate(scenario(*JOB, *sets, **given, **other)) for other in ({}, near))
    assert beside.step_time.mean_ns > 1.05 * alone.step_time.mean_ns
    monkeypatch.setattr(simulation, "make_world", PythonWorld)
    again = simulate(scenario(*JOB, *sets, **given, **near))
    assert again.step_time.mean_ns == pytest.approx(beside.step_time.mean_ns, rel=1e-9)


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
