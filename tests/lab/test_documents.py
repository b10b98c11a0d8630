"""What the laboratory says of a run: as JSON, as text of 80 columns, and as a page."""

import html
import json
import math
import re
from types import SimpleNamespace

import pytest

from evenstep.errors import ConfigError
from lab import command as lab
from lab import drawing as lab_drawing
from lab import page, run, single, validation
from lab.__main__ import main
from lab.outcome import Part, outcomes
from lab.prediction import predicted
from lab.scenario import parse
from lab.single import JobFigures
from lab.steps import job_steps
from lab.validation import Compared
from tests.lab.conftest import TWO_JOBS
from tests.lab.test_command import fits


@pytest.fixture(scope="module")
def ran(two_jobs):
    scenario, _, record, folder = two_jobs
    return single.document(scenario, "baseline", record, folder, kept=True)


@pytest.fixture(scope="module")
def foretold(two_jobs):
    scenario, _, record, folder = two_jobs
    seen = single.figures(scenario, record, folder)
    pairs = [Compared(*pair) for pair in zip(predicted(scenario, steps=20), seen, strict=True)]
    return validation.document(scenario, record, pairs, {"paper": [0.01, 0.02], "slack": None})


@pytest.fixture(scope="module")
def compared(two_jobs):
    scenario, schedule, record, folder = two_jobs
    jobs = job_steps(scenario, schedule, record, folder)
    return page.document(scenario, record, outcomes([Part(jobs, schedule, record.whole)]), 2)


@pytest.fixture(params=["ran", "foretold", "compared"])
def found(request):
    return request.getfixturevalue(request.param)


TEXTS = {"evenstep.lab.run/1": single.text, "evenstep.lab.prediction/1": validation.text}


def test_json_fits_its_schema(found):
    fits(found)


def test_text_fits_eighty_columns(found):
    lines = TEXTS.get(found["schema"], page.text)(found).splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 80


def test_a_run_names_its_traces_where_they_are_kept(two_jobs, ran):
    scenario, _, record, folder = two_jobs
    assert ran["jobs"][0]["trace"] == str(folder / "job-0")
    gone = single.document(scenario, "paper", record, folder, kept=False)
    assert (gone["arm"], gone["jobs"][0]["trace"]) == ("paper", None)


def test_the_page_of_a_run_has_its_steps_and_verdicts(two_jobs, ran):
    scenario, _, record, folder = two_jobs
    text = lab_drawing.of_jobs(scenario, "baseline", record, folder, ran)
    for job in ran["jobs"]:
        assert job["verdict"].partition(":")[0] in html.unescape(text)
    assert 'id="blocks"' in text
    assert json.loads(script(text, "facts"))["arms"] == ["baseline"]


def test_the_page_of_a_prediction_has_its_errors_and_gains(two_jobs, foretold):
    scenario, _, record, folder = two_jobs
    text = lab_drawing.of_jobs(scenario, "baseline", record, folder, foretold)
    error = f"{100 * foretold['jobs'][0]['step_error']:+.1f} %"
    assert f"<dd>{error}</dd>" in text
    assert "+2.0 %" in text
    assert "not known" in text
    assert not re.findall(r"https?://|@import|url\(|fetch\(", text)


def script(text, name):
    return re.search(rf'id="{name}">(.*?)</script>', text, re.DOTALL)[1]


def test_what_no_step_told_is_null_and_not_shown(two_jobs):
    """A run that was ended in its first steps."""
    nothing = JobFigures("a", math.nan, math.nan, math.nan)
    scenario, _, record, _ = two_jobs
    found = validation.document(scenario, record, [Compared(nothing, nothing)], {})
    assert found["jobs"][0]["measured"] == {"step_ms": None, "cv": None, "wait_share": None}
    fits(found)
    assert "nan" not in validation.text(found)


def test_a_limit_that_holds_no_block_is_refused():
    with pytest.raises(ConfigError, match=r"run\.limit_s must be at least run\.block_s"):
        parse({**TWO_JOBS, "run": {"block_s": 5, "limit_s": 4}})


def test_a_page_is_of_what_runs(capsys):
    assert main(["clean", "--html", "x.html"]) == 2
    assert "clean writes no page" in capsys.readouterr().err


def test_what_was_cleaned_up_is_listed(capsys, monkeypatch):
    monkeypatch.setattr(run, "clean", lambda: ["folder /tmp/x"])
    assert main(["clean", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fits(found)
    assert found["removed"] == ["folder /tmp/x"]


def test_a_result_is_kept_and_drawn_though_its_reader_has_left(tmp_path, monkeypatch):
    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(lab, "print", closed, raising=False)
    asked = SimpleNamespace(json=True, out=tmp_path, html=tmp_path / "page.html")
    with pytest.raises(BrokenPipeError):
        lab._show(asked, tmp_path, {"jobs": []}, str, lambda: "a page")
    assert json.loads((tmp_path / run.RESULT).read_text()) == {"jobs": []}
    assert asked.html.read_text() == "a page"
