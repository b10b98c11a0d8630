import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.simulation import set_up, simulate
from evenstep.simulate.study import scaling
from evenstep.simulate.study.scaling import Study, parts
from evenstep.simulate.study.scaling_sizes import default_sizes, resize, torus_shape
from tests.simulate.worlds import scenario

BASE = ("cluster.nodes=16", "cluster.nic_gBps=10", "cluster.nic_latency_us=0", "run.steps=2",
        "work.forward_ms=100", "work.backward_ms=200", "work.gradient_bytes=100MB",
        "work.samples_per_rank=8", "collectives.algorithm=ring", "work.overlap=false")  # fmt: skip


def curve(*sets, sizes=(2, 4, 8), strong=False, control=None, **lists):
    base = scenario(*BASE, *sets, **lists)
    after = scenario(*BASE, *sets, *control, **lists) if control else None
    study = Study(base, sizes, strong, after, 1)
    return study, scaling.curve(study, [scaling.measured_row(unit) for unit in study.units()])


def ring_ns(ranks):
    """2S(n-1)/(nB)."""
    return 2 * 100e6 * (ranks - 1) / ranks / 10


def test_weak_scaling_follows_the_ring():
    _, points = curve()
    for point in points:
        step = 300e6 + ring_ns(point["ranks"])
        assert point["throughput"]["value"] == pytest.approx(8 * point["ranks"] / step * 1e9)
        assert point["bandwidth_only"] == pytest.approx(point["throughput"]["value"])
    assert points[0]["efficiency"] == 1.0


def test_strong_scaling_divides_one_batch():
    _, points = curve(strong=True)
    for point in points:
        step = 300e6 * 16 / point["ranks"] + ring_ns(point["ranks"])
        assert point["throughput"]["value"] == pytest.approx(8 * 16 / step * 1e9)


@pytest.mark.parametrize("kind", ["local_sgd", "diloco"])
def test_bandwidth_alone_averages_no_more_often_than_the_job(kind):
    """300 ms, and once in four steps the ring and 8 ms of the outer optimizer."""
    rare = (f"strategy.kind={kind}", "strategy.every=4", "strategy.outer_ms=8", "run.steps=8")
    _, points = curve(*rare)
    for point in points:
        step = 300e6 + (ring_ns(point["ranks"]) + 8e6) / 4
        assert point["step_ns"]["value"] == pytest.approx(step)
        assert point["bandwidth_only"] == pytest.approx(point["throughput"]["value"])
        assert point["parts_ns"]["fixed_ns"] == pytest.approx(2e6)


def test_a_batch_divided_among_as_many_ranks_is_that_of_the_scenario():
    """Also where a rank draws the lengths of its samples, 8 of them."""
    study, points = curve("work.sequence_lengths=[500,1500,4000]", sizes=(16,), strong=True)
    assert points[0]["step_ns"]["value"] == simulate(study.scenario).step_time.mean_ns


@pytest.mark.parametrize("samples", [0, 8])
@pytest.mark.parametrize("strong", [False, True])
def test_ranks_that_are_not_waited_for_are_left_out_once(samples, strong):
    """Of 16 ranks 4 are spared: three quarters of what they do counts."""
    sets = (f"work.samples_per_rank={samples}", "strategy.kind=backup_workers")
    _, (point,) = curve(*sets, "strategy.backups=4", sizes=(16,), strong=strong)
    each = samples * 16 or (1 if strong else 16)
    per_step = point["throughput"]["value"] * point["step_ns"]["value"] / 1e9
    assert per_step == pytest.approx(0.75 * each)


def test_without_samples_weak_scaling_counts_what_ranks_do():
    _, points = curve("work.samples_per_rank=0")
    assert points[0]["unit"] == "rank-steps/s"
    assert points[2]["efficiency"] > 0.9


def test_the_parts_of_a_step_add_up_to_it():
    _, points = curve("cluster.nic_latency_us=20", noise=[{"kind": "normal", "sigma": 0.05}])
    for point in points:
        assert sum(point["parts_ns"].values()) == pytest.approx(point["step_ns"]["value"], rel=0.02)


@pytest.mark.parametrize(
    ("sets", "noise", "cause"),
    [
        (("cluster.nic_latency_us=5000",), [], "latency_ns"),
        ((), [{"kind": "hits", "probability": 0.2, "delay_ms": 400}], "wait_ns"),
        (("fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.oversubscription=8",
          "job.placement=scattered", "work.gradient_bytes=1GB"), [], "shared_ns"),
        (("reliability.failures_per_1000_node_days=20000",), [], "failures"),
    ],
)  # fmt: skip
def test_what_ends_it_is_named(sets, noise, cause):
    _, points = curve(*sets, "run.steps=40", sizes=(2, 16), noise=noise)
    assert scaling.peak(points)["cause"] == cause


def test_a_peak_inside_is_where_throughput_falls_beyond():
    """Strong scaling by rings of 10 ms a round: compute shrinks by 1/n, latency grows by n."""
    _, points = curve("cluster.nic_latency_us=5000", sizes=(2, 4, 8, 16, 32, 64), strong=True)
    peak = scaling.peak(points, strong=True)
    steps = {n: 300 * 16 / n + 2 * (n - 1) * 10 + ring_ns(n) / 1e6 for n in (2, 4, 8, 16, 32, 64)}
    assert peak["ranks"] == min(steps, key=steps.get) == 16
    assert (peak["inside"], peak["cause"]) == (True, "latency_ns")


def test_a_control_is_told_as_ratios():
    """Local SGD every second step halves the exchange, and changes nothing else here."""
    _, points = curve(control=("strategy.kind=local_sgd", "strategy.every=2"), sizes=(8,))
    before = 300e6 + ring_ns(8)
    ratio = points[0]["control"]["step"]
    assert ratio == pytest.approx((300e6 + ring_ns(8) / 2) / before, rel=1e-3)
    assert points[0]["control"]["throughput"] == pytest.approx(1 / ratio)


def test_bandwidth_alone_leaves_out_latency_and_shared_links():
    shared = ("fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.oversubscription=4",
              "job.placement=scattered", "cluster.nic_latency_us=10")  # fmt: skip
    found = parts(set_up(scenario(*BASE, *shared)))
    assert found.bandwidth_only_step_ns == pytest.approx(300e6 + ring_ns(16))
    assert found.latency_ns > 30 * 2 * 10_000
    assert found.shared_ns > found.bytes_ns


def test_a_stage_goes_on_while_it_sends_where_only_bandwidth_counts():
    """Messages without latency: bandwidth alone predicts the simulated step."""
    asked = scenario(
        "cluster.nodes=4", "cluster.nic_latency_us=0", "work.kind=pipeline",
        "work.pipeline_parallel=4", "work.micro_batches=8", "work.forward_ms=16",
        "work.backward_ms=32", "work.message_bytes=12.5MB", "run.steps=1",
    )  # fmt: skip
    step = simulate(asked).step_time.mean_ns
    assert parts(set_up(asked)).bandwidth_only_step_ns == pytest.approx(step, rel=1e-9)


def test_cost_is_ranks_times_hours_times_price():
    _, points = curve()
    found = scaling.outlay(points, target=1e6, price_per_hour=2.0)
    for size, point in zip(found["sizes"], points, strict=True):
        hours = 1e6 / point["throughput"]["value"] / 3600
        assert size["hours"] == pytest.approx(hours)
        assert size["cost"] == pytest.approx(2 * hours * point["ranks"])
    assert found["cheapest"] == 2  # least communication


def test_a_deadline_asks_for_more_ranks_or_none():
    _, points = curve()
    hours = [
        size["hours"] for size in scaling.outlay(points, target=1e6, price_per_hour=0)["sizes"]
    ]
    found = [
        scaling.outlay(points, target=1e6, price_per_hour=0, deadline_hours=limit)["cheapest"]
        for limit in (hours[1], hours[2], hours[2] / 2)
    ]
    assert found == [4, 8, None]


def test_failures_cost_time_and_energy():
    sets = ("reliability.failures_per_1000_node_days=3000", "energy.compute_watts=700")
    _, points = curve(*sets)
    with_failures = scaling.outlay(points, target=1e6, price_per_hour=1)["sizes"][2]
    useful = points[2]["goodput"]
    assert useful < 1
    assert with_failures["hours"] == pytest.approx(
        1e6 / points[2]["throughput"]["value"] / 3600 / useful
    )


# -- sizes -----------------------------------------------------------------------------------------


def test_sizes_around_the_own_one_keep_copies_of_the_model_whole():
    asked = scenario("cluster.nodes=8", "cluster.gpus_per_node=8", "work.kind=tensor",
                     "work.tensor_parallel=8")  # fmt: skip
    assert default_sizes(asked) == (8, 16, 32, 64, 128, 256)


def test_cluster_and_neighbours_grow_with_the_job():
    asked = scenario("cluster.nodes=24", "job.ranks=16",
                     neighbours=[{"node_count": 4, "message_bytes": 1000}])  # fmt: skip
    larger = resize(asked, 64, strong=False)
    assert (larger.ranks, larger.cluster.nodes, larger.neighbours[0].node_count) == (64, 96, 16)


@pytest.mark.parametrize("named", [
    {"cluster": {"kinds": [{"nodes": "15", "factor": 2}]}},
    {"cluster": {"slow_nodes": "15", "slow_nodes_factor": 2}},
    {"fabric": {"changes": [{"links": "node15.nic0.*", "factor": 0.5}]}},
    {"neighbours": [{"nodes": "14-15", "message_bytes": 1000}], "job": {"ranks": 8}},
])  # fmt: skip
def test_a_smaller_job_leaves_the_nodes_that_are_named(named):
    smaller = resize(scenario("cluster.nodes=16", **named), 4, strong=False)
    assert (set_up(smaller).scenario.ranks, smaller.cluster.nodes) == (4, 16)


def test_a_smaller_torus_has_the_slow_nodes_that_are_left():
    torus = {"nodes": 16, "slow_nodes": "1,15", "slow_nodes_factor": 2}
    asked = scenario("fabric.kind=torus", "fabric.shape=[4, 4]", cluster=torus)
    cluster = resize(asked, 4, strong=False).cluster
    assert (cluster.nodes, cluster.slow_nodes) == (4, "1")


def test_ranks_that_are_not_there_are_not_slow():
    noise = [{"kind": "slow", "ranks": "1,12"}, {"kind": "slow", "ranks": "14"}]
    smaller = resize(scenario("cluster.nodes=16", noise=noise), 8, strong=False)
    assert [one.ranks for one in smaller.noise] == ["1"]


def test_micro_batches_cannot_be_cut():
    asked = scenario("cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=4",
                     "work.micro_batches=6")  # fmt: skip
    assert resize(asked, 8, strong=True).work.micro_batches == 3
    with pytest.raises(ConfigError, match="at 16 ranks: 6 micro-batches of 4 ranks"):
        resize(asked, 16, strong=True)


def test_nodes_that_are_given_fit_one_size():
    asked = scenario("cluster.nodes=4", "job.placement=given", "job.nodes=0-3")
    with pytest.raises(ConfigError, match="placement given fits one size"):
        resize(asked, 8, strong=False)


@given(st.integers(1, 5000), st.integers(2, 3))
def test_a_torus_has_all_its_nodes(nodes, dimensions):
    shape = torus_shape(nodes, dimensions)
    assert (math.prod(shape), len(shape)) == (nodes, dimensions)


def test_strong_scaling_of_a_pipeline_ends_in_its_bubble_and_in_what_is_fixed():
    """Half the micro-batches under the same (p - 1)(f + b), and the same optimizer."""
    base = scenario(
        "cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=4",
        "work.micro_batches=32", "work.forward_ms=32", "work.backward_ms=64",
        "work.optimizer_ms=5", "run.steps=2",
    )  # fmt: skip
    study = Study(base, (4, 8, 16), strong=True, control=None, repeats=1)
    points = scaling.curve(study, [scaling.measured_row(unit) for unit in study.units()])
    for point in points:
        assert point["parts_ns"]["fixed_ns"] == pytest.approx(5e6)
        assert point["parts_ns"]["bubble_ns"] == pytest.approx(3 * 3e6)
    peak = scaling.peak(points, strong=True)
    assert peak["cause"] == "bubble_ns"
    lost_ns = points[-1]["step_ns"]["value"] - points[0]["step_ns"]["value"] / 4
    assert peak["grown_ns"] / peak["share"] == pytest.approx(lost_ns)
