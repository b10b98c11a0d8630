import json
import tomllib
from pathlib import Path

import pytest

from evenstep.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "scenarios" / "straggler.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate") / "run"
    assert main(["simulate", str(EXAMPLE), "--out", str(folder)]) == 0
    return str(folder)


def test_both_step_times_are_shown_and_the_scenario_is_written(run, tmp_path, capsys):
    file = tmp_path / "fitted.toml"
    assert main(["calibrate", run, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["measured", "simulated"]
    assert err == f"Wrote {file}\n"
    assert tomllib.loads(file.read_text())["work"]["buckets"] == 10
    assert main(["simulate", str(file)]) == 0


def test_without_a_file_the_scenario_is_printed(run, capsys):
    assert main(["calibrate", run]) == 0
    assert tomllib.loads(capsys.readouterr().out)["job"]["ranks"] == 32


def test_json_has_scenario_fits_and_comparison(run, capsys):
    main(["calibrate", run, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "evenstep.calibration/1"
    assert found["simulated"]["mean_ns"] == pytest.approx(found["measured"]["mean_ns"], rel=0.02)
    assert {noise.get("kind") for noise in found["scenario"]["noise"]} == {None, "slow"}


def test_a_scenario_is_not_overwritten_unless_asked(run, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    assert main(["calibrate", run, "-o", str(file)]) == 2
    assert (
        "mine.toml exists; choose another name, or overwrite it with --force"
        in capsys.readouterr().err
    )
    assert file.read_text() == "mine"


def test_a_missing_trace_is_named(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "nowhere")]) == 2
    assert "nowhere; give a run's folder" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(run, tmp_path, capsys):
    assert main(["calibrate", str(run), "-o", str(tmp_path / "missing" / "a.toml")]) == 2
    told = capsys.readouterr().err
    assert f"there is no folder {tmp_path}/missing to write a.toml in; create it" in told
