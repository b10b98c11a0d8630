"""Where a run goes, and what is left of it."""

import json
import os
import subprocess

import pytest

from evenstep.errors import UsageError
from lab import run


@pytest.fixture
def no_tiers(monkeypatch):
    """Only folders are cleaned: what tiers set up may belong to somebody at work."""
    monkeypatch.setattr(run.tiers, "MODULES", {})


def test_a_scratch_folder_is_gone_afterwards():
    with run.folder_for(None) as folder:
        (folder / "x").write_text("")
    assert not folder.exists()


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is no run"), run.folder_for(tmp_path, force=True):
        pass
    assert (tmp_path / "mine").exists()


def a_run(folder):
    spool = folder / "job-0" / "attempt-000" / "rank-00000.spool"
    spool.parent.mkdir(parents=True)
    for file in (spool, folder / run.RECORD, folder / run.RESULT, folder / run.LOG):
        file.write_text("")


def test_of_somebody_elses_files_none_is_removed(tmp_path):
    a_run(tmp_path)
    (tmp_path / "notes").write_text("")
    with pytest.raises(UsageError, match="more than a run"), run.folder_for(tmp_path, force=True):
        pass
    assert (tmp_path / "notes").exists()


def test_an_earlier_run_is_replaced_when_asked(tmp_path):
    a_run(tmp_path)
    with pytest.raises(UsageError, match="--force"), run.folder_for(tmp_path):
        pass
    with run.folder_for(tmp_path, force=True) as folder:
        assert not list(folder.iterdir())


def test_cleaning_removes_what_the_dead_have_left(tmp_path, monkeypatch, no_tiers):
    monkeypatch.setattr(run.tempfile, "gettempdir", lambda: str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / f"{run.SCRATCH}{dead.pid}-a"
    at_work = tmp_path / f"{run.SCRATCH}{os.getpid()}-b"
    left.mkdir()
    at_work.mkdir()
    assert run.clean() == [f"folder {left}"]
    assert at_work.exists()
    assert not left.exists()


def test_a_run_that_failed_is_replaced_with_all_that_its_processes_left(tmp_path):
    written = {"scenario": {"jobs": [{"name": "a"}]}}
    (tmp_path / run.RECORD).write_text(json.dumps(written))
    left = (
        "lab.log",
        "traffic.log",
        "a-0.log",
        "a.log",
        ".board",
        ".trial",
        ".order-0",
        ".pulse-0",
    )
    for name in left:
        (tmp_path / name).write_text("")
    (tmp_path / "a").mkdir()  # no rank came to write a trace
    with run.folder_for(tmp_path, force=True) as folder:
        assert not list(folder.iterdir())


@pytest.mark.parametrize("other", ["other.log", "job-0/attempt-000/notes"])
def test_where_anything_else_is_there_nothing_is_removed(tmp_path, other):
    a_run(tmp_path)
    (tmp_path / other).write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=rf"more than a run \({other.partition('/')[0]}\)"):
        run.folder_for(tmp_path, force=True).__enter__()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("jobs", [["a"], None, [{}]])
def test_a_damaged_record_is_no_defect(tmp_path, jobs):
    (tmp_path / run.RECORD).write_text(json.dumps({"scenario": {"jobs": jobs}}))
    with run.folder_for(tmp_path, force=True) as folder:
        assert not list(folder.iterdir())
