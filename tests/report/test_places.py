from evenstep.report.page.fabric import gpu, nearest_nic, numa, places
from evenstep.trace.trace import Trace

FACTS = {
    "device": 1,
    "gpu": "0000:18:00.0",
    "gpus": [
        {"pci": "0000:17:00.0", "name": "NVIDIA H100", "numa_node": 0},
        {"pci": "0000:18:00.0", "name": "NVIDIA H100", "numa_node": 1},
    ],
    "gpu_nic": {"0000:18:00.0": {"eth0": "SYS", "mlx5_1": "PIX", "mlx5_0": "PXB"}},
    "nics": [{"name": "eth0", "pci": "0000:01:00.0"}, {"name": "mlx5_1", "pci": "0000:19:00.0"}],
    "numa": [{"node": 0, "cpus": "0-7"}, {"node": 1, "cpus": "8-15"}],
    "cpu": {"allowed": "8-15"},
}


def test_a_rank_has_its_own_gpu_the_nearest_adapter_and_their_numa_node(trace: Trace) -> None:
    trace.ranks[0].facts["locality"] = FACTS
    assert places(trace)[0] == {
        "node": "gpu011",
        "gpu": "GPU 1 NVIDIA H100 0000:18:00.0",
        "nic": "mlx5_1 (PIX)",
        "numa": "1",
        "cpus": "8-15",
    }


def test_what_is_not_known_is_left_out(trace: Trace) -> None:
    assert places(trace)[3] == {"node": "gpu012"}


def test_one_adapter_and_one_numa_node_need_no_gpu() -> None:
    facts = {"nics": [{"name": "eth0", "pci": "x"}, {"name": "docker0", "pci": None}]}
    assert nearest_nic(facts) == "eth0"
    assert numa({"numa": [{"node": 0}]}) == "0"
    assert gpu({}) == ""


def test_of_several_numa_nodes_none_is_guessed() -> None:
    assert numa({**FACTS, "gpu": None}) == ""
    assert nearest_nic({"nics": FACTS["nics"]}) == ""
