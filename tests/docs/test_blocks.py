"""What the pages tell a reader to type works."""

import ast
import contextlib
import importlib
import importlib.util
import io
import re
import tomllib
from pathlib import Path

import pytest

from evenstep.cli.main import COMMANDS, main
from evenstep.scenario import scenario
from tests.docs.markdown import ROOT, blocks, named

SHELL = [block for block in blocks("", "bash") if block.commands]
RUNNING = [block for block in blocks("", "bash") if block.runs]
DONE_BY = {command.name for command in COMMANDS} - {"explain"}  # which only computes


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_commands_of_the_pages_have_arguments_that_are_accepted(block, monkeypatch):
    for name in DONE_BY:
        module = importlib.import_module(f"evenstep.cli.{name}")
        monkeypatch.setattr(module, "main", lambda args: 0)
    for arguments in block.commands:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(arguments) == 0, " ".join(arguments)


@pytest.mark.parametrize("block", RUNNING, ids=named)
def test_commands_print_what_the_pages_show(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for (_, shown), arguments in zip(block.typed_and_printed, block.commands, strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(arguments) in (0, 1)
        assert like(shown).search(printed.getvalue()), printed.getvalue()


def like(shown):
    """A pattern of what a page shows, where `…` stands for anything."""
    return re.compile(r"[\s\S]*?".join(re.escape(piece.strip()) for piece in shown.split("…")))


def test_some_blocks_run():
    assert len(RUNNING) >= 3


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_of_the_pages_compiles_and_imports_what_exists(block):
    tree = ast.parse(block.text.replace("…", "..."))
    for found in ast.walk(tree):
        if isinstance(found, ast.ImportFrom) and found.module.startswith("evenstep"):
            source = Path(importlib.util.find_spec(found.module).origin).read_text()
            for alias in found.names:
                pattern = rf"^(def|class) {alias.name}\b|^{alias.name}\b.* = |\"{alias.name}\""
                assert re.search(pattern, source, re.MULTILINE), f"{found.module}.{alias.name}"


@pytest.mark.parametrize("block", blocks("toml"), ids=named)
def test_toml_of_the_pages_is_well_formed(block):
    tomllib.loads(block.text)


def test_the_scenario_of_the_simulator_guide_is_one():
    guide = [block for block in blocks("toml") if block.page.name == "simulator.md"]
    assert [scenario.parse(tomllib.loads(block.text)).ranks for block in guide] == [32]
