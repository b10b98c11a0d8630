"""Actions give everything back, however often they come and go."""

import gc
import os
import subprocess
import time
from contextlib import suppress
from itertools import chain, repeat
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.agent.actions import garbage
from evenstep.agent.actions.conductor import Facts, Power
from evenstep.agent.actions.cores import Cores, share
from evenstep.agent.actions.garbage import Garbage

MS = 1_000_000
PLAIN = Facts(100 * MS, 0, 0, 0, 0, 1, 4, 4)


def masks_of_threads():
    """The cores each thread of this process may use; one that ends meanwhile has none."""
    masks = {}
    for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208
        with suppress(ProcessLookupError):
            masks[thread] = os.sched_getaffinity(thread)
    return masks


def until(condition):
    while not condition():
        time.sleep(0.001)


def changed(before, now):
    """Threads of both moments whose cores differ: others' threads come and go as they like."""
    return {thread for thread in before.keys() & now.keys() if before[thread] != now[thread]}


def state():
    """What of this process an action may change, apart from its threads' cores."""
    return gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()


@pytest.fixture(autouse=True)
def nothing_left_changed():
    before, masks = state(), masks_of_threads()
    yield
    assert state() == before
    assert not changed(masks, masks_of_threads())


ACTIONS = [
    (Garbage, PLAIN._replace(paused_ns=MS, longest_pause_ns=60 * MS)),
    (Cores, PLAIN._replace(starved_ns=10 * MS)),
    (Power, PLAIN._replace(waited_ns=20 * MS)),
]


@pytest.mark.parametrize(("make", "facts"), ACTIONS)
@given(st.lists(st.integers(0, 5), max_size=30))
@settings(max_examples=6, deadline=None)
def test_whatever_comes_between_begin_and_end_nothing_is_left_changed(make, facts, lengths):
    action, before, masks, step = make(), state(), masks_of_threads(), 0
    action.applies(facts)
    for length in lengths:
        action.begin(step)
        for each in range(length):
            step += 1
            action.during(step, last=each == length - 1)
        action.end(step)
        assert state() == before
        assert not changed(masks, masks_of_threads())


@pytest.mark.parametrize(("make", "facts"), ACTIONS)
def test_a_thousand_times(make, facts):
    action = make()
    assert action.applies(facts) or os.cpu_count() == 1
    for step in range(1000):
        action.begin(step)
        action.end(step)


@pytest.mark.parametrize(("make", "facts"), ACTIONS)
def test_where_there_is_nothing_to_gain_it_does_not_apply(make, facts):
    del facts
    assert make().applies(PLAIN) == ""


@pytest.mark.parametrize(
    ("paused_ns", "longest_ns", "why"),
    [
        (garbage.WORTH * 100 * MS, 0, "the collector pauses 0.3 % of the time, 0 ms at most"),
        (garbage.WORTH * 100 * MS - 1, 0, ""),
        (0, 5 * MS, "the collector pauses 0.0 % of the time, 5 ms at most"),
        (0, 5 * MS - 1, ""),
        (25 * MS, 80 * MS, "the collector pauses 25.0 % of the time, 80 ms at most"),
    ],
)
def test_it_applies_where_pauses_take_much_or_are_long_on_jobs_of_several_ranks(
    paused_ns, longest_ns, why
):
    facts = PLAIN._replace(paused_ns=paused_ns, longest_pause_ns=longest_ns)
    assert Garbage().applies(facts) == why
    assert Garbage().applies(facts._replace(world=2)) == why
    assert Garbage().applies(facts._replace(world=1)) == ""


def test_memory_and_collections_are_those_of_this_process(monkeypatch):
    monkeypatch.undo()
    before = garbage.full_collections()
    gc.collect()
    gc.collect(1)
    assert garbage.full_collections() == before + 1
    pages = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]
    assert garbage.resident_bytes() == pytest.approx(int(pages) * 1024, rel=0.05)
    monkeypatch.setattr(garbage, "_PAGES", Path("/nowhere"))
    assert garbage.resident_bytes() == 0


def test_what_exists_is_not_looked_at_again_while_it_acts():
    kept, before = [[] for _ in range(50_000)], gc.get_threshold()
    action = Garbage()
    action.begin(0)
    assert gc.get_threshold() == (garbage.NEVER, *before[1:])
    assert gc.get_freeze_count() >= len(kept)
    action.end(0)


def test_a_cycle_made_while_it_acts_is_collected_before_acting_ends(monkeypatch):
    monkeypatch.undo()

    class Cycle:
        gone = False

        def __del__(self):
            Cycle.gone = True

    action = Garbage()
    action.begin(0)
    gc.collect()
    action.during(0, last=False)
    one = Cycle()
    one.itself = one
    del one
    action.during(1, last=True)
    assert Cycle.gone
    action.end(1)


@pytest.mark.parametrize(
    ("fixed_ms", "each_ms", "every"),
    [(3.0, 0.0, 16), (0.0, 1.0, 1), (8.0, 1.0, 64), (0.1, 0.0, 1)],
)
def test_collections_are_as_rare_as_saves_and_no_rarer(monkeypatch, fixed_ms, each_ms, every):
    # Of steps of 100 ms, 3 ms in 16 are .19 %, and 8 ms in 64 are .13 %, whatever is garbage.
    action, since = Garbage(), [0]

    def collected():
        steps, since[0] = since[0], 0
        return int((fixed_ms + each_ms * steps) * MS)

    monkeypatch.setattr(garbage, "_collect_unfrozen", collected)
    action.applies(PLAIN)
    action._own_steps = inf
    action.begin(0)
    for step in range(1, 1024):
        since[0] += 1
        action.during(step, last=False)
    action.end(1024)
    assert action.every == every


def test_a_collector_that_the_script_has_switched_off_is_left_alone():
    gc.disable()
    try:
        assert Garbage().applies(ACTIONS[0][1]) == ""
    finally:
        gc.enable()


def test_a_collector_that_never_begins_by_itself_is_left_alone():
    gc.set_threshold(0, 10, 10)
    try:
        assert Garbage().applies(ACTIONS[0][1]) == ""
    finally:
        gc.set_threshold(700, 10, 10)


@pytest.mark.parametrize(
    ("does", "undoes"),
    [
        (gc.disable, gc.enable),
        (gc.freeze, gc.unfreeze),
        (lambda: gc.set_threshold(900, 7, 5), lambda: gc.set_threshold(700, 10, 10)),
    ],
)
def test_what_the_script_does_to_its_collector_meanwhile_stays(does, undoes):
    gc.set_threshold(700, 10, 10)
    action = Garbage()
    action.begin(0)
    try:
        does()
        said = gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()
        action.during(1, last=True)
        action.end(1)
        usual = (700, 10, 10) if said[2][0] == garbage.NEVER else said[2]
        frozen = does is gc.freeze
        assert (gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()) == (
            said[0], frozen, usual
        )  # fmt: skip
    finally:
        undoes()


def test_a_collector_that_is_switched_off_meanwhile_does_not_collect(monkeypatch):
    collected = []
    monkeypatch.setattr(garbage, "_collect_unfrozen", lambda: collected.append(1) or 0)
    action = Garbage()
    action.begin(0)
    gc.disable()
    action.during(1, last=True)
    gc.enable()
    assert collected == []
    action.during(2, last=True)
    action.end(2)
    assert collected


@pytest.mark.parametrize(
    ("given", "of_parent", "divides"),
    [
        ({0, 1, 2, 3}, {0, 1, 2, 3}, True),
        ({2, 3}, {0, 1, 2, 3}, False),  # taskset, numactl or a launcher has bound this rank
        ({2, 3}, {0, 1}, True),  # its parent was bound elsewhere: that says nothing
        ({3}, {3}, False),
    ],
)
def test_a_rank_that_was_given_cores_of_its_own_keeps_them(monkeypatch, given, of_parent, divides):
    masks = {0: given, os.getppid(): of_parent}
    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", masks.__getitem__)
        assert bool(Cores().applies(ACTIONS[1][1])) is divides


def test_cores_that_the_script_chooses_meanwhile_stay_chosen():
    usual = os.sched_getaffinity(0)
    action = Cores()
    if not action.applies(ACTIONS[1][1]):
        pytest.skip("one core")
    action.begin(0)
    try:
        chosen = usual - os.sched_getaffinity(0)
        os.sched_setaffinity(0, chosen)
        action.end(0)
        assert os.sched_getaffinity(0) == chosen
    finally:
        os.sched_setaffinity(0, usual)


def test_a_program_started_meanwhile_gets_the_cores_of_who_started_it():
    usual, action, sleeps = os.sched_getaffinity(0), Cores(), ("sleep", "100")
    if not action.applies(ACTIONS[1][1]):
        pytest.skip("one core")
    bound = set(action._share)
    with subprocess.Popen(["taskset", "-c", ",".join(map(str, bound)), *sleeps]) as before:
        until(lambda: os.sched_getaffinity(before.pid) == bound)
        action.begin(0)
        with subprocess.Popen(sleeps) as child:
            inherited = os.sched_getaffinity(child.pid)
            action.end(0)
            assert (inherited, os.sched_getaffinity(child.pid)) == (bound, usual)
            child.kill()
        assert os.sched_getaffinity(before.pid) == bound  # not by us
        before.kill()


def test_no_beginning_looks_at_all_there_is_before_python_has_done_so_by_itself(monkeypatch):
    collected, full = [], [5]
    quick = {"freeze": int, "unfreeze": int, "get_freeze_count": int, "get_objects": list}
    quick |= {"get_threshold": lambda: (700, 10, 10), "set_threshold": lambda *_: None}
    made = SimpleNamespace(collect=collected.append, isenabled=lambda: True, **quick)
    monkeypatch.setattr(garbage, "gc", made)
    monkeypatch.setattr(garbage, "full_collections", lambda: full[0])
    monkeypatch.setattr(garbage, "_collect_unfrozen", lambda: 0)
    action, taken = Garbage(), []
    for step in range(400):
        full[0] += step in {30, 200, 310}  # while it acts, while it does not, and while it acts
        if step % 128 == 0:
            action.begin(step)
        elif step % 128 == 64:
            action.end(step)
        if step % 128 < 64:
            action.during(step, last=step % 128 == 63)
        if len(taken) < len(collected):
            taken.append(step)
    assert (taken, set(collected)) == ([30, 256], {garbage.YOUNG})


def watched(monkeypatch, *sizes):
    """An action that has looked at memory of these sizes, of which the first is what it found."""
    grows = chain(sizes, repeat(sizes[-1]))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: next(grows))
    action = Garbage()
    action.applies(ACTIONS[0][1])
    action.begin(0)
    action.every = 64
    for look in range(1, len(sizes)):
        action.during(16 * look, last=False)
    action.end(16 * len(sizes))
    return action


def test_memory_that_has_taken_half_its_room_is_collected_twice_as_often(monkeypatch):
    action = watched(monkeypatch, 1000, 1020, 1026)
    assert (action.every, action.note) == (32, "")


def test_memory_that_would_exceed_its_room_by_the_next_look_ends_it(monkeypatch):
    assert watched(monkeypatch, 1000, 1026, 1030, 1034).note == ""
    assert watched(monkeypatch, 1000, 1026, 1030, 1041).note == "memory grew by 4.1 %"


def test_memory_that_waits_for_pythons_own_collector_is_not_counted(monkeypatch):
    """It is there when acting begins, a full collection frees it, and it comes back."""
    resident = [1100]
    monkeypatch.setattr(garbage, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(garbage.gc, "collect", lambda *_: resident.__setitem__(0, 1000))
    action = Garbage()
    action.begin(0)
    resident[0], action.every = 1090, 64
    action.during(16, last=False)
    action.end(17)
    assert (action.every, action.note) == (64, "")


def test_memory_that_each_block_leaves_behind_ends_it_in_the_end(monkeypatch):
    resident, action = [1000.0], Garbage()
    monkeypatch.setattr(garbage, "resident_bytes", lambda: resident[0])
    blocks = 0
    while not action.note and blocks < 100:
        action.begin(first := 256 * blocks)
        for step in range(first, first + 128):
            action.during(step, last=step == first + 127)
            resident[0] += 12 / 128  # 1.2 % of the first size in each block
        action.end(first + 128)
        blocks += 1
    assert action.note
    assert resident[0] < 1000 * (1 + 3 * garbage.GROWTH)  # each of two bounds, and a look's growth


def test_memory_that_the_job_takes_by_itself_is_not_counted(monkeypatch):
    resident = [1000]
    monkeypatch.setattr(garbage, "resident_bytes", lambda: resident[0])
    action = Garbage()
    for step in range(0, 4096, 128):  # a job that grows by half in so many steps, acting or not
        action.begin(step)
        for acted in range(64):
            resident[0] = 1000 + (step + acted) // 8
            action.during(step + acted, last=acted == 63)
        action.end(step + 64)
        resident[0] = 1000 + (step + 128) // 8
    assert action.note == ""


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_rank_has_a_core_and_none_is_wasted(cores, ranks):
    shares = [share(list(range(cores)), rank, ranks) for rank in range(ranks)]
    assert all(shares)
    if ranks <= cores:
        assert sorted(core for each in shares for core in each) == list(range(cores))


@pytest.mark.parametrize(("every", "scale"), [(1, 4), (3, 6), (20, 8)])
def test_half_a_block_holds_a_full_collection_of_the_collectors_own(monkeypatch, every, scale):
    counts = iter(range(1000))
    monkeypatch.setattr(garbage, "full_collections", lambda: next(counts) // every)
    action = Garbage()
    for _ in range(8):
        action.applies(PLAIN)
    assert action.scale == scale


def test_no_more_garbage_is_kept_than_python_keeps_by_itself(monkeypatch):
    counts = iter(range(1000))
    monkeypatch.setattr(garbage, "full_collections", lambda: 2 * next(counts))  # one in 32 steps
    monkeypatch.setattr(
        garbage, "_collect_unfrozen", lambda: 50 * MS
    )  # half a step, however rarely
    action = Garbage()
    action.applies(PLAIN)
    action.begin(0)
    for step in range(1, 1024):
        action.during(step, last=False)
    action.end(1024)
    assert action.every == 32


@pytest.fixture
def resident(monkeypatch):
    """Memory that the test sets, and nothing is collected."""
    now = [1000]
    monkeypatch.setattr(garbage, "resident_bytes", lambda: now[0])
    monkeypatch.setattr(garbage, "_collect_unfrozen", lambda: 0)
    return now


def look(action, step, resident, size):
    resident[0] = size
    action.during(step, last=False)
    return action.every, action.note


def test_memory_is_looked_at_every_sixteen_steps_alone(resident):
    action = Garbage()
    action.begin(0)
    action.every = 64
    assert look(action, 15, resident, 1100) == (64, "")
    assert look(action, 17, resident, 1100) == (64, "")
    assert look(action, 32, resident, 1100) == (32, "")
    action.end(33)


@pytest.mark.parametrize(
    ("sizes", "every", "note"),
    [
        ((1025,), 64, ""),  # half of the room of 5 %
        ((1026,), 32, ""),
        ((1026, 1038), 32, ""),  # as much again is within 5 %
        ((1026, 1039), 32, "memory grew by 3.9 %"),
        ((1050, 1050), 32, ""),
        ((1060, 1051), 32, "memory grew by 5.1 %"),  # it shrinks, and is beyond all the same
        ((1060, 1049), 32, ""),
    ],
)
def test_half_the_room_halves_the_interval_and_what_would_exceed_it_ends_acting(
    resident, sizes, every, note
):
    action = Garbage()
    action.begin(0)
    action.every = 64
    for number, size in enumerate(sizes, start=1):
        told = look(action, 16 * number, resident, size)
    action.end(100)
    assert told == (every, note)


def test_the_interval_is_never_less_than_a_step(resident):
    action = Garbage()
    action.begin(0)
    assert look(action, 16, resident, 1040) == (1, "")
    action.end(17)


def test_what_the_job_takes_by_itself_is_the_median_of_its_growth_between_blocks(resident):
    """By 1, 3 and 100 a step without acting: of 64 steps, 3 each are its own."""
    action, size, step = Garbage(), 1000, 0
    for rate in (1, 3, 100):
        resident[0] = size
        action.begin(step)
        action.end(step + 10)
        size, step = size + 20 * rate, step + 30
    resident[0] = size
    action.begin(step)
    usual = action._usual  # less what the job takes by itself, 5 % above the first at most
    assert usual == 1050
    resident[0] = 1050 + 3 * (step + 64)
    action.every = 64
    action.during(160 - 160 % 16, last=False)
    assert action._without_own(resident[0], step + 64) == 1050
    action.end(170)


def test_collecting_takes_place_at_the_same_steps_on_all_ranks_and_at_a_blocks_end(monkeypatch):
    steps = []
    action = Garbage()
    action.begin(3)
    action.every = 8
    for step in range(4, 30):
        monkeypatch.setattr(garbage, "_collect_unfrozen", lambda at=step: steps.append(at) or 0)
        action.during(step, last=step == 29)
    action.end(30)
    assert steps == [8, 16, 24, 29]


def test_only_a_whole_interval_tells_whether_a_longer_one_would_save(monkeypatch):
    """Collections take half a step each, whatever is garbage."""
    monkeypatch.setattr(garbage, "_collect_unfrozen", lambda: 50 * MS)
    action = Garbage()
    action.applies(PLAIN)
    action.begin(5)
    action.every = 8
    for step in range(6, 17):
        action.during(step, last=False)
        assert action.every == (8 if step < 16 else 16)  # the first is of two steps only
    action.end(17)


def test_objects_that_the_script_froze_stay_frozen_and_nothing_is_frozen_then():
    kept = [[] for _ in range(100)]
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        action = Garbage()
        action.begin(0)
        assert gc.get_freeze_count() == frozen
        action.end(1)
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
    del kept


@pytest.mark.parametrize(
    ("cores", "rank", "world", "own"),
    [
        (list(range(8)), 1, 2, [4, 5, 6, 7]),
        ([3, 5, 9], 1, 2, [5, 9]),
        ([3, 5, 9], 4, 5, [5]),
        ([3, 5, 9], 2, 3, [9]),
    ],
)
def test_a_rank_has_its_adjacent_share_of_the_cores(cores, rank, world, own):
    assert share(cores, rank, world) == own


@pytest.mark.parametrize(
    ("starved_ns", "local_world", "why"),
    [
        (2 * MS, 2, "without a core for 2.0% of the time: 2 of 4 cores are its own"),
        (2 * MS - 1, 2, ""),
        (50 * MS, 1, ""),
        (50 * MS, 4, "without a core for 50.0% of the time: 1 of 4 cores are its own"),
    ],
)
def test_cores_are_divided_where_ranks_of_a_node_wait_for_them(
    monkeypatch, starved_ns, local_world, why
):
    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5})
        facts = PLAIN._replace(starved_ns=starved_ns, local_world=local_world, local_rank=1)
        assert Cores().applies(facts) == why
