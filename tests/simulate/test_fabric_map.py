"""The map of a fabric: ends of links, what they carried, and how a large one is made small."""

import json
from itertools import pairwise

import numpy as np
import pytest

from evenstep.simulate.fabric.network import Network
from evenstep.simulate.job.fabric_map import MOST_CELLS
from evenstep.simulate.simulation import simulate
from tests.simulate.test_neighbours import drifting
from tests.simulate.test_network import FABRICS
from tests.simulate.worlds import scenario

RING = ("collectives.algorithm=ring", "work.forward_ms=10", "run.steps=4")


def mapped(*sets, **lists):
    return simulate(scenario(*RING, *sets, **lists)).fabric_map()


def place(found, name):
    return next(at for at, each in enumerate(found.places) if each["name"] == name)


@pytest.mark.parametrize("kind", FABRICS)
def test_on_every_route_a_link_begins_where_the_one_before_ends(kind):
    asked = scenario("cluster.nodes=16", "cluster.gpus_per_node=2", *FABRICS[kind])
    net = Network(asked.cluster, asked.fabric)
    ends = [[], []]
    for block in net.blocks:
        numbers = np.arange(block.links)
        for side, end in zip(ends, (block.source, block.target), strict=True):
            side += [(end.tier, int(of)) for of in np.broadcast_to(end.of(numbers), block.links)]
    pairs = np.array([(a, b) for a in range(32) for b in range(32) if a // 2 != b // 2])
    routes = net.routes(pairs[:, 0], pairs[:, 1])
    for (source, target), first, last in zip(
        pairs // 2, routes.start[:-1], routes.start[1:], strict=True
    ):
        path = routes.link[first:last].tolist()
        assert ends[0][path[0]] == ("node", source)
        assert ends[1][path[-1]] == ("node", target)
        assert all(ends[1][a] == ends[0][b] for a, b in pairwise(path))


@pytest.mark.parametrize("kind", FABRICS)
def test_nothing_carried_is_lost_on_the_map(kind):
    result = simulate(
        scenario("cluster.nodes=16", "work.gradient_bytes=1000000", *RING, *FABRICS[kind])
    )
    found = result.fabric_map()
    assert found.bundles.bytes.sum() == pytest.approx(result.loads.bytes.sum())
    assert found.bundles.busiest.max() == pytest.approx(result.loads.mean.max())
    assert max(found.bundles.source.max(), found.bundles.target.max()) < len(found.places)


def test_a_card_carries_what_a_ring_sends():
    """2 (n - 1) / n of the bytes each step, in rounds of S / n at full speed behind the latency."""
    nodes, size, steps = 4, 80_000_000, 4
    found = mapped(f"cluster.nodes={nodes}", f"work.gradient_bytes={size}")
    row = np.flatnonzero(
        (found.bundles.source == place(found, "node 2"))
        & (found.bundles.target == place(found, "switch 0"))
    )
    assert found.bundles.bytes[row] == pytest.approx(steps * size * 2 * (nodes - 1) / nodes)
    transfer_ns, latency_ns = size / nodes / 12.5, 2 * 1000.0
    assert found.bundles.peak[row] == pytest.approx(transfer_ns / (transfer_ns + latency_ns))
    used = found.bundles.bytes[row] / (12.5 * found.elapsed_ns)
    assert found.bundles.mean[row] == pytest.approx(used)


def test_beside_another_job_a_shared_link_is_full_and_half_of_it_the_others():
    found = simulate(drifting(20, 300)).fabric_map()
    up = next(row for row in found.summary() if row["links"] == "leaf*->spine*")
    assert up["peak"] == pytest.approx(1.0, abs=0.001)  # all but the latencies of 20 ms
    assert up["others_bytes"] / up["bytes"] == pytest.approx(0.5, abs=0.01)


def test_failed_links_are_counted_and_carry_nothing():
    found = mapped(
        "cluster.nodes=8", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=4",
        "work.gradient_bytes=1000000",
        fabric={"changes": [{"links": "leaf0->spine1", "failed": True}]},
    )  # fmt: skip
    row = np.flatnonzero(found.bundles.failed)
    assert (found.bundles.source[row], found.bundles.target[row]) == (
        place(found, "leaf 0"), place(found, "spine 1"),
    )  # fmt: skip
    assert not found.bundles.bytes[row]


def test_of_a_large_fabric_neighbours_share_a_place():
    found = mapped(
        "cluster.nodes=256", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=16",
        "work.gradient_bytes=1000000", "job.ranks=40",
    )  # fmt: skip
    nodes = [each for each in found.places if each["tier"] == "node"]
    assert [each["name"] for each in nodes[:2]] == ["nodes 0-15", "nodes 16-31"]
    assert [each["ranks"] for each in nodes[:4]] == ["0-15", "16-31", "32-39", ""]
    assert found.bundles.links.sum() == 2 * 256 + 2 * 16 * 16  # cards, and leaves × spines


def test_a_large_torus_becomes_coarser_along_its_longest_sides():
    found = mapped(
        "cluster.nodes=4096", "fabric.kind=torus", "fabric.shape=[16, 16, 16]", "job.ranks=2",
        "work.gradient_bytes=1000000",
    )  # fmt: skip
    assert found.shape == (8, 8, 16)
    assert len(found.places) == MOST_CELLS
    assert found.bundles.links.sum() == 6 * 4096


def test_neighbours_are_where_they_were_put():
    found = simulate(drifting(20, 5)).fabric_map()
    assert [each["others"] for each in found.places if each["tier"] == "node"] == [0, 1, 0, 1]


def test_the_json_has_the_links_of_each_kind_together():
    result = simulate(scenario("cluster.nodes=4", "work.gradient_bytes=1000000", *RING))
    told = json.loads(json.dumps(result.to_json()))
    assert [row["links"] for row in told["fabric"]] == ["node*.nic*.send", "node*.nic*.receive"]
    assert told["fabric"][0]["count"] == 4
    assert told["links"][0]["peak"] >= told["links"][0]["utilisation"]
