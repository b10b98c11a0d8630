import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import ConfigError
from evenstep.simulate.simulation import set_up, simulate, simulate_trace
from tests.simulate.worlds import MS, scenario

#: two cards and two NUMA nodes a machine, 2 GPUs and a card at each
NODES = (
    "cluster.nodes=4", "cluster.gpus_per_node=4", "cluster.nics_per_node=2",
    "cluster.gpu_numa=[0, 0, 1, 1]", "cluster.nic_numa=[0, 1]", "cluster.numa_gBps=5",
    "cluster.nic_latency_us=0", "cluster.nic_gBps=10",
)  # fmt: skip


def pair(*sets, kinds=()):
    """ms of 100 MB from each GPU 0 and 2 of the first node to one of the next, both ways."""
    setup = set_up(scenario(*NODES, *sets, cluster={"kinds": list(kinds)}))
    gpus = np.array([0, 2, 4, 6])
    routes = setup.network.routes(gpus, np.roll(gpus, 2))
    return routes.reduced(np.maximum, 100e6 / setup.network.capacity) / MS


def test_a_gpu_with_a_far_card_sends_over_the_link_between_numa_nodes():
    """5 GB/s of it instead of the card's 10."""
    far = {"nodes": "0", "gpu_nics": [1, 0, 1, 1]}
    assert pair() == pytest.approx([10, 10, 10, 10])
    assert pair(kinds=[far]) == pytest.approx([20, 10, 20, 10])


def test_machines_of_another_kind_have_cards_of_another_speed():
    assert pair(kinds=[{"nodes": "1-2", "nic_gBps": 2.5}]) == pytest.approx([40, 40, 40, 40])


def test_several_kinds_compute_at_several_speeds():
    """100 ms each way there is; the slowest, 1.5 times as long, is waited for."""
    kinds = [{"nodes": "0", "factor": 1.2}, {"nodes": "2-3", "factor": 1.5, "gpu": "older"}]
    asked = scenario("cluster.nodes=4", "work.forward_ms=100", cluster={"kinds": kinds})
    assert simulate(asked).step_time.max_ns / MS == pytest.approx(150)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"nodes": "9"}, "cluster.kinds[0].nodes names 9, but nodes are 0 to 3"),
        ({}, "cluster.kinds[0].nodes names no node"),
        ({"nodes": "0", "nic_numa": [0]}, "has 1 entries for 2 cards of a node"),
        ({"nodes": "0", "gpu_nics": [0, 1, 2, 0]}, "whole numbers from 0 to 1"),
    ],
)
def test_a_kind_that_cannot_be_is_refused_by_name(kind, message):
    with pytest.raises(ConfigError) as refused:
        scenario(*NODES, cluster={"kinds": [kind]})
    assert message in str(refused.value)


def worst(*sets, kinds):
    asked = scenario(
        *NODES,
        *sets,
        cluster={"kinds": kinds},
        noise=[{"kind": "normal", "sigma": 0.01}],
    )
    return diagnose(simulate_trace(asked)[1]).findings[0]


def test_a_rank_on_far_cores_is_found_by_its_place():
    found = worst(
        "cluster.far_cores_factor=1.3",
        "work.forward_ms=40",
        "work.backward_ms=60",
        "work.gradient_bytes=50MB",
        "work.buckets=4",
        "run.steps=60",
        kinds=[{"nodes": "2", "core_numa": [0, 1, 1, 1]}],
    )
    assert (found.mode, list(found.where.ranks)) == ("locality", [9])


def test_groups_of_a_gpu_with_a_far_card_are_found_by_its_place():
    """Rings between the GPUs of one place of two nodes each: one of them crosses NUMA nodes."""
    found = worst(
        "cluster.numa_gBps=2",
        "work.kind=pipeline",
        "work.pipeline_parallel=8",
        "work.micro_batches=8",
        "work.forward_ms=40",
        "work.backward_ms=60",
        "work.message_bytes=1MB",
        "work.gradient_bytes=400MB",
        "run.steps=24",
        kinds=[{"nodes": "3", "gpu_numa": [0, 0, 0, 1], "gpu_nics": [0, 0, 1, 1]}],
    )
    assert found.mode == "locality"
    assert 14 in found.where.ranks
