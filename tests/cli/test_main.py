import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from evenstep.cli import main as command_line
from evenstep.errors import TraceError


def code_of(raised):
    def command():
        raise raised

    return command_line.exit_code_of(command)


def test_help_groups_the_commands_by_what_a_person_wants(command):
    shown = command("--help").stdout
    assert shown.index("see:") < shown.index("run -- COMMAND") < shown.index("explain:")


@pytest.mark.parametrize("row", command_line.COMMANDS, ids=lambda row: row.name)
def test_every_command_explains_itself(row, capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line.main([row.name, "--help"])
    said, complaint = capsys.readouterr()
    assert f"usage: evenstep {row.name}" in said
    assert complaint == ""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["diagnose", "--help"]])
def test_help_imports_nothing_heavy(environ, arguments):
    script = (
        "import sys; from evenstep.cli.main import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        "print({'numpy', 'torch', 'rich', 'jinja2'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr == "set()\n"


def test_the_version_is_the_packages(command):
    from evenstep import __version__

    assert command("-V").stdout == command("--version").stdout == f"evenstep {__version__}\n"


def test_an_unknown_command_names_the_nearest(command):
    done = command("diagnoze")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "evenstep: there is no command 'diagnoze'; did you mean 'diagnose'?\n"


@pytest.mark.parametrize(("verb", "name"), [("report", "diagnose"), ("query", "sql")])
def test_what_a_command_is_said_to_do_is_another_name_of_it(command, verb, name):
    assert command(verb).stderr.endswith(f"no command {verb!r}; did you mean {name!r}?\n")


def test_wrong_usage_exits_2(command):
    assert command("diagnose").returncode == 2


def test_what_evenstep_can_explain_is_one_sentence_and_exits_2(capsys):
    assert code_of(TraceError("no run here")) == 2
    assert capsys.readouterr().err == "evenstep: no run here\n"


def test_a_defect_shows_its_traceback_and_exits_3(capsys):
    assert code_of(ZeroDivisionError("oops")) == 3
    assert "ZeroDivisionError: oops" in capsys.readouterr().err


def test_an_interrupt_exits_130_with_a_word(capsys):
    assert code_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "evenstep: interrupted\n"


def test_a_reader_that_leaves_is_no_error(start):
    child = start("env", "--json")
    child.stdout.close()
    assert child.wait() in (0, 141)  # 0 if all had been written before
    assert child.stderr.read() == ""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rank-00000.spool", b"something else"),
        ("rank-00000.spool", b"EVNSTEP\0, cut short"),
        ("table.parquet", b"PAR1 PAR1"),
        ("profile.sqlite", b"SQLite format 3\0, cut short"),
        ("operations.csv", b"rank,step,operation,start,end\n0,0,x,y,z\n"),
        ("log.gz", gzip.compress(b"step 1\n" * 100, mtime=0)[:-9]),
        ("members.json.gz", gzip.compress(b'{"traceEvents": [', mtime=0) + b"\x1f\x8bx"),
    ],
)
def test_a_broken_file_is_named_once_and_in_words(tmp_path, monkeypatch, capsys, name, data):
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(data)
    assert command_line.main(["diagnose", name]) == 2
    assert (told := capsys.readouterr().err).count(name) == 1
    assert "b'" not in told
    assert "left out" not in told
