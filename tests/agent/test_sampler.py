from __future__ import annotations

import os
import signal
import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.sampler import Sampler, pause_s
from evenstep.host.sources.source import Source, SourceUnavailable

PATIENCE_S = 60.0


class Steady(Source):
    """Reads whatever `value` is; fails on opening or reading when told to."""

    name = "steady"

    def __init__(self, value=1.0, *, opening=None, reading=None):
        self.value, self.opening, self.reading = value, opening, reading
        self.reads = 0
        self.closed = False

    def open(self):
        if self.opening:
            raise self.opening

    def read(self):
        self.reads += 1
        if self.reading:
            raise self.reading
        return [("level_bytes", 0, self.value)]

    def close(self):
        self.closed = True


@pytest.fixture
def emitted():
    return []


@pytest.fixture
def sampler(emitted):
    """Builds samplers that do not outlive the test; their own clocks stand still."""
    made = []

    def build(*sources, **settings):
        settings = {"clock": lambda: 0.0, "cpu_clock": lambda: 0} | settings
        made.append(Sampler(sources, lambda *sample: emitted.append(sample), **settings))
        return made[-1]

    yield build
    stopped = [one.stop() for one in made]  # none was started
    assert all(stopped)


def turns(sampler, number):
    for _ in range(number):
        sampler.tick()


@given(cost_ns=st.integers(0, 10**10), period_s=st.floats(0.001, 60), share=st.floats(0.0001, 0.5))
def test_no_work_takes_more_than_its_share_of_a_core(cost_ns, period_s, share):
    rest_s = pause_s(cost_ns, period_s=period_s, share=share)
    assert rest_s >= period_s
    assert cost_ns / 1e9 <= share * rest_s * (1 + 1e-9)


def test_an_unchanged_value_is_repeated_every_n_rounds_only(sampler, emitted):
    turns(sampler(Steady(), repeat_ticks=3), 7)
    assert len(emitted) == 3  # rounds 1, 4 and 7


def test_a_changed_value_is_emitted_at_once(sampler, emitted):
    source = Steady()
    one = sampler(source)
    turns(one, 2)
    source.value = 2.0
    turns(one, 1)
    assert emitted == [("level_bytes", 0, 1.0), ("level_bytes", 0, 2.0)]


def test_an_absent_source_is_listed_with_its_reason_and_not_logged(sampler, caplog):
    one = sampler(Steady(opening=SourceUnavailable("this host has none")))
    turns(one, 2)
    assert one.absent == {"steady": "this host has none"}
    assert not caplog.records


def test_a_source_that_may_come_is_asked_again(sampler, emitted):
    source = Steady(opening=SourceUnavailable("not yet", may_come=True))
    one = sampler(source)
    turns(one, 1)
    assert one.absent == {"steady": "not yet"}
    source.opening = None
    turns(one, 1)
    assert (one.absent, len(emitted)) == ({}, 1)


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_a_source_that_fails_is_dropped_and_logged_once(sampler, emitted, caplog, where):
    broken, second = Steady(**{where: ValueError("odd")}), Steady()
    broken.name = "broken"
    one = sampler(broken, second)
    turns(one, 3)
    assert one.absent == {"broken": "ValueError: odd"}
    assert len(caplog.records) == 1
    assert second.reads == 3


def test_a_lost_device_leaves_its_own_sentence(sampler):
    one = sampler(Steady(reading=SourceUnavailable("the GPU has fallen off the bus")))
    turns(one, 1)
    assert one.absent["steady"] == "the GPU has fallen off the bus"


def test_costly_sources_are_read_less_often_and_leave_the_rest_its_rhythm(sampler):
    spent_ns, rounds = 0, []

    class Costly(Steady):
        def read(self):
            nonlocal spent_ns
            spent_ns += 20_000_000  # 20 ms of CPU
            return super().read()

    source = Costly()
    one = sampler(
        source,
        task=lambda: rounds.append(1),
        clock=lambda: float(len(rounds)),  # one second a round
        cpu_clock=lambda: spent_ns,
        budget=0.01,  # half for the sources: 20 ms of it last 4 s
    )
    turns(one, 9)
    assert (len(rounds), source.reads) == (9, 3)  # in rounds 1, 5 and 9
    assert one.cost_ns == 60_000_000


def test_costly_other_work_stretches_the_rounds(sampler):
    cost = iter([0, 50_000_000, 50_000_000, 50_000_000, 50_000_000])
    one = sampler(cpu_clock=lambda: next(cost), task=lambda: None, budget=0.01)
    assert one.tick() == 10.0  # 50 ms at half of one percent


def test_other_work_that_fails_is_dropped_and_the_sources_go_on(sampler, emitted, caplog):
    def flush():
        raise OSError("disk full")

    one = sampler(Steady(), task=flush)
    turns(one, 2)
    assert "OSError: disk full" in one.absent.values()
    assert (len(caplog.records), len(emitted)) == (1, 1)


def test_the_thread_samples_and_is_gone_after_stop(emitted):
    arrived = threading.Event()
    source = Steady()
    one = Sampler([source], lambda *sample: (emitted.append(sample), arrived.set()), period_s=0.01)
    one.start()
    one.start()
    assert arrived.wait(PATIENCE_S)
    assert one.stop(PATIENCE_S)
    assert "evenstep-sampler" not in {thread.name for thread in threading.enumerate()}
    assert source.closed


def test_stopping_what_never_started_is_fine(sampler):
    assert sampler(Steady()).stop()


def test_a_stop_does_not_wait_for_the_end_of_the_period(emitted):
    arrived = threading.Event()
    one = Sampler([Steady()], lambda *sample: arrived.set(), period_s=3600)
    one.start()
    assert arrived.wait(PATIENCE_S)
    assert one.stop(PATIENCE_S)


def test_nothing_is_emitted_after_stop_even_by_a_source_stuck_in_its_driver(emitted):
    stuck, free = threading.Event(), threading.Event()

    class Stuck(Steady):
        def read(self):
            stuck.set()
            free.wait(PATIENCE_S)
            return super().read()

    one = Sampler([Stuck()], lambda *sample: emitted.append(sample))
    one.start()
    assert stuck.wait(PATIENCE_S)
    assert not one.stop(timeout_s=0.01)
    free.set()
    assert one.stop(PATIENCE_S)
    assert emitted == []


def test_other_work_may_stop_the_sampler_itself():
    stopped = threading.Event()
    one = Sampler([], lambda *sample: None, task=lambda: (one.stop(), stopped.set()))
    one.start()
    assert stopped.wait(PATIENCE_S)
    assert one.stop(PATIENCE_S)


def test_a_receiver_that_fails_ends_sampling_quietly(caplog):
    def full(*sample):
        raise BufferError("ring closed")

    one = Sampler([Steady()], full)
    one.start()
    one._thread.join(PATIENCE_S)
    assert one.failure == "BufferError: ring closed"
    assert len(caplog.records) == 1


def test_signals_stay_with_the_threads_of_the_job():
    masks = []
    done = threading.Event()

    def look():
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        done.set()

    one = Sampler([], lambda *sample: None, task=look)
    one.start()
    assert done.wait(PATIENCE_S)
    assert one.stop(PATIENCE_S)
    assert {signal.SIGINT, signal.SIGTERM} <= masks[0]


def test_a_forked_child_disarms_it_without_touching_a_lock():
    one = Sampler([Steady()], lambda *sample: None, period_s=0.01)
    one.start()
    with one._gate:  # held by somebody who does not exist in the child
        child = os.fork()
        if child == 0:
            one.disarm()
            one.start()
            os._exit(0 if one.stop() and threading.active_count() == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.stop(PATIENCE_S)


def test_who_asks_between_two_rounds_is_asked_as_soon_as_something_rings():
    asked, again = threading.Event(), threading.Event()

    def between():
        (again if asked.is_set() else asked).set()
        return PATIENCE_S

    made = Sampler([], print, period_s=PATIENCE_S, between=between)
    made.start()
    assert asked.wait(PATIENCE_S)
    made.wake()
    assert again.wait(PATIENCE_S / 2)
    assert made.stop()


class Rests(Sampler):
    """On a clock that only its rests move; so long each, until it is told to stop."""

    def __init__(self, between, **settings):
        self.now_s, self.rests = 0.0, []
        super().__init__([], print, between=between, clock=lambda: self.now_s, **settings)

    def _pause(self, pause_s):
        self.rests.append(pause_s)
        self.now_s += pause_s
        return self._stopping.is_set()


@pytest.mark.parametrize(
    ("asks_s", "rest_s", "rests"),
    [
        (0.25, 1.0, [0.25, 0.25, 0.25, 0.25]),
        (0.4, 1.0, [0.4, 0.4, 0.2]),
        (5.0, 1.0, [1.0]),
        (-1.0, 0.0, []),
    ],
)
def test_between_two_rounds_it_asks_as_often_as_it_is_told_and_never_rests_longer(
    asks_s, rest_s, rests
):
    asked = []
    made = Rests(lambda: asked.append(made.now_s) or asks_s)
    assert made._rest(rest_s) == 0.0
    assert made.rests == pytest.approx(rests)
    assert len(asked) == len(rests) + 1  # once more when the round is due


def test_who_has_nothing_to_ask_rests_until_the_next_round():
    assert Rests(None)._rest(0.7) == 0.7


def test_a_rest_that_ends_with_the_thread_asks_no_more():
    made = Rests(lambda: made._stopping.set() or 0.1)
    assert made._rest(1.0) == 0.9
    assert made.rests == [0.1]


def test_a_source_of_another_device_or_metric_is_another_value(sampler, emitted):
    class Two(Steady):
        def read(self):
            self.reads += 1
            return [
                ("level_bytes", 0, 1.0),
                ("level_bytes", 1, 1.0),
                ("load", 0, float(self.reads)),
            ]

    turns(sampler(Two(), repeat_ticks=3), 4)
    assert emitted == [
        ("level_bytes", 0, 1.0), ("level_bytes", 1, 1.0), ("load", 0, 1.0),
        ("load", 0, 2.0), ("load", 0, 3.0),
        ("level_bytes", 0, 1.0), ("level_bytes", 1, 1.0), ("load", 0, 4.0),
    ]  # fmt: skip


def test_sources_that_are_added_are_opened_and_read_from_the_next_round_on(sampler, emitted):
    one = sampler(Steady())
    turns(one, 1)
    late = Steady(9.0)
    late.name = "late"
    one.add([late])
    turns(one, 1)
    assert emitted == [("level_bytes", 0, 1.0), ("level_bytes", 0, 9.0)]


def test_what_may_not_come_is_not_opened_again(sampler):
    source = Steady(opening=SourceUnavailable("never"))
    one = sampler(source)
    turns(one, 1)
    source.opening = None
    turns(one, 1)
    assert one.absent == {"steady": "never"}
    assert source.reads == 0


def test_a_source_that_cannot_be_closed_keeps_no_other_from_it():
    first, second = Steady(), Steady()
    first.close = lambda: 1 // 0
    one = Sampler([first, second], lambda *_: None)
    one.tick()
    one._close()
    assert second.closed


def test_sampling_costs_what_its_sources_cost_and_their_opening(sampler):
    spent = count(0, 5)
    one = sampler(Steady(), cpu_clock=lambda: next(spent), clock=lambda: 9.0)
    turns(one, 1)
    assert one.cost_ns == next(spent) - 5
