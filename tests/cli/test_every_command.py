"""What holds for every command: 80 columns without colour, and JSON that fits its schema."""

import argparse
import contextlib
import functools
import io
import json
import re
import unicodedata

import pytest

from evenstep.cli import demo
from evenstep.cli.main import COMMANDS, main
from evenstep.report.schema import published_schemas, schema
from evenstep.reproduce.published import training
from tests.cli.conftest import one_row
from tests.cli.every_command import LINES, made

jsonschema = pytest.importorskip("jsonschema")
#: What is as long as its path: lines to be copied into a shell, and whole.
PATHS = ("# Fitted to ", "export ")
#: Of commands that need real processes or minutes, or written beside what is printed.
ELSEWHERE = {
    *(
        "alert-1",
        "completion-1",
        "demo-1",
        "evaluation-1",
        "floors-1",
        "probe-1",
        "selftest-1",
        "strategies-1",
    ),
    *("table1-1", "lab.clean-1", "lab.comparison-1", "lab.prediction-1", "lab.run-1"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a line of `LINES` prints, run once as text and once as JSON."""
    paths = made(tmp_path_factory.mktemp("every"))

    @functools.cache
    def run(name, *more):
        with pytest.MonkeyPatch.context() as environment, contextlib.ExitStack() as stack:
            environment.setenv("COLUMNS", "80")
            environment.setattr(training, "simulated_rows", one_row)
            out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            assert main([*paths.line(name), *more]) in (0, 1)
        return out.getvalue()

    return run


def width(line):
    """Columns on a terminal: what strikes a letter through takes none."""
    return sum(not unicodedata.combining(letter) for letter in line)


def schema_of(document):
    return document["schema"].removeprefix("evenstep.").replace("/", "-")


@pytest.mark.parametrize("name", LINES)
def test_a_person_reads_it_at_80_columns_and_in_a_file(name, said):
    lines = said(name).splitlines()
    assert lines or name == "collect"
    assert [line for line in lines if width(line) > 80 and not line.startswith(PATHS)] == []
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("name", LINES)
def test_json_fits_the_schema_it_names(name, said):
    found = json.loads(said(name, "--json"))
    jsonschema.Draft202012Validator(schema(schema_of(found))).validate(found)


def test_every_schema_is_held_against_what_is_printed(said):
    names = {schema_of(json.loads(said(name, "--json"))) for name in LINES}
    assert names | ELSEWHERE == set(published_schemas())
    assert not names & ELSEWHERE


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_help_fits_80_columns(row, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = row.parser().format_help().splitlines()
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_a_form_shows_an_ellipsis_where_several_may_be_given(row):
    placed = [part for part in row.parser()._actions if not part.option_strings]
    several = any(part.nargs in ("+", "*") for part in placed)
    assert row.wraps or several == bool(re.search(r"[A-Z]…", row.form))


def test_an_option_is_likened_by_its_letters_alone(capsys):
    for given, hint in (("--jsn", "; did you mean --json?"), ("--foo", ""), ("", "")):
        with pytest.raises(SystemExit, match="2"):
            main(["doctor", given])
        said = capsys.readouterr().err
        assert f"unrecognized arguments: {given}{hint}; see" in said


def test_an_argument_without_a_name_of_its_own_is_called_by_its_choices(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["ctl", "run", "stop", "now"])
    assert "evenstep ctl: pace|act: invalid choice: 'stop'" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["simulate", "sweep --vary nodes=1,2", "scaling", "strategies"])
def test_a_scenario_that_takes_no_time_is_named(words, tmp_path, capsys):
    name, *more = words.split()
    empty = tmp_path / "empty.toml"
    empty.touch()
    workers = [] if name == "simulate" else ["--workers", "1"]
    assert main([name, str(empty), *more, *workers]) == 2
    assert f"{empty}: work: a step takes no time" in capsys.readouterr().err


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_every_command_has_json(row):
    if row.name == "link":
        return  # a server has no result
    parser = row.parser()
    below = [
        part
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for part in action.choices.values()
    ]
    assert all("--json" in one._option_string_actions for one in below or [parser])


def test_a_row_too_wide_for_the_terminal_is_shown_column_by_column(said):
    lines = said("sql of many columns").splitlines()
    assert [line for line in lines if line.startswith("row")] == ["row 1", "row 2", "row 3"]
    assert len(said("sql").splitlines()) == 5  # a head and four ranks


def test_the_demo_says_where_its_runs_lie(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch", reason="the demo asks for it before it begins")
    monkeypatch.setattr(
        demo, "_run_both", lambda job, folder, steps: {"even": folder / "e" / "r.html"}
    )
    assert main(["demo", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema("demo")).validate(found)
    assert found["runs"][0]["run"] == f"{tmp_path}/demo-1/e"


@pytest.mark.parametrize(("ended", "code"), [(3, 3), (-9, 137)])
def test_a_demo_whose_job_fails_ends_as_that_did(tmp_path, capsys, monkeypatch, ended, code):
    pytest.importorskip("torch", reason="the demo asks for it before it begins")
    monkeypatch.setattr("evenstep.cli.child.run", lambda *_: ended)
    assert main(["demo", "--out", str(tmp_path)]) == code
    assert f"the demo stops here: `evenstep run --out {tmp_path}" in capsys.readouterr().err


def test_pacing_is_in_what_is_held_against_the_schemas(said):
    assert json.loads(said("watch", "--json"))["pacing"]["modes"] == {"on": 1, "observe": 3}
    assert json.loads(said("ctl", "--json"))["followed_by"] == [0]
