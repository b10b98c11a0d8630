"""Ranks that recorded collectives in some windows of steps only, as a reader has them."""

import numpy as np
import pytest

from evenstep.trace.loading import keep_recorded, load
from evenstep.trace.spool.layout import WINDOW_STEPS, Kind, Op
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spooled import EVENT_COLUMNS, OnDisk
from tests.diagnose.synthetic import World
from tests.trace.small_run import identity

STEPS = 10 * WINDOW_STEPS


def windows_of(trace, kind):
    """The windows in which there are records of a kind."""
    return set((trace.of_kind(kind).step // WINDOW_STEPS).tolist())


def test_steps_that_all_ranks_recorded_are_kept_and_the_reader_says_so():
    trace = World(steps=STEPS).trace()
    for info, every in zip(trace.ranks.values(), (4, 2, 1, 4), strict=False):
        info.facts["hooks"] = {"every": every}
    keep_recorded(trace)
    assert windows_of(trace, Kind.COLLECTIVE) == windows_of(trace, Kind.STEP) == {0, 1, 4, 8}
    assert any("16 of every 64 steps" in limit for limit in trace.limits)


def test_a_trace_of_ranks_that_recorded_everything_stays_as_it_is():
    trace = World(steps=STEPS).trace()
    before = np.array(trace.events.step)
    keep_recorded(trace)
    assert np.array_equal(trace.events.step, before)
    assert not any("to cost little" in limit for limit in trace.limits)


def written(root, *every):
    """A run of ranks that spared so many windows, with a call, a step and a sample a step."""
    for rank, spared in enumerate(every):
        path = root / "attempt-000" / f"rank-{rank:05d}.spool"
        path.parent.mkdir(parents=True, exist_ok=True)
        spool = Spool.create(path, identity(rank), ring_bytes=1 << 20, summary_bytes=1)
        group = spool.add_group({"uid": "world", "name": "dp", "ranks": f"0-{len(every) - 1}"})
        for step in range(STEPS):
            at = 1000 * step + rank
            spool.put(at, at + 1, Kind.COLLECTIVE, Op.ALL_REDUCE, step, 0, group, step)
            spool.put(at, at + 2, Kind.STEP, 0, step)
            spool.put(at, at + 2, Kind.SAMPLE, 0, step)
        spool.add_fact("hooks", {"every": spared})
        spool.shut()
    return root


@pytest.mark.parametrize(
    ("spared", "kept"), [((1, 4, 2), {0, 1, 4, 8}), ((1, 2), {0, 1, 2, 4, 6, 8})]
)
def test_a_large_run_of_which_windows_were_spared_stays_on_disk(
    tmp_path, monkeypatch, spared, kept
):
    run = written(tmp_path, *spared)
    whole = load(run)
    for module in ("loading", "spools"):
        monkeypatch.setattr(f"evenstep.trace.{module}.LARGE_RECORDS", 0)
    left = load(run)
    assert isinstance(left.events, OnDisk)
    assert windows_of(left, Kind.COLLECTIVE) == kept
    assert windows_of(left, Kind.SAMPLE) == set(range(10))
    found = left.events.in_memory()
    assert all(np.array_equal(found[name], whole.events[name]) for name in EVENT_COLUMNS)
    assert left.limits == whole.limits
    assert [info.dropped for info in left.ranks.values()] == [0] * len(spared)
