"""Two JAX processes with gloo on the CPU, as the example starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Flag, Kind, Op
from tests.hooks.conftest import lateness_ns

pytest.importorskip("jax", reason="jax is not installed")
ROOT = Path(__file__).parents[2]
LATE_S = 0.03


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The example's trace, 30 steps of which rank 1 is late in each."""
    folder = tmp_path_factory.mktemp("jax") / "run"
    example = [sys.executable, str(ROOT / "examples/jax/data_parallel.py"), "--steps", "30"]
    done = subprocess.run(
        [sys.executable, "-m", "evenstep", "run", "--out", str(folder), "--", *example,
         "--delay-ms", str(LATE_S * 1e3)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "EVENSTEP_VERDICT": "0"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return evenstep.load(folder)


def test_processes_are_ranks_once_they_are_initialized(trace):
    assert sorted(trace.ranks) == [0, 1]
    assert trace.groups[0].ranks == (0, 1)


def test_marked_steps_are_recorded_on_both(trace):
    steps = trace.of_kind(Kind.STEP)
    assert [int((steps["rank"] == rank).sum()) for rank in (0, 1)] == [30, 30]


def test_a_meeting_of_all_processes_is_a_collective_that_blocks(trace):
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert set(rows.op.tolist()) == {Op.ALL_GATHER}
    assert set(rows.bytes_in.tolist()) == {256}  # 64 floats
    assert (rows.flags & Flag.HOST_BLOCKED).all()


def test_compilation_is_a_span_of_its_step(trace):
    spans = trace.of_kind(Kind.SPAN)
    compiled = spans.select(spans.name == trace.names.index("jax compile"))
    assert len(compiled)
    assert np.median(compiled.step) == 0  # shapes never change afterwards


def test_the_late_process_enters_as_late_as_it_sleeps(trace):
    assert lateness_ns(trace, Op.ALL_GATHER) > LATE_S / 2 * 1e9  # others may hold it up, too


def test_what_cannot_be_seen_is_said(trace):
    assert any("collectives inside compiled functions" in one for one in diagnose(trace).limits)
