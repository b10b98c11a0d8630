"""What a command says, and to whom: terminals, pipes, full disks, streams that are closed."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenstep.cli import main as command_line
from evenstep.cli.main import main
from evenstep.cli.terminal import say

LONG = "a sentence that goes on and on, naming /a/path/that/has/no/place/to/be/broken/at/all " * 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_message_is_one_line_in_a_pipe(capsys):
    say(LONG.strip())
    assert capsys.readouterr().err == f"evenstep: {LONG.strip()}\n"


def test_a_message_is_filled_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    say(LONG)
    lines = sys.stderr.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == f"evenstep: {LONG}".split()


def test_a_mistake_in_an_option_is_one_sentence(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", "run", "--fail-above", "much"])
    told = capsys.readouterr().err
    assert told.startswith("evenstep diagnose: --fail-above: must be a share from 0 to 1")
    assert told.endswith("see `evenstep diagnose --help`\n")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("command", ["sweep", "scaling", "strategies"])
@pytest.mark.parametrize("option", ["--workers", "--repeats"])
def test_a_number_that_cannot_be_is_one_sentence(command, option, capsys):
    if (command, option) == ("strategies", "--repeats"):
        return  # it has none
    with pytest.raises(SystemExit, match="2"):
        main([command, "job.toml", option, "0"])
    assert (
        f"evenstep {command}: {option}: must be a whole number from 1 to "
        in capsys.readouterr().err
    )


def test_a_full_disk_behind_the_output_is_one_sentence(environ):
    line = [sys.executable, "-m", "evenstep", "explain"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, env=environ, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "evenstep: the output cannot be written: No space left on device; "
        "redirect it to another path\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_a_letter_is_no_reason_to_fail(environ, encoding):
    line = [sys.executable, "-m", "evenstep", "explain", "straggler"]
    environ = environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(line, env=environ, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_changes_no_exit_code(environ, closed):
    line = [sys.executable, "-m", "evenstep", "env"]
    done = subprocess.run(line, env=environ, preexec_fn=lambda: os.close(closed), check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (PermissionError(13, "Permission denied", "/x/y"), "/x/y cannot be read or written: Perm"),
        (OSError(24, "Too many open files"), "the system refused an operation: Too many"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_no_defect_of_ours(raised, said, capfd):
    def command():
        raise raised

    assert command_line.exit_code_of(command) == 2
    assert said in capfd.readouterr().err


def test_what_was_printed_before_the_machine_refused_is_not_lost(environ):
    line = (
        "from evenstep.cli.main import exit_code_of\n"
        "exit_code_of(lambda: print('a result') or open('/'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", line], env=environ | {"PYTHONUNBUFFERED": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "a result\n"
    assert "/ cannot be read or written: Is a directory" in done.stderr


def test_a_file_that_ought_to_be_there_is_a_defect_of_ours(capsys):
    def command():
        raise FileNotFoundError(2, "No such file or directory", "template.j2")

    assert command_line.exit_code_of(command) == 3
    assert "Traceback" in capsys.readouterr().err
