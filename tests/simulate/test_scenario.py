import re
import tomllib

import pytest

from evenstep.cli.listing import describe_fields, document
from evenstep.errors import ConfigError
from evenstep.scenario import scenario as scenarios
from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario, parse, without_effect
from evenstep.simulate.simulation import set_up, simulate
from tests.simulate.worlds import scenario


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.node=3", "there is no cluster.node; did you mean 'nodes'?"),
        ("fabric.kind=leafspine", "did you mean 'leaf_spine'?"),
        ("cluster.nic_gBps=0", "cluster.nic_gBps must be a number above 0, found 0"),
        ("work.forward_ms=-1", "work.forward_ms must be a number of at least 0, found -1"),
        ("job.ranks=9", "job.ranks is 9, but the cluster has 1 GPUs"),
        ("cluster.nodes=1.5", "cluster.nodes must be a whole number of at least 1, found 1.5"),
        ("work.gradient_bytes=25XB", "such as 25MB"),
        ("strategy.kind=sync", "strategy.kind must be one of synchronous"),
        ("fabric.kind=torus", "fabric.shape must be two or three lengths"),
        ("strategy.compression=0", "must be a number above 0, at most 1, found 0"),
        ("run.warm_up=100", "run.warm_up is 100; it must be below run.steps, 100"),
        ("neighbours=[{nodes='0-5'}]", "neighbours[0].nodes names 5, but nodes are 0 to 0"),
        ("strategy.island_ranks=2", "which does not divide 1 ranks; 2 ranks would do"),
        (
            "cluster.nodes=8; work.kind=tensor; work.tensor_parallel=3",
            "does not divide 8 ranks; 6 ranks would do",
        ),
        ("job.placement=given; job.nodes=0-9", "job.nodes names 9, but nodes are 0 to 0"),
        ("noise=[{sigma=.1}]", "--set takes TOML, found [{sigma=.1}]: "),
        ("job.nodes='0,0'", "job.nodes is '0,0', which names a number twice"),
        ("cluster.nodes=2; neighbours=[{nodes='0-1', node_count=2}]", "has nodes and node_count"),
        ("cluster.nodes=2; neighbours=[{nodes='0-1', rate_gBps=3}]", "set responsive = false"),
        ("work.kind=collective; strategy.kind=local_sgd", "averages parameters, but work.kind"),
        ("cluster.kinds=[{nodes='0', factor=2}, {nodes='0'}]", "names 0, which is of another kind"),
        ("fabric.changes=[{links='*', factor=0.5, gBps=3}]", "has factor and gBps"),
        (
            "work.tensor_parallel=2",
            "belongs to work.kind tensor or experts or pipeline, not to ddp",
        ),
        ("work.kind=experts; work.message_bytes=1MB", "among at least 2 ranks that share a layer"),
        ("collectives.algorithm=server; collectives.servers=3", "only the 1 ranks can be servers"),
        (
            "cluster.nodes=4; work.kind=pipeline; work.pipeline_parallel=2; strategy.backups=2",
            "strategy.backups is 2; it must be below the 2 replicas",
        ),
        ("noise=[{first_step=30, last_step=10}]", "last_step is 10, before its first_step"),
        ("work.kind=fsdp; strategy.kind=priority", "orders the buckets that backward leaves"),
        ("cluster.nodes=2000000", "a cluster may have 1,000,000 of either"),
        ("cluster.nodes=1e30", "cluster.nodes must be a whole number of at least 1, at most"),
        ("run.steps=1000000000000", "run.steps must be a whole number of at least 1, at most"),
        ("run.seed=99999999999999999999", "run.seed must be a whole number of at least 0, at most"),
        ("work.gradient_bytes=1e30", "at least 0, at most 1e+18, found"),
        ("cluster.nic_gBps=1e-300", "cluster.nic_gBps must be a number above 0, at least 1e-09"),
        (f"cluster.nic_gBps=1{'0' * 400}", "cluster.nic_gBps must be a number above 0, found 1000"),
        ("cluster.nic_gBps=1e300", "at most 1,000,000,000,000, found 1e+300"),
        ("job.placement=given", "needs job.nodes: which nodes, in order"),
        ("cluster.slow_nodes=5", "cluster.slow_nodes names 5, but nodes are 0 to 0"),
        ('cluster.kinds=[{nodes="5"}]', "cluster.kinds[0].nodes names 5, but nodes are 0 to 0"),
        (
            "cluster.kinds=[{nodes='0', pcie_gBps=9}]",
            "cluster.kinds[0].pcie_gBps needs cluster.gpus_per_pcie_switch",
        ),
        ("cluster.gpu_nics=[0, 1]", "has 2 entries for 1 GPUs of a node; give one for each"),
        (
            "cluster.nodes=4; work.kind=pipeline; work.pipeline_parallel=4; work.layers=3",
            "work.layers is 3, too few for the 4 parts of the model",
        ),
        (
            "work.kind=pipeline; work.micro_batches=1000; work.interleaved=2000000000",
            "a step may have 1,000,000 passes of micro-batches",
        ),
        (
            "work.kind=fsdp; work.micro_batches=1001; work.buckets=1000",
            "work.micro_batches is 1001 and the model has 1000 parts",
        ),
        (
            "cluster.nodes=8; work.kind=tensor; work.tensor_parallel=2; strategy.kind=diloco; "
            "strategy.island_ranks=4",
            "strategy.island_ranks is 4, but the parts of a replica are 2",
        ),
        ("noise=[{kind='daemon', period_ms=5}]", "a daemon that always runs leaves no time"),
        ("reliability.parts=[{name='a'}, {name='b'}, {name='a'}]", "parts[2].name 'a' is taken"),
        ("reliability.parts=[{}, {name='node'}]", "parts[1].name 'node' is taken"),
        ("work.micro_batches=100001", "at most 100,000, found 100001"),
        ("work.sequence_lengths=[1, 1e200]", "a list of numbers, none beyond 1,000,000,000,000"),
    ],
)
def test_what_cannot_be_is_refused_by_name(setting, message):
    with pytest.raises(ConfigError) as refused:
        scenario(*setting.split("; "))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "work.schedule=gpipe",
            "work.schedule has no effect: it belongs to work.kind pipeline, not",
        ),
        ("fabric.spines=3", "to fabric.kind leaf_spine or fat_tree or rail, not to switch"),
        (
            "job.nodes=0",
            "job.nodes has no effect: it belongs to job.placement given, not to packed",
        ),
        ("collectives.servers=2", "to collectives.algorithm server, not to auto"),
        (
            "noise=[{kind='hits', sigma=1}]",
            "noise[0].sigma has no effect: it belongs to noise[0].kind",
        ),
        ("cluster.slow_nodes_factor=2", "belongs to cluster.slow_nodes, which is not given"),
        ("cluster.slow_nodes=0", "belongs to cluster.slow_nodes_factor, which is not given"),
        ("cluster.pcie_gBps=9", "belongs to cluster.gpus_per_pcie_switch, which is not given"),
        ("work.attention_share=.5", "belongs to work.sequence_lengths, which is not given"),
        (
            "reliability.notice_s=9",
            "to reliability.slow_nodes_per_1000_node_days, which is not given",
        ),
        (
            "reliability.spares=3; reliability.write_s=9",
            "reliability.write_s and reliability.spares without effect: give failures_per_1000",
        ),
        ("energy.pue=1.2", "energy.pue without effect: give compute_watts or communicate_watts"),
        ("cluster.storage_gBps=9", "storage_gBps without effect: give work.input_bytes"),
        (
            "cluster.nodes=4; neighbours=[{node_count=2}]; strategy.kind=asynchronous",
            "do not slow the job: with strategy.kind asynchronous an exchange takes as long as",
        ),
        ("work.key_share=.5; work.kind=pipeline", "to work.context_parallel, which is not given"),
        (
            "work.overlap=false; work.overlap_slowdown=.2",
            "work.overlap_slowdown has no effect: it belongs to work.overlap, which is off",
        ),
        (
            "noise=[{first_step=5}]; run.steps=5",
            "noise[0] has no effect: its first_step is 5, and the last of run.steps is 4",
        ),
        (
            "reliability.parts=[{}]; reliability.node_share=.5",
            "belongs to reliability.failures_per_1000_node_days, which is not given",
        ),
        ("fabric.latency_us=5", "to fabric.kind leaf_spine or fat_tree or rail or torus or drag"),
        ("fabric.link_gBps=5", "to fabric.kind leaf_spine or fat_tree or rail or torus or drag"),
        ("fabric.kind=dragonfly; fabric.routing=adaptive", "or fat_tree or rail, not to dragonfly"),
        ("fabric.kind=dragonfly; fabric.nodes_per_leaf=2", "or rail, not to dragonfly"),
        ("fabric.incast_goodput=.9", "incast_goodput without effect: give neighbours"),
        (
            "fabric.kind=torus; fabric.shape=[1, 1]; cluster.nic_latency_us=4",
            "cluster.nic_latency_us without effect: machines of fabric.kind torus are linked to",
        ),
        ("cluster.numa_gBps=9", "to cluster.gpu_numa or nic_numa, which is not given"),
        ("cluster.far_cores_factor=2", "to cluster.core_numa, which is not given"),
        ("collectives.algorithm=direct; collectives.channels=2", "nccl or ring or tree, not to"),
        ("work.input_bytes=9", "input_bytes without effect: give cluster.storage_gBps"),
        ("work.layers=9", "work.layers has no effect: it belongs to work.kind pipeline, not"),
        ("work.kind=pipeline; work.layers=9", "layers without effect: give work.tensor"),
        (
            "work.kind=pipeline; work.message_bytes=9",
            "work.message_bytes without effect: give work.pipeline_parallel",
        ),
        (
            "work.kind=pipeline; work.expert_imbalance=.5",
            "work.expert_imbalance without effect: give work.expert_parallel",
        ),
        (
            "cluster.nodes=2; work.kind=pipeline; work.expert_parallel=2; work.message_bytes=9",
            "work.expert_parallel without effect: give work.layers",
        ),
        (
            "work.overlap_slowdown=.2; strategy.kind=local_sgd",
            "work.overlap_slowdown without effect: strategy.kind local_sgd exchanges no gradients",
        ),
        (
            "cluster.nodes=2; cluster.kinds=[{nodes='1',factor=2}]; cluster.far_cores_factor=2",
            "far_cores_factor has no effect: it belongs to cluster.core_numa, which is not given",
        ),
        (
            "cluster.nodes=2; cluster.kinds=[{nodes='1',factor=2}]; cluster.numa_gBps=9",
            "numa_gBps has no effect: it belongs to cluster.gpu_numa or nic_numa, which is not",
        ),
        (
            "reliability.slow_nodes_per_1000_node_days=2; reliability.repair_h=9",
            "reliability.repair_h without effect: no failure takes a node out",
        ),
        (
            "reliability.parts=[{name='link',hardware=false}]; reliability.spares=1",
            "reliability.spares without effect: no failure takes a node out",
        ),
        (
            "collectives.algorithm=nccl; cluster.gpu_link_latency_us=9",
            "cluster.gpu_link_latency_us without effect: collectives.algorithm nccl has NCCL's",
        ),
    ],
)
def test_what_has_no_effect_is_told(setting, sentence):
    (told,) = without_effect(scenario(*setting.split("; ")))
    assert sentence in told


@pytest.mark.parametrize(
    "setting",
    ["strategy.kind=local_sgd; strategy.every=4", "work.kind=fsdp; work.buckets=3",
     "neighbours=[{kind='bursty',node_count=2,compute_ms=1}]; cluster.nodes=4", "run.steps=3",
     "cluster.slow_nodes=0; cluster.slow_nodes_factor=2", "work.overlap_slowdown=.2",
     "work.kind=fsdp; work.overlap_slowdown=.2", "noise=[{first_step=4}]; run.steps=5",
     "energy.pue=1.2; energy.price_per_hour=2", "reliability.parts=[{}]; reliability.spares=3",
     "fabric.kind=dragonfly; fabric.oversubscription=4; fabric.latency_us=4",
     "work.kind=fsdp; work.buckets=3; work.shard_ranks=2; cluster.nodes=4; strategy.kind=diloco",
     "work.kind=experts; work.tensor_parallel=2; cluster.nodes=2; work.expert_imbalance=.5",
     "cluster.gpu_numa=[0]; cluster.numa_gBps=9",
     "cluster.core_numa=[1]; cluster.far_cores_factor=2",
     "cluster.nodes=2; cluster.kinds=[{nodes='1',core_numa=[1]}]; cluster.far_cores_factor=2",
     "reliability.failures_per_1000_node_days=2; reliability.repair_h=9",
     "collectives.algorithm=nccl; cluster.gpu_link_latency_us=9; cluster.nodes=2; "
     "work.kind=pipeline; work.pipeline_parallel=2"],
)  # fmt: skip
def test_of_what_has_an_effect_nothing_is_told(setting):
    assert not list(without_effect(scenario(*setting.split("; "))))


@pytest.mark.parametrize("shape", ["[-2, -2]", "[2.5, 2]", "[0, 4]", "[4]"])
def test_a_torus_has_whole_lengths(shape):
    with pytest.raises(ConfigError, match=r"fabric\.shape must be two or three lengths"):
        scenario("cluster.nodes=4", "fabric.kind=torus", f"fabric.shape={shape}")


def test_a_fabric_with_all_its_uplinks_failed_is_called_disconnected():
    asked = scenario(
        "cluster.nodes=64", "fabric.kind=leaf_spine", "work.gradient_bytes=1MB",
        fabric={"changes": [{"links": "leaf1->spine*", "failed": True}]},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="the fabric is disconnected, every path from node 63"):
        set_up(asked)


def test_a_failed_card_of_the_job_is_named():
    asked = scenario(
        "cluster.nodes=4", "work.gradient_bytes=1MB",
        fabric={"changes": [{"links": "node2.nic0.send", "failed": True}]},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"node2\.nic0\.send has failed"):
        set_up(asked)


def test_a_link_that_does_not_exist_is_named():
    asked = scenario("cluster.nodes=4", fabric={"changes": [{"links": "leaf9*", "factor": 0.5}]})
    with pytest.raises(ConfigError, match=r"fabric\.changes\[0\]\.links: no link is called"):
        set_up(asked)


def test_a_job_has_all_nodes_that_no_neighbour_has():
    cluster = ("cluster.nodes=9", "cluster.gpus_per_node=2")
    assert scenario(*cluster).ranks == 18
    both = "neighbours=[{nodes='1-2'}, {node_count=3}]"
    assert scenario(*cluster, both).ranks == 8
    assert scenario(*cluster, both, "job.ranks=7").ranks == 7
    assert scenario(*cluster, both, "job.placement=given", "job.nodes='0,3'").ranks == 4


def test_neighbours_need_nodes_to_be_on():
    with pytest.raises(ConfigError, match=r"neighbours\[0\]\.node_count is 8, but only 4"):
        set_up(scenario("cluster.nodes=4", "job.ranks=2", neighbours=[{"node_count": 8}]))


def test_sizes_are_si_unless_written_otherwise():
    assert scenario("work.gradient_bytes=25MB").work.gradient_bytes == 25 * 10**6
    assert scenario("work.gradient_bytes=25MiB").work.gradient_bytes == 25 * 2**20


def test_an_entry_of_a_list_is_set_by_its_number():
    asked = scenario("noise.0.sigma=0.5", noise=[{"kind": "normal"}])
    assert asked.noise[0].sigma == 0.5
    with pytest.raises(
        ConfigError, match="must be the number of an entry, or the next; there are 1"
    ):
        scenario("noise.3.sigma=0.5", noise=[{"kind": "normal"}])


def test_an_entry_is_added_behind_the_last():
    asked = scenario("noise.0.kind=slow", "noise.0.ranks=0", "noise.1.kind=hits")
    assert [noise.kind for noise in asked.noise] == ["slow", "hits"]


def test_a_scenario_survives_the_way_to_toml_and_back(tmp_path):
    asked = scenario(
        "cluster.nodes=8", "fabric.kind=torus", "fabric.shape=[2, 2, 2]", "work.gradient_bytes=5MB",
        noise=[{"kind": "hits", "delay_ms": 3.5}, {"kind": "slow", "ranks": "3"}],
    )  # fmt: skip
    file = tmp_path / "scenario.toml"
    file.write_text(schema.to_toml(schema.plain(asked)))
    assert scenarios.load(file) == asked


def test_the_list_of_fields_is_itself_a_scenario(tmp_path):
    file = tmp_path / "all.toml"
    given = [row for row in describe_fields().splitlines() if not row.startswith("links = ")]
    head = describe_fields().split("[[")[0]
    assert len(given) > len(head.splitlines())
    file.write_text(head)
    assert scenarios.load(file) == Scenario()


def test_every_field_says_what_it_means():
    assert all(field["meaning"] and field["allowed"] for field in document()["fields"])


def test_a_file_that_is_not_toml_is_named(tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("[cluster")
    with pytest.raises(ConfigError, match=r"broken\.toml is not TOML"):
        scenarios.load(file)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("steps=5", "'run.steps' or 'noise.0.steps'"),
        ("step=5", "'run.steps' or 'noise.0.steps'"),
        ("oversubscription=2", "'fabric.oversubscription'"),
        ("cluster.sigma=.1", "'noise.0.sigma'"),
        ("run.stps=3", "'steps'"),
        ("stratgy.kind=paced", "'strategy'"),
    ],
)
def test_a_name_in_the_wrong_place_is_told_its_own(given, meant):
    with pytest.raises(ConfigError, match=rf"did you mean {re.escape(meant)}\?"):
        parse({}, [given])


def test_a_number_may_begin_or_end_with_its_point():
    assert parse({}, ["noise.0.sigma=.25", "cluster.nodes=2."]).noise[0].sigma == 0.25


def test_a_step_that_takes_no_time_is_refused():
    with pytest.raises(ConfigError, match=r"takes no time; give work\.forward_ms"):
        simulate(parse({}))


@pytest.mark.parametrize(
    "value", [{"kind": "even", "most": 0.5}, [{"rank": 1}, {"rank": [2, 3]}], {"a": {"b": ["c"]}}]
)
def test_a_value_within_a_line_is_toml_that_reads_back(value):
    assert tomllib.loads(f"value = {schema.literal(value)}") == {"value": value}


def test_a_value_of_a_list_is_set_by_its_number():
    data = {"lengths": [1, 2]}
    schema.assign(data, "lengths.1=30")
    schema.assign(data, "name.of=it")
    assert data == {"lengths": [1, 30], "name": {"of": "it"}}
    with pytest.raises(ConfigError, match="0 is a value, not a table"):
        schema.assign(data, "lengths.0.more=3")


@pytest.mark.parametrize(("first", "last", "fits"), [(2, 1, False), (2, 2, True), (2, 0, True)])
def test_noise_ends_no_earlier_than_it_begins_unless_it_does_not_end(first, last, fits):
    sets = (f"noise.0.first_step={first}", f"noise.0.last_step={last}")
    if fits:
        assert scenario(*sets).noise[0].last_step == last
    else:
        with pytest.raises(ConfigError, match="last_step is 1, before its first_step"):
            scenario(*sets)
