from pathlib import Path

import pytest

from evenstep.errors import ConfigError
from evenstep.reproduce.published import training
from evenstep.scenario import presets
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.simulation import set_up, simulate
from evenstep.simulate.wires.carriage import alone_ns
from tests.simulate.worlds import scenario

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "scenarios").glob("*.toml"))
CLUSTERS = ("dgx-a100", "dgx-h100", "p4d", "p5", "roce-25g", "torus")
MODELS = [name for name in presets.names() if name.startswith(("gpt3", "llama3", "resnet", "bert"))]

#: Parameters, tokens of a rank's step, peak TFLOP/s, share of it reached, ranks that share a copy.
FLOPS = {
    "gpt3-125m": (125e6, 32 * 2048, 312, 0.5, 1),
    "gpt3-350m": (350e6, 16 * 2048, 312, 0.5, 1),
    "gpt3-760m": (760e6, 16 * 2048, 312, 0.5, 1),
    "gpt3-1.3b": (1.3e9, 8 * 2048, 312, 0.5, 1),
    "gpt3-2.7b": (2.7e9, 8 * 2048, 312, 0.5, 1),
    "gpt3-6.7b": (6.7e9, 4 * 2048, 312, 0.5, 1),
    "gpt3-13b": (13e9, 2 * 2048, 312, 0.5, 1),
    "gpt3-175b": (175e9, 64 * 2048, 312, 0.5, 64),
    "bert-large": (336e6, 32 * 512, 312, 0.5, 1),
    "llama3-8b": (8.03e9, 2 * 8192, 989, 0.4552, 1),
    "llama3-70b": (70.6e9, 8 * 8192, 989, 0.4552, 8),
    "llama3-405b": (405e9, 16 * 8192, 989, 0.4552, 128),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_runs(name):
    asked = scenario(f"preset={name}", "cluster.nodes=8", "fabric.shape=[2, 2, 2]",
                     "work.gradient_bytes=1GB", "work.forward_ms=10", "run.steps=2")  # fmt: skip
    assert simulate(asked).step_time.mean_ns > 10e6


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_on_a_cluster(name):
    asked = scenario(f'preset=["dgx-h100", "{name}"]', "cluster.nodes=16", "run.steps=1")
    result = simulate(asked)
    assert 0.2 < result.efficiency < 1


@pytest.mark.parametrize("name", FLOPS)
def test_a_model_computes_as_long_as_its_arithmetic(name):
    """2PD forward and 4PD backward (Kaplan et al. 2020)."""
    parameters, tokens, peak, share, ranks = FLOPS[name]
    work = scenario(f"preset={name}", "cluster.nodes=128").work
    assert work.forward_ms == pytest.approx(
        2 * parameters * tokens / (ranks * peak * 1e12 * share) * 1e3, rel=1e-3
    )
    assert work.backward_ms == pytest.approx(2 * work.forward_ms, rel=1e-4)
    assert work.teraflop == pytest.approx(6 * parameters * tokens / ranks / 1e12, rel=1e-5)


def test_what_a_gpu_reaches_is_its_model_s_arithmetic_over_the_step():
    """45.5 % of 989 TFLOP/s while it computes, of which the step has `efficiency`."""
    result = simulate(scenario('preset=["dgx-h100", "llama3-8b"]', "cluster.nodes=2"))
    assert result.mfu == pytest.approx(0.4552 * result.efficiency, rel=1e-3)
    assert result.tflops_per_gpu == pytest.approx(989 * result.mfu)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_says_what_it_is_and_where_its_numbers_are_from(name):
    comment = [line for line in presets.text(name).splitlines() if line.startswith("#")]
    assert presets.summaries()[name] == comment[0].removeprefix("# ")
    assert comment[0].endswith(".")
    assert len(comment) >= 3


def test_every_preset_is_a_cluster_a_model_or_a_published_system():
    systems = [n for n in presets.names() if n.startswith(("ddp-", "horovod-", "mega"))]
    assert {*CLUSTERS, *MODELS, *systems} == set(presets.names())


# -- published rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(4))
def test_overlap_gains_what_the_closed_form_says(index):
    model, backend = list(training.DDP)[index]
    name = f"ddp-{model}-{backend}".lower()
    step, serial = (
        simulate(scenario(f"preset={name}", f"work.overlap={flag}", "run.steps=1")).step_time
        for flag in ("true", "false")
    )
    predicted = training.ddp().rows[index].predicted
    assert serial.mean_ns / step.mean_ns - 1 == pytest.approx(predicted, rel=1e-6)


@pytest.mark.parametrize("index", range(3))
def test_horovod_is_as_efficient_as_the_closed_form_says(index):
    name = list(training.HOROVOD)[index].lower().replace(" ", "-")
    result = simulate(scenario(f"preset=horovod-{name}", "run.steps=1"))
    assert result.efficiency == pytest.approx(training.horovod().rows[index].predicted, rel=1e-6)


def test_llama_loses_to_its_bubble_what_was_published():
    """43 % on 8,192 GPUs, 41 % on 16,384; one pipeline stands for all."""
    base = scenario('preset=["dgx-h100", "llama3-405b"]', "cluster.nodes=16", "run.steps=1",
                    "work.message_bytes=0", "work.gradient_bytes=0")  # fmt: skip
    predicted = training.llama3()
    reached = simulate(base).efficiency * predicted.fitted[0].value
    assert reached == pytest.approx(predicted.rows[1].predicted, rel=1e-3)


# -- merging ---------------------------------------------------------------------------------------


def test_the_scenario_has_the_last_word():
    asked = scenario("preset=dgx-h100", "cluster.nic_gBps=25")
    assert (asked.cluster.nic_gBps, asked.cluster.gpus_per_node) == (25, 8)


def test_a_preset_stands_on_those_it_names():
    asked = scenario("preset=horovod-vgg-16")
    assert (asked.cluster.nic_gBps, asked.cluster.nodes) == (3.125, 128)


def test_an_unknown_preset_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="there is no preset 'dgx-h10'; did you mean 'dgx-h100'"):
        scenario("preset=dgx-h10")


def test_two_dgx_nodes_keep_all_their_cards_busy():
    """A large ring's bus bandwidth is at most what eight cards carry, and near it."""
    asked = scenario("preset=dgx-a100", "cluster.nodes=2", "work.gradient_bytes=8GB",
                     "collectives.algorithm=ring")  # fmt: skip
    flow = set_up(asked).flows[0]
    busbw = flow.bytes / alone_ns(flow) * 2 * 15 / 16
    assert busbw == pytest.approx(8 * 25, rel=0.01)


#: Fewer steps, and of the large one fewer ranks: 1,024 with two neighbours take 8 s a step.
SHORTER = {"ring": [], "oversubscribed": ["run.steps=5", "job.ranks=128", "cluster.nodes=256"]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path):
    result = simulate(scenarios.load(path, SHORTER.get(path.stem, ["run.steps=5"])))
    assert result.throughput > 0


@pytest.mark.parametrize("named", [3, [3], ["two-dgx", None], {"a": "b"}])
def test_a_preset_is_a_name_or_a_list_of_names(named):
    with pytest.raises(ConfigError, match="a name or a list of names"):
        presets.merge_presets({"preset": named})
