"""Random profiles of two ranks, against what was written into them."""

import numpy as np
import pytest

from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Flag, Kind, Op
from tests.importers.profiles import Profile

NAMES = {
    "allreduce": Op.ALL_REDUCE, "_allgather_base": Op.ALL_GATHER,
    "_reduce_scatter_base": Op.REDUCE_SCATTER, "broadcast": Op.BROADCAST,
}  # fmt: skip
STEP_US = 10_000


def written(random, steps=3):
    """Profiles of two ranks with the same calls, each at times of its own; and of each rank what
    they say of each collective: step, kind, bytes, stream, begin and end of its kernel, in us."""
    calls = [
        (str(random.choice(list(NAMES))), int(random.integers(1, 5000)), int(random.integers(2)))
        for _ in range(int(random.integers(1, 6)))
    ]
    profiles, said = [], []
    for rank in range(2):
        profile, rows = Profile(rank), []
        for step in range(steps):
            begin = step * STEP_US
            profile.step(step, begin, STEP_US)
            free = [begin, begin]  # each stream
            for turn, (name, elements, way) in enumerate(calls):
                called = begin + 100 + 1500 * turn + int(random.integers(0, 500))
                since = max(called + 20, free[way]) + int(random.integers(1, 300))
                free[way] = since + int(random.integers(1, 900))
                profile.host("aten::mm", called - 30, 20)
                profile.kernel("gemm", called - 25, called - 10, 15)
                profile.collective(
                    called, since, free[way] - since, name=name, elements=elements, stream=20 + way
                )
                rows.append((step, NAMES[name], 4 * elements, 20 + way, since, free[way]))
        random.shuffle(profile.events)
        profiles.append(profile)
        said.append(rows)
    return profiles, said


@pytest.mark.parametrize("seed", range(12))
def test_what_a_profile_says_of_its_collectives_is_what_is_read(tmp_path, seed):
    """In whatever order its events are written."""
    random = np.random.default_rng(seed)
    profiles, said = written(random)
    trace = open_trace([one.write(tmp_path / f"{n}.json") for n, one in enumerate(profiles)])
    for rank, rows in enumerate(said):
        found = trace.of_kind(Kind.COLLECTIVE)
        found = found.select(found["rank"] == rank).sorted_by("device_enter_ns", "seq")
        expected = sorted(rows, key=lambda row: row[4])
        origin = found.device_enter_ns[0] - 1000 * expected[0][4]
        times = (found.device_enter_ns - origin, found.device_exit_ns - origin)
        names = ("step", "op", "bytes_in", "stream")
        table = [*(found[name].tolist() for name in names), *((t // 1000).tolist() for t in times)]
        first = table[0][0]
        assert [(row[0] - first, *row[1:]) for row in zip(*table, strict=True)] == expected
        assert (found.flags & int(Flag.ON_DEVICE) != 0).all()
        assert (found.flags & int(Flag.COALESCED) == 0).all()
        assert (found.enter_ns <= found.device_enter_ns).all()
        ends = trace.of_kind(Kind.STEP)
        ends = ends.select(ends["rank"] == rank).sorted_by("step")
        assert (np.diff(ends.enter_ns) == 1000 * STEP_US).all()
        assert (ends.exit_ns - ends.enter_ns == 1000 * STEP_US).all()
    both = trace.of_kind(Kind.COLLECTIVE)
    orders = [both.select(both["rank"] == rank).sorted_by("enter_ns") for rank in range(2)]
    names = ("step", "op", "group", "group_seq", "bytes_in")
    assert all((orders[0][name] == orders[1][name]).all() for name in names)
