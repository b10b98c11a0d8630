"""The scripts that shells are given, asked by a real bash."""

import json
import shutil
import subprocess

import jsonschema
import pytest

from evenstep.cli.main import COMMANDS, main
from evenstep.report.schema import schema


@pytest.fixture
def completed(capsys, tmp_path):
    """What bash completes a line to."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def ask(*words):
        line = " ".join(f"'{word}'" for word in words)
        asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _evenstep"
        done = subprocess.run(
            ["bash", "-c", f'{script}\n{asked}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        return done.stdout.split()

    return ask


def test_the_first_word_is_a_command(completed):
    assert completed("evenstep", "di") == ["diagnose"]
    assert len(completed("evenstep", "")) == len(COMMANDS)


def test_options_are_those_of_the_command(completed):
    assert completed("evenstep", "diagnose", "--verb") == ["--verbose"]
    assert "--verbose" not in completed("evenstep", "doctor", "--")


def test_anything_else_is_a_path(completed, tmp_path):
    (tmp_path / "run-7").mkdir()
    assert completed("evenstep", "diagnose", "run") == ["run-7"]


def test_the_same_as_json(capsys):
    assert main(["completion", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema("completion"))
    assert "--html" in found["commands"]["diagnose"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.name in script for command in COMMANDS)
