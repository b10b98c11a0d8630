import errno
import json
import os
from pathlib import Path

import pytest

from evenstep.cli import progress
from evenstep.cli.main import main
from evenstep.scenario.scenario import load
from evenstep.simulate import simulation

SCENARIO = """
name = "two nodes"

[cluster]
nodes = 2

[work]
forward_ms = 10
gradient_bytes = "10MB"

[run]
steps = 5
"""


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(SCENARIO)
    return str(file)


def test_a_scenario_is_simulated_and_told(scenario, capsys):
    assert main(["simulate", scenario]) == 0
    told = capsys.readouterr().out
    assert told.startswith("two nodes: 2 ranks on 2 nodes, 5 steps")


def test_one_of_a_kind_is_told_in_the_singular(scenario, capsys):
    one = ["--set", "cluster.nodes=1", "--set", "run.steps=1"]
    assert main(["simulate", scenario, *one]) == 0
    assert capsys.readouterr().out.startswith("two nodes: 1 rank on 1 node, 1 step\n")


def test_json_holds_the_numbers(scenario, capsys):
    """Forward, then a ring of two: 2 (2 µs + 5 MB / 12.5 GB/s)."""
    assert main(["simulate", scenario, "--set", "collectives.algorithm=ring", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "evenstep.simulation/1"
    assert result["step_time"]["mean_ns"] == pytest.approx(10e6 + 2 * (2e3 + 4e5))
    assert (result["ranks"], result["steps"], result["partial"]) == (2, 5, False)


@pytest.mark.parametrize(("asked", "told"), [
    ("{algorithm='nvls'}", "collectives.algorithm nvls without effect: the step's go by ring"),
    ("{algorithm='tree'}", ""),
    ("{algorithm='nccl',nccl_algo='nvls_tree'}", "collectives.nccl_algo nvls_tree without effect"),
    ("{algorithm='nccl',nccl_algo='tree'}", ""),
])  # fmt: skip
def test_an_algorithm_that_no_collective_of_the_step_has_is_told(scenario, asked, told, capsys):
    """Two nodes share no switch between GPUs, and theirs reduces nothing."""
    assert main(["simulate", scenario, "--set", f"collectives={asked}"]) == 0
    assert told in (said := capsys.readouterr().err)
    assert told or not said


def test_one_field_can_be_changed(scenario, capsys):
    main(["simulate", scenario, "--json", "--set", "work.forward_ms=20", "--set", "run.steps=3"])
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 3
    assert result["step_time"]["mean_ns"] > 20e6


def test_a_full_disk_leaves_no_part_of_a_run(scenario, tmp_path, capsys, monkeypatch):
    def full(folder, asked, progress):
        (folder / "attempt-000").mkdir(parents=True)
        (folder / "attempt-000" / "rank-00000.spool").write_bytes(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(simulation, "simulate_to", full)
    assert main(["simulate", scenario, "--out", str(tmp_path / "run")]) == 2
    assert f"cannot write {tmp_path / 'run'}: No space left" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_trace_can_be_diagnosed(scenario, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["simulate", scenario, "--out", out]) == 0
    assert capsys.readouterr().err == f"Wrote {out}\n"
    assert main(["diagnose", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["world"] == 2


@pytest.mark.parametrize("kept", [False, True])
def test_a_page_is_of_a_trace_that_stays_only_where_it_is_asked_for(
    scenario, tmp_path, capsys, monkeypatch, kept
):
    scratch, out, page = tmp_path / "scratch", tmp_path / "run", tmp_path / "page.html"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    words = [*(["--out", str(out)] if kept else []), "--html", str(page)]
    assert main(["simulate", scenario, *words]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Wrote")]
    assert told == [f"Wrote {page}", *([f"Wrote {out}"] if kept else [])]
    assert "two nodes" in page.read_text()
    assert (out.exists(), list(scratch.iterdir())) == (kept, [])


def test_without_a_page_or_a_folder_no_trace_is_written(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert main(["simulate", scenario]) == 0


def test_a_run_is_not_overwritten_unless_asked(scenario, tmp_path, capsys):
    out = str(tmp_path / "run")
    main(["simulate", scenario, "--out", out])
    assert main(["simulate", scenario, "--out", out]) == 2
    assert "already holds a run; choose another or give --force" in capsys.readouterr().err
    assert main(["simulate", scenario, "--out", out, "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "job.ranks=5"], "two.toml: job.ranks is 5, but the cluster has 2 GPUs"),
        (["--set", "cluster.nods=5"], "two.toml: there is no cluster.nods; did you mean 'nodes'?"),
        (["--set", "cluster"], "--set takes name=value"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_exit_2(scenario, arguments, message, capsys):
    assert main(["simulate", scenario, *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_missing_file_is_named(capsys):
    assert main(["simulate", "nowhere.toml"]) == 2
    assert "cannot read nowhere.toml" in capsys.readouterr().err


def test_the_fields_are_listed_without_a_scenario(capsys):
    assert main(["simulate", "--fields"]) == 0
    assert "# machines on the fabric: a whole number of at least 1\nnodes = 1" in (
        capsys.readouterr().out
    )


def test_without_a_scenario_it_says_what_is_missing(capsys):
    assert main(["simulate"]) == 2
    assert "give a SCENARIO file" in capsys.readouterr().err


def test_the_presets_are_listed_without_a_scenario(capsys):
    assert main(["simulate", "--presets"]) == 0
    listed = capsys.readouterr().out
    assert "dgx-h100               DGX H100 on a rail-optimised fabric.\n" in listed
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize("ranks", [2, 1024])
def test_every_line_fits_80_columns(ranks, tmp_path, capsys):
    file = tmp_path / "wide.toml"
    file.write_text('[work]\ngradient_bytes = "123MB"\nforward_ms = 1.2345\n')
    assert main(["simulate", str(file), "--set", f"cluster.nodes={ranks}"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_long_run_says_so_first(scenario):
    """64 ranks in random order at 4:1: every message is followed, as its first step shows."""
    sets = ["cluster.nodes=64", "fabric.kind=leaf_spine", "fabric.oversubscription=4",
            "job.placement=random", "collectives.algorithm=ring", "run.steps=10000",
            "noise=[{kind='normal'}]"]  # fmt: skip
    messages, seconds = simulation.estimate_run(simulation.set_up(load(Path(scenario), sets)))
    assert messages == 10_000 * 2 * 64 * 63
    assert seconds > 20


def test_a_long_run_without_messages_to_follow_is_announced_by_its_steps(
    scenario, monkeypatch, capsys
):
    """It read "0 messages to simulate: about 137 s" where closed forms give all transfers."""
    monkeypatch.setattr(simulation, "estimate_run", lambda _: (0, 137.0))
    assert main(["simulate", scenario]) == 0
    assert capsys.readouterr().err.startswith("5 steps to simulate: about 137 s\n")


def test_messages_of_stages_near_and_far_are_one_line(scenario, capsys):
    """Between GPUs of a node and between nodes: 30 MB at 300 GB/s and at 12.5, and latencies."""
    sets = ["cluster.nodes=2", "cluster.gpus_per_node=2", "work.kind=pipeline",
            "work.pipeline_parallel=4", "work.micro_batches=4", "work.message_bytes=30MB",
            "collectives.algorithm=ring"]  # fmt: skip
    assert main(["simulate", scenario, *(part for one in sets for part in ("--set", one))]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "send" in line[:15]]
    assert told == ["  send         30 MB among 2 ranks by pair: 101 µs to 2.402 ms alone"]


def test_messages_that_meet_no_others_are_not_announced_as_long(scenario):
    """As many go from all to all: on one leaf those of a rank are one, on eight at 4:1 each gets
    its rate anew as others come and go."""
    told = []
    for leaf in (64, 8):
        sets = ["cluster.nodes=64", "fabric.kind=leaf_spine", f"fabric.nodes_per_leaf={leaf}",
                "fabric.oversubscription=4", "work.kind=experts", "work.tensor_parallel=64",
                "work.message_bytes=32MB", "run.steps=1000", "noise=[{kind='normal'}]"]  # fmt: skip
        setup = simulation.set_up(load(Path(scenario), sets))
        told.append(simulation.estimate_run(setup))
    assert told[0][0] == 4 * 64 * 1000
    assert 60 * told[0][0] < told[1][0] < 64 * told[0][0]
    assert told[0][1] < told[1][1] / 4


def test_messages_of_the_steps_that_average_are_told(scenario):
    """Four in 20 steps, and not the first: 2 * 7 rounds of 8 messages in each."""
    sets = ["cluster.nodes=8", "fabric.kind=leaf_spine", "fabric.oversubscription=4",
            "fabric.nodes_per_leaf=2", "job.placement=random", "collectives.algorithm=ring",
            "run.steps=20", "noise=[{kind='normal'}]", "strategy.kind=local_sgd",
            "strategy.every=5"]  # fmt: skip
    messages, _ = simulation.estimate_run(simulation.set_up(load(Path(scenario), sets)))
    assert messages == 4 * 2 * 8 * 7


def test_that_a_run_is_long_is_known_before_its_first_step_is_over(scenario, monkeypatch):
    """Rings of 256 in random order, 10 a step: as many messages and rates as between two looks."""
    sets = ["cluster.nodes=256", "fabric.kind=leaf_spine", "fabric.oversubscription=4",
            "job.placement=random", "collectives.algorithm=ring", "run.steps=100",
            "noise=[{kind='normal'}]", "work.buckets=10"]  # fmt: skip
    setup = simulation.set_up(load(Path(scenario), sets))
    worlds, made = [], simulation.make_world
    monkeypatch.setattr(simulation, "make_world", lambda *of: worlds.append(made(*of)) or worlds[0])
    assert simulation.estimate_run(setup)[0] == 100 * 10 * 2 * 256 * 255
    [world] = worlds
    assert world.followed + world.rated <= 1.1 * simulation.AT_A_TIME


@pytest.mark.parametrize(
    ("sets", "most"),
    [
        (("work.kind=experts", "work.tensor_parallel=64", "fabric.nodes_per_leaf=64"), 200),
        (("job.placement=random", "fabric.nodes_per_leaf=8", "fabric.oversubscription=4"), 7000),
    ],
)
def test_a_run_is_announced_by_the_rates_of_its_first_messages(sets, most, scenario, monkeypatch):
    """A part of a step tells as much as the step. Eight rates had been taken for each message: of
    those from all to all on one leaf, too, of which none is followed by itself."""
    sets += ("cluster.nodes=64", "fabric.kind=leaf_spine", "work.message_bytes=32MB",
             "collectives.algorithm=ring", "run.steps=1000", "noise=[{kind='normal'}]")  # fmt: skip
    setup = simulation.set_up(load(Path(scenario), list(sets)))
    messages, seconds = simulation.estimate_run(setup)
    monkeypatch.setattr(simulation, "AT_A_TIME", most)
    assert simulation.estimate_run(setup) == pytest.approx((messages, seconds), rel=0.6)


def test_long_work_is_announced_and_short_work_is_not(capsys):
    progress.announce("12 simulations", 30.0)
    progress.announce("40 simulations", 90.0)
    assert capsys.readouterr().err == "40 simulations: about 90 s\n"
