"""The pacer's host: what it tells the pacer, and that it sleeps only where it may."""

import time
from functools import partial
from types import SimpleNamespace

import pytest

from evenstep.agent.exchange.messages import Orders, SharedFloor, window_steps
from evenstep.agent.pace import PaceHost
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import MOST_EVENTS, Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.recording.steps import ClosedStep
from evenstep.agent.step_work import StepWork
from evenstep.host.resources import ResourceUse
from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, Reason, Slowest
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Actuator, Flag, Kind, Op, Phase
from evenstep.trace.spool.spool import Spool

MS = 1_000_000
BEFORE = Decision(3 * MS, Reason.SLACK, None, 3 * MS)


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


def host(recorder, mode="on", *, can_hold=True):
    pacer = Pacer(PacerSettings(mode=mode, guarded=False, world=2))
    return PaceHost(pacer, recorder, can_hold=can_hold)


def decisions(recorder):
    found = read_spool(recorder.spool.path).records
    return found[found["kind"] == Kind.PACING]


def closed_step(recorder, *times):
    """A step as the recorder hands it over, with the collectives issued so far."""
    closed = ClosedStep(*times)
    closed.after, closed.upto = recorder.after, recorder.spool.last_number()
    recorder.after = closed.upto
    recorder.settle(closed)
    return closed


def early_steps(host, recorder, number, *, run_delay_ns=0):
    """Steps of 100 ms in which this rank works 50 ms and waits 48 for a transfer of 2.

    A second all-reduce right after the first shows the floor.
    """
    group = GroupState(1, "u", (0, 1), 0)
    for step in range(number):
        start = step * 100 * MS + 10**9
        for enter, leave in ((50, 98), (98, 100)):
            seq = recorder.collective(start + enter * MS, group, Op.ALL_REDUCE, 8, 8, 0, -1, 1)
            recorder.spool.close(seq, start + leave * MS)
        phases = [0] * len(Phase)
        phases[Phase.SYNC] = 50 * MS
        closed = closed_step(recorder, step, start, start + 100 * MS, phases)
        closed.used = ResourceUse(run_delay_ns=run_delay_ns)
        row, wait, decision = host.after_step(closed)
        host.hold(decision, step + 1)
    return row, wait, decision


@pytest.mark.parametrize("mode", ["off", "observe", "on"])
def test_only_mode_on_ever_sleeps(recorder, sleeps, mode):
    early_steps(host(recorder, mode), recorder, 200)
    assert bool(sleeps) == (mode == "on")
    assert max(sleeps, default=0) <= 0.1 * 0.1  # max_delay: a tenth of a step of 100 ms


def test_observe_proposes_and_records_what_it_would_do(recorder, sleeps):
    _, _, decision = early_steps(host(recorder, "observe"), recorder, 200)
    assert decision.delay_ns == 0
    assert decision.proposed_ns > 0
    proposed = decisions(recorder)
    assert not (proposed["flags"] & Flag.APPLIED).any()
    assert proposed["held_ns"].max() > 0


def test_a_device_that_a_sleep_would_not_hold_is_not_slept_for(recorder, sleeps):
    host(recorder, can_hold=False).hold(BEFORE, 1)
    assert sleeps == []
    assert not decisions(recorder)["flags"].any()


def test_the_wait_is_told_from_the_transfer(recorder, sleeps):
    row, wait, _ = early_steps(host(recorder, "observe"), recorder, 50)
    assert wait.first_ns == 46 * MS  # in flight 48 ms, of which the second one shows 2 are transfer
    assert row.step_ns == 100 * MS
    assert row.work_ns == 50 * MS
    assert row.wait_ns >= 46 * MS


def test_the_time_that_a_rank_had_no_core_is_work_that_others_wait_for(recorder, sleeps):
    row, _, _ = early_steps(host(recorder, "observe"), recorder, 1, run_delay_ns=20 * MS)
    assert row.work_ns == 50 * MS


@pytest.mark.parametrize(("workers", "queued_ns"), [(2, 20 * MS), (0, 0), (None, 0)])
def test_input_is_a_wait_for_workers_where_there_are_some(recorder, sleeps, workers, queued_ns):
    recorder.loader_workers = workers
    phases = [0] * len(Phase)
    phases[Phase.INPUT] = 20 * MS
    closed = closed_step(recorder, 0, 10**9, 10**9 + 100 * MS, phases)
    row, _, _ = host(recorder).after_step(closed)
    assert row.queued_ns == queued_ns


def test_a_collective_without_an_end_tells_nothing(recorder):
    pace = host(recorder)
    recorder.collective(10**9, GroupState(1, "u", (0, 1), 0), Op.ALL_REDUCE, 8, 8, 0, -1, 1)
    closed = closed_step(recorder, 0, 10**9, 2 * 10**9, [0] * len(Phase))
    _, wait, _ = pace.after_step(closed)
    assert (wait.first_ns, wait.total_ns) == (None, None)


def test_the_delay_realised_is_the_clocks(recorder):
    pace = host(recorder)
    pace.hold(BEFORE, 1)
    assert recorder.held_ns >= 3 * MS


def test_a_decision_is_recorded_with_its_reason_when_it_changes(recorder, sleeps):
    pace = host(recorder)
    for step in (1, 2, 3):
        pace.hold(BEFORE, step)
    pace.hold(Decision(0, Reason.LAST), 4)
    found = decisions(recorder)
    names = read_spool(recorder.spool.path).names
    assert found["step"].tolist() == [1, 4]
    assert [names[name] for name in found["name"]] == [Reason.SLACK, Reason.LAST]
    assert found["op"].tolist() == [Actuator.BEFORE_STEP, Actuator.NONE]
    assert (found["held_ns"].tolist(), found["flags"].tolist()) == ([3 * MS, 0], [Flag.APPLIED, 0])


def test_a_collective_on_a_device_ends_holding_for_good(recorder, sleeps):
    pace = host(recorder, "on")
    group = GroupState(1, "u", (0, 1), 0)
    recorder.collective(10**9, group, Op.ALL_REDUCE, 8, 8, int(Flag.ON_DEVICE), -1, 1)
    pace.after_step(closed_step(recorder, 0, 10**9, 2 * 10**9, [0] * len(Phase)))
    pace.hold(Decision(5 * MS, Reason.SLACK, None, 5 * MS), 1)
    assert (pace.can_hold, sleeps) == (False, [])


def test_on_a_device_the_delay_goes_onto_the_stream_and_nobody_sleeps(recorder, sleeps):
    asked = []
    made = host(recorder, can_hold=False)
    made.on_stream = lambda delay_ns, seq: asked.append((delay_ns, seq)) or True
    for step in (1, 2):
        made.hold(BEFORE, step)
    assert sleeps == []
    assert [delay for delay, _ in asked] == [3 * MS, 3 * MS]
    assert recorder.held_ns == 6 * MS
    found = decisions(recorder)  # one each, for what it really took
    assert [seq for _, seq in asked] == found["seq"].tolist()
    assert all(found["flags"] & Flag.APPLIED)


def test_a_stream_that_cannot_be_held_is_not_said_to_be(recorder, sleeps):
    made = host(recorder, can_hold=False)
    made.on_stream = lambda delay_ns, seq: False
    made.hold(BEFORE, 1)
    assert recorder.held_ns == 0
    assert not decisions(recorder)["flags"][0] & Flag.APPLIED


def test_who_works_longer_shows_at_the_first_collective_of_the_next_step(recorder):
    """Steps of 100 s, 60 of them before the first collective, 65 in the step that has begun."""
    s, group, posted, rung, due = 1_000 * MS, GroupState(0, "g", (0, 1), 0), [], [], []
    work = StepWork(
        recorder, lambda: host(recorder, "observe"), rank=1, samples_per_step=None, at_once=False
    )
    work.sharing = SimpleNamespace(post=posted.append, window_steps=lambda step_ns: 1)
    work.wake = lambda: rung.append(start_ns)
    start_ns = recorder.began_ns
    assert work.step_ns == 1_000 * MS  # assumed before there is one
    for before in (60, 60, 65):
        enter_ns = start_ns + before * s
        seq = recorder.collective(enter_ns, group, int(Op.ALL_REDUCE), 8, 8, 0, -1, 0)
        work.process_pending()
        due.append(work.share_begun_step() and work.share_begun_step() - start_ns)
        assert not posted or not posted[-1].begun  # it has not ended: nobody knows who waits for it
        recorder.spool.close(seq, enter_ns + s)
        work.share_begun_step()
        assert work.share_begun_step() == 0  # nothing more is looked for in this step
        start_ns += 100 * s
        work.end(start_ns)
    assert work.step_ns == 100 * s
    begun = [report for report in posted if report.begun == 1]
    assert [(report.end, report.window) for report in begun] == [(3, 5)]
    assert begun[0].step_ns == 105 * s
    assert begun[0].work_ns - posted[1].work_ns == pytest.approx(5 * s, rel=0.01)
    assert begun[0].wait_ns == s
    assert due == [0, 0, 61 * s]  # when it ended in the step before
    assert len(rung) == 2  # whoever works steps through is woken from the first window on


def test_windows_of_short_and_long_steps_in_turn_are_all_of_one_length(recorder):
    """Steps of 60 and 260 ms, as with two loader workers; windows last half a second: 4 steps."""
    posted = []
    work = StepWork(
        recorder, lambda: host(recorder, "observe"), rank=1, samples_per_step=None, at_once=False
    )
    lasts = partial(window_steps, period_ns=250 * MS)
    work.sharing = SimpleNamespace(post=posted.append, window_steps=lasts)
    end_ns = recorder.began_ns
    for step in range(64):
        end_ns += (260 if step % 2 else 60) * MS
        work.end(end_ns)
        work.process_pending()
    assert {report.steps for report in posted[2:]} == {4}
    assert {report.step_ns for report in posted[2:]} == {160 * MS}


def test_rank_0s_floor_counts_for_collectives_of_its_kind_alone(recorder, monkeypatch):
    """A rank with one collective a step, which waits in each, has no floor of its own."""
    made, seen = host(recorder), []
    monkeypatch.setattr(made.pacer, "observe", seen.append)
    group = GroupState(1, "u", (0, 1), 0)
    for step, nbytes in enumerate((8, 16)):
        made.take_orders(Orders(floor=SharedFloor(int(Op.ALL_REDUCE), nbytes, 2 * MS, MS)))
        start = step * 100 * MS + 10**9
        seq = recorder.collective(start + 50 * MS, group, Op.ALL_REDUCE, 8, 8, 0, -1, 1)
        recorder.spool.close(seq, start + 98 * MS)
        made.after_step(closed_step(recorder, step, start, start + 100 * MS, [0] * len(Phase)))
    assert [one.floor_lower_ns for one in seen] == [2 * MS, None]
    assert seen[0].margin_ns == MS


def observed(recorder, monkeypatch, *steps, **told):
    """What a pacer is told of steps, each (length in ms, (enter, exit or 0, bytes, flags) …)."""
    made, seen = host(recorder), []
    monkeypatch.setattr(made.pacer, "observe", seen.append)
    group, start = GroupState(1, "u", (0, 1), 0), 10**9
    for number, (lasts, *issued) in enumerate(steps):
        for enter, leave, nbytes, flags in issued:
            seq = recorder.collective(
                start + enter * MS, group, int(Op.ALL_REDUCE), nbytes, nbytes, flags, -1, 1
            )
            if leave:
                recorder.spool.close(seq, start + leave * MS)
        closed = closed_step(recorder, number, start, start + lasts * MS, [0] * len(Phase))
        for name, value in told.items():
            setattr(closed, name, value)
        row, _, _ = made.after_step(closed)
        start += lasts * MS
    return seen, row, closed


def test_a_delay_is_taken_off_once_where_no_collective_ends_on_the_host(recorder, monkeypatch):
    seen, row, _ = observed(recorder, monkeypatch, *[(100,)] * 3, held_ns=5 * MS)
    assert {one.work_ns for one in seen} == {row.entry_ns} == {95 * MS}


def test_own_work_is_what_lies_between_collectives_less_our_own_delay(recorder, monkeypatch):
    """The last ended 20 ms before the step did, the next enters 50 after: 70, of them 5 ours."""
    steps = [(100, (50, 80, 8, 0))] * 3
    seen, row, _ = observed(recorder, monkeypatch, *steps, held_ns=5 * MS, samples=32)
    assert [one.work_ns for one in seen] == [95 * MS, 65 * MS, 65 * MS]  # at first: of the step
    assert (row.entry_ns, row.work_ns, row.delay_ns) == (65 * MS, 95 * MS, 5 * MS)
    assert {(one.step_ns, one.delay_ns, one.batch) for one in seen} == {(100 * MS, 5 * MS, 32)}
    assert [(one.step, one.steady) for one in seen] == [(0, False), (1, True), (2, True)]
    assert seen[2].in_flight_ns == 30 * MS


def test_collectives_in_flight_together_are_counted_once_and_marked(recorder, monkeypatch):
    """From 10 to 60 and from 30 to 50 and from 55 to 90: 80 ms in flight, the later two overlap."""
    asynchronous = int(Flag.ASYNC)
    issued = [(10, 60, 8, asynchronous), (30, 50, 8, asynchronous), (55, 90, 8, asynchronous),
              (95, 97, 8, 0)]  # fmt: skip
    _, row, closed = observed(recorder, monkeypatch, (100, *issued))
    assert closed.counted["in_flight_ns"] == 82 * MS
    found = read_spool(recorder.spool.path).records
    marked = found[found["kind"] == Kind.COLLECTIVE]["flags"] & Flag.OVERLAPPED
    assert (marked > 0).tolist() == [False, True, True, False]
    assert row.first == (Op.ALL_REDUCE, 8, 50 * MS)


def test_what_was_waited_is_counted_where_it_is_known(recorder, monkeypatch):
    """The second all-reduce, right behind the first, shows that transfers take 2 ms."""
    steps = [(100, (50, 90, 8, 0), (90, 92, 8, 0))] * 50
    _, row, closed = observed(recorder, monkeypatch, *steps)
    assert (closed.counted["wait_ns"], closed.counted["wait_known"]) == (38 * MS, 1)
    assert row.wait_ns == 38 * MS
    _, _, closed = observed(recorder, monkeypatch, (100, (50, 0, 8, 0)))
    assert (closed.counted["wait_ns"], closed.counted["wait_known"]) == (0, 0)


def test_orders_take_effect_with_the_next_step_and_each_once(recorder, monkeypatch):
    made, seen, adopted = host(recorder), [], []
    monkeypatch.setattr(made.pacer, "observe", seen.append)
    monkeypatch.setattr(made.pacer, "adopt", adopted.append)
    plans = [Plan(4, 8, 1, 8, 2, 0), Plan(8, 12, 1, 8, 2, 0)]
    made.take_orders(Orders(plans[0], Slowest(0, 3, 70 * MS)))
    made.take_orders(Orders(plans[1]))
    assert adopted == []
    for number in range(2):
        start = number * 100 * MS + 10**9
        made.after_step(closed_step(recorder, number, start, start + 100 * MS, [0] * len(Phase)))
    assert adopted == plans
    assert [one.slowest for one in seen] == [Slowest(0, 3, 70 * MS), None]


def test_time_blocked_in_collectives_is_no_work(recorder):
    phases = [0] * len(Phase)
    phases[Phase.SYNC], phases[Phase.INPUT] = 30 * MS, 10 * MS
    closed = closed_step(recorder, 0, 10**9, 10**9 + 100 * MS, phases)
    closed.held_ns = 5 * MS
    row, _, _ = host(recorder).after_step(closed)
    assert (row.step_ns, row.work_ns, row.first) == (100 * MS, 65 * MS, None)


def test_what_has_left_the_ring_is_not_looked_at(tmp_path):
    spool = Spool.create(tmp_path / "small", {"rank": 0}, ring_bytes=1, summary_bytes=1 << 16)
    recorder = Recorder(spool)
    group, lost = GroupState(1, "u", (0, 1), 0), 5
    first = recorder.collective(10**9, group, int(Op.ALL_REDUCE), 8, 8, 0, -1, 1)
    recorder.spool.close(first, 10**9 + 40 * MS)
    closed = closed_step(recorder, 0, 10**9, 10**9 + 100 * MS, [0] * len(Phase))
    for _ in range(spool.regions.ring_capacity + lost):  # later ones, of which each has ended
        seq = recorder.collective(2 * 10**9, group, int(Op.ALL_REDUCE), 8, 8, 0, -1, 1)
        recorder.spool.close(seq, 2 * 10**9 + 40 * MS)
    row, _, _ = host(recorder).after_step(closed)
    assert (row.first, closed.counted["in_flight_ns"]) == (None, 0)
    recorder.summaries.release()
    spool.shut()


@pytest.fixture
def work(recorder):
    """A rank's steps, processed by whoever asks; it shares windows of four steps."""
    made = StepWork(
        recorder, lambda: host(recorder, "observe"), rank=1, samples_per_step=None, at_once=False
    )
    made.posted, made.rung = [], []
    made.sharing = SimpleNamespace(post=made.posted.append, window_steps=lambda _: 4)
    made.wake = lambda: made.rung.append(recorder.step)
    return made


def end_steps(work, recorder, *lengths_ms):
    end_ns = recorder.began_ns
    for length_ms in lengths_ms:
        end_ns += length_ms * MS
        work.end(end_ns)
        work.process_pending()
    return end_ns


def test_a_window_is_over_when_its_last_step_has_ended_or_should_have(work, recorder, monkeypatch):
    assert (work.window_due_ns, work.window_over) == (0, True)  # nobody knows yet
    end_ns = end_steps(work, recorder, 100, 100, 100, 100, 100)
    assert work.window_due_ns == end_ns + 3 * 100 * MS + 50 * MS  # half a step of grace
    for at_ns, over in (
        (end_ns, False),
        (work.window_due_ns - 1, False),
        (work.window_due_ns, True),
    ):
        monkeypatch.setattr(time, "monotonic_ns", lambda at_ns=at_ns: at_ns)
        assert work.window_over is over
    monkeypatch.setattr(time, "monotonic_ns", lambda: end_ns)
    for step, over in ((7, False), (8, True)):
        recorder.words[Word.STEP] = step
        assert work.window_over is over


def test_windows_end_at_multiples_of_their_length_and_hold_their_own_steps(work, recorder):
    end_steps(work, recorder, *range(100, 109))
    assert [(report.first, report.end, report.step_ns) for report in work.posted] == [
        (0, 4, sum(range(100, 104)) * MS // 4), (4, 8, sum(range(104, 108)) * MS // 4)
    ]  # fmt: skip
    assert work.durations() == tuple(each * MS for each in range(100, 109))
    assert work.step_ns == 108 * MS
    assert work.rung == []
    assert not work.single_steps


def test_a_step_that_ended_in_the_past_is_one_of_the_window(work, recorder):
    recorder.ended = work._ended
    work.sharing.window_steps = lambda _: 1
    end_ns = end_steps(work, recorder, 100, 100)
    assert work.single_steps
    work.rung.clear()
    recorder.words[Word.ATTENDED] = 77
    work.end_past(end_ns + 30 * MS, work.meter.now(), recorder.spool.last_number())
    assert work.rung == [recorder.step]
    work.process_pending()
    assert work.posted[-1].step_ns == 30 * MS
    assert recorder.words[Word.ATTENDED] == 0  # the end of each step wakes the background


def test_samples_that_the_settings_state_are_those_of_each_step(recorder):
    work = StepWork(
        recorder, lambda: host(recorder, "observe"), rank=1, samples_per_step=48, at_once=False
    )
    recorder.clock.samples = 3
    end_steps(work, recorder, 100, 100)
    assert read_spool(recorder.spool.path).summaries["samples"].tolist() == [48, 48]


def test_too_many_steps_that_wait_are_processed_on_the_training_thread(work, recorder, monkeypatch):
    monkeypatch.setattr("evenstep.agent.step_work.MOST_PENDING", 3)
    for number in range(1, 5):
        work.end(recorder.began_ns + 100 * MS)
        work.relieve()
        assert len(work._pending) == (number if number < 3 else number - 3)


def test_events_wake_the_background_before_the_training_thread_has_no_room_for_them(work, recorder):
    work._window_end = (10**9, 2**62)  # the window goes on for long
    for noted, crowded in ((MOST_EVENTS // 2 - 1, False), (MOST_EVENTS // 2, True)):
        recorder.words[Word.NOTED] = noted
        work.relieve()
        assert (bool(work.rung), work.window_over) == (crowded, crowded)


def test_a_rank_that_paces_decides_at_the_end_of_each_step_and_holds_before_the_next(
    recorder, monkeypatch
):
    held, plans, pace = [], [], host(recorder)
    work = StepWork(recorder, lambda: pace, rank=0, samples_per_step=None, at_once=True)
    work.sharing = SimpleNamespace(
        post=lambda _: None, window_steps=lambda _: 64, publish=plans.append
    )
    plan = Plan(4, 8, 1, 8, 2, 0)
    monkeypatch.setattr(pace.pacer, "decide", lambda step: Decision(step, Reason.SLACK, plan))
    monkeypatch.setattr(pace, "hold", lambda decision, step: held.append((decision.delay_ns, step)))
    for step in (1, 2):
        assert work.end(recorder.began_ns + 100 * MS) == step
    assert held == [(1, 1), (2, 2)]
    assert plans == [plan, plan]


def test_a_step_is_told_the_means_of_its_waits_where_they_are_known(work):
    assert work.waited_ns == 0
    work._rows.extend(SimpleNamespace(wait_ns=wait) for wait in (None, 100, 301, None))
    assert work.waited_ns == 200


def test_the_newest_step_has_its_pauses_before_it_is_settled(work, recorder):
    assert work.newest_step() is None
    recorder.pause(recorder.began_ns + 5, recorder.began_ns + 9, 2, 0, called=False)
    began_ns = recorder.began_ns
    work.end(began_ns + 100 * MS)
    newest = work.newest_step()
    assert (newest.number, newest.pauses) == (0, [(began_ns + 5, began_ns + 9, False)])
    assert newest.used.cpu_ns >= 0
