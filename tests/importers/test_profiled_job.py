"""Profiles that torch itself wrote of a gloo job whose slow rank is known."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.importers.profiled_job import LATE_S, RANKS, SLOW, STEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    command = [sys.executable, "-m", "tests.importers.profiled_job", str(folder)]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "5"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    return open_trace(sorted(folder.glob("rank-*.json.gz")))


def test_every_step_and_all_reduce_is_there_on_every_rank(trace):
    steps, collectives = trace.of_kind(Kind.STEP), trace.of_kind(Kind.COLLECTIVE)
    assert len(steps) == RANKS * STEPS
    assert list(collectives.op) == [Op.ALL_REDUCE] * RANKS * STEPS  # one bucket
    assert sorted(trace.groups[0].ranks) == list(range(RANKS))
    assert trace.limits == []


def test_the_slow_rank_is_named_with_its_phase_and_its_cost(trace):
    diagnosis = diagnose(trace)
    worst = diagnosis.findings[0]
    assert (worst.mode, list(worst.where.ranks)) == ("straggler", [SLOW])
    assert "forward" in worst.cause
    # A busy machine lets a rank sleep longer than asked, and now and then much longer: what it
    # usually did is in its phases. How exactly a cost is told, made profiles show.
    rows = trace.of_kind(Kind.PHASE)
    rows = rows.select(rows.op == int(Phase.FORWARD))
    length = {r: np.median(rows.group_seq[rows["rank"] == r]) for r in range(RANKS)}
    late_ns = length.pop(SLOW) - max(length.values())
    assert late_ns >= 0.8e9 * LATE_S
    usual = late_ns / diagnosis.summary["step_time"]["mean_ns"]
    assert 0.5 * usual < worst.severity < 2 * usual
