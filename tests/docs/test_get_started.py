"""Who reads only "get started" reaches a verdict on a script."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.forks import python

pytest.importorskip("torch", reason="the page is about a job of torch")
PAGE = [block for block in blocks("", "python") if block.page.name == "get-started.md"]


def test_its_script_run_as_it_says_reaches_a_verdict(tmp_path):
    """Which one depends on what else this machine does; rank 1 on one that does nothing."""
    script = next(block.text for block in PAGE if "init_process_group" in block.text)
    (tmp_path / "train.py").write_text(script.replace("range(100)", "range(30)"))
    typed = next(block.commands[0] for block in PAGE if "evenstep run --out" in block.text)
    done = subprocess.run(
        [sys.executable, "-m", "evenstep", *_found(typed)],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Healthy: |\bof\s+step\s+time", done.stderr, re.MULTILINE)
    assert "evenstep: next: evenstep diagnose first" in done.stderr


def _found(typed):
    """torchrun, whatever PATH says."""
    at = typed.index("torchrun")
    return [*typed[:at], python(), "-m", "torch.distributed.run", *typed[at + 1 :]]


def _environment():
    sources = str(ROOT / "src")
    return os.environ | {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
