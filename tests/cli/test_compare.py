"""`evenstep compare` on simulated runs."""

import json
from contextlib import nullcontext

import pytest

from evenstep.cli import progress
from evenstep.cli.compare import short_names
from evenstep.cli.main import main
from evenstep.report.schema import schema
from tests.cli.simulated import simulate


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder / "calm")
    simulate(folder / "again", seed=7)
    simulate(folder / "slow", slow=True)
    return folder


@pytest.fixture
def compare(runs, capsys):
    """Exit code, output and errors of comparing some of the runs."""

    def call(*names, **_):
        words = [str(runs / name) if (runs / name).exists() else name for name in names]
        code = main(["compare", *words])
        return code, *capsys.readouterr()

    return call


def test_a_run_against_itself_is_no_evidence(compare):
    code, out, _ = compare("calm", "calm", "--json")
    found = json.loads(out)["comparisons"][0]
    verdicts = {found["verdict"], *(each["verdict"] for each in found["changes"])}
    assert (code, verdicts) == (0, {"no evidence"})


def test_the_same_scenario_with_another_seed_is_no_evidence(compare):
    assert (
        json.loads(compare("calm", "again", "--json")[1])["comparisons"][0]["verdict"]
        == "no evidence"
    )


def test_a_slow_rank_makes_a_run_worse(compare):
    found = json.loads(compare("calm", "slow", "--json")[1])["comparisons"][0]
    assert found["verdict"] == "worse"
    change = {each["metric"]: each for each in found["changes"]}
    # a rank that computes 95 ms 1.3 times as long takes 123.5 ms: throughput falls by 23 %
    assert change["throughput"]["relative"] == pytest.approx(1 / 1.3 - 1, abs=0.02)
    assert sum(part["difference_ns"] for part in found["parts"]) == pytest.approx(
        found["difference_ns"]
    )


def test_each_run_that_was_diagnosed_is_counted(compare, monkeypatch):
    told = []
    monkeypatch.setattr(
        progress, "counting", lambda text: nullcontext(lambda *far: told.append((text, *far)))
    )
    compare("calm", "again", "slow")
    assert told == [("diagnosed {} of {} runs", number, 3) for number in (1, 2, 3)]


@pytest.mark.parametrize("form", [(), ("--normalised",)])
def test_the_json_fits_its_schema(compare, form):
    validate = pytest.importorskip("jsonschema").validate
    validate(json.loads(compare("calm", "again", "slow", "--json", *form)[1]), schema("comparison"))


@pytest.mark.parametrize(
    ("condition", "code"),
    [("slower:2%", 1), ("slower:40%", 0), ("finding:5%", 1), ("slower:40%,wait:1%", 1)],
)
def test_the_exit_code_says_whether_a_condition_is_met(compare, condition, code):
    found, _, err = compare("calm", "slow", "--fail-if", condition)
    assert found == code
    assert ("worse by" in err or "weighs" in err) == bool(code)


def test_a_better_run_fails_no_condition(compare):
    assert compare("slow", "calm", "--fail-if", "slower:0%", "--fail-if", "finding:0%")[0] == 0


def test_the_page_is_named_last(compare, tmp_path):
    code, _, err = compare("calm", "slow", "--html", str(tmp_path / "page.html"))
    assert (code, err) == (0, f"Wrote {tmp_path / 'page.html'}\n")
    assert compare("calm", "slow", "--html", str(tmp_path / "page.html"))[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("calm",), "give two traces"),
        (("calm", "nowhere"), "there is no nowhere"),
        (("calm", "slow", "--fail-if", "faster:1%"), "is not understood"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(compare, words, message):
    code, out, err = compare(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    one, other = tmp_path / "a/run", tmp_path / "b/run"
    assert short_names([one, other]) == ["a/run", "b/run"]
    assert short_names([one, tmp_path / "x"]) == ["run", "x"]
    assert short_names([one, one]) == ["run (1)", "run (2)"]
