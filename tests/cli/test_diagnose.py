"""The command around the diagnosis, on a fake one: what it reads, prints and exits with."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenstep.cli.diagnose import worst
from evenstep.cli.main import main
from tests.cli.simulated import simulate
from tests.importers.profiles import two_steps


@dataclass
class Read:
    """A trace that knows its path."""

    path: Path
    operations: None = None
    world: int = 2
    attempt: int = 0
    events: tuple[()] = ()
    limits: list[str] = field(default_factory=list)
    run: dict[str, object] = field(default_factory=dict)


class Diagnosis:
    def __init__(self, path, severities):
        self.path = path
        self.findings = [
            SimpleNamespace(mode="straggler", severity=severity) for severity in severities
        ]

    def to_json(self):
        return {"run": str(self.path), "findings": len(self.findings)}


@pytest.fixture
def severities():
    return [0.02]


@pytest.fixture(autouse=True)
def fakes(monkeypatch, severities):
    """Stand-ins for reading, diagnosing and rendering; a trace knows its path."""
    parts = {
        "evenstep.trace.loading.load": lambda path, *, attempt: Read(path),
        "evenstep.diagnose.engine.diagnose": lambda trace: Diagnosis(trace.path, severities),
        "evenstep.report.terminal.brief.render": lambda diagnosis: f"verdict on {diagnosis.path}\n",
        "evenstep.cli.diagnose.scaling_point": lambda trace, diagnosis: SimpleNamespace(
            ranks=trace.world, diagnosis=diagnosis
        ),
        "evenstep.report.page.html.render": lambda d, trace, **_: f"page {trace.path}",
    }
    for name, stand_in in parts.items():
        monkeypatch.setattr(name, stand_in)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    for rank in range(2):
        spool = path / f"attempt-000/rank-0000{rank}.spool"
        spool.parent.mkdir(parents=True, exist_ok=True)
        spool.touch()
    return path


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "other/run.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path.parent


def test_the_verdict_is_printed(run, capsys):
    assert main(["diagnose", str(run)]) == 0
    assert capsys.readouterr() == (f"verdict on {run}\n", "")


def test_json_is_one_object_for_one_run(run, capsys):
    main(["diagnose", str(run), "--json"])
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "findings": 1}


def test_json_is_a_list_for_several(run, other, capsys):
    main(["diagnose", str(run), str(other), "--json"])
    assert [item["run"] for item in json.loads(capsys.readouterr().out)] == [str(run), str(other)]


def test_spools_of_one_attempt_are_one_trace(run, capsys):
    assert main(["diagnose", *map(str, run.glob("*/*.spool"))]) == 0
    assert capsys.readouterr().out == f"verdict on {run / 'attempt-000'}\n"


def test_a_path_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path / "none")]) == 2
    assert f"there is no {tmp_path / 'none'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("severities", "options", "code"),
    [
        ([], [], 0), ([0.05], [], 0), ([0.01, 0.06], [], 1), ([None], [], 0),
        ([0.06], ["--fail-above", "10%"], 0), ([0.01], ["--fail-above", "0"], 1),
    ],
)  # fmt: skip
def test_the_exit_code_tells_whether_a_finding_is_above_the_threshold(run, options, code):
    assert main(["diagnose", str(run), *options]) == code


def test_a_threshold_that_is_no_share_is_refused(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", str(run), "--fail-above", "5"])
    assert "--fail-above: must be a share from 0 to 1" in capsys.readouterr().err


def test_a_page_is_written_and_named_last(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    main(["diagnose", str(run), "--html", str(page)])
    assert page.read_text() == f"page {run}"
    assert capsys.readouterr().err == f"Wrote {page}\n"


def test_a_page_is_never_overwritten_without_force(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert main(["diagnose", str(run), "--html", str(page)]) == 2
    assert (page.read_text(), capsys.readouterr().out) == ("mine", "")
    assert main(["diagnose", str(run), "--html", str(page), "--force"]) == 0
    assert page.read_text() == f"page {run}"


def test_without_numpy_one_line_says_what_to_install(environ, run):
    script = (
        f"import sys; sys.modules['numpy'] = None\nfrom evenstep.cli.main import main\n"
        f"sys.exit(main(['diagnose', {str(run)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "evenstep[analyze]"' in done.stderr


def test_several_files_of_one_profile_are_one_trace(tmp_path, monkeypatch, capsys):
    paths = [two_steps(rank).write(tmp_path / f"{rank}.json") for rank in range(2)]
    monkeypatch.setattr(
        "evenstep.diagnose.engine.diagnose",
        lambda trace: Diagnosis(list(trace.ranks), []),
    )
    assert main(["diagnose", "--json", *map(str, paths)]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "[0, 1]"


def test_a_file_of_no_known_format_is_bad_input(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("lunch at noon")
    assert main(["diagnose", str(tmp_path / "notes.txt")]) == 2
    assert capsys.readouterr().err.startswith("evenstep: nothing to read: ")


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["diagnose", str(tmp_path / "pipe")]) == 2
    assert "it is a pipe; save it as a file first" in capsys.readouterr().err


def test_a_reader_that_leaves_early_still_gets_the_page(start, tmp_path):
    page = tmp_path / "page.html"
    child = start("diagnose", simulate(tmp_path / "run"), "--html", page)
    child.stdout.close()
    assert child.wait() in (0, 1, 141)
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("found", "highest"),
    [
        ([[]], 0.0),
        ([[("straggler", 0.02)], [("straggler", 0.3), ("congestion", None)]], 0.3),
        ([[("straggler", 0.3), ("hang", None)]], 1.0),
        ([[("rank_failed", 0.01)]], 1.0),
        ([[("straggler", None)]], 0.0),
    ],
)
def test_the_worst_of_several_is_what_costs_most_or_ended_a_job(found, highest):
    diagnoses = [
        SimpleNamespace(findings=[SimpleNamespace(mode=mode, severity=cost) for mode, cost in each])
        for each in found
    ]
    assert worst(diagnoses) == highest
