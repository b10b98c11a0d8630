"""`python -m lab` from the outside."""

import json
import signal
import subprocess
import time
import tomllib

import pytest

import evenstep
from evenstep.errors import EvenstepError
from evenstep.report.schema import schema
from evenstep.trace.spool.layout import Kind
from lab.__main__ import main

QUICK = ["--set", "run.rounds=1", "--set", "run.warm_up_rounds=0", "--set", "run.block_s=0.6",
         "--set", "run.settle_s=0.1"]  # fmt: skip
SCENARIO = '[[jobs]]\nname = "a"\nranks = 2\ncompute_ms = 8\ngradient_bytes = "200kB"\n'


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return path


def fits(found):
    """Held against the published schema that it names."""
    jsonschema = pytest.importorskip("jsonschema")
    name = found["schema"].removeprefix("evenstep.").replace("/", "-")
    jsonschema.Draft202012Validator(schema(name)).validate(found)


def listen():
    """A job in the background of a shell ignores Ctrl-C, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def steps_of_all(folder):
    """Steps that both ranks have finished so far."""
    try:
        steps = evenstep.load(folder).of_kind(Kind.STEP)
    except EvenstepError:  # not begun
        return 0
    return min(int((steps["rank"] == rank).sum()) for rank in range(2))


def test_a_comparison_is_one_object_on_standard_output(lab, scenario, tmp_path):
    line, options = lab
    asked = [*line, "compare", "paper", "-f", scenario, "--json", "--out", "runs", *QUICK]
    done = subprocess.run(asked, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [arm["arm"] for arm in found["arms"]] == ["baseline", "baseline again", "paper"]
    fits(found)
    assert found["arms"][2]["gain"]["low"] is None  # one round has no interval
    assert done.stderr.splitlines()[-1] == "Wrote runs"
    assert json.loads((tmp_path / "runs" / "result.json").read_text()) == found
    assert (tmp_path / "runs" / "a" / "attempt-000" / "rank-00001.spool").exists()


def test_interrupted_it_keeps_what_it_has_and_says_so(lab, scenario, tmp_path):
    line, options = lab
    asked = [*line, "compare", "paper", "-f", scenario, "--json", *QUICK, "--set", "run.rounds=99"]
    child = subprocess.Popen(
        [*asked, "--out", "runs"], stdout=subprocess.PIPE, preexec_fn=listen, **options
    )
    try:
        deadline = time.monotonic() + 60
        while not steps_of_all(tmp_path / "runs" / "a"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=120)
    finally:
        child.kill()
    found = json.loads(output)
    assert child.returncode == 130
    assert (found["partial"], found["ended"]) == (True, "interrupted")
    assert found["rounds"]["counted"] < 99
    assert not (tmp_path / "runs" / ".board").exists()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (["compare", "quick"], "there is no arm 'quick'"),
        (["run", "paper", "slack"], "run takes one arm"),
        (["run", "--set", "jobs.0.ranks=1"], "jobs[0].ranks"),
        (["run", "--out", "."], "is no run of the laboratory"),
        (["clean", "all"], "clean takes no arm, found 'all'"),
    ],
)
def test_a_mistake_is_one_sentence(scenario, asked, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*asked, "-f", str(scenario)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert len(err.splitlines()) == 1


def test_the_fields_of_a_scenario_are_listed_as_one(capsys):
    assert main(["fields"]) == 0
    listed = capsys.readouterr().out
    assert tomllib.loads(listed)["jobs"][0]["compute_ms"] == 40.0
    assert max(map(len, listed.splitlines())) <= 80


def test_the_fields_are_there_as_json_too(capsys):
    assert main(["fields", "--json"]) == 0
    named = {row["name"]: row for row in json.loads(capsys.readouterr().out)["fields"]}
    assert named["jobs[].compute_ms"]["default"] == 40.0
    assert named["jobs"]["default"] is None
