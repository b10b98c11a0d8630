"""Real ranks under mpiexec: they follow the board, leave together and leave a trace."""

from __future__ import annotations

import numpy as np
import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.errors import UsageError
from evenstep.trace.spool.layout import Kind
from lab import run
from lab.arms import Schedule
from lab.mpi import tier
from lab.scenario import parse
from lab.steps import read_steps

SCENARIO = parse({
    "fabric": "mpi",
    "jobs": [{"name": "pair", "ranks": 2, "compute_ms": 4, "buckets": 2, "gradient_bytes": 8192}],
    "faults": [{"kind": "slow_rank", "ranks": "1", "phase": "backward", "delay_ms": 12}],
    "run": {"rounds": 1, "warm_up_rounds": 0, "block_s": 0.5, "settle_s": 0.05},
})  # fmt: skip
LACKING = tier.missing(SCENARIO)
needs_mpi = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is lacking")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a run with a spinning, a paced and a blocking arm."""
    made = tmp_path_factory.mktemp("mpi")
    arms = run.arms_for(["paper", "blocking"], tier.ARMS, again=False)
    run.carry_out(SCENARIO, Schedule(arms, 1, 0, seed=0), made)
    return made


@needs_mpi
def test_ranks_take_the_same_number_of_steps(folder):
    steps = evenstep.load(folder / "pair").of_kind(Kind.STEP)
    assert len(set(np.bincount(steps["rank"]).tolist())) == 1
    assert len(read_steps(folder / "pair")[0])


@needs_mpi
def test_the_diagnosis_names_the_late_rank(folder):
    findings = diagnose(evenstep.load(folder / "pair")).findings
    assert [1] in [list(finding.where.ranks) for finding in findings]


@needs_mpi
def test_every_rank_closes_its_trace(folder):
    assert all("closed" in info.facts for info in evenstep.load(folder / "pair").ranks.values())


@needs_mpi
def test_nothing_but_traces_and_what_was_said_is_left(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["lab.json", "pair", "pair.log"]


def test_without_mpi_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(tier, "_mpiexec", lambda: None)
    with pytest.raises(UsageError, match=r"needs mpiexec; install an MPI"):
        run.carry_out(SCENARIO, Schedule(run.arms_for([]), 1, 0, seed=0), tmp_path)
