import json
from dataclasses import replace

import pytest

from evenstep.cli.main import main
from evenstep.errors import TraceError
from evenstep.importers.opening import open_trace
from evenstep.probe.document import floors
from tests.probe.measured import outcome
from tests.trace.small_run import write_run


@pytest.fixture
def file(tmp_path):
    made = outcome(nodes=4)
    path = tmp_path / "floors.json"
    path.write_text(json.dumps(floors(made)))
    return path


def test_floors_beside_a_run_are_what_it_is_held_against(file, tmp_path):
    trace = open_trace([write_run(tmp_path / "run"), file])
    expected = [row.busbw_gBps for row in outcome(nodes=4).reductions]
    assert [row["busbw_gBps"] for row in trace.run["floors"]] == expected
    assert {row["by"] for row in trace.run["floors"]} == {"evenstep probe"}


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text.replace("time", "")])
def test_a_damaged_file_is_left_out_and_named(file, tmp_path, damage):
    file.write_text(damage(file.read_text()))
    trace = open_trace([write_run(tmp_path / "run"), file])
    assert "floors" not in trace.run
    assert any("floors.json" in limit for limit in trace.limits)


def test_diagnose_takes_them_as_an_option(file, tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main(["diagnose", str(run), "--floors", str(file), "--json"]) in (0, 1)
    assert "left out" not in capsys.readouterr().out


def test_floors_alone_are_no_trace(file, capsys):
    assert main(["diagnose", str(file)]) == 2
    assert "describes the fabric, not a run" in capsys.readouterr().err


def test_where_nothing_was_measured_there_are_none():
    with pytest.raises(TraceError, match="probe again"):
        floors(replace(outcome(nodes=4), reductions=()))
