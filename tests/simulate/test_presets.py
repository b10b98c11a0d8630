from pathlib import Path

import pytest

from evenstep.errors import ConfigError
from evenstep.simulate import presets
from evenstep.simulate import scenario as scenarios
from evenstep.simulate.simulation import set_up, simulate
from tests.simulate.worlds import scenario

CLUSTERS = [name for name in presets.names() if "work" not in presets.merged({"preset": name})]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_preset_is_a_cluster_that_runs(name):
    asked = scenario(f"preset={name}", "cluster.nodes=8", "fabric.shape=[2, 2, 2]",
                     "work.gradient_bytes=1GB", "work.forward_ms=10", "run.steps=2")  # fmt: skip
    assert simulate(asked).step_time.mean_ns > 10e6


def test_the_scenario_has_the_last_word():
    asked = scenario("preset=dgx-h100", "cluster.nic_gBps=25")
    assert (asked.cluster.nic_gBps, asked.cluster.gpus_per_node) == (25, 8)


def test_an_unknown_preset_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="there is no preset 'dgx-h10'; did you mean 'dgx-h100'"):
        scenario("preset=dgx-h10")


def test_two_dgx_nodes_keep_all_their_cards_busy():
    """A large ring's bus bandwidth is at most what eight cards carry, and near it."""
    asked = scenario("preset=dgx-a100", "cluster.nodes=2", "work.gradient_bytes=8GB",
                     "collectives.algorithm=ring")  # fmt: skip
    flow = set_up(asked).program.flows[0]
    busbw = flow.bytes / flow.duration_ns * 2 * 15 / 16
    assert busbw == pytest.approx(8 * 25, rel=0.01)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path):
    result = simulate(scenarios.load(path, ["run.steps=5"] if path.stem != "ring" else []))
    assert result.throughput > 0
