"""The rank's pulse, and the exception that ends it."""

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from evenstep.agent.pulse.frames import ScriptEnd
from evenstep.agent.pulse.heartbeat import PERIOD_NS, Heartbeat
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool


@pytest.fixture(params=["mmap", "buffered"])
def recorder(tmp_path, request):
    made = Spool.create(
        tmp_path / "s", {"rank": 0}, ring_bytes=1, summary_bytes=1, mode=request.param
    )
    recorder = Recorder(made)
    yield recorder
    recorder.summaries.release()
    made.shut()


@pytest.fixture
def spool(recorder):
    return recorder.spool


def beat(recorder):
    """Rest once, for no time."""
    Heartbeat(recorder)._rest_here(0, 0, -1)


@pytest.fixture
def uncaught(monkeypatch):
    """The exception that the interpreter keeps is forgotten again."""
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    return lambda error: monkeypatch.setattr(sys, "last_value", error)


def facts(spool):
    spool.flush()
    return read_spool(spool.path).facts


def test_a_beat_is_read_from_the_header(recorder, spool):
    before = facts(spool)
    beat(recorder)
    assert "heartbeat_ns" not in before
    assert facts(spool)["heartbeat_ns"] > 0


def test_the_latest_beat_counts(spool):
    spool.flush()
    spool.beat(5)
    spool.beat(7)
    assert facts(spool)["heartbeat_ns"] == 7


def rested(monkeypatch, recorder, *, lasted_ns, ran_ns):
    """What a rest of a tenth of a second returns that lasts so long, while threads ran so long."""
    clocks = {"monotonic_ns": lasted_ns, "process_time_ns": ran_ns}
    for name, later in clocks.items():
        times = iter([0, later, later])
        monkeypatch.setattr(time, name, lambda times=times: next(times))
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nvcsw=0))
    heartbeat = Heartbeat(recorder)
    monkeypatch.setattr(heartbeat._bell, "wait", lambda _: lasted_ns == 0)
    return heartbeat._rest_here(100_000_000, 0, -1)


def test_a_rest_that_lasts_a_beat_too_long_while_no_thread_ran_was_a_stop(monkeypatch, recorder):
    late_ns = 100_000_000 + PERIOD_NS + 1
    assert rested(monkeypatch, recorder, lasted_ns=late_ns, ran_ns=0) == late_ns
    assert rested(monkeypatch, recorder, lasted_ns=late_ns, ran_ns=1) == 0  # a lock was held
    assert rested(monkeypatch, recorder, lasted_ns=late_ns - 1, ran_ns=0) == 0


def test_waiting_for_the_interpreters_lock_is_no_stop(recorder, spool):
    """A library that sleeps and keeps the lock: its process uses no processor time either."""
    beats = Heartbeat(recorder)
    beats.start()
    time.sleep(0.3)
    ctypes.PyDLL(None).usleep(900_000)
    time.sleep(0.3)
    beats.stop(5)
    spool.flush()
    records = read_spool(spool.path).records
    assert not [one for one in records if one["kind"] == Kind.STOP]


def test_a_stopped_process_records_for_how_long_it_stood(recorder, spool):
    if not (child := os.fork()):
        Heartbeat(recorder).start()
        for _ in range(600):
            time.sleep(0.1)
            spool.flush()
        os._exit(1)
    time.sleep(0.5)
    os.kill(child, signal.SIGSTOP)
    time.sleep(1)
    os.kill(child, signal.SIGCONT)
    stops = []
    for _ in range(100):
        time.sleep(0.1)
        records = read_spool(spool.path).records if spool.path.exists() else []
        stops = [one for one in records if one["kind"] == Kind.STOP]
        if stops:
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (stop,) = stops
    assert stop["exit_ns"] - stop["enter_ns"] >= 1_000_000_000


def raised(error, cause=None):
    try:
        try:
            if cause:
                raise cause
        finally:
            raise error
    except BaseException as caught:
        return caught


def test_what_ended_the_script_is_noted_with_its_place_and_without_our_own_frames(
    recorder, spool, uncaught
):
    uncaught(raised(ZeroDivisionError("by\nzero")))
    Heartbeat(recorder).look()
    fact = facts(spool)["raised"]
    assert (fact["type"], fact["message"]) == ("ZeroDivisionError", "by")
    assert fact["frames"][0].startswith("tests/agent/test_heartbeat.py:")
    assert fact["frames"][0].endswith(" raised")


def test_it_is_noted_once(recorder, spool, uncaught):
    uncaught(raised(KeyError("k")))
    heartbeat = Heartbeat(recorder)
    heartbeat.look()
    first = facts(spool)["raised"]
    heartbeat.look()
    assert facts(spool)["raised"] == first


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_in_good_order_is_no_exception(recorder, spool, uncaught, code):
    uncaught(SystemExit(code))
    Heartbeat(recorder).look()
    assert "raised" not in facts(spool)


def test_an_exit_while_an_exception_was_handled_is_that_exception(recorder, spool, uncaught):
    uncaught(raised(SystemExit(1), cause=ValueError("the reason")))
    Heartbeat(recorder).look()
    assert facts(spool)["raised"]["type"] == "ValueError"


def test_an_exception_that_cannot_be_told_is_told_by_its_type(recorder, spool, uncaught):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    uncaught(MuteError())
    Heartbeat(recorder).look()
    assert facts(spool)["raised"]["type"].endswith("MuteError")


def test_a_look_that_fails_is_dropped_and_the_pulse_goes_on(recorder):
    heartbeat = Heartbeat(recorder, lambda _: 1 // 0)
    heartbeat.look()
    assert heartbeat.look()[0] > 0


def test_a_rest_ends_when_the_step_has_lasted_too_long(recorder):
    began = recorder.began_ns
    Heartbeat(recorder)._rest_here(began + 3_600_000_000_000, 1, -1)


def test_after_the_end_of_its_trace_the_thread_is_gone(recorder):
    heartbeat = Heartbeat(recorder)
    heartbeat.start()
    heartbeat.stop(5.0)
    assert not heartbeat._thread.is_alive()


class Held(Exception):  # noqa: N818 (stands for what an exception's frames hold)
    pass


def test_an_exception_that_the_interpreter_has_let_go_is_freed(recorder, uncaught):
    error = raised(Held())
    freed = weakref.ref(error)
    sys.last_value = error
    heartbeat = Heartbeat(recorder)
    heartbeat.look()
    sys.last_value = None
    del error
    gc.collect()
    assert freed() is None
    assert heartbeat.look()[0] > 0


def test_an_exception_is_told_by_the_one_it_was_raised_from(spool, recorder, uncaught):
    """As schedules of pipelines wrap what a stage raised; a circle of causes ends."""
    cause, wrapped = ValueError("51 of 50 classes"), RuntimeError("\n  [Stage 1] failed")
    wrapped.__cause__, cause.__cause__ = cause, wrapped
    uncaught(wrapped)
    Heartbeat(recorder).note_uncaught()
    assert facts(spool)["raised"]["message"] == "51 of 50 classes"


def test_of_an_exception_of_a_worker_the_line_is_told_that_says_what(spool, recorder, uncaught):
    """As torch's DataLoader raises it again, with the traceback of the worker in its message."""
    what = "[Errno 5] Input/output error: 'shard-17.tar'"
    trace = "Original Traceback (most recent call last):\n  x"
    uncaught(OSError(f"Caught OSError in DataLoader worker process 0.\n{trace}\nOSError: {what}\n"))
    Heartbeat(recorder).note_uncaught()
    assert facts(spool)["raised"]["message"] == what


def test_of_an_exception_of_a_worker_the_place_is_told_where_it_was_raised(
    spool, recorder, uncaught
):
    """Not where the training thread took it from the worker: that is the next frame outwards."""
    worker = '  File "/job/data/shards.py", line 8, in __getitem__\n    raise OSError(number)'
    loop = '  File "/job/data/fetch.py", line 52, in fetch\n    return self[at]'
    trace = f"Original Traceback (most recent call last):\n{loop}\n{worker}\nOSError: 7"
    try:
        raise OSError(f"Caught OSError in DataLoader worker process 0.\n{trace}\n")
    except OSError as error:
        uncaught(error)
    Heartbeat(recorder).note_uncaught()
    told = facts(spool)["raised"]["frames"]
    assert told[:2] == ["job/data/shards.py:8 __getitem__", "job/data/fetch.py:52 fetch"]
    assert "test_heartbeat.py" in told[2]


@pytest.fixture
def leaving(recorder, monkeypatch):
    """A heartbeat of a process whose `sys.exit` and `os._exit` only raise."""

    def ends(*_):
        raise SystemExit

    monkeypatch.setattr(sys, "exit", ends)
    monkeypatch.setattr(os, "_exit", ends)
    heartbeat = Heartbeat(recorder)
    heartbeat.start()
    yield heartbeat
    heartbeat.stop(5.0)
    assert (sys.exit, os._exit) == (ends, ends)


def test_the_line_that_calls_sys_exit_is_kept(leaving, spool):
    with pytest.raises(SystemExit):
        sys.exit()
    leaving.stop(5.0)
    left = facts(spool)["left"]
    assert left["by"] == "sys.exit"
    assert left["frames"][0].endswith("test_the_line_that_calls_sys_exit_is_kept")


def test_the_line_that_raises_system_exit_in_a_child_of_multiprocessing_is_kept(leaving, spool):
    """Its exit functions run while the exception is handled."""
    try:
        raise SystemExit
    except SystemExit:
        leaving.stop(5.0)
    left = facts(spool)["left"]
    assert left["by"] == "SystemExit"
    assert left["frames"][0].endswith("raises_system_exit_in_a_child_of_multiprocessing_is_kept")


def test_of_a_script_that_is_over_the_last_line_is_kept(leaving, spool, monkeypatch):
    monkeypatch.setattr(ScriptEnd, "frames", lambda _: ["train.py:9 <module>"])
    leaving.stop(5.0)
    assert facts(spool)["left"] == {"by": "", "frames": ["train.py:9 <module>"]}


def test_a_sys_exit_that_the_script_caught_and_trained_on_is_not(leaving, recorder, spool):
    with pytest.raises(SystemExit):
        sys.exit()
    recorder.words[Word.STEP] += 1
    leaving.stop(5.0)
    assert "left" not in facts(spool)


def test_a_thread_that_ends_itself_does_not_end_the_script(leaving, spool):
    def leave():
        with pytest.raises(SystemExit):
            sys.exit()

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    leaving.stop(5.0)
    assert "left" not in facts(spool)


def test_the_line_that_calls_os_exit_is_written_at_once(leaving, spool):
    with pytest.raises(SystemExit):
        os._exit(3)
    assert facts(spool)["left"]["by"] == "os._exit"


def test_a_forked_child_leaves_without_a_word(leaving, spool):
    leaving.disarm()
    with pytest.raises(SystemExit):
        os._exit(0)
    assert "left" not in facts(spool)
    leaving._armed = True


@pytest.mark.parametrize(
    ("left_ms", "over_ms", "beats_ms"),
    [
        (500, None, [0, 200, 400, 500]),
        (500, 300, [0, 200, 300]),
        (500, 205, [0, 200, 220]),  # not sooner than 20 ms
        (500, -10, [0]),  # it has lasted too long
        (100, 900, [0, 100]),
        (0, None, [0]),
    ],
)
def test_it_beats_often_enough_until_it_is_time_or_the_step_lasts_too_long(
    monkeypatch, recorder, left_ms, over_ms, beats_ms
):
    """On a clock that only rests move; the step began 50 ms before."""
    now, beats, begin = [10**15], [], 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(recorder.spool, "beat", lambda at: beats.append((at - begin) // 10**6))
    recorder.words[Word.BEGAN] = begin - 50_000_000
    heartbeat = Heartbeat(recorder)

    def rest(milliseconds):
        now[0] += milliseconds * 10**6

    monkeypatch.setattr(heartbeat._bell, "wait", rest)
    overdue_ns = 0 if over_ms is None else (over_ms + 50) * 10**6
    assert heartbeat._rest_here(begin + left_ms * 10**6, overdue_ns, -1) == 0
    assert beats == beats_ms


def test_a_bell_ends_the_rest(monkeypatch, recorder):
    heartbeat = Heartbeat(recorder)
    heartbeat._bell.ring()
    assert heartbeat._rest_here(time.monotonic_ns() + 10**15, 0, -1) == 0


def test_a_look_says_when_to_look_again_and_an_exception_is_looked_for_each_second(recorder):
    begin = time.monotonic_ns()
    looked = []

    def look(now_ns):
        looked.append(now_ns)
        return now_ns + 7, 9

    assert Heartbeat(recorder, look).look() == (looked[0] + 7, 9)
    late = Heartbeat(recorder, lambda now_ns: (now_ns + 10**12, 9)).look()
    alone = Heartbeat(recorder).look()
    for until_ns, overdue_ns in (late, alone):
        assert begin + 10**9 <= until_ns <= time.monotonic_ns() + 10**9
        assert overdue_ns in (0, 9)
    assert alone[1] == 0


@pytest.mark.parametrize(
    ("code", "context", "told"),
    [
        (1, None, ("SystemExit", "1")),
        ("cannot go on", None, ("SystemExit", "cannot go on")),
        (1, KeyError("loss"), ("KeyError", "'loss'")),
        (0, KeyError("loss"), None),
    ],
)
def test_an_exit_is_told_by_what_was_handled_then_unless_all_went_well(
    recorder, spool, uncaught, code, context, told
):
    uncaught(raised(SystemExit(code), cause=context))
    Heartbeat(recorder).note_uncaught()
    fact = facts(spool).get("raised")
    assert (fact and (fact["type"], fact["message"])) == told


def test_a_message_is_told_by_its_first_line_and_without_its_type(recorder, spool, uncaught):
    heartbeat = Heartbeat(recorder)
    for error, told in (
        (ValueError("  first\nsecond  "), "first"),
        (ValueError("ValueError: twice"), "twice"),
        (OSError("x" * 500), "x" * 199 + "…"),
        (OSError("x" * 200), "x" * 200),
        (OSError("peer left. " * 30), "peer left. " * 17 + "peer left.…"),
    ):
        uncaught(error)
        heartbeat.note_uncaught()
        assert facts(spool)["raised"]["message"] == told


def test_an_exception_that_ends_this_process_is_noted_when_the_trace_ends(recorder, spool):
    heartbeat = Heartbeat(recorder)
    try:
        raise KeyError("k")
    except KeyError:
        heartbeat.stop(1.0)
    assert facts(spool)["raised"]["type"] == "KeyError"


@pytest.mark.parametrize("stood_ns", [0, 700])
def test_a_rest_in_which_the_process_stood_is_recorded_with_its_step(recorder, spool, stood_ns):
    recorder.words[Word.STEP] = 5
    rests = []

    def rest(*_):
        rests.append(time.monotonic_ns())
        heartbeat._stopping = len(rests) == 2
        return stood_ns if len(rests) == 1 else 0

    recorder.rest = rest
    heartbeat = Heartbeat(recorder)
    heartbeat.start()
    heartbeat._thread.join()
    heartbeat.stop(5.0)
    spool.flush()
    records = read_spool(spool.path).records
    stops = records[records["kind"] == Kind.STOP]
    assert stops["step"].tolist() == [5] * bool(stood_ns)
    for stop in stops:
        assert (stop["op"], stop["exit_ns"] - stop["enter_ns"]) == (0, 700)
        assert rests[0] <= stop["exit_ns"] <= rests[1]


def test_a_trace_stays_mapped_for_a_thread_that_cannot_be_ended(recorder, spool, monkeypatch):
    kept, held = [], threading.Event()
    monkeypatch.setattr(spool, "keep_mapped", lambda: kept.append(True))
    recorder.rest = lambda *_: held.wait() and 0
    heartbeat = Heartbeat(recorder)
    heartbeat.start()
    heartbeat.stop(0.0)
    assert kept
    held.set()
    heartbeat._thread.join()
    heartbeat.stop(5.0)
    assert kept == [True]
