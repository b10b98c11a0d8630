"""`evenstep history` on folders of runs."""

import json
import shutil

import pytest

from evenstep.cli.main import main
from evenstep.report.schema import schema
from tests.diagnose.attempts_run import Start, write


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        write(tmp_path / f"run-{number}", [Start(1000 * number, 20 + number)])
    return tmp_path


def test_the_table_has_a_line_for_each_run(folder, capsys):
    assert main(["history", str(folder)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == [f"run-{n}" for n in range(4)]
    assert "no evidence of a trend" in " ".join(out.split())


def test_the_copy_of_a_run_is_no_other_run(folder, tmp_path, capsys):
    (tmp_path / "run-1" / "run.json").write_text("{}")
    for spool in (tmp_path / "run-1").glob("attempt-000/*"):  # collected, without its run.json
        (tmp_path / "a-copy" / "attempt-000").mkdir(parents=True, exist_ok=True)
        shutil.copy(spool, tmp_path / "a-copy" / "attempt-000")
    assert main(["history", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out: a-copy is a copy of run-1" in out
    assert "4 runs of" in out


def test_the_json_fits_its_schema(folder, capsys):
    validate = pytest.importorskip("jsonschema").validate
    assert main(["history", str(folder), "--json", "--price-per-rank-hour", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate(document, schema("history"))
    # two ranks, a second a step, two a rank-hour
    assert document["runs"][0]["cost_per_unit"] == pytest.approx(2 * 2 / 3600)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "there is no folder"), (".", "there is no run in")]
)
def test_no_runs_are_one_sentence(tmp_path, capsys, name, message):
    assert main(["history", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_price_is_a_number_from_zero(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["history", str(tmp_path), "--price-per-rank-hour", "-1"])
    assert "must be a price such as 2.5, found '-1'" in capsys.readouterr().err
