"""Whose end ended the job."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.diagnose.synthetic import MS, World, with_rows

SECOND = 1_000_000_000
GONE = {"signal": "SIGKILL"}


def broken(world, ends):
    """The run, and how its ranks ended: {rank: {fact: (ns after the last step, more of it)}}."""
    trace = world.trace()
    end = int(trace.events.exit_ns.max())
    for rank, facts in ends.items():
        info = trace.ranks[rank]
        info.closed = "closed" in facts
        for name, (after, more) in facts.items():
            info.facts[name] = {"monotonic_ns": end + after, "realtime_ns": end + after} | more
        info.facts["heartbeat_ns"] = end + min(after for after, _ in facts.values())
    return trace, end


def waits(trace, end, *ranks):
    """Some ranks enter one more collective, and do not leave it."""
    for rank in ranks:
        trace = with_rows(
            trace, rank=rank, kind=Kind.COLLECTIVE, op=Op.ALL_REDUCE, group=0, group_seq=10**6,
            step=60, enter_ns=end + MS, bytes_in=4096,
        )  # fmt: skip
    return trace


def raised(after, kind="RuntimeError", message="Connection closed by peer", place="train.py:7 f"):
    return after, {"type": kind, "message": message, "frames": [place]}


def first(trace):
    return diagnose(trace).findings[0]


def test_who_died_first_is_the_cause_and_the_others_followed():
    trace, _ = broken(
        World(),
        {1: {"ended": (10 * MS, GONE)}, 0: {"raised": raised(600 * MS), "closed": (SECOND, {})}},
    )
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("rank_failed", [1])
    assert finding.cause.startswith("SIGKILL")
    assert "rank 0 followed" in finding.observation


@pytest.mark.parametrize(
    ("kills", "cause", "layer", "do"),
    [(1, "SIGKILL: the kernel was out of memory", "node", "a smaller batch"),
     (0, "SIGKILL", "framework", "find who sent it")],
)  # fmt: skip
def test_who_was_killed_for_memory_is_told_to_need_less(kills, cause, layer, do):
    how = GONE | ({"out_of_memory_kills": kills} if kills else {})
    finding = first(broken(World(), {1: {"ended": (10 * MS, how)}})[0])
    assert (finding.cause.partition(";")[0], finding.layer) == (cause, layer)
    assert do in finding.options[0].action


@pytest.mark.parametrize(("struck", "do"), [("SIGSEGV", "this line"), ("sys.exit", "FAULTHANDLER")])
def test_of_an_invalid_access_the_line_is_the_remedy_where_it_is_known(struck, do):
    trace, _ = broken(World(), {1: {"ended": (10 * MS, {"signal": "SIGSEGV"})}})
    trace.ranks[1].facts["left"] = {"by": struck, "frames": ["train.py:31 step"]}
    finding = first(trace)
    assert do in finding.options[0].action
    assert ("train.py:31 step" in finding.cause) == (struck == "SIGSEGV")


def test_who_leaves_with_code_0_and_ends_nothing_has_died_where_others_die_of_it():
    ends = {1: {"ended": (40 * MS, {"exit_code": 0})}, 0: {"raised": raised(60 * MS)}}
    trace, end = broken(World(), ends)
    finding = first(waits(trace, end, 0))
    assert (finding.mode, finding.where.ranks) == ("rank_failed", [1])
    assert finding.cause.startswith("exit code 0")
    alone, _ = broken(World(), dict.fromkeys(range(4), ends[1]))
    assert "rank_failed" not in [one.mode for one in diagnose(alone).findings]


@pytest.mark.parametrize("stopped", [True, False])
def test_who_was_not_heard_of_before_it_was_killed_had_stood_still(stopped):
    """Twenty steps take longer than the two seconds for which it was stopped."""
    trace, end = broken(World(pace=4), {rank: {"ended": (2 * SECOND, GONE)} for rank in range(4)})
    if stopped:
        trace.ranks[1].facts["heartbeat_ns"] = end
    finding = first(waits(trace, end, 0, 2, 3))
    assert (finding.mode == "hang" and finding.where.ranks == [1]) == stopped


def test_who_collects_garbage_for_seconds_when_a_signal_ends_the_job_had_not_stood_still():
    """Nothing beats meanwhile: its collections before took as long."""
    trace, end = broken(World(pace=4), {rank: {"ended": (2 * SECOND, GONE)} for rank in range(4)})
    trace.ranks[1].facts["heartbeat_ns"] = end
    pause = {"enter_ns": end - 10 * SECOND, "exit_ns": end - 8 * SECOND}
    trace = with_rows(trace, kind=Kind.PAUSE, rank=1, step=3, **pause)
    assert first(waits(trace, end, 0, 2, 3)).mode != "hang"


def test_who_takes_its_time_to_leave_after_it_raised_had_not_stood_still():
    own = raised(MS, "ValueError", "no labels", "data.py:31 batch")
    ends = {1: {"raised": own, "closed": (2 * MS, {}), "ended": (8 * SECOND, {"exit_code": 1})}}
    ends |= {rank: {"ended": (9 * SECOND, GONE)} for rank in (0, 2, 3)}
    trace, end = broken(World(), ends)
    finding = first(waits(trace, end, 0, 2, 3))
    assert (finding.mode, finding.where.ranks) == ("rank_failed", [1])


def test_who_died_first_is_told_by_what_ranks_shared_where_wall_clocks_are_apart():
    """The wall clock of the host of ranks 2 and 3, which end a second later, is 3 s behind."""
    ends = {rank: {"ended": (rank * SECOND // 2 + MS, GONE)} for rank in range(4)}
    trace, _ = broken(World(ranks=4, ranks_per_node=2, noise=0.01), ends)
    for rank in (2, 3):
        trace.ranks[rank].identity["anchor_realtime_ns"] = -3 * SECOND
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("rank_failed", [0])


def test_a_description_without_the_time_of_its_wall_clock_counts_from_its_own():
    trace, _ = broken(World(), {1: {"ended": (10 * MS, GONE)}})
    trace.ranks[1].identity["anchor_realtime_ns"] = ["of", "another", "program"]
    assert first(trace).where.ranks == [1]


def test_it_heads_whatever_was_slow():
    trace, _ = broken(World().slow(2, Phase.BACKWARD, 50 * MS), {1: {"ended": (10 * MS, GONE)}})
    diagnosis = diagnose(trace)
    assert [finding.mode for finding in diagnosis.findings] == ["rank_failed", "straggler"]
    assert diagnosis.verdict.startswith("Rank 1 (node node0) died")


def test_a_peer_that_hears_of_a_death_before_the_process_is_gone_is_no_cause():
    """The kernel closes a dying process's connections a few ms before its parent can know."""
    trace, end = broken(
        World(),
        {1: {"ended": (12 * MS, GONE)}, 0: {"raised": raised(9 * MS), "ended": (300 * MS, {})}},
    )
    assert first(trace).where.ranks == [1]
    assert first(waits(trace, end, 0)).where.ranks == [1]


def test_an_exception_is_told_with_its_place():
    own = raised(MS, "ValueError", "no labels", "data.py:31 batch")
    trace, _ = broken(World(), {2: {"raised": own}, 0: {"raised": raised(900 * MS)}})
    finding = first(trace)
    assert finding.where.ranks == [2]
    assert "ValueError at data.py:31 batch: no labels" in finding.cause


@pytest.mark.parametrize(("by", "code"), [("sys.exit", 1), ("os._exit", 3)])
def test_who_left_by_a_call_is_told_with_its_line(by, code):
    left = {"by": by, "frames": ["<lib/abc.py>:1 run", "train.py:31 check"]}
    trace, _ = broken(
        World(), {2: {"ended": (MS, {"exit_code": code})}, 0: {"raised": raised(900 * MS)}}
    )
    trace.ranks[2].facts["left"] = left
    finding = first(trace)
    assert finding.where.ranks == [2]
    assert f"exit code {code} by {by} at train.py:31 check" in finding.cause
    assert finding.stacks[0].frames == left["frames"]
    assert f"that call of {by}" in finding.options[0].action


@pytest.mark.parametrize(
    ("said", "named"),
    [("[/src/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9", 1),
     ("HTTP: connection closed by peer", 0)],
)  # fmt: skip
def test_who_had_left_before_another_lost_its_peer_is_named_without_their_last_calls(said, named):
    """As where only some steps are observed, to cost little."""
    ends = {
        1: {"closed": (10 * MS, {"reason": "exit"}), "ended": (900 * MS, {"exit_code": 0})},
        0: {"raised": raised(600 * MS, message=said), "closed": (700 * MS, {})},
    }
    trace, _ = broken(World(ranks=2), ends)
    trace.ranks[1].facts["left"] = {"by": "", "frames": ["train.py:31 <module>"]}
    trace.events = trace.events.select(trace.events.step < 40)
    trace.summaries, trace.summary_rank = np.zeros(1, trace.summaries.dtype), np.array([0])
    known = {"last_step": 59, "count": 1, "step_sum_ns": 64 * MS, "end_ns": 64 * MS}
    for name, value in known.items():
        trace.summaries[name] = value
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("hang" if named else "rank_failed", [named])
    assert "after step 59" in finding.observation
    told = "had ended (exit code 0 at train.py:31 <module>)" in finding.cause
    assert told == bool(named)
    assert finding.options[0].action.startswith("find why that" if named else "fix what raises")


def test_several_ranks_that_had_left_have_scripts_of_their_own():
    left = {"closed": (10 * MS, {"reason": "exit"}), "ended": (900 * MS, {"exit_code": 0})}
    lost = raised(600 * MS, message="[/src/gloo/pair.cc:553] Connection closed by peer [::1]:9")
    ends = {0: {"raised": lost, "closed": (700 * MS, {})}, 1: left, 2: left}
    trace, _ = broken(World(ranks=3), ends)
    trace.events = trace.events.select(trace.events.step < 40)
    finding = first(trace)
    assert finding.where.ranks == [1, 2]
    assert finding.options[0].action.startswith("find why the scripts of those ranks ended first")


def test_a_workers_death_is_looked_for_at_the_worker():
    own = raised(MS, message="DataLoader worker (pid 7) is killed by signal: Killed. ")
    trace, _ = broken(World(), {2: {"raised": own}, 0: {"raised": raised(900 * MS)}})
    assert "DataLoader: out-of-memory kills" in first(trace).options[0].action


def test_ranks_that_raise_the_very_same_fail_together():
    own = raised(MS, "ValueError", "no labels", "data.py:31 batch")
    trace, _ = broken(World(), {rank: {"raised": own} for rank in range(4)})
    assert first(trace).where.ranks == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "facts",
    [
        {"ended": (MS, {"exit_code": 0}), "closed": (MS, {})},
        {"ended": (MS, GONE | {"asked": "SIGTERM"})},
        {"raised": raised(MS, "KeyboardInterrupt"), "closed": (2 * MS, {})},
    ],
)
def test_an_end_in_good_order_or_on_request_is_no_failure(facts):
    trace, _ = broken(World(), {1: facts})
    assert "rank_failed" not in {finding.mode for finding in diagnose(trace).findings}


@pytest.mark.parametrize("watched", [False, True])
def test_who_loses_a_peer_to_ctrl_c_has_not_died(watched):
    """A launcher that passed no signal on knows that rank 1 alone was interrupted."""
    alone = {"ended": (30 * MS, {"signal": "SIGINT"})} if watched else {}
    ends = {1: {"raised": raised(MS, "KeyboardInterrupt")} | alone, 0: {"raised": raised(5 * MS)}}
    trace, _ = broken(World(), ends)
    died = [one.where.ranks for one in diagnose(trace).findings if one.mode == "rank_failed"]
    assert died == [[1]] * watched


@pytest.mark.parametrize(("phase", "modes"), [(Phase.BACKWARD, []), (Phase.INPUT, ["hang"])])
def test_who_leaves_in_order_within_a_backward_pass_was_ended_by_a_signal(phase, modes):
    """Batches end between steps; nothing returns to a script from within its backward pass."""
    ends = {1: {"closed": (2 * MS, {})}, 0: {"raised": raised(60 * MS)}}
    trace, end = broken(World(ranks=2), ends)
    trace = with_rows(trace, rank=1, kind=Kind.PHASE, op=phase, step=60, enter_ns=end + MS)
    assert [one.mode for one in diagnose(waits(trace, end, 0)).findings] == modes


def test_a_hang_stays_a_hang_when_a_timeout_ends_it():
    trace, end = broken(
        World(),
        {
            0: {"raised": raised(20 * SECOND, message="Timed out")},
            1: {"ended": (21 * SECOND, GONE)},
        },
    )
    finding = first(waits(trace, end, 0, 2, 3))
    assert (finding.mode, finding.where.ranks) == ("hang", [1])


@pytest.mark.parametrize(
    ("message", "hung"),
    [
        ("[unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete", True),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 2 s", True),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms", True),
        ("invalid scalar type", False),
    ],
)
def test_who_gives_up_waiting_is_not_the_one_at_fault(message, hung):
    """Twenty steps take longer than the timeout; rank 1 lives until it is sent a signal."""
    sent = {"ended": (3 * SECOND, {"signal": "SIGTERM"})}
    own = {"raised": raised(2 * SECOND, message=message)}
    trace, end = broken(World(pace=4), {0: own, 1: sent, 2: sent, 3: sent})
    finding = first(waits(trace, end, 0, 2, 3))
    assert (finding.mode, finding.where.ranks) == (("hang", [1]) if hung else ("rank_failed", [0]))


@pytest.mark.parametrize(
    ("message", "absent"),
    [("wait timeout after 8000ms, keys: /default_pg/0//1//cpu//0/2", [2]), ("Read timed out", [])],
)
def test_of_a_wait_at_the_store_those_that_did_not_come_are_named(message, absent):
    """new_group() on all ranks but one; a request of the script's own that timed out is no wait."""
    own = {"raised": raised(SECOND, "DistStoreError", message), "ended": (2 * SECOND, GONE)}
    sent = {"ended": (9 * SECOND, {"signal": "SIGTERM"})}
    trace, _ = broken(World(ranks=3), {0: own, 1: own, 2: sent})
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == (
        ("hang", absent) if absent else ("rank_failed", [0, 1])
    )


@pytest.mark.parametrize(("stood_ms", "hung"), [(50, False), (5000, True)])
@pytest.mark.parametrize("within", [False, True])
def test_a_healthy_job_that_is_interrupted_does_not_hang(stood_ms, hung, within):
    """Rank 1 ends at once, before or within a collective; the others, seconds later, of it."""
    asked = {"signal": "SIGINT", "asked": "SIGINT"}
    late = (stood_ms + 3000) * MS
    ends = {rank: {"raised": raised(late, "KeyboardInterrupt")} for rank in (0, 2, 3)}
    ends[1] = {"raised": raised(stood_ms * MS, "KeyboardInterrupt"), "ended": (SECOND * 9, asked)}
    trace, end = broken(World(), ends)
    found = diagnose(waits(trace, end, 0, 2, 3, *[1] * within)).findings
    assert ("hang" in [finding.mode for finding in found]) == hung


def test_ranks_that_wait_for_a_dead_one_do_not_hang():
    trace, end = broken(
        World(), {1: {"ended": (2 * MS, GONE)}, 0: {"ended": (30 * SECOND, {"signal": "SIGTERM"})}}
    )
    modes = [finding.mode for finding in diagnose(waits(trace, end, 0, 2, 3)).findings]
    assert modes[0] == "rank_failed"
    assert "hang" not in modes


def test_a_stop_of_two_seconds_before_the_end_is_found():
    trace, end = broken(
        World(), {rank: {"ended": (2 * SECOND, GONE | {"asked": "SIGTERM"})} for rank in range(4)}
    )
    finding = first(waits(trace, end, 0, 2, 3))
    assert (finding.mode, finding.where.ranks) == ("hang", [1])


def test_one_of_two_ranks_that_left_a_call_out_is_told_from_the_other():
    trace, end = broken(World(ranks=2), {0: {"ended": (SECOND, GONE)}})
    sizes = [8, 512] * 6
    for at, size in enumerate([*sizes, 8]):
        for rank in (0, 1):
            own = 512 if rank and at == len(sizes) else size
            trace = with_rows(
                trace, rank=rank, kind=Kind.COLLECTIVE, op=Op.ALL_REDUCE, group=0,
                group_seq=10**6 + at, step=60, bytes_in=own, enter_ns=end + at * MS,
                exit_ns=0 if at == len(sizes) else end + at * MS + 1,
            )  # fmt: skip
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("hang", [1])


def test_a_host_that_booted_later_does_not_make_a_hang_of_a_death():
    """Stamps of hosts do not compare: rank 3 entered the collective when ranks 0 and 2 did."""
    left = {"raised": raised(5 * SECOND), "closed": (5 * SECOND, {})}
    world = World(nodes=(0, 0, 0, 1))
    trace, end = broken(world, {1: {"ended": (10 * MS, GONE)}, 0: left, 2: left, 3: left})
    trace, info, later = waits(trace, end, 0, 2, 3), trace.ranks[3], 3600 * SECOND
    info.identity |= {"anchor_realtime_ns": later, "anchor_monotonic_ns": 0}
    info.facts["heartbeat_ns"] -= later
    for name in left:
        info.facts[name]["monotonic_ns"] -= later
    moved = trace.events["rank"] == 3
    for name in ("enter_ns", "exit_ns"):
        stamps = trace.events[name]
        column = np.where(moved & (stamps > 0), stamps - later, stamps)
        trace = replace(trace, events=trace.events.with_column(name, column))
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("rank_failed", [1])


def test_steps_whose_phases_the_dead_rank_wrote_no_more_are_neither_idle_nor_the_jobs_end():
    """Phases, counters and the summary of a step are written up to a second after it."""
    trace, _ = broken(World(), {2: {"ended": (10 * MS, GONE)}})
    events, last = trace.events, 29
    phases = (events["rank"] == 2) & (events.kind == int(Kind.PHASE))
    trace = replace(trace, events=events.select(~(phases & (events.step > last))))
    steps = events.select((events["rank"] == 2) & (events.kind == int(Kind.STEP)))
    steps = steps.select(steps.step <= last)
    trace.summaries, trace.summary_rank = np.zeros(30, trace.summaries.dtype), np.full(30, 2)
    for name, column in ("start_ns", "enter_ns"), ("end_ns", "exit_ns"), ("last_step", "step"):
        trace.summaries[name] = steps[column]
    trace.summaries["count"], trace.summaries["step_sum_ns"] = 1, steps.exit_ns - steps.enter_ns
    diagnosis, whole = diagnose(trace), diagnose(World().trace())
    assert diagnosis.findings[0].observation.startswith("rank 2 (node node0) died after step 59")
    assert diagnosis.summary["steps"] == last + 1
    assert "last steps left out, whose phases were not written: 30" in diagnosis.limits
    other = whole.summary["shares"]["other"]
    assert diagnosis.summary["shares"]["other"] == pytest.approx(other, abs=0.01)


@pytest.mark.parametrize(
    "message",
    [
        "wait timeout after 40000ms, keys: /default_pg/0//cpu//0/2",
        "Timed out after 41 seconds waiting for clients. 2/4 clients joined.",
    ],
)
@pytest.mark.parametrize("apart", ["", "rank 2 meets the others at b:1, ranks 0 and 1 at a:1"])
def test_who_left_no_trace_did_not_come_where_the_others_gave_up_before_they_attached(
    message, apart
):
    """Another node's ranks, or one that its launcher ended."""
    end = {"exit_code": 1, "before": "inside init_process_group"} | (
        {"apart": apart} if apart else {}
    )
    facts = {"ended": (SECOND, end), "raised": raised(10 * MS, "DistStoreError", message)}
    trace, _ = broken(World(ranks=2), {0: facts, 1: facts})
    trace.world = 4
    finding = first(trace)
    assert (finding.mode, finding.where.ranks) == ("hang", [2, 3])
    assert finding.title == "Ranks 2 and 3 did not come"
    assert finding.cause.startswith(apart or "ranks 2 and 3 did not come: DistStoreError")


@pytest.mark.parametrize(
    "message",
    [
        "[/src/gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:5346.",
        "[/src/gloo/pair.cc:537] Read error [10.0.0.2]:33426: Connection reset by peer.",
    ],
)
@pytest.mark.parametrize(("world", "how"), [(4, "lost a peer"), (2, "died")])
def test_whose_peer_left_no_trace_here_lost_it(message, world, how):
    """Nodes without a folder in common: the launcher of the other knows who was killed."""
    facts = {"ended": (SECOND, {"exit_code": 1}), "raised": raised(10 * MS, message=message)}
    trace, _ = broken(World(ranks=2), {0: facts, 1: facts})
    trace.world = world
    finding = first(trace)
    assert finding.where.ranks == [0, 1]
    assert finding.title == f"Ranks 0 and 1 {how}: RuntimeError"
    assert f"0 and 1 {how} after step" in finding.observation
    assert ("ranks 2 and 3" in finding.options[0].action) == (world == 4)
