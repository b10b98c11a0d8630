import subprocess
import sys
from pathlib import Path

import pytest

import evenstep
from evenstep.reproduce.published.rows import PublishedRow
from tests.environment import plain

PACKAGE_PARENT = str(Path(evenstep.__file__).parents[1])


def one_row() -> tuple[PublishedRow]:
    """In place of all that `explain published` simulates."""
    return (PublishedRow("a step", 2.0, 2.1, "s"),)


@pytest.fixture
def environ(tmp_path):
    """A plain environment in which `evenstep` is importable, also when it is not installed."""
    return plain(PYTHONPATH=PACKAGE_PARENT, PYTHONUNBUFFERED="1")


@pytest.fixture
def command(environ, tmp_path):
    """Run `evenstep …` in an empty folder; the finished process."""

    def run(*arguments, **options):
        options = {"env": environ, "cwd": tmp_path, "timeout": 300} | options
        line = [sys.executable, "-m", "evenstep", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, check=False, **options)

    return run


@pytest.fixture
def start(environ, tmp_path):
    """Start `evenstep …` in the background, with pipes; killed at the end if need be."""
    children = []

    def begin(*arguments, **options):
        line = [sys.executable, "-m", "evenstep", *map(str, arguments)]
        child = subprocess.Popen(
            line, env=environ, cwd=tmp_path, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()
