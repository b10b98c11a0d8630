"""Rings on two nodes whose adapters are shared by as many streams as the ring crosses."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure import hosts
from evenstep.trace.spool.layout import Op
from tests.diagnose.synthetic import World

MB = 1_000_000
LINK_GBPS = 12.5  # 100 Gb/s
NIC = {"nics": [{"name": "ens1", "pci": "0000:04:00.0", "speed_gbps": 100.0}]}


def ring(streams: int):
    """2(n - 1) alpha + 2 S (n - 1) / (n B / streams)."""

    def moves(move):
        n = len(move.members)
        return 2 * (n - 1) * (4000 + move.size_bytes * streams / (n * LINK_GBPS))

    return moves


STRIDED = World(
    ranks=8,
    noise=0.01,
    style="blocking",
    nodes=(0, 1) * 4,
    bucket_bytes=(25 * MB, 100 * MB, 2 * MB),
    fabric=ring(4),
)
ORDERED = replace(STRIDED, nodes=(0,) * 4 + (1,) * 4, fabric=ring(1))


def diagnosed(world: World, *, locality=NIC, run=None):
    trace = world.trace()
    for info in trace.ranks.values():
        info.facts["locality"] = locality
    trace.run.update(run or {})
    return diagnose(trace).findings


def test_a_ring_across_nodes_costs_what_the_ordered_one_saves():
    finding = diagnosed(STRIDED)[0]
    assert finding.mode == "collective_topology_mismatch"
    assert finding.severity == pytest.approx(STRIDED.lost_against(ORDERED), rel=0.1)
    assert finding.where.links == ["node0-node1"]


def test_the_order_to_use_is_written_out():
    assert "order ranks by node: 0,2,4,6,1,3,5,7" in diagnosed(STRIDED)[0].options[0].action


def test_crossings_are_in_the_evidence():
    found = {item.metric: item for item in diagnosed(STRIDED)[0].evidence}
    crossed = found["ring_crossings"]
    assert (crossed.measured, crossed.expected) == (8, 2)


def test_the_right_order_is_no_mismatch():
    assert "collective_topology_mismatch" not in [f.mode for f in diagnosed(ORDERED)]


def test_a_fabric_that_carries_all_streams_is_no_mismatch():
    fast = replace(STRIDED, fabric=ring(1))  # as fast as the adapters, in any order
    assert "collective_topology_mismatch" not in [f.mode for f in diagnosed(fast)]


def test_a_companion_measurement_is_believed_before_the_adapters():
    floors = [{"op": "all_reduce", "bytes": 2**30, "busbw_gBps": 6.25, "ranks": 8}]
    found = diagnosed(STRIDED, run={"floors": floors})
    finding = next(f for f in found if f.mode == "collective_topology_mismatch")
    half = STRIDED.lost_against(replace(STRIDED, fabric=ring(2)))
    assert finding.severity == pytest.approx(half, rel=0.1)
    assert "nccl-tests" in finding.observation


def test_without_a_reference_the_order_is_a_suspicion():
    assert diagnosed(STRIDED, locality={})[0].confidence == 0.6


def test_racks_count_where_they_are_known():
    world = replace(STRIDED, nodes=tuple(range(8)))
    trace = world.trace()
    trace.run["racks"] = {f"node{rank}": f"rack{rank % 2}" for rank in range(8)}
    finding = diagnose(trace).findings[0]
    assert finding.mode == "collective_topology_mismatch"
    assert finding.where.links == ["rack0-rack1"]
    assert "ranks are ordered across racks" in finding.cause


def test_rings_of_nccl_follow_the_nodes_by_themselves():
    trace = STRIDED.trace()
    trace.groups = tuple(replace(group, backend="nccl") for group in trace.groups)
    assert "collective_topology_mismatch" not in [f.mode for f in diagnose(trace).findings]


def test_crossings_of_small_rings_are_counted_by_hand():
    assert len(hosts.hops("aabb")) == 2
    assert len(hosts.hops("abab")) == 4
    assert hosts.busiest("abab") == 2
    assert not hosts.hops("aaaa")
    assert hosts.group_by_place([0, 1, 2, 3], "abab") == [0, 2, 1, 3]


def test_regrouping_always_gives_the_fewest_crossings():
    random = np.random.default_rng(0)
    for _ in range(50):
        where = [f"n{i}" for i in random.integers(0, 4, 12)]
        order = hosts.group_by_place(range(12), where)
        again = [where[rank] for rank in order]
        assert len(hosts.hops(again)) == (len(set(where)) if len(set(where)) > 1 else 0)


def test_gathers_have_no_ring():
    gathers = replace(ORDERED, nodes=(0, 1) * 4, after_backward=((Op.GATHER, 8 * MB),))
    assert "collective_topology_mismatch" not in [f.mode for f in diagnosed(gathers)]
