"""Profiles that torch itself wrote of a gloo job whose slow rank is known."""

import numpy as np
import pytest

from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.forks import start
from tests.importers.profiled_job import LATE_S, RANKS, SLOW, STEPS


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    job = start("tests.importers.profiled_job", folder, KINETO_LOG_LEVEL="5")
    _, error = job.communicate()
    assert job.returncode == 0, error
    return open_trace(sorted(folder.glob("rank-*.json.gz")))


def test_every_step_and_all_reduce_is_there_on_every_rank(trace):
    steps, collectives = trace.of_kind(Kind.STEP), trace.of_kind(Kind.COLLECTIVE)
    assert len(steps) == RANKS * STEPS
    assert list(collectives.op) == [Op.ALL_REDUCE] * RANKS * STEPS  # one bucket
    assert sorted(trace.groups[0].ranks) == list(range(RANKS))
    assert trace.limits == []


def test_what_a_rank_sleeps_in_its_forward_is_in_its_phases(trace):
    # The only thing that holds however busy the machine is; who is named, made profiles show.
    rows = trace.of_kind(Kind.PHASE)
    rows = rows.select((rows.op == int(Phase.FORWARD)) & (rows["rank"] == SLOW))
    spent_ns = np.bincount(rows.step, rows.group_seq)[np.unique(rows.step)]
    assert len(spent_ns) == STEPS
    assert (spent_ns >= 0.99e9 * LATE_S).all()
