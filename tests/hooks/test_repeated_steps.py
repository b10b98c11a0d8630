"""Steps of a loop of torch that no optimizer marks, from the records of the spool."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.agent.recording.entries import GroupState
from evenstep.hooks.repeating import FEWEST_CALLS, InferredSteps
from evenstep.hooks.torch.steps import RepeatedSteps
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Flag, Kind, Op

ASYNC = int(Flag.ASYNC)


class Loop:
    """A rank of two; `sizes` are those of the all-reduces of a step."""

    def __init__(self, recorder, sizes):
        self.recorder, self.sizes = recorder, sizes
        self.group = GroupState(1, "g", (0, 1), 0)
        agent = SimpleNamespace(
            recorder=recorder, counters=tuple,
            end_step=lambda now: recorder.end_step(now),
            end_past_step=lambda end, there, upto: recorder.end_step(end, upto=upto),
        )  # fmt: skip
        groups = SimpleNamespace(widths=lambda: {1: 2})
        steps = InferredSteps(agent, "torch", int(Flag.INFERRED))
        self.repeated = RepeatedSteps(steps, recorder, groups)

    def issue(self, nbytes, flags=0):
        now = time.monotonic_ns()
        return self.recorder.collective(
            now, self.group, Op.ALL_REDUCE, nbytes, nbytes, flags, -1, 1
        )

    def wait(self, seq):
        self.recorder.spool.close(seq, time.monotonic_ns())
        self.repeated.waited()

    def blocking(self, steps):
        for _ in range(steps):
            for nbytes in self.sizes:
                self.wait(self.issue(nbytes))

    def overlapping(self, steps):
        for _ in range(steps):
            for seq in [self.issue(nbytes, ASYNC) for nbytes in self.sizes]:
                self.wait(seq)

    def steps(self):
        records = read_spool(self.recorder.spool.path).records
        return records[records["kind"] == int(Kind.STEP)]


@pytest.fixture
def loop(recorder):
    return Loop(recorder, (8, 16, 8, 4))


@pytest.mark.parametrize("how", ["blocking", "overlapping"])
def test_what_repeats_is_a_step_also_before_that_was_known(loop, how):
    getattr(loop, how)(FEWEST_CALLS // 4 + 5)
    steps = loop.steps()
    assert len(steps) == FEWEST_CALLS // 4 + 5
    assert (steps["flags"] & int(Flag.INFERRED)).all()
    assert (steps["exit_ns"][:-1] == steps["enter_ns"][1:]).all()


def test_calls_know_their_step(loop):
    loop.blocking(FEWEST_CALLS // 4 + 5)
    records = read_spool(loop.recorder.spool.path).records
    calls = records[records["kind"] == int(Kind.COLLECTIVE)]
    assert calls["step"].tolist() == np.repeat(np.arange(len(calls) // 4), 4).tolist()


def test_nothing_is_inferred_once_an_optimizer_was_made(loop):
    loop.repeated.leave()
    loop.blocking(40)
    assert not len(loop.steps())


def test_steps_that_somebody_marks_are_the_only_ones_from_then_on(loop):
    loop.blocking(FEWEST_CALLS // 4 + 1)
    inferred = len(loop.steps())
    loop.recorder.manual = True
    loop.blocking(40)
    assert len(loop.steps()) == inferred
    assert not loop.repeated.known
    assert loop.recorder.step_flags == 0


@pytest.mark.parametrize("widths", [{}, {1: 1}])
def test_calls_of_one_rank_alone_or_of_an_unknown_group_end_no_steps(loop, widths):
    loop.repeated._groups.widths = lambda: widths
    loop.blocking(40)
    assert not len(loop.steps())


def test_a_group_made_later_is_asked_for(loop):
    known = [{}, {}, {1: 2}]
    loop.repeated._groups.widths = lambda: known.pop(0) if known[1:] else known[0]
    loop.blocking(40)
    assert len(loop.steps()) == 39  # the first call was of an unknown group


def test_another_thread_marks_no_steps(loop):
    loop.recorder.ident += 1
    loop.blocking(40)
    assert not len(loop.steps())


def test_calls_of_another_thread_are_no_part_of_what_repeats(loop):
    for number in range(FEWEST_CALLS // 4 + 5):
        others = [partial(loop.issue, 1000 + number + more) for more in range(number % 3)]
        thread = threading.Thread(target=lambda calls=others: [call() for call in calls])
        thread.start()
        thread.join()
        loop.blocking(1)
    assert len(loop.steps()) == FEWEST_CALLS // 4 + 5
