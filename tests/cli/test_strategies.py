import json

import pytest

from evenstep.cli import reproduce
from evenstep.cli.main import main
from evenstep.cli.strategies import limits_of
from evenstep.errors import UsageError
from evenstep.report.schema import schema

SCENARIO = """
name = "four nodes"

[cluster]
nodes = 4

[work]
forward_ms = 10
backward_ms = 20
gradient_bytes = "20MB"
buckets = 2

[[noise]]
kind = "slow"
factor = 1.5

[run]
steps = 4
"""


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "four.toml"
    file.write_text(SCENARIO)
    return str(file)


def asked(scenario, *more):
    return main(["strategies", scenario, "--workers", "1", "--margins", "none", *more])


def test_what_changes_nothing_is_told_but_of_strategies_of_which_others_are_compared(
    scenario, capsys
):
    nothing = ["collectives.algorithm=nvls", "energy.pue=1.2", "strategy.bound=4"]
    asked(scenario, *(word for one in nothing for word in ("--set", one)))
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in told if "effect" in line] == [
        "energy.pue", "collectives.algorithm"
    ]  # fmt: skip


def test_the_recommendation_is_the_fastest_row_that_breaks_nothing(scenario, capsys):
    assert asked(scenario, "--limit", "cv=.05", "--limit", "staleness=0", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema("strategies")).validate(found)
    allowed = [row for row in found["strategies"] if not row["breaks"]]
    best = max(row["throughput"] for row in allowed)
    name = found["recommendation"]["name"]
    chosen = next(row for row in allowed if row["name"] == name)
    assert chosen["throughput"] >= best * 0.999
    assert found["limits"] == {"cv": 0.05, "staleness": 0.0}


def test_a_lone_collective_has_no_note_on_training(scenario, capsys):
    asked(scenario, "--set", "work.kind=collective")
    told = capsys.readouterr().out
    assert "  synchronous" in told
    assert "compressed" not in told
    assert "what is trained" not in told


def test_the_table_says_why(scenario, capsys):
    asked(scenario)
    told = capsys.readouterr().out
    assert "recommended: " in told
    assert "synchronous" in told
    assert max(map(len, told.splitlines())) <= 80


def test_settings_are_written_once(scenario, tmp_path, capsys):
    out = tmp_path / "evenstep.toml"
    assert asked(scenario, "--write", str(out)) == 0
    assert capsys.readouterr().err.endswith(f"Wrote {out}\n")
    assert "[pace]" in out.read_text()
    assert asked(scenario, "--write", str(out)) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [("cv=.1", "cv", 0.1), ("cv=10%", "cv", 0.1), ("p99=250ms", "p99_ns", 250e6),
     ("p99=1.5s", "p99_ns", 1.5e9), ("p99=80", "p99_ns", 80e6), ("staleness=4", "staleness", 4)],
)  # fmt: skip
def test_limits_are_read_with_their_units(text, field, value):
    assert limits_of([text]).to_json() == {field: pytest.approx(value)}


@pytest.mark.parametrize("text", ["cv", "cvv=1", "cv=-1", "p99=fast", "cv=nan", "p99=1y"])
def test_a_limit_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError, match="--limit"):
        limits_of([text])


def test_margins_are_named_or_refused(scenario, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["strategies", scenario, "--margins", "heat"])
    assert "oversubscription" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [("--nodes", "four"), ("--placement", "stacked"), ("--coordination", "none")],
)  # fmt: skip
def test_a_matrix_that_cannot_be_is_refused(more, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "evaluation", "--workers", "1", *more])
    assert more[1] in capsys.readouterr().err


def test_the_evaluation_is_printed_and_written(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    few = ["--nodes", "8", "--oversubscription", "4", "--placement", "packed", "--steps", "4",
           "--repeats", "2", "--coordination", "paper", "--workers", "1"]  # fmt: skip
    assert main(["reproduce", "evaluation", *few, "--json", "--csv", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema("evaluation")).validate(found)
    assert max(map(len, reproduce._evaluation_lines(found))) <= 80
    assert [row["coordination"] for row in found["rows"]] == ["synchronous", "paper"]
    assert len(out.read_text().splitlines()) == 3
