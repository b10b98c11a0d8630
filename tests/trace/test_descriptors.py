import os
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from evenstep.agent.control import watch_folder
from evenstep.agent.sampler import Sampler
from evenstep.host.resources import ResourceMeter
from evenstep.trace.spool.files import Bell, Held
from evenstep.trace.spool.spool import Spool


def open_files():
    return {int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists()}


@pytest.fixture
def taken():
    """Gives a number of ours to a pipe of a job; returns what is in the pipe, when called."""
    ear, mouth = os.pipe()
    os.write(mouth, b"theirs")
    numbers = [ear, mouth]

    def take(fd):
        os.dup2(ear, fd)
        numbers.append(fd)
        return lambda: os.read(ear, 100)

    yield take
    for fd in numbers:
        os.close(fd)


def test_a_number_that_became_another_files_is_neither_used_nor_closed(taken, tmp_path):
    for fd in (os.open(tmp_path, os.O_RDONLY), watch_folder(tmp_path), os.eventfd(0)):
        held = Held(fd)
        assert held.fd == fd
        holds = taken(fd)
        assert held.fd == -1
        held.close()
        os.fstat(fd)
    assert holds() == b"theirs"


def test_a_watch_is_told_from_another_nameless_file(tmp_path):
    held, other = Held(watch_folder(tmp_path)), os.eventfd(3)
    os.dup2(other, held.fd)
    assert held.fd == -1
    os.close(other)


def test_a_bell_whose_numbers_were_taken_says_and_takes_nothing(taken):
    bell = Bell()
    holds = taken(bell.ear.fd)
    bell.wait(0)
    assert holds() == b"theirs"
    with closing(bell):
        bell.ring()
    bell.ring()


def test_a_bell_rung_too_often_is_heard_no_longer_than_its_pipe_is():
    with closing(Bell()) as bell:
        for _ in range(70_000):
            bell.ring()
        assert sum(bell.wait(0) for _ in range(20)) == 16


def test_sampling_goes_on_and_rests_when_the_job_closes_all_files():
    rounds, later = [], threading.Event()
    made = Sampler([], print, period_s=0.05, task=lambda: rounds.append(1))
    for held in (made._bell.ear, made._bell._bell):
        os.close(held.fd)
    made.start()
    later.wait(0.3)
    assert made.stop()
    assert made.failure is None
    assert 1 <= len(rounds) <= 8


def test_counters_end_where_the_job_has_their_number_and_its_socket_stays():
    meter = ResourceMeter(threading.get_native_id())
    one, other = socket.socketpair()
    os.dup2(one.fileno(), number := meter.fd)
    assert meter.now().run_delay_ns == 0
    os.write(number, b"here")
    assert other.recv(9) == b"here"
    for each in (one, other, socket.socket(fileno=number)):
        each.close()


def test_a_spool_is_shut_without_the_files_that_got_its_numbers(taken, tmp_path):
    before = open_files()
    spool = Spool.create(tmp_path / "a.spool", {}, ring_bytes=8192, summary_bytes=8192)
    fds = open_files() - before
    for fd in fds:
        holds = taken(fd)
    spool.shut()
    for fd in fds:
        os.fstat(fd)
    assert holds() == b"theirs"


def test_the_first_of_all_numbers_is_a_file_like_others():
    """As in a program whose standard input was closed before we opened a file."""
    before = os.dup(0)
    ear, mouth = os.pipe()
    bell = Bell()
    try:
        os.dup2(ear, 0)
        held = Held(0)
        assert held.fd == 0
        assert not bell.wait(0, held)
        os.write(mouth, b"x")
        assert bell.wait(1000, held)
        os.dup2(before, 0)
        assert held.fd == -1
    finally:
        os.dup2(before, 0)
        bell.close()
        for fd in (before, ear, mouth):
            os.close(fd)
