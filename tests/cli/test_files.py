"""Files that commands are asked to write."""

import os
import sys
from pathlib import Path

import pytest

from evenstep.cli import files
from evenstep.cli.main import main
from evenstep.errors import UsageError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("there", "there exists; choose another name"),
        ("folder", "folder is not a regular file"),
        ("missing/x", "no folder .*missing to write x in"),
        ("/dev/null", "/dev/null is not a regular file"),
    ],
)
def test_what_could_not_be_written_is_refused_before_the_work(tmp_path, name, said):
    (tmp_path / "there").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=said):
        files.check_free(tmp_path / name, force=False)


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_whatever_name_a_file_may_have_it_can_be_written_by(tmp_path, letter):
    path = tmp_path / (letter * (255 // len(letter.encode())))
    files.check_free(path, force=False)
    files.write(path, "all of it")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["all of it"]


def test_force_replaces_a_file_and_no_device(tmp_path):
    (tmp_path / "there").write_text("mine")
    files.check_free(tmp_path / "there", None, force=True)
    with pytest.raises(UsageError, match="is not a regular file"):
        files.check_free(tmp_path / "/dev/null", force=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for check in (files.check_folder, lambda path: files.check_free(path, force=False)):
        with pytest.raises(UsageError, match="cannot write in"):
            check(tmp_path / "x")


@pytest.mark.parametrize(
    ("command", "closed"),
    [("diagnose", "attempt-000"), ("watch", "attempt-000"), ("watch", "rank-00000.spool")],
)
def test_a_run_that_others_must_not_read_is_not_called_empty(
    command, closed, tmp_path, monkeypatch, capsys
):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "attempt-000").mkdir()
    (tmp_path / "attempt-000" / "rank-00000.spool").touch()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != closed)  # as root, too
    assert main([command, str(tmp_path)]) == 2
    assert f"no permission to read {tmp_path}/attempt-000" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_folder_that_takes_no_files_is_refused_also_of_root(tmp_path):
    for check in (files.check_folder, lambda path: files.check_free(path, force=False)):
        with pytest.raises(UsageError, match="cannot write in /proc"):
            check(Path("/proc/x"))
    (tmp_path / "run").mkdir()
    files.check_folder(tmp_path / "run")
    files.check_free(tmp_path / "x", force=False)
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]  # a check leaves nothing


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file"):
        files.check_folder(tmp_path / "file" / "run" / "deeper")


def test_a_file_is_told_of_when_it_is_there(tmp_path, capsys):
    files.write(tmp_path / "x", "said", note=" (a note)")
    assert (tmp_path / "x").read_text() == "said"
    assert capsys.readouterr().err == f"Wrote {tmp_path}/x (a note)\n"


def test_a_name_that_is_no_text_is_spelt_out(tmp_path):
    files.write(tmp_path / "x", "fitted to \udcff")  # the byte FF of a path, as Python has it
    assert (tmp_path / "x").read_text() == "fitted to \\udcff"


def test_what_cannot_be_finished_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(scratch, path):
        raise OSError(28, "No space left on device")

    (tmp_path / "x").write_text("before")
    monkeypatch.setattr(type(tmp_path), "replace", full)
    with pytest.raises(UsageError, match="x: No space left on device"):
        files.write(tmp_path / "x", "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "before")]
