"""What a simulation writes is a run like any other."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.simulate.job.recording import RecordRow, SimulatedRecorder
from evenstep.simulate.simulation import simulate, simulate_to, simulate_trace
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind, Phase
from tests.simulate.worlds import scenario

JOB = (
    "cluster.nodes=4", "cluster.gpus_per_node=4", "work.forward_ms=20", "work.backward_ms=40",
    "work.optimizer_ms=4", "work.gradient_bytes=100MB", "work.buckets=4", "run.steps=40",
    "work.samples_per_rank=8",
)  # fmt: skip
JITTER = {"kind": "normal", "sigma": 0.01}


def found(*sets, noise=()):
    _, trace = simulate_trace(scenario(*JOB, *sets, noise=[JITTER, *noise]))
    return diagnose(trace)


@pytest.fixture(scope="module")
def asked():
    return scenario(*JOB, noise=[JITTER, {"kind": "collector", "every": 7, "delay_ms": 15.0}])


@pytest.fixture(scope="module")
def written(asked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "simulated"
    return simulate_to(folder, asked), load(folder)


def test_it_is_whole(written):
    result, trace = written
    assert trace.world == len(trace.ranks) == 16
    assert all(info.closed and not info.dropped for info in trace.ranks.values())
    assert trace.limits == []
    steps = trace.of_kind(Kind.STEP)
    ends = np.array([steps.exit_ns[steps.step == step].max() for step in range(40)])
    assert np.diff(ends) == pytest.approx(result.step_ns[1:], abs=2)


def test_phases_of_a_step_add_up_to_it(written):
    _, trace = written
    steps, phases = trace.of_kind(Kind.STEP), trace.of_kind(Kind.PHASE)
    leaves = np.bincount(phases.step * 16 + phases["rank"], weights=phases.group_seq.astype(float))
    length = np.bincount(steps.step * 16 + steps["rank"], weights=steps.exit_ns - steps.enter_ns)
    assert leaves == pytest.approx(length, abs=10)


def test_pauses_of_the_collector_are_recorded(written):
    _, trace = written
    pauses = trace.of_kind(Kind.PAUSE)
    assert len(pauses) == pytest.approx(16 * 40 / 7, rel=0.1)
    assert (pauses.exit_ns - pauses.enter_ns == 15_000_000).all()


def test_a_long_run_is_the_same_in_blocks_of_any_size(asked, monkeypatch):
    _, whole = simulate_trace(asked)
    monkeypatch.setattr("evenstep.simulate.job.recording.BLOCK_BYTES", 1)
    _, parts = simulate_trace(asked)
    assert (whole.events.seq == parts.events.seq).all()
    assert (whole.events.enter_ns == parts.events.enter_ns).all()


def test_an_interrupted_run_keeps_its_finished_steps(asked, tmp_path):
    def stop(done, steps):
        if done == 25:
            raise KeyboardInterrupt

    result = simulate_to(tmp_path / "run", asked, progress=stop)
    assert (result.partial, result.steps) == (True, 25)
    trace = load(tmp_path / "run")
    assert set(trace.of_kind(Kind.STEP).step) == set(range(25))
    assert trace.limits == []


def test_a_healthy_job_has_no_finding_about_a_rank():
    modes = {finding.mode for finding in found().findings if finding.severity > 0.02}
    assert "straggler" not in modes


def test_the_slow_rank_is_found_with_what_it_costs():
    """1.3 × 40 ms: about 18 ms of some 84."""
    worst = found(noise=[{"kind": "slow", "ranks": "9", "factor": 1.3}]).findings[0]
    assert (worst.mode, worst.where.ranks, worst.when.pattern) == ("straggler", [9], "chronic")
    assert worst.severity == pytest.approx(18 / 84, abs=0.03)


def test_the_slow_node_is_found():
    diagnosis = found("cluster.slow_nodes=2", "cluster.slow_nodes_factor=1.4")
    worst = diagnosis.findings[0]
    assert (worst.mode, worst.layer, worst.where.nodes) == ("straggler", "node", ["node0002"])


def test_garbage_collection_is_found():
    modes = [f.mode for f in found(noise=[{"kind": "collector", "every": 8}]).findings]
    assert modes[0] == "runtime_jitter"


def test_slow_input_is_found():
    noise = [{"kind": "hits", "phase": "input", "probability": 0.3, "delay_ms": 30.0}]
    modes = [f.mode for f in found("work.input_ms=5", noise=noise).findings]
    assert "input_pipeline" in modes


def test_layers_of_a_sharded_job_are_recorded_with_their_waits():
    _, trace = simulate_trace(scenario(*JOB, "work.kind=fsdp", "run.steps=3"))
    collectives = trace.of_kind(Kind.COLLECTIVE)
    assert len(collectives) == 3 * 16 * (4 + 4 + 4)
    waits = trace.of_kind(Kind.PHASE)
    assert (waits.op == int(Phase.SYNC)).sum() == 3 * 16 * 9


def test_every_rank_is_in_its_own_groups():
    sets = ("work.kind=tensor", "work.tensor_parallel=4", "work.message_bytes=1MB", "run.steps=2")
    _, trace = simulate_trace(scenario(*JOB, *sets))
    rows = trace.of_kind(Kind.COLLECTIVE)
    for group, rank in set(zip(rows.group.tolist(), rows["rank"].tolist(), strict=True)):
        assert rank in trace.groups[group].ranks


def test_the_same_scenario_writes_the_same_bytes(asked, tmp_path):
    for name in ("one", "other"):
        simulate_to(tmp_path / name, asked)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("one", "other")
    ]
    assert len(files[0]) == 17
    assert files[0] == files[1]


def test_recording_changes_nothing(asked):
    assert (simulate(asked).step_ns == simulate_trace(asked)[0].step_ns).all()


def test_a_step_that_was_interrupted_halfway_is_left_out():
    kept = []
    recorder = SimulatedRecorder(np.arange(2), lambda _, records, __: kept.append(records.copy()))
    times = np.zeros(2), np.ones(2)
    rows = [RecordRow(Kind.STEP, 0, *times), RecordRow(Kind.PHASE, 2, *times)]
    recorder.step(0, rows)
    with pytest.raises(AttributeError):
        recorder.step(1, [*rows[:1], None])
    recorder.flush()
    assert [block.shape[1] for block in kept] == [2]


def test_gathers_that_reach_one_rank_after_another_are_bound_by_a_slow_link():
    """In a ring, members leave one after the other, which is not taken for a lack of bandwidth:
    with the bandwidth expected, steps are told to be a little longer than without a slow adapter.
    """
    fsdp = ("cluster.nodes=2", "work.kind=fsdp", "work.gradient_bytes=80MB", "work.buckets=8")
    slow = {"links": "node1.nic*", "factor": 0.1}
    result, trace = simulate_trace(
        scenario(*JOB, *fsdp, noise=[JITTER], fabric={"changes": [slow]})
    )
    well, _ = simulate_trace(scenario(*JOB, *fsdp, noise=[JITTER]))
    finding = diagnose(trace).findings[0]
    assert finding.mode == "bandwidth_bound"
    lost = 1 - well.step_ns.mean() / result.step_ns.mean()
    assert 0.85 * lost < finding.severity < lost


def test_a_slow_link_is_known_by_the_speed_that_adapters_state():
    """Two cards a node; what it costs is known from the same job without the fault, and told but
    for the time by which the members of a ring leave one after the other."""
    sets = (*JOB, "cluster.nics_per_node=2", "work.gradient_bytes=800MB",
            "collectives.algorithm=ring")  # fmt: skip
    whole = simulate(scenario(*sets))
    result, trace = simulate_trace(
        scenario(*sets, "fabric.changes=[{links='node1.nic*', factor=0.3}]")
    )
    worst = diagnose(trace).findings[0]
    assert (worst.mode, worst.layer) == ("bandwidth_bound", "fabric")
    assert "of 25 GB/s expected" in worst.cause
    gained = 1 - whole.step_time.mean_ns / result.step_time.mean_ns
    assert 0.85 * gained < worst.severity < gained


def test_full_adapters_of_parameter_servers_are_no_slow_links():
    """Each of two holds half of what seven others send it and have back, a quarter of the bus
    bandwidth of a ring of eight."""
    servers = "collectives.algorithm=server", "collectives.servers=2"
    nodes = "cluster.nodes=8", "cluster.gpus_per_node=1", "work.gradient_bytes=800MB"
    _, trace = simulate_trace(scenario(*JOB, *nodes, *servers, noise=[JITTER]))
    first = diagnose(trace).findings[0]
    assert first.mode == "bandwidth_bound"
    assert "no less than the 3.12 GB/s expected (the speed of the network adapters)" in first.cause
    for damaged in ("0,x", "900-910", "5-2"):  # whose links are then those of a ring
        trace.groups = tuple(
            replace(one, backend=f"simulated, servers {damaged}") for one in trace.groups
        )
        assert diagnose(trace).findings[0].mode == "bandwidth_bound"
