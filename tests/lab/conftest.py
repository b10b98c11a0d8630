"""Short real runs of the laboratory, shared by the tests that look at them."""

import sys

import pytest

from lab import children, run
from lab.arms import Schedule
from lab.scenario import parse
from tests.environment import plain

PATHS = children.python_path()

#: Two jobs on one link, one with a late rank: 4 buckets of 2 ms each alone.
TWO_JOBS = {
    "name": "two jobs",
    "network": {"link_gBps": 0.1},
    "jobs": [{"copies": 2, "ranks": 2, "compute_ms": 12, "gradient_bytes": 800_000, "buckets": 4}],
    "faults": [{"kind": "slow_rank", "ranks": "1", "delay_ms": 8, "job": 0}],
    "run": {"rounds": 2, "warm_up_rounds": 0, "block_s": 0.7, "settle_s": 0.1},
}


@pytest.fixture(scope="session")
def two_jobs(tmp_path_factory):
    """A finished run of two arms: (scenario, schedule, record, folder)."""
    scenario = parse(TWO_JOBS)
    schedule = Schedule(run.arms_for(["paper+unguarded"], again=False), 2, 0, seed=0)
    folder = tmp_path_factory.mktemp("two-jobs")
    return scenario, schedule, run.carry_out(scenario, schedule, folder), folder


@pytest.fixture
def lab(tmp_path):
    """The command line of `python -m lab …`, and the options to start it with."""
    options = {"env": plain(PYTHONPATH=PATHS), "cwd": tmp_path, "text": True}
    return [sys.executable, "-m", "lab"], options
