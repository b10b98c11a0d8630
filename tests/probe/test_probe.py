import json
import os
import re
import tomllib
from pathlib import Path

import pytest

import evenstep
from evenstep.cli.main import main
from evenstep.probe.preflight import ProbePlan, with_ranks
from evenstep.scenario.scenario import load
from evenstep.simulate.simulation import simulate
from tests.forks import python

SLOW = 2


@pytest.fixture(scope="module")
def done(probe):
    """Three ranks, one of which computes several times as long."""
    return probe(
        3, "--seconds", 3, "--timeout", 40, "--json", "--floors", "floors.json",
        "--scenario", "machine.toml", fault="slow", at=SLOW,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(done, parsed):
    return parsed(done)


@pytest.mark.clock
def test_a_rank_that_computes_slowly_is_named(found, done):
    slow = next(one for one in found["findings"] if one["metric"] == "compute")  # worst first
    assert (slow["kind"], slow["ranks"]) == ("slow_rank", [SLOW])
    assert slow["factor"] > 1.5
    assert done.codes[0] == 1


def test_everything_was_measured_on_all_ranks(found):
    assert (found["complete"], found["world"], found["backend"]) == (True, 3, "gloo")
    assert all(
        row["compute"]["count"] >= 10 and row["memory"]["gBps"] > 0 for row in found["ranks"]
    )
    assert found["all_reduce"]  # how many sizes and pairs fit into the time is the machine's
    pairs = {(row["from"], row["to"]) for row in found["pairs"]}
    left_out = [re.match(r"(\d) rounds of pairs did not fit", one) for one in found["limits"]]
    rounds = 3 - sum(int(one[1]) for one in left_out if one)  # of three ranks: one pair each
    assert pairs == {(b, a) for a, b in pairs}
    assert len(pairs) == len(found["pairs"]) == 2 * rounds > 0


@pytest.mark.clock
def test_more_bytes_never_take_much_less_time(found):
    times = [row["median_ns"] for row in found["all_reduce"]]
    assert times[-1] > times[0]


def test_files_are_written_and_usable(done):
    assert done.err.endswith("Wrote floors.json\nWrote machine.toml\n")
    rows = json.loads((done.folder / "floors.json").read_text())["floors"]
    assert {row["op"] for row in rows} == {"all_reduce"}
    machine = done.folder / "machine.toml"
    assert tomllib.loads(machine.read_text())["job"]["ranks"] == 3
    assert simulate(load(machine)).steps == 100


def test_a_rank_that_dies_is_named_and_the_rest_still_used(probe, parsed):
    done = probe(3, "--seconds", 1, "--timeout", 30, "--json", fault="die", at=1)
    found = parsed(done)
    assert not found["complete"]
    first = found["findings"][0]
    assert (first["kind"], first["ranks"]) == ("missing_rank", [1])
    assert "stopped in stage memory" in first["observation"]
    assert all(row["compute"] for row in found["ranks"])
    assert done.codes[:2] == [1, 7]


def test_the_command_starts_ranks_by_itself(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(evenstep.__file__).parents[1]))
    monkeypatch.setattr("sys.executable", python())
    main(["probe", "--nproc", "2", "--seconds", "0.5", "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["complete"], found["world"], len(found["pairs"])) == (True, 2, 2)


def test_a_file_that_exists_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert main(["probe", "--nproc", "2", "--floors", str(tmp_path / "mine")]) == 2
    assert "overwrite it with --force" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told_before_measuring(tmp_path, capsys):
    assert main(["probe", "--nproc", "2", "--floors", str(tmp_path / "none" / "floors")]) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


def test_gpus_that_are_not_there_are_refused(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["probe", "--nproc", "2", "--device", "cuda"]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_ranks_that_started_are_stopped_if_a_later_one_cannot(monkeypatch):
    stopped = []

    class Started:
        def __init__(self, _command, env, **_options):
            if env["RANK"] == "1":
                raise OSError("no more processes")

    monkeypatch.setattr("evenstep.probe.preflight.subprocess.Popen", Started)
    monkeypatch.setattr("evenstep.probe.preflight._stop", stopped.extend)
    with pytest.raises(OSError, match="no more"):
        with_ranks(2, ProbePlan(1, 5), ["probe"], dict(os.environ), lambda *_: None)
    assert len(stopped) == 1


@pytest.mark.parametrize("option", [("--nproc", "0"), ("--seconds", "nan"), ("--timeout", "-1")])
def test_numbers_that_cannot_be_are_refused(option):
    with pytest.raises(SystemExit, match="2"):
        main(["probe", *option])
