"""One run, asked in every way there is: the same culprit and the same step time."""

import json
from itertools import pairwise

import pytest

import evenstep
from evenstep.cli.main import main
from tests.cli.simulated import simulate
from tests.diagnose.attempts_run import Start, write
from tests.report.conftest import Page

CULPRIT = [3]
ROUNDED = 1e-4
WITHIN = 0.002  # of the step time: the table `steps` has those of the warm-up too


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("agree")
    simulate(place / "even")
    simulate(place / "slow", slow=True)
    simulate(place / "recovered", slow=True, over_by=40)
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


@pytest.mark.parametrize("run", ["slow", "recovered"])
def test_watch_agrees_with_diagnose_of_a_run_that_has_ended(told, folder, run):
    """Whatever its last steps were like: the slow rank of `recovered` was not slow in them."""
    found = told("diagnose", folder / run, "--json")
    seen = told("watch", folder / run, "--once", "--json")
    assert found["findings"][0]["where"]["ranks"] == CULPRIT
    named = [(each["mode"], each["where"]["ranks"], each["severity"]) for each in found["findings"]]
    assert [(each["mode"], each["ranks"], each["share"]) for each in seen["findings"]] == named
    assert seen["rows"][0]["rank"] == CULPRIT[0]
    assert seen["verdict"] == found["summary"]["verdict"]
    assert seen["step_time"] == found["summary"]["step_time"]
    assert seen["diagnosed"]


def test_watch_prints_what_diagnose_prints_of_a_run_that_has_ended(folder, capsys):
    def written(*arguments):
        capsys.readouterr()
        assert main([*arguments, str(folder / "recovered")]) in (0, 1)
        return capsys.readouterr().out

    assert written("watch", "--once").endswith(written("diagnose"))


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
    query = "select ranks, severity, step_ns from findings order by severity desc limit 1"
    (row,) = told("sql", query, folder / "slow", "--json")["rows"]
    assert row["ranks"] == CULPRIT
    assert row["severity"] == pytest.approx(diagnosis["findings"][0]["severity"])
    assert row["step_ns"] == diagnosis["summary"]["step_time"]["mean_ns"]
    query = "select avg(step_ns) as mean_ns from steps where step > 2"
    (row,) = told("sql", query, folder / "slow", "--json")["rows"]
    assert row["mean_ns"] == pytest.approx(diagnosis["summary"]["step_time"]["mean_ns"], rel=WITHIN)


def test_the_page_agrees(folder, diagnosis, tmp_path):
    main(["diagnose", str(folder / "slow"), "--html", str(tmp_path / "page.html")])
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    assert page.facts["culprits"] == CULPRIT
    assert page.diagnosis["summary"] == diagnosis["summary"]
    assert page.diagnosis["findings"] == diagnosis["findings"]


def test_what_a_restart_costs_is_found_in_every_way(told, folder, tmp_path):
    run, base = tmp_path / "restarted", folder / "even"
    write(run, [Start(0, 50, [19, 39]), Start(100, 40)])
    modes = [found["mode"] for found in told("diagnose", run, "--json")["findings"]]
    assert "restart_amplification" in modes
    rows = told("sql", "select mode from findings", run, "--json")["rows"]
    assert [row["mode"] for row in rows] == modes
    (found,) = told("compare", base, run, "--json")["comparisons"]
    assert set(modes) <= {each["mode"] for each in found["findings"]}
    assert [each.mode for each in evenstep.diagnose(run).findings] == modes
