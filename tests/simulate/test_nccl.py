"""NCCL's choice, beside what its own log says and beside its formula, worked by hand."""

import pytest

from evenstep.simulate.fabric.nccl import AMPERE, HOPPER, Team, choose, ways
from evenstep.simulate.simulation import set_up
from evenstep.simulate.wires.carriage import alone_ns
from tests.simulate.worlds import scenario

MIB = 2**20


def h100(machines=1, *, each=8, reduces=True):
    return Team(machines * each, machines, True, 450 * 20.6 / 25, 1.0, 48.0, 4.0, HOPPER, reduces)


@pytest.mark.parametrize(
    ("size", "reduces", "name"),
    [  # log of NCCL 2.28.9 on 8 H100, with and without NCCL_NVLS_ENABLE=0
        (1, True, "ring/LL"), (9, True, "nvls/Simple"), (512, True, "nvls/Simple"),
        (9, False, "ring/LL128"), (27, False, "ring/LL128"), (128, False, "ring/Simple"),
    ],
)  # fmt: skip
def test_one_machine_takes_what_the_log_of_nccl_says(size, reduces, name):
    assert choose(h100(reduces=reduces), "all_reduce", size * MIB).name == name


@pytest.mark.parametrize(("each", "algorithm"), [(4, "ring"), (8, "nvls")])
def test_the_switch_pays_with_eight_gpus_and_not_with_four(each, algorithm):
    assert choose(h100(each=each), "all_reduce", 1024 * MIB).algorithm == algorithm


def test_two_machines_take_a_tree_for_large_messages_and_three_a_ring():
    a100 = [Team(8 * m, m, True, 240.0, 1.0, 24.0, 4.0, AMPERE, False) for m in (2, 3)]
    found = [choose(team, "all_reduce", 8192 * MIB).algorithm for team in a100]
    assert found == ["tree", "ring"]


def test_a_small_ring_takes_what_ncclstuning_adds_up():
    # 6.6 µs, 14 steps of .6 µs, and S over min(141, 370.8 / 2) × 8/14 GB/s
    way = choose(h100(reduces=False), "all_reduce", MIB, only="ring")
    assert way.ns(MIB) == pytest.approx(15e3 + MIB / (141 * 8 / 14), rel=1e-6)


@pytest.mark.parametrize(
    ("team", "planned"),
    [  # least of .92 × 8 × 48 (24 of A100) and 8 channels of 36.7 (20): over 8 cards of a machine
        (h100(2), 8 * 36.7),
        (Team(16, 2, True, 240.0, 1.0, 24.0, 4.0, AMPERE, False), 8 * 20.0),
        (h100(), 0.92 * 370.8),  # NVLinks: 12 channels could carry more
    ],
)
def test_channels_of_ll128_carry_no_more_than_nccl_plans(team, planned):
    found = {way.name: way.gBps for way in ways(team, "all_gather", MIB)}
    assert found["ring/LL128"] * (team.ranks - 1) / team.ranks == pytest.approx(planned)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize(("nodes", "size"), [(1, MIB), (1, 512 * MIB), (2, 4 * MIB)])
def test_what_is_laid_on_the_links_takes_what_nccl_expects(algorithm, nodes, size):
    asked = scenario(
        "preset=dgx-h100", f"cluster.nodes={nodes}", "work.kind=collective",
        f"work.gradient_bytes={size}", f"collectives.nccl_algo={algorithm}",
    )  # fmt: skip
    (flow,) = set_up(asked).flows
    expected = choose(h100(nodes), "all_reduce", size, only=algorithm)
    assert flow.algorithm == expected.name
    assert alone_ns(flow) == pytest.approx(expected.ns(size), rel=0.02)


@pytest.mark.parametrize(("nodes", "card"), [(4, 25), (4, 50), (4, 100), (2, 50)])
def test_a_tree_with_one_gpu_of_each_machine_takes_its_card_and_no_link_within(nodes, card):
    """Replicas of shards over machines; the last two cards are faster than their channels."""
    asked = scenario(
        "preset=dgx-h100", f"cluster.nodes={nodes}", f"cluster.nic_gBps={card}",
        "work.kind=fsdp", "work.shard_ranks=8", "work.gradient_bytes=4GB",
        "collectives.nccl_algo=tree",
    )  # fmt: skip
    made = set_up(asked)
    (tree,) = [flow for flow in made.flows if flow.operation == "all_reduce"]
    within = made.network.capacity == asked.cluster.gpu_link_gBps
    assert tree.algorithm.startswith("tree/")
    assert not tree.link_bytes[within].any()
    assert tree.link_bytes[~within].any()
    team = h100(nodes, each=1)._replace(net=0.96 * card)
    expected = choose(team, "all_reduce", tree.bytes, only="tree")
    assert alone_ns(tree) == pytest.approx(expected.ns(tree.bytes), rel=0.02)


def test_an_algorithm_that_cannot_be_had_is_not_taken():
    assert choose(h100(), "all_gather", MIB, only="nvls").algorithm == "ring"


def test_what_cannot_be_a_tree_is_a_ring():
    uneven = h100(2)._replace(even=False)
    assert choose(uneven, "all_reduce", 8192 * MIB).algorithm == "ring"
