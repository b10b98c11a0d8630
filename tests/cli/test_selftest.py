"""A known delay in a real job of two ranks, found or not."""

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from evenstep.cli import selftest
from evenstep.cli.main import main
from evenstep.report.schema import schema
from tests.forks import python

PATIENCE_S = 120.0


def wait_until(done):
    due = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < due
        time.sleep(0.05)


def with_environment(entry):
    """Processes in whose environment a variable begins like this."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if entry.encode() in (place / "environ").read_bytes():
                found.append(place.name)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def test_a_rank_is_held_and_what_was_found_is_told(capsys, tmp_path, monkeypatch):
    """Whether it was named depends on what else this machine does; what is told of it does not."""
    pytest.importorskip("torch")
    monkeypatch.setattr("sys.executable", python())
    code = main(["selftest", "--json", "--out", str(tmp_path / "run")])
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema("selftest"))
    assert found["held_rank"] == 1
    assert found["works"] == (found["named_ranks"] == [1]) == (code == 0)
    assert list((tmp_path / "run").glob("attempt-000/rank-*.spool"))


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(capsys, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "file").touch()
    assert main(["selftest", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "file is a file; name a folder" in capsys.readouterr().err


def test_a_test_that_is_stopped_leaves_a_line_and_nothing_else(tmp_path):
    pytest.importorskip("torch")
    child = subprocess.Popen(
        [python(), "-m", "evenstep", "selftest"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob("evenstep-selftest-*/run/attempt-000/rank-*.spool")))
    child.terminate()
    out, err = child.communicate(timeout=PATIENCE_S)
    told = [line for line in err.splitlines() if not line.startswith("training two ranks")]
    assert (child.returncode, out) == (143, "")
    assert told == ["evenstep: stopped by SIGTERM before the test had ended"]
    assert list(tmp_path.iterdir()) == []
    assert with_environment(f"TMPDIR={tmp_path}") == []


@pytest.mark.parametrize(("ranks", "works"), [([1], True), ([0], False), ([0, 1], False)])
def test_naming_any_other_rank_is_a_failure(ranks, works, monkeypatch, capsys):
    finding = SimpleNamespace(severity=0.5, where=SimpleNamespace(ranks=ranks))
    said = SimpleNamespace(
        findings=[finding], summary={"step_time": {"mean_ns": 1e8}}, verdict="it was rank 0"
    )
    monkeypatch.setattr("evenstep.importers.opening.load", lambda run: None)
    monkeypatch.setattr("evenstep.diagnose.engine.diagnose", lambda trace: said)
    assert selftest._judge("run", 1, as_json=False) is works
    assert ("works here" in capsys.readouterr().out) is works
