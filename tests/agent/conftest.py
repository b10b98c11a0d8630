"""Real jobs of torch and gloo, each run once for all tests that look at what it left."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import evenstep
from evenstep.trace.trace import Trace
from tests.forks import start


class Finished:
    """A job that has ended: what it wrote, and the folder with its traces."""

    def __init__(self, folder: Path, error: str) -> None:
        self.folder = folder
        self.error = error
        self.results = json.loads((folder / "results.json").read_text())
        self._traces: dict[str, Trace] = {}

    def __getitem__(self, scene: str):
        return self.results[scene]

    def trace(self, scene: str) -> Trace:
        """The trace of a scene."""
        if scene not in self._traces:
            self._traces[scene] = evenstep.load(self.folder / scene)
        return self._traces[scene]


def finish(child, folder):
    _, error = child.communicate(timeout=300)
    assert child.returncode == 0, error
    return Finished(folder, error)


@pytest.fixture(scope="session")
def full_disk(tmp_path_factory):
    """A filesystem with no room left; "" where none can be mounted."""
    where = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        yield ""
        return
    (where / "filler").write_bytes(b"x" * 900_000)
    yield str(where)
    subprocess.run(["umount", "-l", str(where)], check=False)


@pytest.fixture(scope="session")
def solo(tmp_path_factory, full_disk):
    """One rank, attached and detached again and again."""
    folder = tmp_path_factory.mktemp("solo")
    return finish(start("tests.agent.solo_job", folder, full_disk), folder)


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two ranks started by `torch.multiprocessing.spawn`."""
    folder = tmp_path_factory.mktemp("pair")
    return finish(start("tests.agent.pair_job", folder, cwd=folder), folder)
