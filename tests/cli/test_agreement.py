"""One run, asked in every way there is: the same culprit and the same step time."""

import json
import re
from itertools import pairwise

import pytest

from evenstep.cli.main import main
from tests.cli.simulated import simulate
from tests.report.conftest import Page

CULPRIT = [3]
ROUNDED = 1e-4
WITHIN = 0.002  # of the step time: `watch` reads the last steps, the others all


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("agree")
    simulate(place / "even")
    simulate(place / "slow", slow=True)
    return place


@pytest.fixture
def told(capsys):
    """What a command prints as JSON."""

    def call(*arguments):
        capsys.readouterr()
        assert main([str(each) for each in arguments]) in (0, 1)
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def diagnosis(told, folder):
    return told("diagnose", folder / "slow", "--json")


def test_diagnose_names_the_culprit(diagnosis):
    assert diagnosis["findings"][0]["where"]["ranks"] == CULPRIT


def test_watch_agrees(told, folder, diagnosis):
    seen = told("watch", folder / "slow", "--once", "--json")
    assert seen["findings"][0]["ranks"] == CULPRIT
    assert seen["rows"][0]["rank"] == CULPRIT[0]  # the latest stands first
    mean_ns = diagnosis["summary"]["step_time"]["mean_ns"]
    assert seen["step_time"]["mean_ns"] == pytest.approx(mean_ns, rel=WITHIN)


def test_watch_writes_the_same_step_time_as_diagnose(folder, capsys):
    def written(*arguments):
        capsys.readouterr()
        assert main([*arguments, str(folder / "slow")]) in (0, 1)
        said = re.search(r"(?:step )?([\d.,]+ m?s) mean", capsys.readouterr().out)
        assert said is not None
        return said[1]

    assert written("watch", "--once") == written("diagnose")


def test_history_agrees(told, folder, diagnosis):
    runs = {run["name"]: run for run in told("history", folder, "--json")["runs"]}
    mean_ns = diagnosis["summary"]["step_time"]["mean_ns"]
    assert runs["slow"]["step_ns"] == pytest.approx(mean_ns, rel=ROUNDED)
    first = diagnosis["findings"][0]
    named = {key: first[key] for key in ("title", "mode", "severity")}
    assert runs["slow"]["culprit"] == named | {"ranks": CULPRIT, "nodes": first["where"]["nodes"]}
    assert runs["even"]["culprit"] is None


def test_the_table_of_history_names_the_culprit(folder, diagnosis, capsys):
    capsys.readouterr()
    assert main(["history", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    below = {row.split()[0]: after for row, after in pairwise(lines) if row}
    assert below["slow"].strip().startswith(diagnosis["findings"][0]["title"])
    assert max(map(len, lines)) <= 80


def test_compare_agrees(told, folder, diagnosis):
    (found,) = told("compare", folder / "even", folder / "slow", "--json")["comparisons"]
    worst, first = found["findings"][0], diagnosis["findings"][0]
    assert worst["ranks"] == CULPRIT
    assert worst["value"] == pytest.approx(first["severity"], abs=1e-4)
    mean_ns = next(item["value"] for item in found["changes"] if item["metric"] == "step_time")
    assert mean_ns == pytest.approx(diagnosis["summary"]["step_time"]["mean_ns"], rel=ROUNDED)


def test_sql_agrees(told, folder, diagnosis):
    query = "select ranks, severity from findings order by severity desc limit 1"
    (row,) = told("sql", query, folder / "slow", "--json")["rows"]
    assert row["ranks"] == CULPRIT
    assert row["severity"] == pytest.approx(diagnosis["findings"][0]["severity"])
    query = "select avg(step_ns) as mean_ns from steps where step > 2"
    (row,) = told("sql", query, folder / "slow", "--json")["rows"]
    assert row["mean_ns"] == pytest.approx(diagnosis["summary"]["step_time"]["mean_ns"], rel=WITHIN)


def test_the_page_agrees(folder, diagnosis, tmp_path):
    main(["diagnose", str(folder / "slow"), "--html", str(tmp_path / "page.html")])
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    assert page.facts["culprits"] == CULPRIT
    assert page.diagnosis["summary"] == diagnosis["summary"]
    assert page.diagnosis["findings"] == diagnosis["findings"]
