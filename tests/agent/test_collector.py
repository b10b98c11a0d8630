from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from evenstep.agent.recording import collector
from evenstep.agent.recording.collector import NEVER, PauseWatch


@pytest.fixture
def seen():
    return []


@pytest.fixture
def watch(seen):
    """Installed, reports everything, and removed at the end; its clock counts 1, 2, 3 …"""
    ticks = count(1)
    watch = PauseWatch(lambda *pause: seen.append(pause), minimum_ns=0, clock=lambda: next(ticks))
    gc.collect()
    gc.disable()  # no collection but our own
    watch.install()
    yield watch
    watch.remove()
    gc.enable()


def cycle() -> None:
    ring: list[object] = []
    ring.append(ring)


def test_a_collection_is_reported_with_its_generation_and_yield(watch, seen):
    cycle()
    gc.collect(1)
    assert seen == [(1, 2, 1, 1, False)]  # two clock readings, generation 1, the one ring


def test_a_full_collection_is_the_scripts_where_it_calls_one_and_the_collectors_else(watch, seen):
    gc.collect()
    gc.enable()
    gc.set_threshold(10, 1, 1)
    while len(seen) < 100:
        cycle()
        kept = [[] for _ in range(20)]
    gc.set_threshold(700, 10, 10)
    gc.collect()
    del kept
    assert [called for *_, generation, _, called in seen if generation == 2] == [
        True, *[False] * (sum(pause[2] == 2 for pause in seen) - 2), True,
    ]  # fmt: skip


def test_what_the_action_collects_is_not_the_scripts(watch, seen):
    gc.set_threshold(NEVER, 10, 10)
    gc.collect()
    gc.set_threshold(700, 10, 10)
    gc.collect()
    assert [called for *_, called in seen] == [False, True]


def test_installing_twice_reports_once(watch, seen):
    watch.install()
    gc.collect()
    assert len(seen) == 1


def test_removing_twice_is_the_same_as_once(watch, seen):
    watch.remove()
    watch.remove()
    gc.collect()
    assert seen == []
    assert not watch.installed


def test_it_can_be_installed_again_after_somebody_cleared_the_list(watch, seen):
    gc.callbacks.clear()
    watch.install()
    gc.collect()
    assert len(seen) == 1


def test_short_pauses_are_not_reported():
    reports = []
    ticks = count(1)
    watch = PauseWatch(reports.append, minimum_ns=2, clock=lambda: next(ticks))
    watch.install()
    gc.collect(0)
    gc.collect(2)
    watch.remove()
    assert (next(ticks) > 4, reports) == (True, [])  # each pause lasts one tick of the clock


def test_a_watch_installed_in_mid_collection_ignores_its_end(seen):
    watch = PauseWatch(lambda *pause: seen.append(pause), minimum_ns=0)
    gc.callbacks.insert(0, late := lambda phase, info: phase == "start" and watch.install())
    gc.collect()
    gc.callbacks.remove(late)
    watch.remove()
    assert all(end >= start > 0 for start, end, *_ in seen)


def test_a_failing_receiver_is_never_called_again_and_harms_nobody(watch):
    calls = []

    def broken(*pause):
        calls.append(pause)
        raise ValueError("no room")

    watch._on_pause = broken
    gc.collect()
    gc.collect()
    assert len(calls) == 1
    assert watch.failure == "ValueError: no room"


PROGRAM = """
import _thread, functools, gc, signal, sys, time
from evenstep.agent.recording.collector import PauseWatch

kill = functools.partial(_thread.interrupt_main, signal.SIGINT)  # arrives, is not handled yet

class Trap:  # collected in a cycle, it raises the signal without entering a Python frame
    __del__ = staticmethod({trap})

def expire(signum, frame): raise TimeoutError("too late")

class Job:
    def expire(self, signum, frame): raise TimeoutError("too late")

{handler}
PauseWatch({on_pause}, minimum_ns=0).install()
trap = Trap()
trap.me = trap
del trap
try:
    gc.collect()
    for _ in range(300):  # a signal that comes just before a sleep begins is handled after it
        time.sleep(0.1)
    print("lost")
except TimeoutError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("handler", "code", "output"),
    [
        ("", -signal.SIGINT, ""),  # what a program without us returns: killed by Ctrl-C
        ("signal.signal(signal.SIGINT, lambda *_: sys.exit(7))", 7, ""),
        ("signal.signal(signal.SIGINT, expire)", 0, "too late\n"),
        ("signal.signal(signal.SIGINT, Job().expire)", 0, "too late\n"),
    ],
)
@pytest.mark.parametrize(
    ("trap", "on_pause"),
    [("kill", "lambda *pause: None"), ("int", "lambda *pause: pause[3] and kill()")],
    ids=["before our first line", "inside it"],
)
def test_a_signal_during_a_collection_is_not_lost(handler, code, output, trap, on_pause):
    program = PROGRAM.format(handler=handler, trap=trap, on_pause=on_pause)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, output), ended.stderr


CALLED = """
import _thread, ctypes, functools, signal, time
from collections import deque
from types import SimpleNamespace
from evenstep.agent.recording.collector import PauseWatch
from evenstep.hooks.torch.native import Session

def expire(signum, frame): raise TimeoutError("too late")

signal.signal(signal.SIGINT, expire)
PauseWatch(lambda *pause: None).install()
kill = functools.partial(_thread.interrupt_main, signal.SIGINT)  # arrives, is not handled yet
gate = ctypes.CFUNCTYPE(None)(Session._safely(SimpleNamespace(), print))
try:
    deque(map(next, [iter(kill, 0), iter(gate, 0)]), maxlen=0)  # no Python code in between
    for _ in range(50):
        time.sleep(0.1)
    print("lost")
except TimeoutError as error:
    print(error)
"""


def test_a_signal_before_the_first_line_of_what_compiled_code_calls_is_not_lost():
    ended = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("too late\n", "")


def test_exceptions_lost_elsewhere_reach_the_hook_that_was_there(watch, monkeypatch):
    lost = []
    watch.remove()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    watch.install()
    sys.unraisablehook(SimpleNamespace(object=None, exc_value=KeyboardInterrupt()))
    assert len(lost) == 1
    watch.remove()
    assert sys.unraisablehook == lost.append


def test_an_exception_of_an_object_that_refuses_to_be_compared_is_passed_on(watch, monkeypatch):
    class Strange:
        def __eq__(self, other):
            raise TypeError

    lost = []
    watch.remove()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    watch.install()
    sys.unraisablehook(SimpleNamespace(object=Strange(), exc_value=ValueError()))
    assert len(lost) == 1


def test_a_hook_that_somebody_wrapped_is_not_called_in_a_circle(watch, monkeypatch):
    lost = []
    watch.remove()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    watch.install()
    ours = sys.unraisablehook
    sys.unraisablehook = lambda exception: ours(exception)
    watch.remove()
    watch.install()
    sys.unraisablehook(SimpleNamespace(object=None, exc_value=KeyboardInterrupt()))
    assert len(lost) == 1


def test_a_disarmed_watch_does_nothing(watch, seen):
    watch.disarm()
    gc.collect()
    assert seen == []


@pytest.mark.parametrize(
    ("generation", "enabled", "counts", "limits", "called"),
    [
        (1, False, (0, 0, 0), (700, 10, 10), False),  # of young ones nobody asks
        (2, False, (701, 0, 11), (700, 10, 10), True),  # the collector is off
        (2, True, (701, 0, 10), (700, 10, 10), True),  # its last threshold is not passed
        (2, True, (350, 0, 11), (700, 10, 10), True),  # its first one was long not
        (2, True, (351, 0, 11), (700, 10, 10), False),
        (2, True, (0, 0, 0), (NEVER, 10, 10), False),  # what `--act gc` collects
    ],
)
def test_a_script_called_a_full_collection_that_was_not_due(
    monkeypatch, generation, enabled, counts, limits, called
):
    monkeypatch.setattr(gc, "get_count", lambda: counts)
    monkeypatch.setattr(gc, "get_threshold", lambda: limits)
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    assert collector.is_called_by_script(generation) is called


def handles(signum, frame):
    raise TimeoutError


class Handles:
    def expire(self, signum, frame):
        raise TimeoutError

    def anything(self, *both):
        raise TimeoutError


@pytest.fixture
def handled():
    """What a handler raises, or a function that is none, which is called alike."""
    before = signal.getsignal(signal.SIGUSR1)

    def raised(handler, registered, *arguments):
        signal.signal(signal.SIGUSR1, registered)
        try:
            handler(*arguments)
        except BaseException as error:
            return error

    yield raised
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", [handles, Handles().expire, Handles().anything])
def test_an_exception_is_a_signals_if_its_handler_raised_it(handled, handler):
    def deeper(*arguments):
        handler(*arguments)

    for call in (handler, deeper):
        error = handled(call, handler, signal.SIGUSR1, None)
        assert collector.signal_behind(error) == signal.SIGUSR1
    assert collector.signal_behind(handled(handler, signal.SIG_DFL, signal.SIGUSR1, None)) is None
    assert collector.signal_behind(handled(handler, handler, "USR1", None)) is None
    assert collector.signal_behind(ValueError()) is None
    assert collector.signal_behind(KeyboardInterrupt()) == signal.SIGINT


def test_a_signal_is_sent_again_to_the_main_thread(handled, monkeypatch):
    sent = []
    monkeypatch.setattr(
        collector._thread, "start_new_thread", lambda call, what: sent.append((call, *what))
    )
    error = handled(handles, handles, signal.SIGUSR1, None)
    assert collector.resent(error)
    main = threading.main_thread().ident
    assert sent == [(signal.pthread_kill, main, signal.SIGUSR1)]
    assert not collector.resent(ValueError())
    assert len(sent) == 1


def test_what_a_signal_raised_in_a_callback_is_no_failure_of_the_watch(watch, handled, monkeypatch):
    monkeypatch.setattr(collector._thread, "start_new_thread", lambda *_: None)
    watch._failed(handled(handles, handles, signal.SIGUSR1, None))
    gc.collect()
    assert watch.failure is None
    watch._failed(ValueError("ours"))
    assert watch.failure == "ValueError: ours"


@pytest.mark.parametrize(("minimum_ns", "reports"), [(1, 1), (2, 0)])
def test_a_pause_of_the_shortest_length_is_reported(minimum_ns, reports):
    ticks, seen = count(1), []
    watch = PauseWatch(
        lambda *pause: seen.append(pause), minimum_ns=minimum_ns, clock=lambda: next(ticks)
    )
    gc.disable()
    watch.install()
    gc.collect()
    watch.remove()
    gc.enable()
    assert [end - start for start, end, *_ in seen] == [1] * reports
