"""`evenstep probe` around the measurement: what it starts, writes and ends with."""

import json

import pytest

from evenstep.cli import probe
from evenstep.cli.main import main
from evenstep.probe.preflight import Ended, ProbePlan
from evenstep.scenario.scenario import load
from tests.probe.measured import outcome

EVEN = outcome(nodes=2, per_node=2)
SLOW = outcome(nodes=2, per_node=2, compute={3: 1.5})


@pytest.fixture
def started(monkeypatch):
    """What ranks were started with; the probe ends as is put first into the list."""
    seen = []

    def with_ranks(count, plan, command, environ, report):
        seen.append((count, plan, command[command.index("probe") :]))
        return seen[0]

    monkeypatch.setattr(probe.preflight, "with_ranks", with_ranks)
    return seen


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Ended(EVEN), 0), (Ended(SLOW), 1), (Ended(None), 0), (Ended(SLOW, 15), 143),
        (Ended(None, 2), 130),
    ],
)  # fmt: skip
def test_it_ends_with_what_was_found_or_with_the_signal_that_ended_it(started, ended, code, capsys):
    started.append(ended)
    assert main(["probe", "--nproc", "4"]) == code
    assert bool(capsys.readouterr().out) is (ended.outcome is not None)


def test_ranks_are_started_with_the_options_that_were_given(started, capsys):
    started.append(Ended(EVEN))
    words = ["--seconds", "2.5", "--timeout", "7", "--device", "cpu", "--backend", "gloo"]
    main(["probe", "--nproc", "4", *words, "--json"])
    count, plan, command = started[1]
    assert (count, plan) == (4, ProbePlan(2.5, 7.0, "cpu", "gloo"))
    assert command == [
        *("probe", "--part", "--seconds", "2.5", "--timeout", "7.0"),
        *("--device", "cpu", "--backend", "gloo"),
    ]
    assert json.loads(capsys.readouterr().out)["world"] == 4


@pytest.mark.parametrize("part", [False, True])
def test_as_a_rank_of_somebody_elses_job_it_ends_whatever_hangs(monkeypatch, capsys, part):
    """`--part` of a probe that reports by itself tells nothing."""
    codes = []
    monkeypatch.setattr(probe.os, "_exit", codes.append)
    monkeypatch.setattr(
        probe.preflight, "as_rank",
        lambda plan, environ, report, reports: Ended(SLOW if reports else None),
    )  # fmt: skip
    main(["probe", *["--part"] * part])
    assert codes == [0 if part else 1]
    assert bool(capsys.readouterr().out) is not part


def test_floors_and_a_scenario_are_written_where_they_are_asked_for(started, tmp_path, capsys):
    started.append(Ended(EVEN))
    floors, scenario = tmp_path / "floors.json", tmp_path / "s.toml"
    assert (
        main(["probe", "--nproc", "4", "--floors", str(floors), "--scenario", str(scenario)]) == 0
    )
    assert json.loads(floors.read_text())["schema"] == "evenstep.floors/1"
    assert load(scenario, []).cluster.nodes == 2
    assert main(["probe", "--nproc", "4", "--scenario", str(scenario)]) == 2
    assert "s.toml exists" in capsys.readouterr().err
    assert len(started) == 2  # refused before ranks were started


def test_a_file_that_cannot_be_told_does_not_hide_what_was_found(started, tmp_path, capsys):
    """One rank has no links to tell floors of."""
    started.append(Ended(outcome(nodes=1, per_node=1)))
    floors = tmp_path / "f.json"
    assert main(["probe", "--nproc", "1", "--floors", str(floors)]) == 0
    said = capsys.readouterr()
    assert said.out
    assert f"{floors} was not written: " in said.err
    assert not floors.exists()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_told_to_a_person_alone(monkeypatch, capsys, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    probe._progress("measuring")
    assert ("measuring" in capsys.readouterr().err) is terminal
