"""What the hooks' calls become in the spool."""

import gc
import struct
import sys
import threading
import time

import numpy as np
import pytest

from evenstep.agent.recording import entries
from evenstep.agent.recording import recorder as recording
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import (
    EVENT_WORDS,
    MOST_EVENTS,
    WORDS,
    Compiled,
    Event,
    Word,
)
from evenstep.agent.recording.recorder import (
    LONGEST_NAME,
    SHORTEST_WAIT_NS,
    TURN_NS,
    OwnCost,
    Recorder,
)
from evenstep.host.resources import ResourceMeter, ResourceUse
from evenstep.trace.reader import read_spool
from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import COUNTERS


@pytest.fixture
def recorder(tmp_path):
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1 << 16, summary_bytes=1 << 16)
    made = Recorder(spool)
    yield made
    made.summaries.release()
    spool.shut()


@pytest.fixture
def group(recorder):
    """Ranks 4 and 6, which have done five collectives before we came."""
    return GroupState(recorder.spool.add_group({"uid": "u", "ranks": "4,6"}), "u", (4, 6), 5)


def issue(recorder, group, at=0, flags=0):
    now = recorder.clock.start_ns
    return recorder.collective(now + at, group, Op.ALL_REDUCE, 400, 400, flags, -1, 1)


def records(recorder, kind):
    found = read_spool(recorder.spool.path).records
    return found[found["kind"] == kind]


def end_step(recorder, after=1000, held_ns=0):
    now = recorder.clock.start_ns + after
    closed = recorder.end_step(now, held_ns)
    closed.used = ResourceUse(11, 12, 13, 14, 15, 16_000)
    recorder.settle(closed)
    recorder.store_summary(closed)
    return closed


def test_an_open_collective_shows_what_the_rank_hangs_in(recorder, group):
    issue(recorder, group)
    row = records(recorder, Kind.COLLECTIVE)[0]
    assert (row["exit_ns"], row["group_seq"], row["bytes_in"]) == (0, 5, 400)


def test_a_long_name_leaves_room_for_what_else_is_to_be_said(recorder):
    recorder.span_begins("span" * 10**6)
    recorder.marker("loss" * 10**6, 1.0)
    found = read_spool(recorder.spool.path)
    assert {len(name) for name in found.names.values() if name} == {LONGEST_NAME}
    assert recorder.spool.add_fact("closed", {"reason": "exit"})


def test_identities_count_on_from_the_groups_own_counter(recorder, group):
    for _ in range(3):
        issue(recorder, group)
    assert records(recorder, Kind.COLLECTIVE)["group_seq"].tolist() == [5, 6, 7]


def test_a_blocking_collective_ends_with_the_wait_and_counts_as_sync(recorder, group):
    start = recorder.clock.start_ns
    issue(recorder, group, at=100)
    recorder.host_waited(start + 120, start + 700, ident=recorder.ident)
    row = records(recorder, Kind.COLLECTIVE)[0]
    assert (row["enter_ns"] - start, row["exit_ns"] - start) == (100, 700)
    assert row["flags"] & Flag.HOST_BLOCKED
    assert end_step(recorder).phase_ns[Phase.SYNC] == 600
    assert len(records(recorder, Kind.PHASE)) == 0  # its own record shows it


def test_an_end_a_callback_saw_first_stays(recorder, group):
    start = recorder.clock.start_ns
    seq = issue(recorder, group)
    recorder.spool.close(seq, start + 300)
    recorder.host_waited(start, start + 700, ident=recorder.ident)
    assert records(recorder, Kind.COLLECTIVE)["exit_ns"][0] - start == 300


def test_a_long_wait_for_an_asynchronous_one_is_a_phase_and_a_short_one_nothing(recorder, group):
    start = recorder.clock.start_ns
    issue(recorder, group, flags=Flag.ASYNC)
    recorder.host_waited(start, start + SHORTEST_WAIT_NS - 1, ident=recorder.ident)
    recorder.host_waited(start + 50_000, start + 90_000, ident=recorder.ident)
    assert records(recorder, Kind.PHASE)["op"].tolist() == [Phase.SYNC]
    assert end_step(recorder, after=100_000).phase_ns[Phase.SYNC] == 40_000


def test_a_wait_on_another_thread_ends_its_collective_but_is_no_phase_of_ours(recorder, group):
    start = recorder.clock.start_ns

    def elsewhere():
        issue(recorder, group)
        recorder.host_waited(start, start + 90_000, ident=threading.get_ident())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    row = records(recorder, Kind.COLLECTIVE)[0]
    assert (row["exit_ns"] - start, row["thread"]) == (90_000, 1)
    assert end_step(recorder, after=100_000).phase_ns[Phase.SYNC] == 0


def test_records_lie_in_the_phase_that_is_open(recorder, group):
    recorder.clock.forward_begins(recorder.clock.start_ns, training=True)
    issue(recorder, group)
    forward = records(recorder, Kind.PHASE)[0]
    assert records(recorder, Kind.COLLECTIVE)["parent"][0] == forward["seq"]


def test_a_step_is_recorded_with_what_the_system_did_to_it(recorder):
    recorder.clock.samples = 32
    closed = end_step(recorder, held_ns=7)
    row = records(recorder, Kind.STEP)[0]
    assert (row["enter_ns"], row["exit_ns"]) == (closed.start_ns, closed.end_ns)
    assert (row["group_seq"], row["bytes_in"], row["bytes_out"]) == (11, 12, 13)
    assert (row["peer_or_root"], row["payload"], row["held_ns"], row["parent"]) == (14, 32, 7, 16)


def test_a_summary_holds_the_step_and_the_next_one_begins_at_zero(recorder, group):
    issue(recorder, group)
    now = recorder.clock.start_ns
    recorder.pause(now + 1, now + 4, 2, 9, called=True)
    end_step(recorder)
    end_step(recorder)
    first, second = read_spool(recorder.spool.path).summaries
    assert (first["collectives"], first["bytes"], first["pauses"], first["pause_ns"]) == (
        1,
        400,
        1,
        3,
    )
    assert (first["cpu_ns"], first["involuntary_switches"], first["voluntary_switches"]) == (
        11,
        14,
        15,
    )
    assert (second["collectives"], second["pauses"], second["cpu_ns"]) == (0, 0, 11)


def test_the_next_steps_collectives_are_not_mixed_with_the_ended_ones(recorder, group):
    seq = issue(recorder, group)
    now = recorder.clock.start_ns
    recorder.pause(now + 1, now + 4, 2, 9, called=True)
    first, second = end_step(recorder), end_step(recorder)
    assert [seen[0] for seen in first.collectives] == [seq]
    assert first.pauses == [(now + 1, now + 4, True)]
    assert (second.collectives, second.pauses) == ([], [])


def test_a_number_comes_back_to_the_bit(recorder):
    recorder.marker("loss", 0.1)
    row = records(recorder, Kind.MARKER)[0]
    assert struct.unpack("<d", struct.pack("<Q", int(row["bytes_in"])))[0] == 0.1
    assert read_spool(recorder.spool.path).names[int(row["name"])] == "loss"


def test_a_message_is_recorded_with_its_pair_and_its_place(recorder, group):
    recorder.words[Word.STEP] = 5
    recorder.clock.begins(Phase.BACKWARD, recorder.clock.start_ns)
    phase = records(recorder, Kind.PHASE)["seq"][0]
    told = {"nbytes": 400, "flags": int(Flag.ASYNC), "peer": 6, "dtype": 7, "order": 3, "tag": 9}
    seq = recorder.point_to_point(1234, group, int(Op.SEND), **told, device=2)
    (row,) = records(recorder, Kind.POINT_TO_POINT)
    assert {name: int(row[name]) for name in (
        "seq", "enter_ns", "exit_ns", "op", "step", "parent", "group", "group_seq", "bytes_in",
        "bytes_out", "flags", "peer_or_root", "dtype", "payload", "thread", "device", "stream",
        "held_ns", "name", "reduce_op", "device_enter_ns", "device_exit_ns",
    )} == {
        "seq": seq, "enter_ns": 1234, "exit_ns": 0, "op": Op.SEND, "step": 5, "parent": phase,
        "group": group.index, "group_seq": 3, "bytes_in": 400, "bytes_out": 400,
        "flags": Flag.ASYNC, "peer_or_root": 6, "dtype": 7, "payload": 9, "thread": 0,
        "device": 2, "stream": 0, "held_ns": 0, "name": 0, "reduce_op": 0, "device_enter_ns": 0,
        "device_exit_ns": 0,
    }  # fmt: skip
    recorder.point_to_point(1, group, int(Op.RECV), 4, 0, 4, 0, 1, -1)  # a tag of the library's own
    assert records(recorder, Kind.POINT_TO_POINT)["payload"][1] == 0xFFFFFFFF
    assert records(recorder, Kind.POINT_TO_POINT)["device"][1] == -1


def test_spans_pauses_and_measurements_belong_to_the_step_and_the_phase_they_are_in(recorder):
    recorder.words[Word.STEP] = 5
    recorder.clock.begins(Phase.FORWARD, recorder.clock.start_ns)
    phase = records(recorder, Kind.PHASE)["seq"][0]
    recorder.spool.close(recorder.span_begins("data"), 7)
    recorder.pause(10, 30, 2, 44, called=True)
    recorder.pause(40, 50, 1, 0, called=False)
    recorder.sample("host.load", 3, 0.5)
    recorder.marker("loss", 2.0)
    (span,), pauses = records(recorder, Kind.SPAN), records(recorder, Kind.PAUSE)
    assert (span["step"], span["parent"], span["exit_ns"], span["thread"]) == (5, phase, 7, 0)
    assert pauses[["enter_ns", "exit_ns", "op", "step", "parent", "payload", "flags"]].tolist() == [
        (10, 30, 2, 5, phase, 44, Flag.CALLED), (40, 50, 1, 5, phase, 0, 0)
    ]  # fmt: skip
    for kind, device in ((Kind.SAMPLE, 3), (Kind.MARKER, -1)):
        (row,) = records(recorder, kind)
        assert (row["step"], row["parent"], row["device"]) == (5, 0, device)
        assert row["enter_ns"] == row["exit_ns"] > 0


def test_a_collection_that_is_called_has_the_line_that_calls_it(recorder):
    recorder.pause(10, 30, 2, 0, called=True)
    recorder.pause(40, 50, 2, 0, called=False)
    names, line = read_spool(recorder.spool.path).names, sys._getframe().f_lineno - 2
    called, own = records(recorder, Kind.PAUSE)["name"].tolist()
    assert names[called] == f"tests/agent/test_recorder.py:{line} {sys._getframe().f_code.co_name}"
    assert own == 0


@pytest.fixture
def small(tmp_path):
    """A recorder whose ring holds few records."""
    spool = Spool.create(tmp_path / "small", {"rank": 0}, ring_bytes=1, summary_bytes=1 << 16)
    made = Recorder(spool)
    yield made
    made.summaries.release()
    spool.shut()


def test_of_what_the_ring_has_lost_nothing_is_told_and_the_rest_is(small):
    """Two records in three are collectives, with numbers that tell them apart."""
    group, capacity = GroupState(3, "u", (0, 1), 0), small.spool.regions.ring_capacity
    seqs = []
    for number in range(capacity):
        seqs.append(small.collective(number, group, Op.BROADCAST, 10 + number, 0, 5, 0, 1))
        seqs.append(small.collective(number, group, Op.BARRIER, 20 + number, 0, 5, 0, 1))
        small.marker("loss", 1.0)
    newest = small.spool.last_number()
    for after, upto in ((0, newest), (newest - 7, newest), (newest - 7, newest - 2), (5, 5)):
        kept = [seq for seq in seqs if max(after, newest - capacity) < seq <= upto]
        expected = [(seq, 3, Op.BARRIER, 20 + (seq - 2) // 3, 5) if seq % 3 == 2 else
                    (seq, 3, Op.BROADCAST, 10 + (seq - 1) // 3, 5) for seq in kept]  # fmt: skip
        assert small.issued(after, upto) == expected


@pytest.mark.parametrize("first", [5, 10])
def test_each_record_of_a_step_lies_in_the_innermost_phase_it_began_in(recorder, group, first):
    """By times alone: told only when all is over, as events of compiled kernels are."""
    recorder.defer(later=True)
    start = recorder.clock.start_ns
    moments = [at for at in (5, 10, 25, 40, 49, 50, 60) if at >= first]
    seqs = {at: issue(recorder, group, at) for at in moments}
    recorder.sample("host.load", -1, 1.0)
    recorder.pause(start + 26, start + 27, 2, 44, called=False)
    for at, event in (
        (10, (recorder._clock.begins, Phase.BACKWARD)),
        (25, (recorder._clock.begins, Phase.CHECKPOINT)),
        (40, (recorder._clock.ends,)),
        (50, (recorder._clock.ends,)),
    ):
        recorder.note((event[0], *event[1:], start + at))
    closed = []
    recorder.note((lambda: closed.append(recorder.end_step(start + 60)),))
    assert recorder.behind == 5
    recorder.catch_up()
    recorder.settle(closed[0])
    phase = {int(row["seq"]): Phase(row["op"]) for row in records(recorder, Kind.PHASE)}
    found = {int(row["seq"]): int(row["parent"]) for row in records(recorder, Kind.COLLECTIVE)}
    inside = {10: Phase.BACKWARD, 25: Phase.CHECKPOINT, 40: Phase.BACKWARD, 49: Phase.BACKWARD}
    assert {at: phase.get(found[seq]) for at, seq in seqs.items()} == {
        at: inside.get(at) for at in moments
    }
    assert records(recorder, Kind.SAMPLE)["parent"].tolist() == [0]
    (pause,) = records(recorder, Kind.PAUSE)
    assert (phase[int(pause["parent"])], pause["payload"]) == (Phase.CHECKPOINT, 44)


def test_pauses_are_of_the_step_they_began_in_and_told_in_order(recorder):
    start = recorder.clock.start_ns
    for at in (100, 900, 1000, 1001):
        recorder.pause(start + at, start + at + 50, 0, 0, called=False)
    assert [each[0] - start for each in recorder.pauses_since(start + 900)] == [900, 1000, 1001]
    first = end_step(recorder)
    assert [each[0] - start for each in first.pauses] == [100, 900, 1000]
    assert (first.counted["pauses"], first.counted["pause_ns"]) == (3, 150)
    second = end_step(recorder)
    assert [each[0] - start for each in second.pauses] == [1001]


def test_our_own_cost_in_a_step_is_that_of_its_events_its_collectives_and_its_end(recorder, group):
    recorder.cost.void = recorder.event_cost.void = False
    recorder.cost.add(300)
    recorder.event_cost.add(40)
    for at in range(3):
        issue(recorder, group, at)
    closed = recorder.end_step(recorder.clock.start_ns + 1000)
    closed.events, closed.own_ns, closed.spent = 5, 7, recorder.spent()
    recorder.settle(closed)
    assert closed.counted["agent_ns"] == 3 * 300 + 5 * 40 + 7
    assert recorder.spent() == [300, 1, 40, 1]


def test_calls_whose_records_the_ring_has_lost_have_cost_as_much(small):
    group, calls = GroupState(3, "u", (0, 1), 0), 3 * small.spool.regions.ring_capacity
    small.cost.void = small.event_cost.void = False
    small.cost.add(300)
    for number in range(calls):
        small.collective(number, group, Op.BROADCAST, 4, 0, 5, 0, 1)
    closed = small.end_step(small.clock.start_ns + 1000)
    closed.spent = small.spent()
    for number in range(calls):  # of the next step, before this one is settled
        small.collective(number, group, Op.BROADCAST, 4, 0, 5, 0, 1)
        if number == 7:
            small.settle(closed)
            assert closed.counted["agent_ns"] == calls * 300
    small.settle(closed)
    assert closed.counted["agent_ns"] == pytest.approx(calls * 300, rel=0.01)


def test_a_step_that_began_says_what_the_one_before_has_spent_and_from_zero_on(recorder):
    meter, words = ResourceMeter(recorder.ident), recorder.words
    words[Word.EVENTS], words[Word.OWN_NS] = 11, 12
    step, seq, counters, events, own_ns, _ = recorder.begin_step(100, 9, meter)
    assert (step, recorder.step, events, own_ns) == (1, 1, 11, 12)
    assert recorder.begin_step(200, 0, meter)[3:5] == (0, 0)
    assert len(counters) == 6
    first, second = records(recorder, Kind.STEP)
    assert (first["seq"], first["step"], first["held_ns"]) == (seq, 0, 9)
    assert first[["op", "peer_or_root", "parent", "group_seq"]].tolist() == (0, 0, 0, 0)
    assert (second["step"], second["parent"], second["peer_or_root"]) == (1, 0, 0)


def test_steps_are_marked_by_hand_from_the_first_mark_on(recorder):
    """Which is that of the optimizer's step right before it, if that marked one."""
    clock, words = recorder.clock, recorder.words
    assert not recorder.manual
    assert not recorder.taken_over()  # before any step
    assert recorder.manual
    recorder.manual = False
    words[Word.STEP], words[Word.MARKING] = 3, 1
    assert recorder.taken_over()
    assert not recorder.taken_over()  # the second mark is a step's
    recorder.manual = False
    clock.backward_begins(clock.start_ns)
    assert not recorder.taken_over()  # the optimizer's step was another one
    recorder.manual = False
    clock.backward_ends(clock.start_ns + 5)
    assert not recorder.taken_over()
    words[Word.MARKING], recorder.manual = 0, False
    assert not recorder.taken_over()


def test_threads_are_numbered_as_they_come(recorder):
    idents = [recorder.ident, 77, 88, 77, recorder.ident, 99]
    assert [recorder.thread(ident) for ident in idents] == [0, 1, 2, 1, 0, 3]


def test_a_call_that_blocks_shows_that_the_one_before_on_its_thread_has_ended(recorder, group):
    start = recorder.clock.start_ns
    issue(recorder, group, at=10)
    issue(recorder, group, at=30)
    found = records(recorder, Kind.COLLECTIVE)
    assert (found["exit_ns"] - (found["exit_ns"] > 0) * start).tolist() == [30, 0]


def cost_of(every):
    return OwnCost(memoryview(bytearray(16)).cast("Q"), 0, every)


def test_our_cost_is_the_mean_of_what_threads_spent_and_the_mechanisms_share_beside_it():
    cost = cost_of(16)
    assert (cost.each_ns, cost.of(3)) == (None, 0)
    for sample_ns in (1000, 3000):
        cost.add(sample_ns)
    assert cost.each_ns == 2000  # nothing is known of the mechanism yet
    cost.mechanism(0.25)
    assert (cost.each_ns, cost.of(3), cost.of(0)) == (2500, 7500, 0)


def test_our_recent_cost_is_the_mean_of_the_latest_samples():
    """The k-th costs k us, one in each step; of a hundred the last 64 count."""
    cost = cost_of(1)
    for k in range(1, 101):
        cost.settle(1000 * k * (k + 1) // 2, k)
        cost.settle(1000 * k * (k + 1) // 2, k)  # a step without any
    assert cost.of(2) == 2 * 1000 * sum(range(37, 101)) // 64
    few = cost_of(1)
    for k in (1, 2):
        few.settle(1000 * k * (k + 1) // 2, k)
    assert few.of(1) == 1500


def test_one_call_in_a_few_has_its_cost_measured_and_not_the_first():
    cost = cost_of(4)
    assert [bool(cost.began()) for _ in range(9)] == [n % 4 == 2 for n in range(9)]


def test_time_without_a_core_is_not_our_cost():
    cost = cost_of(1)
    began_ns = cost.began()
    time.sleep(0.02)
    cost.add(time.thread_time_ns() - began_ns)
    assert cost.each_ns < 10_000_000


def test_reading_the_clock_is_paid_for_by_the_calls_that_are_sampled_alone(monkeypatch):
    """All calls cost 200 ns, and one in 17 four readings of 340 ns as well: two of these are within
    the two intervals that are measured."""
    monkeypatch.setattr(recording, "READING_NS", 340)
    cost = cost_of(1)
    cost.add(200 + 2 * 340, readings=2)
    assert cost.each_ns == 200 + 4 * 340 // 17
    cost.add(100, readings=2)
    assert cost.each_ns == 280 // 2  # no sample is less than nothing


def test_a_sample_that_another_thread_adds_meanwhile_is_not_lost():
    cost = cost_of(1)

    class Interrupted(int):
        def __sub__(self, other):
            cost.add(5000)
            return 1000.0

    cost.add(Interrupted())
    assert cost.each_ns == (5000 + 1000) // 2


def test_group_ranks_become_global_ones_where_they_are_known(group):
    assert [group.global_rank(rank) for rank in (0, 1, 2)] == [4, 6, 2]


def test_counters_of_a_summary_are_those_that_are_counted(recorder):
    assert set(end_step(recorder).counted) == set(COUNTERS)


def test_threads_that_issue_on_one_group_never_share_an_identity(recorder, group):
    def issues():
        for _ in range(100):
            issue(recorder, group)

    threads = [threading.Thread(target=issues) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(records(recorder, Kind.COLLECTIVE)["group_seq"]) == list(range(5, 405))


# -- events told later -----------------------------------------------------------------------------


def one_step(recorder, group, *, later):
    """A step of a data-parallel model whose times are given; its account, and its records."""
    recorder.defer(later=later)
    clock, start = recorder.clock, recorder.clock.start_ns
    for at, event in (
        (10, (clock.input_begins,)),
        (30, (clock.input_ends, 8)),
        (40, (clock.forward_begins, True, True)),
        (60, (clock.forward_ends,)),
        (70, (clock.backward_begins, 0)),
        (150, (clock.backward_ends, start + 90)),
        (160, (clock.optimizer_begins,)),
        (190, (clock.ends,)),
    ):
        if at == 150:
            recorder.collective(start + 90, group, Op.ALL_REDUCE, 4, 4, Flag.ASYNC, -1, 1)
        recorder.note((event[0], start + at, *event[1:]))
    upto = recorder.spool.last_number()
    seq = recorder.begin_step(start + 200, 7, ResourceMeter(recorder.ident))[1]
    assert records(recorder, Kind.STEP)[["step", "enter_ns", "exit_ns", "held_ns"]].tolist() == [
        (0, start, start + 200, 7)
    ]  # whatever is told later
    closed = []
    recorder.note((lambda: closed.append(recorder.end_step(start + 200, 7, upto, seq)),))
    assert bool(recorder.behind) == later == (not closed)
    assert recorder.stack.step == 1
    recorder.settle(closed[0])
    told = records(recorder, Kind.PHASE)
    phases = [(row["op"], row["enter_ns"] - start, row["exit_ns"] - start, row["group_seq"])
              for row in np.sort(told, order="enter_ns")]  # fmt: skip
    inside = records(recorder, Kind.COLLECTIVE)["parent"][0]
    assert records(recorder, Kind.STEP)["payload"].tolist() == [closed[0].samples]
    return closed[0].phase_ns, phases, told[told["seq"] == inside]["op"].tolist(), closed[0].samples


def test_what_is_told_later_is_recorded_as_if_it_had_been_told_at_once(tmp_path):
    found = []
    for later in (False, True):
        spool = Spool.create(
            tmp_path / f"{later}", {"rank": 0}, ring_bytes=100_000, summary_bytes=10_000
        )
        made = Recorder(spool)
        group = GroupState(spool.add_group({"uid": "u", "ranks": "4,6"}), "u", (4, 6), 5)
        found.append(one_step(made, group, later=later))
        made.summaries.release()
        spool.shut()
    assert found[0] == found[1]
    assert found[0][2] == [Phase.BACKWARD]


def test_new_records_belong_to_the_step_that_runs_though_the_account_is_behind(recorder, group):
    recorder.defer(later=True)
    recorder.note((lambda: None,))
    assert recorder.begin_step(100, 0, ResourceMeter(recorder.ident))[0] == 1
    recorder.collective(1, group, Op.ALL_REDUCE, 4, 4, 0, -1, 1)
    assert records(recorder, Kind.COLLECTIVE)["step"].tolist() == [1]
    assert recorder.behind == 1


def test_another_thread_tells_what_was_noted_and_in_order(recorder):
    told = []
    recorder.defer(later=True)
    for number in range(50):
        recorder.note((told.append, number))
    thread = threading.Thread(target=recorder.catch_up)
    thread.start()
    thread.join()
    assert told == list(range(50))


@pytest.mark.parametrize(("busy", "turns"), [(False, 3), (True, 1)])
def test_where_another_thread_computes_what_was_noted_is_told_in_one_turn(
    recorder, monkeypatch, busy, turns
):
    """The lock, given up after each turn of two events, comes back at once where nobody wants it,
    else after a switch interval."""
    given, now_ns = [], [0]
    held_ns = round(sys.getswitchinterval() * 1e9) if busy else 1

    def give(_seconds):
        given.append(now_ns[0])
        now_ns[0] += held_ns

    monkeypatch.setattr(recording, "sleep", give)
    monkeypatch.setattr(recording, "monotonic_ns", lambda: now_ns[0])
    recorder.defer(later=True)
    told = []

    def tell(number):
        told.append(number)
        now_ns[0] += TURN_NS // 2

    for number in range(6):
        recorder.note((tell, number))
    thread = threading.Thread(target=recorder.catch_up)
    thread.start()
    thread.join()
    assert (told, len(given)) == (list(range(6)), turns)


def test_pauses_are_read_though_the_collector_runs_meanwhile(recorder):
    """Python 3.11 collects where an object is allocated, and the pause is added then."""
    limits = gc.get_threshold()
    gc.callbacks.append(lambda *_: recorder.pauses.append((len(recorder.pauses), 1, False)))
    try:
        gc.set_threshold(1, 1, 1)
        found = [recorder.pauses_since(2) for _ in range(100)]
    finally:
        gc.set_threshold(*limits)
        gc.callbacks.pop()
    assert len(recorder.pauses) > 100
    assert found[-1][0] == (2, 1, False)


class Kernels:
    """Compiled kernels that write events, as recorder.cpp lays them out: what, when, and more."""

    def __init__(self):
        self.words = memoryview(bytearray(8 * WORDS)).cast("Q")
        self.events = memoryview(bytearray(8 * EVENT_WORDS * MOST_EVENTS)).cast("Q")

    def write(self, *words):
        base = self.words[Word.NOTED] % MOST_EVENTS * EVENT_WORDS
        for place, word in enumerate(words):
            self.events[base + place] = word
        self.words[Word.NOTED] += 1


@pytest.fixture
def kernels():
    return Kernels()


@pytest.fixture
def compiled(tmp_path, kernels):
    """A recorder whose events kernels write."""
    spool = Spool.create(tmp_path / "c", {"rank": 0}, ring_bytes=1 << 16, summary_bytes=1 << 16)
    made = Recorder(
        spool, Compiled(kernels.words, kernels.events, lambda: 4, lambda *_: None, None)
    )
    made.defer(later=True)
    yield made
    made.summaries.release()
    spool.shut()


def test_what_kernels_write_becomes_the_account_of_the_step(compiled, kernels):
    """A step of 1,000 ns with each of their events, at times that tell its phases apart."""
    start, ended = compiled.began_ns, []
    compiled.ended = lambda *told: ended.append((*told, compiled.end_step(told[0], told[1])))
    compiled.note((compiled._clock.begins, Phase.INPUT, start + 10))  # by Python, before
    for what, at, *more in (
        (Event.PHASE_ENDS, 50),
        (Event.FORWARD_BEGINS, 100, 1, 1),
        (Event.FORWARD_ENDS, 190),
        (Event.BLOCKED, 200, start + 230),
        (Event.BACKWARD_BEGINS, 300, 0),
        (Event.WAITED, 400, start + 470),
        (Event.BACKWARD_ENDS, 700, start + 650),
        (Event.OPTIMIZER_BEGINS, 800),
        (Event.PHASE_ENDS, 900),
        (Event.STEP_ENDED, 1000, 77, 1, 5, 6, *range(11, 17), *range(21, 25)),
    ):
        kernels.write(what, start + at, *more)
    assert compiled.behind == 11
    compiled.catch_up()
    assert compiled.behind == 0
    (said,) = ended
    *told, closed = [list(each) if isinstance(each, tuple) else each for each in said]
    # When, held, the next step, its record, the counters, events, own time and sums of costs.
    assert told == [
        start + 1000, 0, 1, 77, [11, 12, 13, 14, 15, 16], 5, 6, [21, 22, 23, 24]
    ]  # fmt: skip
    assert {Phase(phase): ns for phase, ns in enumerate(closed.phase_ns) if ns} == {
        Phase.INPUT: 40, Phase.FORWARD: 170, Phase.SYNC: 30 + 70 + 50, Phase.BACKWARD: 280,
        Phase.OPTIMIZER: 100, Phase.OTHER: 260,
    }  # fmt: skip


def test_events_of_kernels_and_of_python_are_told_in_the_order_they_came(compiled, kernels):
    """Also where so many came that places are used again."""
    told = []
    compiled._tells[Event.PHASE_ENDS] = (told.append, 0)
    number = 0
    for _ in range(3):
        for _ in range(MOST_EVENTS // 2):
            kernels.write(Event.PHASE_ENDS, number)
            compiled.note((told.append, number + 1))
            number += 2
        compiled.catch_up()
    assert told == list(range(number))


def test_where_somebody_waits_events_are_told_at_once(compiled, kernels):
    told = []
    compiled._tells[Event.PHASE_ENDS] = (told.append, 0)
    kernels.write(Event.PHASE_ENDS, 1)
    compiled.defer(later=False)
    assert told == [1]
    assert kernels.words[Word.AT_ONCE] == 1
    kernels.write(Event.PHASE_ENDS, 2)
    compiled.note((told.append, 3))
    assert told == [1, 2, 3]
    compiled.defer(later=True)
    assert kernels.words[Word.AT_ONCE] == 0


def test_kernels_number_threads_and_see_the_phase_that_is_open(compiled, kernels, recorder):
    assert compiled.thread(12345) == 4
    compiled.clock.begins(Phase.FORWARD, 1)
    assert kernels.words[Word.PARENT] == 0  # the account may be behind: theirs is right
    compiled.defer(later=False)
    compiled.clock.begins(Phase.BACKWARD, 2)
    found = records(compiled, Kind.PHASE)
    assert kernels.words[Word.PARENT] == found["seq"][1]
    compiled.clock.ends(3)
    assert kernels.words[Word.PARENT] == found["seq"][0]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_entry_of_what_does_not_block_is_kept_until_it_is_waited_for(
    recorder, group, asynchronous
):
    start = recorder.clock.start_ns
    issue(recorder, group, at=40, flags=Flag.ASYNC * asynchronous)
    assert recorder.words[Word.LAST_ENTRY] == (start + 40) * asynchronous
    recorder.host_waited(start + 50, start + 60, ident=recorder.ident + 1)
    assert recorder.words[Word.LAST_ENTRY] == (start + 40) * asynchronous
    recorder.host_waited(start + 50, start + 60, ident=recorder.ident)
    assert recorder.words[Word.LAST_ENTRY] == 0


@pytest.mark.parametrize("flag", [Flag.ON_DEVICE, Flag.HOST_BLOCKED])
def test_what_ends_elsewhere_is_neither_awaited_nor_left_by_the_next_call(recorder, group, flag):
    seq = issue(recorder, group, at=10, flags=flag)
    assert not recorder.blocking
    assert recorder.words[Word.LAST_ENTRY] == 0
    issue(recorder, group, at=30)
    assert recorder.spool.times(seq)[1] == 0


def test_a_group_is_entered_by_the_name_its_members_agree_on(recorder):
    spool = recorder.spool
    made = GroupState.entered(
        spool, "dp", (0, 1, 2, 5), shown="data parallel", backend="nccl", sequence=7
    )
    plain = GroupState.entered(spool, "dp", (0, 1, 2, 5))
    assert made.uid == plain.uid != GroupState.entered(spool, "tp", (0, 1, 2, 5)).uid
    assert (made.sequence, plain.sequence, made.ranks) == (7, 0, (0, 1, 2, 5))
    assert [made.next_number() for _ in range(2)] == [7, 8]
    assert (made.sequence, made.sequence) == (9, 9)  # to read it is not to count
    told = read_spool(spool.path).groups
    assert told[made.index] == {
        "uid": made.uid, "name": "data parallel", "ranks": "0-2,5", "base": 7, "backend": "nccl",
    }  # fmt: skip
    assert told[plain.index]["name"] == "dp"


def test_the_cost_of_events_is_measured_in_one_step_of_so_many(recorder):
    sampled = []
    for recorder.words[Word.STEP] in range(2 * recording.COST_SAMPLE + 1):
        sampled.append(recorder.sampled)
    one_of_so_many = [True, *[False] * (recording.COST_SAMPLE - 1)]
    assert sampled == [*one_of_so_many, *one_of_so_many, True]


@pytest.mark.parametrize("later", [False, True])
def test_an_event_that_is_reported_gets_the_account_of_its_step_and_the_time(recorder, later):
    recorder.defer(later=later)
    told, before = [], time.monotonic_ns()
    recorder.report(lambda clock, at_ns: told.append((clock, at_ns)))
    assert bool(told) is not later
    recorder.catch_up()
    ((clock, at_ns),) = told
    assert clock is recorder.clock
    assert before <= at_ns <= time.monotonic_ns()


def test_where_stores_may_overtake_each_other_a_record_is_valid_behind_a_fence(
    recorder, group, monkeypatch
):
    words, capacity = recorder.spool.words, recorder.spool.regions.ring_capacity
    seen = []
    monkeypatch.setattr(entries, "fence", lambda: seen.append((words[0], words[layout.WORD_ENTER])))
    collective = entries.collective_recorder(
        recorder.spool.slots, recorder.clock, training=recorder.ident, thread_of=recorder.thread,
        blocks=recorder._blocks,
    )  # fmt: skip
    for number in range(capacity + 1):  # the last one overwrites the first
        collective(100 + number, group, Op.ALL_REDUCE, 4, 4, Flag.ASYNC, -1, 1)
        if number == 0:
            assert words[0] == 1
    assert words[0] == capacity + 1
    assert seen[:2] == [(0, 0), (0, 100)]
    assert seen[-2:] == [(0, 100), (0, 100 + capacity)]
