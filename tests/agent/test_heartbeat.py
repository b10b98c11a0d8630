"""The rank's pulse, and the exception that ends it."""

import sys

import pytest

from evenstep.agent.pulse.heartbeat import Heartbeat
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.spool import Spool


@pytest.fixture(params=["mmap", "buffered"])
def spool(tmp_path, request):
    made = Spool.create(
        tmp_path / "s", {"rank": 0}, ring_bytes=1, summary_bytes=1, mode=request.param
    )
    yield made
    if made._memory is not None:
        made.shut()


@pytest.fixture
def uncaught(monkeypatch):
    """The exception that the interpreter keeps is forgotten again."""
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    return lambda error: monkeypatch.setattr(sys, "last_value", error)


def facts(spool):
    spool.flush()
    return read_spool(spool.path).facts


def test_a_beat_is_read_from_the_header(spool):
    before = facts(spool)
    Heartbeat(spool).beat()
    assert "heartbeat_ns" not in before
    assert facts(spool)["heartbeat_ns"] > 0


def test_the_latest_beat_counts(spool):
    spool.flush()
    spool.beat(5)
    spool.beat(7)
    assert facts(spool)["heartbeat_ns"] == 7


def raised(error, cause=None):
    try:
        try:
            if cause:
                raise cause
        finally:
            raise error
    except BaseException as caught:
        return caught


def test_what_ended_the_script_is_noted_with_its_place_and_without_our_own_frames(spool, uncaught):
    uncaught(raised(ZeroDivisionError("by\nzero")))
    Heartbeat(spool).beat()
    fact = facts(spool)["raised"]
    assert (fact["type"], fact["message"]) == ("ZeroDivisionError", "by")
    assert fact["frames"][0].startswith("tests/agent/test_heartbeat.py:")
    assert fact["frames"][0].endswith(" raised")


def test_it_is_noted_once(spool, uncaught):
    uncaught(raised(KeyError("k")))
    heartbeat = Heartbeat(spool)
    heartbeat.beat()
    first = facts(spool)["raised"]
    heartbeat.beat()
    assert facts(spool)["raised"] == first


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_in_good_order_is_no_exception(spool, uncaught, code):
    uncaught(SystemExit(code))
    Heartbeat(spool).beat()
    assert "raised" not in facts(spool)


def test_an_exit_while_an_exception_was_handled_is_that_exception(spool, uncaught):
    uncaught(raised(SystemExit(1), cause=ValueError("the reason")))
    Heartbeat(spool).beat()
    assert facts(spool)["raised"]["type"] == "ValueError"


def test_an_exception_that_cannot_be_told_is_told_by_its_type(spool, uncaught):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    uncaught(MuteError())
    Heartbeat(spool).beat()
    assert facts(spool)["raised"]["type"].endswith("MuteError")


def test_a_look_that_fails_is_dropped_and_the_pulse_goes_on(spool):
    heartbeat = Heartbeat(spool, [lambda _: 1 // 0])
    heartbeat.beat()
    assert heartbeat.beat() > 0


def test_after_the_end_of_its_trace_the_thread_is_gone(spool):
    heartbeat = Heartbeat(spool)
    heartbeat.start()
    heartbeat.stop(5.0)
    assert not heartbeat._thread.is_alive()
