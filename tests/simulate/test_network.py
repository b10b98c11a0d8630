from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.fabric.network import Network, go_back_n
from evenstep.simulate.fabric.placement import place
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import scenario


def network(*sets, **lists):
    asked = scenario(*sets, **lists)
    return Network(asked.cluster, asked.fabric, asked.run.seed)


def names(net, source, target):
    routes = net.routes(np.array([source]), np.array([target]))
    return [net.name(int(link)) for link in routes.link]


FABRICS = {
    "switch": (),
    "leaf_spine": ("fabric.kind=leaf_spine", "fabric.nodes_per_leaf=4"),
    "rail": ("fabric.kind=rail", "fabric.nodes_per_leaf=4", "cluster.nics_per_node=2"),
    "fat_tree": ("fabric.kind=fat_tree", "fabric.nodes_per_leaf=2", "fabric.leaves_per_pod=2"),
    "torus": ("fabric.kind=torus", "fabric.shape=[4, 4]"),
    "torus_3d": ("fabric.kind=torus", "fabric.shape=[2, 2, 4]"),
    "dragonfly": (
        "fabric.kind=dragonfly",
        "fabric.nodes_per_router=2",
        "fabric.routers_per_group=2",
    ),
}


@pytest.mark.parametrize("kind", FABRICS)
def test_every_route_is_a_path_from_its_source_to_its_target(kind):
    """Names say which ends a link has; each must begin where the one before ends."""
    net = network("cluster.nodes=16", "cluster.gpus_per_node=2", *FABRICS[kind])
    pairs = np.array([(a, b) for a in range(32) for b in range(32) if a // 2 != b // 2])
    routes = net.routes(pairs[:, 0], pairs[:, 1])
    for index, (source, target) in enumerate(pairs // 2):
        path = [
            net.name(int(i)) for i in routes.link[routes.start[index] : routes.start[index + 1]]
        ]
        inner = [link.split("->") for link in path if "->" in link]
        if kind.startswith("torus"):
            assert inner[0][0] == f"node{source}"
            continue
        assert path[0].startswith(f"node{source}.nic")
        assert path[-1].startswith(f"node{target}.nic")
        assert all(
            one[1] == other[0] or "group" in one[0] + other[0] for one, other in pairwise(inner)
        )


@pytest.mark.parametrize(("shape", "a", "b", "hops"), [("[4, 4]", 0, 15, 2), ("[4, 4]", 0, 10, 4)])
def test_a_torus_wraps_around(shape, a, b, hops):
    net = network("cluster.nodes=16", "fabric.kind=torus", f"fabric.shape={shape}")
    assert len(names(net, a, b)) == hops


def test_uplinks_carry_what_the_cards_send_over_the_oversubscription():
    net = network("cluster.nodes=64", "fabric.kind=leaf_spine", "fabric.oversubscription=4")
    up = [c for c, name in zip(net.capacity, net.names, strict=True) if "leaf0->spine" in name]
    assert (len(up), sum(up)) == (8, pytest.approx(32 * 12.5 / 4))


def test_a_route_within_a_rail_stays_below_its_leaf():
    net = network("cluster.nodes=4", "cluster.gpus_per_node=2", *FABRICS["rail"])
    assert names(net, 1, 3) == ["node0.nic1.send", "node1.nic1.receive"]
    assert len(names(net, 0, 3)) == 4


def test_a_badly_placed_gpu_takes_the_card_it_is_given():
    net = network(
        "cluster.nodes=2", "cluster.gpus_per_node=2", "cluster.nics_per_node=2",
        "cluster.gpu_nics=[0, 0]",
    )  # fmt: skip
    assert names(net, 1, 2) == ["node0.nic0.send", "node1.nic0.receive"]


def test_a_shared_pcie_switch_is_part_of_the_way():
    net = network("cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.gpus_per_pcie_switch=2")
    assert names(net, 3, 4)[0] == "node0.pcie1.send"
    assert names(net, 3, 4)[-1] == "node1.pcie0.receive"


def test_routes_go_around_a_failed_uplink():
    changes = {"changes": [{"links": "leaf0->spine1", "failed": True}]}
    fabric = {"kind": "leaf_spine", "nodes_per_leaf": 4, "spines": 2, **changes}
    net = network("cluster.nodes=8", fabric=fabric)
    used = [name for target in range(4, 8) for name in names(net, 0, target)]
    assert "leaf0->spine0" in used
    assert "leaf0->spine1" not in used


def test_hashed_paths_collide_and_paths_in_turn_do_not():
    def most_on_one_uplink(routing):
        net = network("cluster.nodes=64", "fabric.kind=leaf_spine", f"fabric.routing={routing}")
        routes = net.routes(np.arange(32), np.arange(32, 64))
        return np.bincount(routes.link)[128:].max()

    assert most_on_one_uplink("adaptive") == 1
    assert most_on_one_uplink("ecmp") > 1


@pytest.mark.parametrize("kind", ["rail", "fat_tree"])
@pytest.mark.parametrize("nodes", [16, 33, 50])
def test_paths_in_turn_carry_an_all_to_all_at_the_speed_of_the_cards(kind, nodes):
    """On full bisection no uplink or downlink has more of it than (n - 8) / n of its bytes."""
    found = simulate(scenario(
        "preset=dgx-h100", f"cluster.nodes={nodes}", f"fabric.kind={kind}",
        "work.kind=collective", "work.operation=all_to_all", "work.gradient_bytes=64MB",
        "run.steps=1",
    ))  # fmt: skip
    bound_ns = 64e6 / 50 * (nodes - 1) / nodes
    assert bound_ns < found.step_time.mean_ns < bound_ns * 1.005


def test_a_change_concerns_exactly_the_links_its_pattern_names():
    fabric = {"kind": "leaf_spine", "changes": [{"links": "leaf1->spine?", "factor": 0.5}]}
    net = network("cluster.nodes=64", fabric=fabric)
    changed = [n for n, c in zip(net.names, net.capacity, strict=True) if c == 6.25]
    assert changed == [f"leaf1->spine{i}" for i in range(10)]


@given(st.floats(0, 0.5), st.floats(1, 100), st.floats(0, 1e5))
def test_loss_never_adds_goodput(loss, capacity, latency):
    share = go_back_n(loss, np.array([capacity]), np.array([latency]))[0]
    assert 0 < share <= 1
    assert loss > 0 or share == 1


def test_scattered_ranks_are_dealt_out_over_the_leaves():
    """W2's strided placement: rank r on host (r % L)·32 + r // L."""
    asked = scenario("cluster.nodes=128", "fabric.kind=leaf_spine", "job.placement=scattered")
    ranks = np.arange(128)
    assert (place(asked, network("cluster.nodes=128", "fabric.kind=leaf_spine")).node
            == ranks % 4 * 32 + ranks // 4).all()  # fmt: skip


def test_neighbours_and_the_job_have_nodes_of_their_own():
    asked = scenario("cluster.nodes=12", "job.ranks=6", neighbours=[{"node_count": 4}])
    placed = place(asked, Network(asked.cluster, asked.fabric))
    assert not set(placed.node) & set(placed.neighbours[0])
