"""Profiles in which nothing marks a step: a step is where collectives, and pauses, come again."""

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind
from tests.importers.profiles import Profile

STEPS, BUCKETS, WORLD, SLOW = 24, 2, 3, 1
WORK_US, BUCKET_US, MOVED_US, LATE_US = 5_000, 500, 300, 1_000
STEP_US = WORK_US + LATE_US + BUCKETS * MOVED_US + BUCKET_US


def kernels_only(rank):
    """A device that works, and reduces two buckets of one size with little work between them."""
    profile, begin = Profile(rank, WORLD), 0
    for _ in range(STEPS):
        late = LATE_US if rank == SLOW else 0
        profile.kernel("gemm", begin, begin, WORK_US + late)
        ends = begin + WORK_US + LATE_US + MOVED_US
        profile.collective(begin, begin + WORK_US + late, ends - begin - WORK_US - late)
        profile.kernel("gemm", ends, ends, BUCKET_US)
        profile.collective(ends, ends + BUCKET_US, MOVED_US)
        begin = ends + BUCKET_US + MOVED_US
    profile.events = [event for event in profile.events if event["cat"] == "kernel"]
    return profile


@pytest.fixture
def trace(tmp_path):
    return open_trace(
        [kernels_only(rank).write(tmp_path / f"rank-{rank}.json") for rank in range(WORLD)]
    )


def test_collectives_of_one_size_are_told_apart_by_the_pauses_before_them(trace):
    steps = trace.of_kind(Kind.STEP)
    assert set(steps.exit_ns - steps.enter_ns) == {STEP_US * 1000}
    assert any(f"{BUCKETS} collectives that come again" in line for line in trace.limits)


def test_ranks_begin_a_step_together_so_that_the_late_one_is_late_in_it(trace):
    worst = diagnose(trace).findings[0]
    assert list(worst.where.ranks) == [SLOW]
    assert worst.severity == pytest.approx(LATE_US / STEP_US, rel=0.02)
