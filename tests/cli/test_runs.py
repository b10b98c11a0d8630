"""Runs that lie in the current folder: the latest, and a list."""

import os
import shutil
from pathlib import Path

import pytest

from evenstep.cli import traces as runs
from evenstep.cli.main import main


@pytest.fixture
def three(tmp_path, monkeypatch):
    """A folder with three runs of different age, and something that is none."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("newest", "older", "oldest")):
        folder = tmp_path / "evenstep-runs" / name
        (folder / "attempt-000").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (10_000 - 100 * age, 10_000 - 100 * age))
    (tmp_path / "evenstep-runs" / "notes").mkdir()
    return tmp_path


def test_the_latest_run_is_the_one_that_began_last(three):
    assert runs.latest()[0].name == "newest"


def test_a_run_that_recorded_no_rank_does_not_hide_the_one_before_and_is_named(three, capsys):
    (three / "evenstep-runs" / "newest" / "attempt-000").rmdir()
    assert main(["diagnose"]) == 2  # these runs hold no trace
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "evenstep: the latest run: evenstep-runs/older"
    assert told[1].startswith("evenstep: evenstep-runs/newest is later, but has no rank's trace")


def test_a_run_that_must_not_be_read_is_passed_over_and_named(three, monkeypatch):
    closed = Path("evenstep-runs") / "newest"
    monkeypatch.setattr(runs, "is_closed", lambda path: path == closed)
    shutil.rmtree(closed)  # it looks empty
    closed.mkdir()
    os.utime(closed, (20_000, 20_000))
    assert [runs.latest()[0].name, *runs.latest()[1]] == ["older", closed]


def test_the_latest_run_may_lie_in_a_folder_of_runs_as_the_demos_do(three):
    demo = three / "evenstep-runs" / "demo-1" / "disturbed"
    (demo / "attempt-000").mkdir(parents=True)
    (demo / "run.json").write_text("{}")
    assert runs.latest() == (demo.relative_to(three), [])


def test_a_folder_of_runs_is_listed_with_how_to_open_the_latest(three, capsys):
    assert main(["diagnose", "evenstep-runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == ["newest", "older", "oldest", "newest"]
    assert lines[-1] == "evenstep diagnose evenstep-runs/newest"


def test_the_only_run_of_a_folder_is_opened(three, capsys):
    for name in ("older", "oldest"):
        shutil.rmtree(three / "evenstep-runs" / name)
    assert main(["diagnose", "evenstep-runs"]) == 2  # it holds no trace, and that is what is said
    assert "the only run: evenstep-runs/newest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(10, "just now"), (120, "2 min ago"), (2e5, "2 d ago")]
)
def test_ages_are_in_one_unit(three, seconds, text):
    assert text in next(runs.list_runs(three / "evenstep-runs", now_s=10_000 + seconds))


def test_without_a_run_the_way_to_one_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose"]) == 2
    assert "evenstep run -- COMMAND" in capsys.readouterr().err


def test_the_bare_command_opens_the_latest_run(three, capsys):
    assert main([]) == 2  # these runs hold no trace, and that is what is said
    assert "the latest run: evenstep-runs/newest" in capsys.readouterr().err


def test_the_bare_command_without_runs_is_help(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: evenstep")
