"""Who says what when a job stands still."""

import logging
from types import SimpleNamespace

import pytest

from evenstep.agent.pulse import alarm
from evenstep.agent.pulse.alarm import HEAR_ROUNDS, NOTE_S, SAY_S, Alarm
from evenstep.agent.pulse.vigil import Standstill
from tests.agent.test_sharing import FakeStore

NOW_NS = 10**15


def still(inside, at="train.py:1 main", seconds=SAY_S + 1, step=40):
    return Standstill(step, NOW_NS - int(seconds * 1e9), inside, at)


class Job:
    """Ranks with one store; each stands still as it is told."""

    def __init__(self, *standstills):
        self.now = list(standstills)
        self.alarms = [
            Alarm(lambda rank=rank: self.now[rank], rank=rank, world=len(self.now), prefix="p")
            for rank in range(len(self.now))
        ]
        store = FakeStore()
        for each in self.alarms:
            each.store = store

    def rounds(self, count=HEAR_ROUNDS + 1):
        for _ in range(count):
            for each in self.alarms:
                each.round()


@pytest.fixture(autouse=True)
def a_clock_that_stands_still(monkeypatch):
    monkeypatch.setattr(alarm, "time", SimpleNamespace(monotonic_ns=lambda: NOW_NS))


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, logger="evenstep")
    return lambda: [record.getMessage() for record in caplog.records]


def test_rank_0_says_who_waits_and_where_the_one_is_that_does_not(said):
    Job(still("all_reduce 85"), still("", "data.py:31 batch"), still("all_reduce 85")).rounds()
    [line] = said()
    assert (
        "no step has ended for 10 s, since step 40: rank 1 in no collective, at data.py:31" in line
    )
    assert "ranks 0,2 in all_reduce 85" in line


def test_a_rank_that_cannot_speak_is_named(said):
    Job(still("all_reduce 85"), None).rounds()
    assert said()[0].endswith("no word yet from rank 1")


def test_the_others_are_given_time_to_say_what_they_are_in(said):
    Job(still("all_reduce 85"), None).rounds(HEAR_ROUNDS)
    assert said() == []


def test_a_long_step_in_which_nobody_waits_is_nobodys_concern(said):
    Job(still(""), still("")).rounds()
    assert said() == []


def test_it_is_said_once_and_so_is_its_end(said):
    job = Job(still("all_reduce 85"), still(""))
    job.rounds()
    job.rounds()
    job.now = [None, None]
    job.rounds()
    job.rounds()
    assert [line.split(",")[0] for line in said()][1:] == ["evenstep: steps end again"]


def test_notes_are_taken_back(said):
    job = Job(still("a", seconds=NOTE_S + 1), still("b", seconds=NOTE_S + 1))
    job.rounds()
    assert len(job.alarms[0].store.values) == 2
    job.now = [None, None]
    job.rounds()
    assert not job.alarms[0].store.values


def test_without_a_store_rank_0_speaks_of_itself(said):
    job = Job(still("all_reduce 85"), None)
    job.alarms[0].store = None
    job.alarms[0].round()
    assert said()[0].endswith("rank 0 in all_reduce 85, at train.py:1 main")


def test_a_note_left_in_a_store_that_has_gone_since_is_no_error(said):
    job = Job(still(""), still(""))
    job.rounds()
    for each in job.alarms:
        each.store = None
    job.now = [None, None]
    job.rounds()
    assert said() == []


def test_the_line_says_all_there_is_to_say_in_order(said):
    Job(
        still("all_reduce 85", step=40), still("", "data.py:31 batch", step=41),
        still("all_reduce 85", step=39), None, still("send 3", "", step=40),
    ).rounds()  # fmt: skip
    assert said() == [
        "evenstep: no step has ended for 10 s, since step 40: "
        "rank 1 in no collective, at data.py:31 batch; "
        "ranks 0,2 in all_reduce 85, at train.py:1 main; "
        "rank 4 in send 3; "
        "no word yet from rank 3"
    ]


def test_a_rank_further_away_than_a_step_has_not_been_heard(said):
    Job(still("all_reduce 85", step=40), still("", step=42), still("", step=38)).rounds()
    assert said()[0].endswith("; no word yet from ranks 1-2")


def test_a_job_that_marks_no_steps_stands_in_no_step_of_a_number(said):
    Job(still("all_reduce 1", step=0), still("all_reduce 1", step=0)).rounds()
    assert said() == [
        "evenstep: no step has ended for 10 s: ranks 0-1 in all_reduce 1, at train.py:1 main"
    ]


def test_of_many_places_so_many_are_named(said):
    Job(*(still(f"all_reduce {rank}") for rank in range(12))).rounds()
    assert said()[0].count(";") == alarm.MOST_PLACES - 1


@pytest.mark.parametrize(("seconds", "notes"), [(NOTE_S, 0), (NOTE_S + 0.1, 2)])
def test_a_note_is_left_when_a_step_has_lasted_so_long(said, seconds, notes):
    job = Job(still("a", seconds=seconds), still("b", seconds=seconds))
    job.rounds()
    assert len(job.alarms[0].store.values) == notes
    assert said() == []


def test_the_end_says_how_long_it_lasted_and_a_second_standstill_is_told_too(said):
    job = Job(still("all_reduce 85", seconds=31), still("", seconds=31))
    job.rounds()
    job.now = [None, None]
    job.rounds(1)
    assert said()[1:] == ["evenstep: steps end again, after 31 s"]
    job.now = [still("all_reduce 99", step=50)] * 2
    job.rounds(HEAR_ROUNDS)
    assert len(said()) == 2
    job.rounds(1)
    assert said()[2].endswith("since step 50: ranks 0-1 in all_reduce 99, at train.py:1 main")
