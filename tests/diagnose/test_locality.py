"""Nodes laid out alike but for one, whose cost is known."""

from dataclasses import replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.hosts import layouts, usual
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

GPUS = ("0000:03:00.0", "0000:83:00.0")
NODES = [{"node": 0, "cpus": "0-7"}, {"node": 1, "cpus": "8-15"}]


def place(local: int, *, level: str = "PIX", cores: str | None = None, lanes: int = 16):
    """Two GPUs and two adapters a node; each GPU has one of its own, unless it is further."""
    far = {GPUS[0]: {"ens1": level, "ens2": "SYS"}, GPUS[1]: {"ens1": "SYS", "ens2": "PIX"}}
    return {
        "cpu": {"allowed": cores or NODES[local]["cpus"]},
        "numa": NODES,
        "nics": [{"name": "ens1", "pci": "a"}, {"name": "ens2", "pci": "b"}],
        "gpus": [
            {"pci": GPUS[i], "numa_node": i, "name": "H100", "pcie_lanes": w, "pcie_lanes_max": 16}
            for i, w in ((0, lanes if local == 0 else 16), (1, lanes if local == 1 else 16))
        ],
        "gpu": GPUS[local],
        "gpu_nic": far,
    }


WORLD = World(ranks=8, ranks_per_node=2, noise=0.005)


def placed(world: World, **odd):
    """The trace, with rank 4 (node2) placed otherwise than its peers."""
    trace = world.trace()
    for rank, info in trace.ranks.items():
        info.identity["local_rank"] = rank % 2
        info.facts["locality"] = place(rank % 2, **(odd if rank == 4 else {}))
    return trace


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"level": "SYS"}, "reaches its nearest adapter over SYS, others over PIX"),
        ({"cores": "8-15"}, "runs on cores of another NUMA node"),
        ({"lanes": 4}, "has 4 PCIe lanes, others 16"),
    ],
)
def test_an_odd_place_with_a_late_rank_is_named_with_its_cost(odd, words):
    world = WORLD.slow(4, Phase.FORWARD, 20 * MS)
    finding = diagnose(placed(world, **odd)).findings[0]
    assert (finding.mode, finding.where.ranks, finding.where.nodes) == ("locality", [4], ["node2"])
    assert words in finding.cause
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_an_odd_place_that_costs_nothing_is_no_finding():
    assert diagnose(placed(WORLD, level="SYS")).findings == []


def test_a_late_rank_in_a_usual_place_is_a_straggler():
    finding = diagnose(placed(WORLD.slow(4, Phase.FORWARD, 20 * MS))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [4])


def test_another_rank_than_the_odd_one_is_a_straggler():
    world = WORLD.slow(1, Phase.FORWARD, 20 * MS)
    finding = diagnose(placed(world, level="SYS")).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])


def test_groups_that_are_slow_with_it_count():
    def moves(move):
        return 4 * MS * (3 if len(move.members) == 4 and 4 in move.members else 1)

    grid = replace(WORLD, style="grid", tensor_parallel=2, fabric=moves)
    found = diagnose(placed(grid, level="SYS")).findings
    finding = next(item for item in found if item.mode == "locality")
    assert finding.where.ranks == [4]
    assert "transfers of dp0 take longer" in finding.observation
    lost = grid.lost_against(replace(grid, fabric=lambda move: 4 * MS))
    assert finding.severity == pytest.approx(lost, rel=0.1)


def of_make(trace, *ranks, name="A100"):
    """The trace, with these ranks on another GPU."""
    for rank in ranks:
        for gpu in trace.ranks[rank].facts["locality"]["gpus"]:
            gpu["name"] = name
    return trace


def test_a_rank_on_slower_hardware_is_said_to_have_it():
    trace = of_make(placed(WORLD.slow(4, Phase.FORWARD, 20 * MS)), 4)
    assert "it has A100, the others H100" in diagnose(trace).findings[0].cause


def test_peers_have_the_same_local_rank():
    trace = placed(WORLD, level="SYS")
    peers = usual(layouts(trace))
    assert (peers[4].nearest, peers[4].sharing) == ("PIX", 1)
    assert layouts(trace)[4].defects(peers[4])
    assert not any(layouts(trace)[rank].defects(peers[rank]) for rank in (0, 1, 2, 3, 5, 6, 7))


def test_gpus_that_share_an_adapter_are_counted():
    facts = place(0)
    facts["gpu_nic"] = {gpu: {"ens1": "PXB"} for gpu in GPUS}
    trace = WORLD.trace()
    trace.ranks[0].facts["locality"] = facts
    assert layouts(trace)[0].sharing == 2


@pytest.mark.parametrize("facts", [[], {"gpus": [3]}, {"numa": [{}]}, {"gpu_nic": 7, "gpu": 1}])
def test_facts_of_another_shape_are_left_aside(facts):
    trace = WORLD.trace()
    trace.ranks[0].facts["locality"] = facts
    assert 0 not in layouts(trace) or layouts(trace)[0].nearest is None
