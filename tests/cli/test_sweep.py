import json
import signal
import time

import pytest

from evenstep.cli import progress
from evenstep.cli.main import main

SCENARIO = """
[cluster]
nodes = 2

[work]
forward_ms = 10
gradient_bytes = "10MB"

[[noise]]
sigma = 0.1

[run]
steps = 5
"""


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(SCENARIO)
    return str(file)


def test_every_combination_is_a_line(scenario, capsys):
    vary = ["--vary", "nodes=2,4", "--vary", "work.buckets=1,2"]
    assert main(["sweep", scenario, *vary, "--workers", "1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["nodes", "buckets", "ranks"]
    assert [line.split()[:2] for line in lines] == [[n, b] for n in "24" for b in "12"]


def test_what_changes_nothing_is_told_and_in_which_combinations(scenario, capsys):
    vary = ["--vary", "collectives.algorithm=ring,nvls", "--vary", "work.buckets=1,2"]
    assert main(["sweep", scenario, *vary, "--set", "energy.pue=1.2", "--workers", "1"]) == 0
    told = capsys.readouterr().err
    assert "evenstep: energy.pue without effect: give" in told
    assert (
        "evenstep: with collectives.algorithm=nvls, work.buckets=1 and 1 other combination: "
        "collectives.algorithm nvls without effect: the step's go by ring"
    ) in told


def test_json_has_an_interval_over_the_repeats(scenario, capsys):
    main(["sweep", scenario, "--vary", "nodes=2", "--repeats", "3", "--workers", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    (entry,) = found["combinations"]
    assert (found["schema"], found["finished"], entry["repeats"]) == ("evenstep.sweep/1", 3, 3)
    assert entry["throughput"]["low"] < entry["throughput"]["value"] < entry["throughput"]["high"]


def test_the_same_command_goes_on_where_it_was(scenario, tmp_path, capsys):
    command = ["sweep", scenario, "--vary", "nodes=2,4", "--workers", "1", "--out"]
    assert main([*command, str(tmp_path / "out")]) == 0
    table = next((tmp_path / "out").glob("results.*")).read_bytes()
    assert main([*command, str(tmp_path / "out")]) == 0
    assert "2 of 2 already finished" in capsys.readouterr().err
    assert next((tmp_path / "out").glob("results.*")).read_bytes() == table


def test_twice_as_many_workers_are_expected_to_take_half_as_long(scenario, monkeypatch):
    told = []
    monkeypatch.setattr(progress, "announce", lambda what, seconds: told.append((what, seconds)))
    for workers in ("1", "2"):
        main(["sweep", scenario, "--vary", "nodes=2,4", "--workers", workers])
    (what, alone_s), (_, both_s) = told
    assert what == "2 simulations"
    assert alone_s == pytest.approx(2 * both_s)


def shown_of(out):
    return len(out.splitlines()) - 1  # below the head


def test_ctrl_c_keeps_what_is_finished(scenario, tmp_path, start):
    seeds = ",".join(map(str, range(5000)))  # minutes: it is not done before it is told
    child = start("sweep", scenario, "--vary", f"seed={seeds}", "--set", "run.steps=200",
                  "--workers", "1", "--out", "out")  # fmt: skip
    journal = tmp_path / "out" / "journal.jsonl"
    while not (journal.exists() and journal.stat().st_size):
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert f"interrupted: {shown_of(out)} of 5000 finished" in err
    shown, kept = shown_of(out), len(journal.read_text().splitlines())
    assert kept <= shown <= kept + 1  # the signal may come between the two
    assert list((tmp_path / "out").glob("results.*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give at least one --vary"),
        (["--vary", "nodes"], "--vary takes name=value"),
        (["--vary", "nods=2"], "with nods=2: there is no nods; did you mean"),
        (["--vary", "nodes=2", "--set", "steps=many"], "run.steps must be"),
        (["--vary", "nodes=2", "--html", "none/page.html"], "there is no folder none"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_exit_2(scenario, arguments, message, capsys):
    assert main(["sweep", scenario, *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_folder_that_cannot_be_made_is_named(scenario, capsys):
    below_a_file = f"{scenario}/sweep"
    assert main(["sweep", scenario, "--vary", "nodes=2", "--out", below_a_file]) == 2
    assert f"{scenario} is a file; name a folder" in capsys.readouterr().err


def test_no_lower_bound_of_a_measure_is_below_zero(scenario, capsys):
    assert main(["sweep", scenario, "--vary", "nodes=4", "--repeats", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["combinations"][0]
    assert found["step_cv"]["low"] >= 0
