"""From Kineto files to the verdict: the rank that is late on its device, and where."""

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from tests.importers.profiles import Profile

WORLD, STEPS, LATE_US, STEP_US = 4, 40, 3_000, 13_000


def device_job(rank, slow, **stated):
    """Compute of 8 ms (rank `slow`: 3 ms more), then an all-reduce that all leave together."""
    profile = Profile(rank, WORLD)
    for number in range(STEPS):
        begin, work = STEP_US * number, 8_000 + 40 * ((7 * rank + 3 * number) % 5)
        work += LATE_US if rank == slow else 0
        profile.step(number + 5, begin, STEP_US - 1)
        profile.note("## forward ##", begin + 10, 2_450)
        profile.note("## backward ##", begin + 2_470, 100)
        profile.kernel("gemm", begin + 30, begin + 60, 2_400)
        profile.kernel("gemm_backward", begin + 2_500, begin + 2_460, work - 2_400)
        left = STEP_US - 500 - 60 - work
        sequence = dict.fromkeys(stated, number)
        profile.collective(begin + 2_550, begin + 60 + work, left, elements=10**6, **sequence)
    return profile


@pytest.fixture(params=[{}, {"Seq": True}], ids=["counted", "numbered"])
def diagnosis(tmp_path, request):
    for rank in range(WORLD):
        device_job(rank, slow=2, **request.param).write(tmp_path / f"rank-{rank}.json.gz")
    return diagnose(open_trace([tmp_path]))


def test_the_late_rank_is_named_with_its_phase(diagnosis):
    worst = diagnosis.findings[0]
    assert (worst.mode, list(worst.where.ranks)) == ("straggler", [2])
    assert "backward" in worst.cause


def test_what_it_costs_is_what_was_put_in(diagnosis):
    assert diagnosis.findings[0].severity == pytest.approx(LATE_US / STEP_US, rel=0.1)
