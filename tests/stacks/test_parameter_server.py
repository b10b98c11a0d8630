"""An asynchronous parameter server, two workers of which one is slow."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.trace.spool.layout import Kind
from tests.stacks.conftest import launch, read

SLOW = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "run"
    # long enough for the other worker to be well ahead meanwhile, on a loaded machine too
    options = ("--seconds", 3.0, "--slow-rank", SLOW, "--delay-ms", 400)
    return read(folder, launch(folder, 3, "parameter_server", *options))


@pytest.mark.parametrize("rank", [1, 2])
def test_the_staleness_of_every_update_is_what_the_server_counted(server, rank):
    logged = metric_samples(server.trace, "staleness", Kind.MARKER)
    assert logged.value[logged.rank == rank].tolist() == server.said["staleness"][str(rank)]


def test_the_slow_worker_is_named(server):
    assert server.finding("async_staleness")["where"]["ranks"] == [SLOW]


def test_the_distribution_is_that_of_all_updates(server):
    all_ = np.concatenate([server.said["staleness"][str(rank)] for rank in (1, 2)])
    found = server.evidence("async_staleness")
    assert found["staleness_median"] == np.median(all_)
    assert found["staleness_max"] == all_.max()
