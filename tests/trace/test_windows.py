"""Ranks that recorded collectives in some windows of steps only, as a reader has them."""

import numpy as np

from evenstep.trace.loading import keep_recorded
from evenstep.trace.spool.layout import WINDOW_STEPS, Kind
from tests.diagnose.synthetic import World

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
