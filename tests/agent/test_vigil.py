"""Looks at the training thread, on a clock of the test's own."""

import copy
import os
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from time import monotonic_ns

import pytest

from evenstep.agent.pulse import frames, vigil
from evenstep.agent.pulse.frames import frames_of_thread
from evenstep.agent.pulse.vigil import Vigil
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.trace.frames import SEPARATOR
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spool.spool import Spool

MS = 1_000_000
USUAL = 40 * MS


@pytest.fixture
def watched(tmp_path):
    """(vigil, recorder, ask): a thread of ours trains; `ask` looks and reads what was written."""
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1 << 20, summary_bytes=1)
    recorder = Recorder(spool)
    stop, stopping = os.pipe()
    trainer = threading.Thread(target=busy_function, args=(stop,))
    trainer.start()
    recorder.ident = trainer.ident
    until_at_rest(trainer)
    yield Vigil(recorder, lambda: (USUAL,) * 16), recorder, lambda: stacks(spool)
    os.write(stopping, b".")
    trainer.join()
    os.close(stop)
    os.close(stopping)
    recorder.summaries.release()
    spool.shut()


def busy_function(stop):
    os.read(stop, 1)


def exports(stop):
    os.read(stop, 1)


def until_at_rest(thread, function=busy_function):
    """Its one stack is that of the read from now on."""
    line = function.__code__.co_firstlineno + 1
    while True:
        frame = sys._current_frames().get(thread.ident)
        if frame and (frame.f_code, frame.f_lineno) == (function.__code__, line):
            return
        time.sleep(0.001)


def stacks(spool):
    found = read_spool(spool.path)
    rows = found.records[found.records["kind"] == Kind.STACK]
    return [(found.names[int(row["name"])].split(SEPARATOR), row) for row in rows]


def through(watch, now_ns, until_ns):
    """Look whenever the watch asks for it; how often that was."""
    looks = 0
    while now_ns < until_ns:
        due_ns, overdue_ns = watch.look(now_ns)
        over_ns = watch._recorder.began_ns + overdue_ns if overdue_ns else due_ns
        now_ns = max(min(due_ns, over_ns), now_ns + MS)
        looks += 1
    return looks


def begins(recorder, now_ns, *, step=0):
    """A step begins."""
    recorder.words[Word.BEGAN] = now_ns
    recorder.words[Word.STEP] += step
    return now_ns


def test_a_burst_leaves_one_record_for_each_stack_with_how_often_it_was_seen(watched):
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    watch.look(start)
    later = begins(recorder, start + 2_000 * MS)  # a step has just begun
    through(watch, later, later + 3 * USUAL)
    [(frames, row)] = written()
    assert any(frame.endswith(" busy_function") for frame in frames)
    assert row["payload"] == row["bytes_in"] >= 10


def test_a_look_that_waits_for_the_lock_counts_for_those_due_meanwhile(watched, monkeypatch):
    """Half of the step in a function that keeps the lock, and half where a look finds it free."""
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    watch.look(start)
    now = later = start + 2_000 * MS
    while now < later + 3 * USUAL:
        begins(recorder, now - (now - later) % USUAL)
        holds = (now - later) % USUAL < USUAL // 2
        now += (USUAL // 2 - (now - later) % USUAL) * holds  # until it lets go
        seen = ["train.py:2 encode"] if holds else ["train.py:1 rest"]
        monkeypatch.setattr(vigil, "frames_of_thread", lambda _, seen=seen: seen)
        now = max(watch.look(now)[0], now + MS)
    found = {frames[0]: int(row["payload"]) for frames, row in written()}
    assert found["train.py:2 encode"] == pytest.approx(sum(found.values()) / 2, rel=0.4)


@pytest.mark.parametrize(
    ("part", "share", "tells"), [(0.1, 0.0, True), (0.4, 0.0, True), (0.4, 1.0, False)]
)
def test_looks_are_spared_after_a_wait_for_the_lock_where_another_thread_may_take_it(
    watched, monkeypatch, part, share, tells
):
    """At the end of each step Python computes, and lets go of the lock after 5 ms: a spared look is
    40 ms later, when it rests again."""
    watch, recorder, written = watched
    watch._durations = lambda: (94 * MS,) * 16
    monkeypatch.setattr(vigil.Rivals, "busiest", lambda *_: 0)
    watch._rivals.share = share
    start = begins(recorder, monotonic_ns())
    watch.look(start)
    now = later = start + 60_000 * MS
    while now < later + 60_000 * MS:
        into = (now - later) % (94 * MS)
        begins(recorder, now - into)
        computes = into > (1 - part) * 94 * MS
        seen = ["train.py:2 encode"] if computes else ["train.py:1 rest"]
        monkeypatch.setattr(vigil, "frames_of_thread", lambda _, seen=seen: seen)
        now = max(watch.look(now + 5 * MS * computes)[0], now + MS)
    looks = Counter()
    for stack, row in written():
        looks[stack[0]] += int(row["payload"])
    told = looks["train.py:2 encode"] == pytest.approx(part * looks.total(), rel=0.25)
    assert told == tells


@pytest.fixture
def beside():
    """Another thread of the job."""
    stop, stopping = os.pipe()
    thread = threading.Thread(target=exports, args=(stop,))
    thread.start()
    until_at_rest(thread, exports)
    yield thread
    os.write(stopping, b".")
    thread.join()
    os.close(stop)
    os.close(stopping)


def test_a_thread_that_competes_for_the_lock_is_looked_at_too(watched, beside, monkeypatch):
    watch, recorder, written = watched
    monkeypatch.setattr(vigil.Rivals, "busiest", lambda *_: beside.ident)
    start = begins(recorder, monotonic_ns())
    watch.look(start)
    later = begins(recorder, start + 2_000 * MS)  # a step has just begun
    through(watch, later, later + 3 * USUAL)
    (frames, own), (others, row) = written()
    assert any(frame.endswith(" busy_function") for frame in frames)
    assert any(frame.endswith(" exports") for frame in others)
    assert (own["bytes_in"], row["bytes_in"], row["payload"]) == (own["payload"], 0, own["payload"])


@pytest.mark.parametrize(("wanted_ms", "competes"), [(40, False), (60, True)])
def test_a_thread_competes_that_wanted_a_core_for_most_of_the_time(
    watched, beside, monkeypatch, wanted_ms, competes
):
    _, recorder, _ = watched
    wanted = {f"/proc/self/task/{beside.native_id}/schedstat": 0}
    monkeypatch.setattr(vigil, "read_text", lambda path, **_: f"{wanted.get(path, 0)} 0 1")
    found = vigil.Rivals()
    assert found.busiest(recorder.ident, 1) == 0
    wanted = dict.fromkeys(wanted, wanted_ms * MS)
    assert found.busiest(recorder.ident, 1 + 100 * MS) == (beside.ident if competes else 0)


def test_a_step_that_is_overdue_is_looked_at(watched):
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    through(watch, start, start + 400 * MS)
    assert len(written()) == 1


def test_a_look_that_was_asked_for_when_a_step_lasts_too_long_is_taken(watched):
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    _, overdue_ns = watch.look(start)
    again_ns, _ = watch.look(start + overdue_ns)
    assert again_ns > start + overdue_ns  # a burst has begun, whose next look is due later
    through(watch, again_ns, again_ns + 100 * MS)
    assert int(written()[0][1]["enter_ns"]) == start + overdue_ns


def test_steps_in_time_are_left_alone_most_of_the_time(watched):
    watch, recorder, _ = watched
    start = monotonic_ns()
    looks = 0
    for second in range(60):
        for step in range(25):
            now = begins(recorder, start + (second * 1000 + step * 40) * MS, step=1)
            looks += through(watch, now, now + USUAL)
    assert looks < 25 * 60 + 8 * (vigil.MOST_LOOKS + 2)


def test_standing_still_is_looked_at_less_and_less_often(watched):
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns() - 900 * MS)
    watch.look(start + 900 * MS)
    through(watch, start + 900 * MS, start + 900 * MS + 60_000 * MS)
    assert 5 <= len(written()) <= 8
    assert watch.standstill.since_ns == start


def test_what_a_rank_stands_still_in_is_the_first_collective_without_an_end(watched):
    watch, recorder, _ = watched
    start = begins(recorder, monotonic_ns())
    recorder.spool.put(start, start + 1, Kind.COLLECTIVE, Op.BROADCAST, group_seq=6)
    recorder.spool.put(start, 0, Kind.COLLECTIVE, Op.ALL_REDUCE, group_seq=7)
    for _ in range(100):
        recorder.sample("host.load", -1, 1.0)
    watch.look(start + 60_000 * MS)
    assert watch.standstill.inside == "all_reduce 7"


@pytest.mark.parametrize(
    ("seen", "at"),
    [
        (["<nn/linear.py>:9 forward", "train.py:3 f"], "train.py:3 f"),
        (["-packages/a.py:1 g", "<stdin>:2 f", "x.py:1 run"], "<stdin>:2 f, in -packages/a.py:1 g"),
        (["<threading.py>:9 wait", "<string>:1 __init__"], ""),
        ([], ""),
    ],
)
def test_it_is_told_where_the_script_stands_also_one_that_was_typed(watched, monkeypatch, seen, at):
    watch, recorder, _ = watched
    monkeypatch.setattr(vigil, "frames_of_thread", lambda ident: seen if ident else [])
    watch.look(begins(recorder, monotonic_ns()) + 60_000 * MS)
    assert watch.standstill.at == at


def test_a_step_that_ends_ends_the_standstill(watched):
    watch, recorder, _ = watched
    start = begins(recorder, monotonic_ns())
    watch.look(start + 60_000 * MS)
    assert watch.standstill
    begins(recorder, start + 60_000 * MS, step=1)
    watch.look(start + 60_001 * MS)
    assert watch.standstill is None


def test_a_thread_that_is_gone_is_not_looked_at(watched):
    watch, recorder, written = watched
    recorder.ident = 1
    watch.look(recorder.began_ns + 60_000 * MS)
    assert written() == []


class Copied:
    def __deepcopy__(self, memo):
        return frames_of_thread(threading.get_ident())


@pytest.mark.parametrize(("package", "torchs"), [("sympy/core", True), ("timm/models", False)])
def test_files_that_torch_imports_stand_in_brackets(package, torchs):
    file = f"/v/lib/python3.11/site-packages/{package}/function.py"
    (text,) = frames._texts([(file, "<module>", 151)])
    assert text.startswith("<") == torchs


def test_files_of_python_stand_in_brackets():
    innermost, next_one, *_ = copy.deepcopy(Copied())
    assert innermost.startswith("tests/agent/test_vigil.py:")
    assert next_one.startswith("<")
    assert "copy.py>:" in next_one


def samples(watch, recorder, start, seconds, *, every_ms=40):
    """Steps of 40 ms, all in time; the bursts: (from the start in ms, samples, length in ms)."""
    found, now = [], start
    for step in range(seconds * 1000 // every_ms):
        now = begins(recorder, start + step * every_ms * MS, step=1)
        through(watch, now, now + every_ms * MS)
    for _, row in stacks(recorder.spool):
        found.append((int(row["enter_ns"]) - start, int(row["bytes_in"]),
                      int(row["exit_ns"] - row["enter_ns"]), int(row["step"])))  # fmt: skip
    return found


def test_regular_bursts_cover_two_steps_and_come_after_gaps_that_are_doubled(watched):
    watch, recorder, _ = watched
    start = monotonic_ns()
    found = samples(watch, recorder, start, 50)
    begin_ms = [first / MS for first, *_ in found]
    # A burst may begin in a step, and goes on in the next two: its samples have up to three steps.
    firsts = [
        at for before, at in zip([-1e9, *begin_ms], begin_ms, strict=False) if at - before > 90
    ]
    gaps = [later - first for first, later in pairwise(firsts)]
    assert firsts[0] == pytest.approx(1000, abs=2)
    assert gaps == pytest.approx([1080, 2080, 4080, 8080, 15080, 15080], abs=8)
    assert {of for _, of, *_ in found} <= {*range(38, 43)}  # 80 ms by fortieths
    for number, first in enumerate(firsts):
        parts = [one for one in found if first <= one[0] / MS < first + 90]
        end_ms = max(begin + length for begin, _, length, _ in parts) / MS
        assert end_ms - first == pytest.approx(80, abs=3), number


def test_a_job_that_stands_still_is_looked_at_each_time_it_has_lasted_twice_as_long(watched):
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    watch._due_ns = start + 10**12  # no regular burst
    watch._spared_ns = start + 10**12
    through(watch, start, start + 20_000 * MS)
    lasted = [(int(row["enter_ns"]) - start) / MS for _, row in written()]
    assert lasted[0] == pytest.approx(vigil.STUCK_STEPS * USUAL / MS, abs=3)
    ratios = [later / earlier for earlier, later in pairwise(lasted)]
    assert ratios == pytest.approx([2] * 4, rel=0.01)
    assert {int(row["payload"]) for _, row in written()} == {1}
    assert watch.standstill.step == 0
    assert watch.standstill.at.endswith(" busy_function")


@pytest.mark.parametrize("usual_ms", [10, 40])
def test_short_steps_stand_still_after_half_a_second(watched, usual_ms):
    watch, recorder, _ = watched
    watch._durations = lambda: (usual_ms * MS,) * 16
    watch._due_ns = watch._spared_ns = 1 << 62
    start = begins(recorder, monotonic_ns())
    stuck_ms = max(500, 20 * usual_ms)
    watch.look(start + stuck_ms * MS)
    assert watch.standstill is None
    watch.look(start + stuck_ms * MS + 1)
    assert watch.standstill.since_ns == start


def test_before_the_first_step_has_ended_only_a_long_standstill_is_looked_at(watched):
    watch, recorder, written = watched
    watch._durations = tuple
    start = begins(recorder, monotonic_ns())
    until_ns, stuck_ns = watch.look(start + 5_000 * MS)
    assert (until_ns, stuck_ns) == (start + 20_000 * MS, 10_000 * MS)
    assert written() == []
    watch.look(start + 10_001 * MS)
    assert len(written()) == 1


def test_overdue_steps_in_a_row_are_spared_for_three_seconds(watched):
    """Steps of 400 ms where 40 are usual: each is overdue after 80."""
    watch, recorder, written = watched
    start = begins(recorder, monotonic_ns())
    watch._due_ns, watch._gap_ns = start + 10**13, 10**13  # no regular burst
    for step in range(25):
        now = begins(recorder, start + step * 400 * MS, step=1)
        through(watch, now, now + 400 * MS)
    begun = [(int(row["enter_ns"]) - start) / MS for _, row in written()]
    assert begun[0] == pytest.approx(80, abs=2)
    assert len(begun) == 4  # of ten seconds
    assert all(later - earlier >= 3_000 for earlier, later in pairwise(begun))


def test_what_is_told_of_a_standstill_is_of_this_step_and_of_operations_alone(watched):
    watch, recorder, _ = watched
    spool, start = recorder.spool, begins(recorder, monotonic_ns())
    spool.put(start, 0, Kind.COLLECTIVE, Op.BROADCAST, 0, group_seq=3)  # of the step before
    begins(recorder, start, step=1)
    spool.put(start, 0, Kind.SPAN, 0, 1, group_seq=4)
    spool.put(start, 0, Kind.POINT_TO_POINT, Op.RECV, 1, group_seq=5)
    spool.put(start, 0, Kind.COLLECTIVE, Op.ALL_REDUCE, 1, group_seq=6)
    watch.look(start + 60_000 * MS)
    assert watch.standstill.inside == "recv 5"


def test_a_trace_holds_so_many_different_stacks_and_goes_on_with_those_it_knows(
    watched, monkeypatch
):
    watch, recorder, written = watched
    texts = iter([["a"], ["b"], ["c"], ["a"]])
    monkeypatch.setattr(vigil, "MOST_STACKS", 2)
    monkeypatch.setattr(
        vigil, "frames_of_thread", lambda ident: next(texts) if ident == recorder.ident else []
    )
    start = begins(recorder, monotonic_ns())
    for number in range(4):
        begins(recorder, start, step=1)
        watch.look(start + (number + 1) * 60_000 * MS)
    assert [frames for frames, _ in written()] == [["a"], ["b"], ["a"]]


def test_threads_that_have_not_run_or_are_ours_do_not_compete(watched, beside, monkeypatch):
    _, recorder, _ = watched
    wanted = {}
    monkeypatch.setattr(vigil, "read_text", lambda path, **_: wanted.get(path))
    monkeypatch.setattr(threading, "enumerate", lambda: [beside])
    found = vigil.Rivals()
    for at in (0, 100 * MS):  # whose accounts cannot be read
        assert found.busiest(recorder.ident, 1 + at) == 0
    path = f"/proc/self/task/{beside.native_id}/schedstat"
    wanted[path] = "0 0 1"
    found.busiest(recorder.ident, 1 + 200 * MS)
    wanted[path] = f"{30 * MS} {50 * MS} 1"  # ran and waited
    beside.name = "evenstep-x"
    assert copy.copy(found).busiest(recorder.ident, 1 + 300 * MS) == 0
    found._seen = {beside.native_id: (1 + 200 * MS, 0)}
    beside.name = "job"
    assert found.busiest(beside.ident, 1 + 300 * MS) == 0
    found._seen = {beside.native_id: (1 + 200 * MS, 0)}
    assert found.busiest(recorder.ident, 1 + 300 * MS) == beside.ident
    assert found.share == pytest.approx(0.8)
    assert found.busiest(recorder.ident, 1 + 400 * MS) == 0
    assert found.share == 0.0
    found._seen = {}  # as of a thread that has just begun
    assert found.busiest(recorder.ident, 1 + 500 * MS) == 0
    assert found.share == 1.0
