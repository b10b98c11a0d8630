import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.fabric.collectives import ALGORITHMS, Request, lay_out
from evenstep.simulate.simulation import set_up, simulate
from evenstep.simulate.wires.carriage import FlowUse, carriages
from tests.simulate.worlds import scenario

SIZES = st.integers(2, 24)


def request(ranks, operation="all_reduce", size_bytes=1.0, per_node=1, **more):
    members = np.arange(ranks)[None]
    return Request(operation, members, np.arange(ranks) // per_node, size_bytes, **more)


def sent_by(pattern, ranks):
    total = np.zeros(ranks)
    for part in pattern:
        sizes = np.broadcast_to(part.bytes, part.source.shape) * part.repeats
        np.add.at(total, part.source, sizes)
    return total


@given(SIZES)
def test_a_ring_sends_twice_all_but_its_own_part(ranks):
    """2 (n-1)/n S per rank (Patarasuk & Yuan 2009): no all-reduce moves less."""
    total = sent_by(lay_out("ring", request(ranks)), ranks)
    assert total == pytest.approx(2 * (ranks - 1) / ranks)


@given(st.integers(1, 5))
def test_halving_and_doubling_of_a_power_of_two_sends_no_more(exponent):
    ranks = 2**exponent
    pattern = lay_out("halving_doubling", request(ranks))
    assert len(pattern) == 2 * exponent
    assert sent_by(pattern, ranks) == pytest.approx(2 * (ranks - 1) / ranks)


@given(SIZES, st.sampled_from(sorted(ALGORITHMS)))
def test_in_an_all_reduce_the_data_of_every_rank_reaches_every_other(ranks, algorithm):
    """Follow who has heard of whom, round by round."""
    heard = np.eye(ranks, dtype=bool)
    for part in lay_out(algorithm, request(ranks, per_node=1)):
        hops = 1 if part.depth is None else 2 * part.depth.max()
        for _ in range(part.repeats * hops):
            before = heard.copy()
            for source, target in zip(part.source, part.target, strict=True):
                heard[target] |= before[source]
    assert heard.all()


@given(st.integers(2, 4), st.sampled_from([2, 4]))
def test_a_hierarchical_one_sends_one_share_of_each_node_outside(nodes, per_node):
    ranks = nodes * per_node
    outside = 0.0
    for part in lay_out("hierarchical", request(ranks, per_node=per_node)):
        crosses = part.source // per_node != part.target // per_node
        outside += float(part.bytes) * part.repeats * crosses.sum()
    assert outside == pytest.approx(2 * (nodes - 1))  # of S: 2 S (N-1)/N from each of N nodes


def test_rings_side_by_side_leave_a_node_by_different_gpus():
    pattern = lay_out("ring", request(8, per_node=4, channels=4))
    part = pattern[0]
    crosses = part.source // 4 != part.target // 4
    assert sorted(part.source[crosses]) == list(range(8))
    assert sorted(part.target[crosses]) == list(range(8))


def test_groups_on_parts_of_the_same_nodes_leave_them_by_cards_of_their_own():
    """Two rings of 4 ranks on half of 2 nodes with 4 GPUs and cards: each card sends half of what a
    rank does, 2 S (n - 1)/n for the n = 4 ranks of an all-reduce."""
    asked = scenario(
        "cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.nics_per_node=4",
        "collectives.algorithm=ring", "work.gradient_bytes=1",
    )  # fmt: skip
    library = set_up(asked).library
    flow = library.flow("all_reduce", 8e6, np.array([[0, 1, 4, 5], [2, 3, 6, 7]]))
    network = library.network
    sent = {network.name(at): load for at, load in enumerate(flow.link_bytes) if load}
    cards = [f"node{node}.nic{card}.send" for node in (0, 1) for card in range(4)]
    assert [sent.get(card) for card in cards] == pytest.approx([8e6 * 2 * 3 / 4 / 2] * 8)


def test_small_messages_take_the_tree_and_large_ones_the_ring():
    chosen = {}
    for size in ("10kB", "1GB"):
        asked = scenario("cluster.nodes=64", f"work.gradient_bytes={size}")
        chosen[size] = set_up(asked).flows[0].algorithm
    assert chosen == {"10kB": "tree", "1GB": "ring"}


def test_the_switch_between_gpus_reduces_where_it_can():
    sets = ("cluster.gpus_per_node=8", "work.gradient_bytes=1GB")
    assert set_up(scenario(*sets)).flows[0].algorithm == "ring"
    able = scenario(*sets, "cluster.gpu_link_reduces=true")
    assert set_up(able).flows[0].algorithm == "nvls"
    asked = scenario(*sets, "collectives.algorithm=nvls")
    assert set_up(asked).flows[0].algorithm == "ring"


@pytest.mark.parametrize(("asked", "operation", "used"), [
    ("nvls", "all_reduce", "ring"), ("hierarchical", "all_reduce", "ring"),
    ("tree", "all_gather", "ring"), ("ring", "all_to_all", "direct"),
    ("tree", "all_reduce", "tree"),
])  # fmt: skip
def test_a_collective_is_called_by_what_carries_it_out(asked, operation, used):
    """On nodes of one GPU no switch reduces and no level is below the nodes."""
    sets = ("cluster.nodes=4", "work.kind=collective", "work.gradient_bytes=1GB")
    sets += (f"work.operation={operation}", f"collectives.algorithm={asked}")
    assert set_up(scenario(*sets)).flows[0].algorithm == used


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_what_is_on_the_links_is_what_was_sent_over_them(algorithm):
    """On a switch every byte is on the card that sends it and on the one that receives it."""
    asked = scenario(
        "cluster.nodes=12", "work.gradient_bytes=12MB", f"collectives.algorithm={algorithm}"
    )
    flow = set_up(asked).flows[0]
    sent = sum(
        np.broadcast_to(s.round.bytes, s.round.source.shape).sum() * s.round.repeats
        for s in flow.stages
    )
    assert flow.link_bytes.sum() == pytest.approx(2 * sent)


def alone_ms(ranks, *sets, gpus=1, size="1GB"):
    made = scenario(
        f"cluster.nodes={-(-ranks // gpus)}", f"cluster.gpus_per_node={gpus}",
        f"job.ranks={ranks}", "work.kind=collective", f"work.gradient_bytes={size}", "run.steps=1",
        *sets,
    )  # fmt: skip
    return simulate(made).step_time.mean_ns / 1e6


def test_nodes_with_fewer_ranks_have_as_many_rings_as_these():
    """8, 8 and 4 ranks with a card each: four rings side by side, 2 (n-1)/n S over four cards."""
    cards = ("cluster.nics_per_node=8", "cluster.nic_gBps=10", "collectives.algorithm=ring")
    assert alone_ms(20, *cards, gpus=8) == pytest.approx(2 * 19 / 20 * 1000 / 40, rel=0.01)


@pytest.mark.parametrize("name", [*ALGORITHMS, "auto", "nccl"])
def test_every_rank_but_the_first_receives_all_of_a_broadcast(name):
    """No algorithm is faster than a card takes that in; each is told by what it does."""
    result = simulate(scenario(
        "cluster.nodes=6", "cluster.nic_gBps=10", "work.kind=collective",
        "work.operation=broadcast", "work.gradient_bytes=120MB", f"collectives.algorithm={name}",
    ))  # fmt: skip
    (used,) = result.collectives
    assert used.alone_ns >= 120e6 / 10
    assert used.algorithm.startswith("ring")


def test_servers_hold_only_what_is_reduced():
    """An all-gather has none: each rank sends its part to all others at once."""
    (used,) = simulate(scenario(
        "cluster.nodes=6", "work.kind=collective", "work.operation=all_gather",
        "work.gradient_bytes=120MB", "collectives.algorithm=server",
    )).collectives  # fmt: skip
    assert used.algorithm == "direct"


@pytest.mark.parametrize("ranks", [8, 512])
def test_a_large_broadcast_fills_its_chain(ranks):
    """Pieces of 512 KiB pass n - 1 links one after the other, over 10 GB/s and 2 µs."""
    found = alone_ms(ranks, "work.operation=broadcast", "cluster.nic_gBps=10")
    rounds = 1e9 / 2**19 + ranks - 2
    assert found == pytest.approx(rounds * (2**19 / 1e7 + 0.002), rel=0.01)


def end_of_pieces(nodes, pieces, each_ns, latency_ns):
    """When the last of equal pieces has gone up a binary tree and down again: each follows the one
    before on its link, and goes on once the link's begin has it, upwards from all children."""
    children = {n: [c for c in (2 * n + 1, 2 * n + 2) if c < nodes] for n in range(nodes)}
    there = {}

    def over_a_link(ready):
        free, arrivals = 0.0, []
        for at in ready:
            free = max(free, at) + each_ns
            arrivals.append(free + latency_ns)
        return arrivals

    def complete(node):
        return [
            max(at, default=0.0) for at in zip(*(there[c] for c in children[node]), strict=True)
        ] or [0.0] * pieces

    for node in range(nodes - 1, 0, -1):
        there[node] = over_a_link(complete(node))
    down = {0: complete(0)}
    for node in range(nodes):
        for child in children[node]:
            down[child] = over_a_link(down[node])
    return max(at[-1] for at in down.values())


@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 21])
@pytest.mark.parametrize("pieces", [1, 40])
def test_a_tree_takes_as_long_as_its_pieces_one_after_the_other(nodes, pieces):
    """The busiest card has what its node sends as an inner node of one tree and a leaf of the
    other."""
    piece_bytes = 32 * 1024
    sends = np.array(
        [sum(c < nodes for c in (2 * n + 1, 2 * n + 2)) + (n > 0) for n in range(nodes)]
    )
    each_ns = (sends + sends[::-1]).max() * piece_bytes / 12.5
    asked = scenario(
        f"cluster.nodes={nodes}", "work.kind=collective", "collectives.algorithm=tree",
        f"work.gradient_bytes={2 * pieces * piece_bytes}", "run.steps=1",
    )  # fmt: skip
    (found,) = simulate(asked).collectives
    assert found.alone_ns == pytest.approx(end_of_pieces(nodes, pieces, each_ns, 2000.0), rel=1e-9)


def test_a_tree_has_the_latency_of_every_hop_of_its_longest_way():
    """Up to a root and down: from a GPU to its neighbour in 1 us, and between two nodes in 2."""
    asked = scenario(
        "cluster.nodes=2", "cluster.gpus_per_node=2", "cluster.nics_per_node=2",
        "work.kind=collective", "work.gradient_bytes=8", "collectives.algorithm=tree",
    )  # fmt: skip
    assert set_up(asked).flows[0].stages[0].duration_ns == pytest.approx(2 * (1e3 + 2e3), rel=1e-2)


def test_a_group_of_trees_has_the_latency_of_its_own_links_alone():
    """Two groups of two nodes: one on a leaf, the other on two, whose way is 9 us longer."""
    library = set_up(scenario(
        "cluster.nodes=6", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=3",
        "fabric.latency_us=9", "collectives.algorithm=tree", "work.gradient_bytes=8",
    )).library  # fmt: skip
    near, far = np.array([[0, 1]]), np.array([[2, 3]])
    both, *alone = (
        library.flow("all_reduce", 8.0, members).stages[0].hop_ns
        for members in (np.concatenate([near, far]), near, far)
    )
    assert both == pytest.approx(np.concatenate(alone))
    assert alone[1].max() > alone[0].max() + 9e3


@pytest.mark.parametrize("size", ["64kB", "1MB", "16MB", "128MB", "1GB"])
def test_trees_over_all_cards_take_about_as_long_as_those_of_nccl(size):
    """On 16 nodes of 8 A100; NCCL's protocols, and what its kernels reach, are not in the tree."""
    sets = ("preset=dgx-a100", "cluster.nodes=16", "work.kind=collective", "run.steps=1",
            f"work.gradient_bytes={size}")  # fmt: skip
    own, nccl = (
        simulate(scenario(*sets, *more)).collectives[0].alone_ns
        for more in (["collectives.algorithm=tree"], ["collectives.nccl_algo=tree"])
    )
    assert 0.7 < own / nccl < 1.5


def test_trees_of_ranks_that_nobody_disturbs_are_not_followed_message_by_message():
    asked = scenario(
        "cluster.nodes=32", "cluster.gpus_per_node=8", "cluster.nics_per_node=8",
        "collectives.algorithm=tree", "work.gradient_bytes=50MB", "work.forward_ms=1",
        noise=[{"kind": "normal"}],
    )  # fmt: skip
    setup = set_up(asked)
    (flow,) = setup.flows
    made = carriages((FlowUse(flow, 0, 1, 0),), len(flow.capacity), 256)
    assert made[flow].closed
