"""Tensor and data parallelism together: four ranks, groups of two, each with waits of its own."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from evenstep.trace.spool.layout import Kind
from tests.stacks.conftest import launch, read

STEPS, DELAY_MS = 20, 80
SLOW = 3


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mesh") / "run"
    options = ("--steps", STEPS, "--slow-rank", SLOW, "--delay-ms", DELAY_MS)
    return read(folder, launch(folder, 4, "tensor_parallel", *options))


def test_rows_and_columns_of_the_mesh_are_groups(mesh):
    used = np.unique(mesh.trace.of_kind(Kind.COLLECTIVE).group)
    members = {mesh.trace.groups[group].ranks for group in used}
    assert {(0, 1), (2, 3), (0, 2), (1, 3)} <= members


def test_the_slow_rank_is_named_beyond_its_own_group(mesh):
    assert mesh.finding("straggler")["where"]["ranks"] == [SLOW]


@pytest.mark.parametrize(("rank", "group"), [(1, (1, 3)), (2, (2, 3))])
def test_who_meets_the_slow_rank_waits_in_the_group_they_share(mesh, rank, group):
    slept_ms = median(mesh.said["slept_ns"]) / 1e6
    # while one sleeps, three compute: on two cores each of them is later than it would be
    assert mesh.longest_wait_ms(rank, group) == pytest.approx(slept_ms, rel=0.25)
