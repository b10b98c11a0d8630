"""The command around the diagnosis, on a fake one: what it reads, prints and exits with."""

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from evenstep.cli import diagnose
from evenstep.cli.main import main
from evenstep.errors import TraceError


class Diagnosis:
    def __init__(self, path, severities):
        self.path = path
        self.findings = [SimpleNamespace(severity=severity) for severity in severities]

    def to_json(self):
        return {"run": str(self.path), "findings": len(self.findings)}


@pytest.fixture
def severities():
    return [0.02]


@pytest.fixture(autouse=True)
def fakes(monkeypatch, severities):
    """Stand-ins for reading, diagnosing and rendering; a trace is its path."""
    parts = {
        "evenstep.trace.trace": {"load": lambda path: path},
        "evenstep.diagnose.engine": {"diagnose": lambda trace: Diagnosis(trace, severities)},
        "evenstep.report.terminal": {"render": lambda diagnosis: f"verdict on {diagnosis.path}\n"},
        "evenstep.report.html": {
            "write": lambda d, trace, path, *, force: path.write_text(f"page {trace}")
        },
    }
    for name, contents in parts.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    for rank in range(2):
        spool = path / f"attempt-000/rank-0000{rank}.spool"
        spool.parent.mkdir(parents=True, exist_ok=True)
        spool.touch()
    return path


def test_the_verdict_is_printed(run, capsys):
    assert main(["diagnose", str(run)]) == 0
    assert capsys.readouterr() == (f"verdict on {run}\n", "")


def test_json_is_one_object_for_one_run(run, capsys):
    main(["diagnose", str(run), "--json"])
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "findings": 1}


def test_json_is_a_list_for_several(run, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    main(["diagnose", str(run), str(tmp_path / "other"), "--json"])
    assert [item["run"] for item in json.loads(capsys.readouterr().out)] == [
        str(run), str(tmp_path / "other"),
    ]  # fmt: skip


def test_spools_of_one_attempt_are_read_together(run):
    assert diagnose.together(sorted(run.glob("*/*.spool"))) == [run / "attempt-000"]


def test_a_single_spool_stays_alone(run):
    spool = run / "attempt-000/rank-00000.spool"
    assert diagnose.together([spool, spool.parent]) == [spool, spool.parent]


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"there is no .*/none"):
        diagnose.together([tmp_path / "none"])


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


def test_one_page_cannot_hold_two_runs(run, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    assert main(["diagnose", str(run), str(other), "--html", "page.html"]) == 2
    assert "2 traces" in capsys.readouterr().err


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
