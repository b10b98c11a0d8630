"""Pauses at a collective's entry: after which collectives, on which thread, and how long."""

import threading
import time

import pytest

from evenstep.agent.entries import GroupState
from evenstep.agent.gaps import GapGate, buckets_of
from evenstep.agent.recorder import Recorder
from evenstep.pacing import Gaps
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Actuator, Kind, Op
from evenstep.trace.spool.spool import Spool

MS = 1_000_000
KIND = (1, int(Op.ALL_REDUCE))
RULE = Gaps(10 * MS, 11 * MS, (1.0,) * 4, 100 * MS)


@pytest.fixture
def recorder(tmp_path):
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1 << 20, summary_bytes=1 << 16)
    made = Recorder(spool)
    yield made
    made.summaries.release()
    spool.shut()


@pytest.fixture
def sleeps(monkeypatch):
    """Durations somebody wanted to sleep; nobody does."""
    asked = []
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


@pytest.fixture
def gate(recorder, sleeps):
    made = GapGate(recorder)
    made.open(RULE, KIND)
    return made


def issue(recorder, *, took_ms=30, op=Op.ALL_REDUCE, ended=True):
    """A collective that took so long, already over unless said otherwise."""
    seq = recorder.collective(10**9, GroupState(1, "u", (0, 1), 0), op, 8, 8, 0, -1, 1)
    if ended:
        recorder.spool.close(seq, 10**9 + took_ms * MS)


def test_before_the_first_bucket_nobody_pauses(gate, sleeps):
    gate()
    assert sleeps == []


def test_the_pause_is_that_of_the_bucket_that_has_completed(gate, recorder, sleeps):
    # e = 20 ms; after the first of four (3/4)² of it, after the second (1/2)²
    for _ in range(2):
        issue(recorder)
        gate()
    assert sleeps == [pytest.approx(0.01125), pytest.approx(0.005)]


def test_a_bucket_is_paused_after_once(gate, recorder, sleeps):
    issue(recorder)
    gate()
    gate()
    assert len(sleeps) == 1


def test_a_bucket_in_flight_ends_pausing_for_the_step(gate, recorder, sleeps):
    issue(recorder, ended=False)
    gate()
    issue(recorder)
    gate()
    assert sleeps == []


def test_after_another_collective_nobody_pauses(gate, recorder, sleeps):
    issue(recorder)
    issue(recorder, op=Op.BROADCAST)
    gate()
    assert sleeps == []


def test_another_thread_is_never_held(gate, recorder, sleeps):
    issue(recorder)
    thread = threading.Thread(target=gate)
    thread.start()
    thread.join()
    assert sleeps == []


def test_without_a_rule_nothing_is_looked_at(gate, recorder, sleeps):
    gate.open(None, KIND)
    issue(recorder)
    gate()
    assert sleeps == []


def test_what_was_paused_is_recorded_and_taken_once(recorder):
    gate = GapGate(recorder)
    gate.open(RULE._replace(bound_ns=2 * MS), KIND)
    issue(recorder)
    gate()
    found = read_spool(recorder.spool.path).records
    pauses = found[found["kind"] == Kind.PACING]
    assert pauses["op"].tolist() == [Actuator.BETWEEN_BUCKETS]
    assert gate.take_paused() >= 2 * MS
    assert gate.take_paused() == 0


def serial(*took_ms, gap_ms=5):
    """Blocking all-reduces, one after the other."""
    now, found = 10**9, []
    for took in took_ms:
        found.append((1, KIND[1], 100, now, now + took * MS, True))
        now += (took + gap_ms) * MS
    return found


def test_buckets_are_the_collectives_that_move_most():
    other = (1, int(Op.BROADCAST), 1, 0, MS, False)
    found = buckets_of([other, *serial(10, 20)], [])
    assert (found.kind, found.durations_ns, found.serial) == (KIND, (10 * MS, 20 * MS), 1)


def test_an_overlapped_bucket_counts_from_the_end_of_the_one_before():
    overlapped = [(1, 0, 100, 0, 10 * MS, False), (1, 0, 100, 2 * MS, 25 * MS, False)]
    found = buckets_of(overlapped, [])
    assert (found.durations_ns, found.serial) == ((10 * MS, 15 * MS), 0)


def test_ends_that_were_held_back_are_not_trusted():
    together = [(1, 0, 100, 0, 10 * MS, True), (1, 0, 100, 2 * MS, 10 * MS + 5, True)]
    assert buckets_of(together, []).durations_ns == (10 * MS, None)
    assert buckets_of(serial(10, 20), [(10**9 + 9 * MS, 10**9 + 10 * MS)]).durations_ns[0] is None
