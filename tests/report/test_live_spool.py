"""Following a spool: what is new, once, and never the whole file."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.trace.spool.layout import HEADER, PAGE_BYTES, SUMMARY_BYTES
from evenstep.watch.spool import KEPT_STEPS, SpoolTail, newest_number
from tests.report.live_ranks import MS, LiveRank

SMALL = 96 * SUMMARY_BYTES  # 16 single steps, then it goes round


@pytest.fixture
def rank(tmp_path):
    return LiveRank(tmp_path, 0)


def tail_of(rank):
    tail = SpoolTail(rank.spool.path)
    tail.refresh()
    return tail


def test_each_step_is_seen_once_and_in_order(rank):
    tail = tail_of(rank.steps(5))
    assert not tail.refresh()
    rank.steps(3)
    assert tail.refresh()
    assert tail.steps["first_step"].tolist() == list(range(8))


def test_the_times_are_those_that_were_written(rank):
    row = tail_of(rank.steps(1, own_ms=70, pause_ns=3 * MS)).steps[0]
    assert (row["step_sum_ns"], row["pause_ns"]) == (100 * MS, 3 * MS)
    assert row["phase_ns"].sum() == 100 * MS


@pytest.mark.parametrize("written", [1, 15, 16, 17, 40, 333])
@pytest.mark.parametrize("more", [1, 9, 16, 100])
def test_a_small_ring_is_followed_round_and_round(tmp_path, written, more):
    rank = LiveRank(tmp_path, 0, summary_bytes=SMALL)
    tail = tail_of(rank.steps(written))
    rank.steps(more)
    tail.refresh()
    tail.refresh()
    steps = tail.steps["first_step"].tolist()
    assert steps[-1] == written + more - 1
    assert steps == sorted(set(steps))


def test_of_a_long_run_only_the_latest_steps_are_read(rank, monkeypatch):
    rank.steps(250)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *where: read.append(len(got := pread(*where))) or got)
    tail = tail_of(rank)
    assert tail.steps["first_step"].tolist() == list(range(250 - KEPT_STEPS, 250))
    # the window, a stretch behind it, the header; the tables are empty
    assert sum(read) < (KEPT_STEPS + 64) * SUMMARY_BYTES + PAGE_BYTES + 1024
    read.clear()
    tail.refresh()
    assert sum(read) <= 33 * SUMMARY_BYTES + PAGE_BYTES


def test_facts_are_taken_as_they_come_and_the_latest_counts(rank):
    rank.spool.add_fact("pace", {"mode": "observe"})
    tail = tail_of(rank)
    rank.spool.add_fact("pace", {"mode": "on"})
    rank.ends()
    tail.refresh()
    assert tail.facts["pace"] == {"mode": "on"}
    assert tail.closed


def test_tables_longer_than_one_read_are_followed_to_their_end(rank):
    for number in range(3000):
        rank.spool.name_id(f"a name of some length, number {number}")
    rank.spool.add_fact("last", True)
    assert tail_of(rank).facts["last"]


def test_a_silent_rank_says_what_it_is_in(rank):
    rank.steps(1)
    closed = rank.spool.put(1, 2, 1, 1, 0)
    assert closed
    assert tail_of(rank).inside() is None
    rank.enters()
    assert tail_of(rank).inside().op == "all_reduce"


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(8192), b"EVNSTEP\0" + b"\xff" * 9000])
def test_a_file_that_is_no_spool_yet_has_nothing_new(tmp_path, content):
    path = tmp_path / "rank-00000.spool"
    path.write_bytes(content)
    tail = SpoolTail(path)
    assert not tail.refresh()
    assert tail.identity == {}


@pytest.mark.parametrize("field", range(12))
@pytest.mark.parametrize("bit", [7, 31, 62, 63])
def test_a_damaged_header_ends_nothing(rank, field, bit):
    path = rank.steps(3).spool.path
    fields = list(HEADER.unpack_from(path.read_bytes()))
    if field == 0 or (bit > 31 and field in (1, 2, 3, 4, 11)):  # the magic; fields of 32 bits
        return
    fields[field] ^= 1 << bit
    with path.open("r+b") as file:
        file.write(HEADER.pack(*fields))
    tail = tail_of(rank)
    assert tail.inside() is None


@given(slots=st.integers(1, 200), written=st.integers(0, 1000))
def test_the_newest_number_of_a_ring_is_found(slots, written):
    ring = [0] * slots
    for number in range(1, written + 1):
        ring[(number - 1) % slots] = number
    assert newest_number(ring.__getitem__, slots) == written
