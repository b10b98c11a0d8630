"""The agent in real torch jobs: what it records, and that the job never notices."""

import re
import signal
import threading
import time

import numpy as np
import pytest

import evenstep
from evenstep.attachment import agent as attaching
from evenstep.errors import TraceError
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.agent.conftest import finish
from tests.agent.pair_job import LATE_STEPS, STEPS
from tests.agent.training import BATCH
from tests.forks import start

SOLO_STEPS = 5  # of each scene of solo_job
GRADIENT_BYTES = 4 * (8 * 8 + 8 + 8 + 1)  # float32, both layers of training.py in one bucket


def steps_of(trace, rank=0):
    """The step records of a rank."""
    steps = trace.of_kind(Kind.STEP)
    return steps.select(steps["rank"] == rank)


def gradients_of(trace, rank=0):
    """A rank's all-reduces that lie in a step's backward."""
    found = trace.of_kind(Kind.COLLECTIVE)
    return found.select((found["rank"] == rank) & (found.op == Op.ALL_REDUCE) & (found.parent > 0))


# -- attaching -------------------------------------------------------------------------------------


def test_attaching_before_the_process_group_waits_for_it_and_is_idempotent(solo):
    told, pending, made, again, same, gone, elsewhere = solo["before_init"]
    assert all((told, pending, made, again, same, gone))
    assert not elsewhere
    assert len(steps_of(solo.trace("before_init"))) == SOLO_STEPS


def test_detaching_restores_everything_that_attaching_replaced(solo):
    assert {"Module.train", "Work.wait", "gc.callbacks", "optimizer hooks"} <= set(
        solo["restored"]["replaced"]
    )
    assert solo["restored"]["left"] == []


def test_a_detached_trace_says_that_it_ended(solo):
    assert solo.trace("before_init").ranks[0].facts["closed"]["reason"] == "detached"


def test_a_trace_ends_properly_with_its_process_and_says_where_it_is(solo):
    assert solo.trace("at_exit").ranks[0].facts["closed"]["reason"] == "exit"
    assert f"evenstep diagnose {solo.folder / 'at_exit'}" in solo.error


def test_attaching_in_the_middle_counts_on_from_the_groups_own_counter(solo):
    _, sequence = solo["middle"]
    events = solo.trace("middle").of_kind(Kind.COLLECTIVE)
    assert events.group_seq.min() == sequence
    assert len(steps_of(solo.trace("middle"))) == 2


# -- the job never notices -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "observe", "on"])
def test_losses_are_the_same_to_the_bit_in_every_mode(solo, pair, mode):
    assert solo[mode] == [True, solo["without"]]
    assert pair[mode] == pair["without"]


def test_a_call_under_way_at_detaching_is_neither_lost_nor_a_failure(solo):
    losses, lines = solo["call_under_way"]
    assert (losses, lines) == (solo["without"], [])


def test_ranks_that_are_numbered_anew_are_said_to_be(solo):
    same, (line,) = solo["renumbered"]
    assert same == []
    assert "rank 0 of 1 is now 2 of 4" in line
    facts = solo.trace("renumbered").ranks[0].facts
    assert facts["renumbered"].startswith("rank 2 of 4 since step")


@pytest.mark.parametrize("scene", ["broken_collective", "broken_end_step"])
def test_a_failure_of_ours_is_said_once_and_training_goes_on(solo, scene):
    losses, lines, calls = solo[scene]
    assert losses == solo["without"]
    assert lines == ["evenstep: stopped observing rank 0: ArithmeticError: ours"]
    assert calls == 1
    assert solo.trace(scene).ranks[0].facts["failure"] == "ArithmeticError: ours"


def test_bad_settings_are_one_line_each_and_a_good_call_afterwards_works(solo):
    told, losses, lines, left_behind = solo["bad_settings"]
    assert told == [False, False, False, True]
    assert losses == solo["without"]
    for line, name in zip(lines, ("pace.mode", "no_such_thing", "pace.max_delay"), strict=True):
        assert line.startswith("evenstep: not attached: ")
        assert name in line
    assert not left_behind


def test_why_nothing_is_attached_is_said_once_however_often_it_is_tried(caplog):
    for text in ("no disk", "no disk", "no file"):
        attaching._log_not_attached(OSError(text))
    assert [line.getMessage() for line in caplog.records] == [
        "evenstep: not attached: no disk", "evenstep: not attached: no file",
    ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_one_line(solo):
    told, losses, lines = solo["unwritable"]
    assert (told, losses) == (False, solo["without"])
    assert re.search("cannot create .* choose a writable folder with --out or EVENSTEP_OUT", *lines)


def test_a_full_disk_is_one_line(solo, full_disk):
    if not full_disk:
        pytest.skip("mounting a small tmpfs needs root and mount(8)")
    told, losses, lines = solo["full"]
    assert (told, losses) == (False, solo["without"])
    assert re.search("no room for a spool at .* free some", *lines)


def test_a_disk_that_is_full_when_the_buffered_writer_flushes_costs_the_trace_only(solo, full_disk):
    if not full_disk:
        pytest.skip("mounting a small tmpfs needs root and mount(8)")
    told, losses, lines = solo["full_buffered"]
    assert (told, losses) == (True, solo["without"])
    assert "No space left on device" in lines[-1]
    assert len(lines) <= 3  # run.json, the flush in the background, the end


def test_a_second_claimant_of_a_rank_stays_passive_and_says_so_once(solo):
    told, losses, lines = solo["claimed"]
    assert (told, losses) == ([False, False], solo["without"])
    assert len(lines) == 1
    assert "so this process stays passive" in lines[0]


def test_the_kill_switch_wins(solo):
    assert solo["switched_off"] == [False, False]


# -- processes of processes ------------------------------------------------------------------------


def test_a_forked_child_writes_nothing_into_its_parents_trace(solo):
    status, same, losses = solo["forked"]
    assert (status, same) == (0, True)
    assert losses == solo["without"]
    assert len(steps_of(solo.trace("forked"))) == SOLO_STEPS


@pytest.mark.parametrize("scene", ["fork_workers", "spawn_workers"])
def test_workers_of_a_loader_that_collect_garbage_leave_the_trace_alone(solo, scene):
    trace = solo.trace(scene)
    records = trace.events.select(trace.events.kind != Kind.SAMPLE)
    assert solo[scene].get("PAUSE", 0) <= 1  # twelve samples were collected for, elsewhere
    assert solo[scene]["STEP"] == 3
    assert (np.diff(np.sort(trace.events.seq.astype(np.int64))) == 1).all()
    assert (records.enter_ns > 0).all()
    assert trace.limits == []


# -- steps and phases ------------------------------------------------------------------------------


def test_accumulated_gradients_are_one_step_with_two_backwards(solo):
    trace = solo.trace("accumulation")
    phases = trace.of_kind(Kind.PHASE)
    assert len(steps_of(trace)) == SOLO_STEPS
    assert (phases.op == Phase.BACKWARD).sum() == 2 * SOLO_STEPS
    assert len(gradients_of(trace)) == SOLO_STEPS  # the first of each is not synchronized


def test_of_two_optimizers_the_first_that_stepped_marks(solo):
    trace = solo.trace("two_optimizers")
    phases = trace.of_kind(Kind.PHASE)
    assert len(steps_of(trace)) == SOLO_STEPS
    assert (phases.op == Phase.OPTIMIZER).sum() == 3 * SOLO_STEPS


@pytest.mark.parametrize("scene", ["scaler", "fused_scaler"])
def test_a_step_that_a_scaler_skips_does_not_count(solo, scene):
    assert len(steps_of(solo.trace(scene))) == SOLO_STEPS - 2


def test_samples_are_those_of_the_loaders_batches(solo):
    assert steps_of(solo.trace("fork_workers")).payload.tolist() == [BATCH] * 3


def test_evaluation_and_checkpoint_are_recognised_in_their_step(solo):
    phases = solo.trace("evaluation").of_kind(Kind.PHASE)
    assert phases.step[phases.op == Phase.CHECKPOINT].tolist() == [2]
    assert set(phases.step[phases.op == Phase.EVALUATION].tolist()) == {2}
    assert phases.step[phases.op == Phase.BACKWARD].tolist() == [0, 1, 2, 3]


def test_phases_of_every_step_add_up_to_it(solo, pair):
    for trace in (solo.trace("evaluation"), pair.trace("observe")):
        assert (trace.summaries["phase_ns"].sum(axis=1) == trace.summaries["step_sum_ns"]).all()


def test_a_script_can_name_stretches_log_numbers_and_end_steps_itself(solo):
    trace = solo.trace("session")
    spans, markers = trace.of_kind(Kind.SPAN), trace.of_kind(Kind.MARKER)
    assert [trace.names[name] for name in spans.name] == ["mine"] * 3
    assert (spans.exit_ns > spans.enter_ns).all()
    assert markers.bytes_in.view(np.float64).tolist() == [0.0, 1.0, 2.0]
    # one of each call, although the optimizer has ended the first before that is known
    assert len(steps_of(trace)) == 3 + 1


# -- two ranks -------------------------------------------------------------------------------------


def test_both_ranks_tell_the_same_collectives(pair):
    trace = pair.trace("observe")
    first, second = gradients_of(trace, 0), gradients_of(trace, 1)
    assert len(first) == STEPS
    for column in ("group", "group_seq", "step", "bytes_in"):
        assert first[column].tolist() == second[column].tolist()
    assert first.bytes_in.sum() == STEPS * GRADIENT_BYTES
    assert (first.exit_ns > first.enter_ns).all()


def test_nobody_leaves_before_everybody_has_entered(pair):
    trace = pair.trace("observe")
    first, second = gradients_of(trace, 0), gradients_of(trace, 1)
    latest = np.maximum(first.enter_ns, second.enter_ns)
    assert (np.minimum(first.exit_ns, second.exit_ns) >= latest).all()


def test_a_rank_that_attached_later_agrees_on_identities_and_steps(pair):
    trace = pair.trace("late")
    assert any(f"rank 1 began to count {LATE_STEPS} steps after" in limit for limit in trace.limits)
    first, second = gradients_of(trace, 0), gradients_of(trace, 1)
    assert len(first) - len(second) == LATE_STEPS
    shared = np.isin(first.group_seq, second.group_seq)
    assert first.step[shared].tolist() == second.step.tolist()


def test_a_group_made_later_is_named_and_counted_from_its_beginning(pair):
    trace = pair.trace("late")
    number = next(i for i, group in enumerate(trace.groups) if group.name == "made late")
    events = trace.of_kind(Kind.COLLECTIVE)
    mine = events.select((events.group == number) & (events.op == Op.ALL_REDUCE))
    assert trace.groups[number].ranks == (0, 1)
    assert len(mine) == 2
    assert len(set(mine.group_seq.tolist())) == 1


def test_ranks_of_one_script_agree_on_a_folder_of_their_own(pair):
    (folder,) = (pair.folder / "evenstep-runs").iterdir()
    trace = evenstep.load(folder)
    assert sorted(trace.ranks) == [0, 1]
    assert {info.facts["closed"]["reason"] for info in trace.ranks.values()} == {"exit"}
    assert trace.run["world"] == 2


def test_the_early_rank_is_the_one_that_is_blocked(pair):
    trace = pair.trace("off")
    blocked = [
        int(trace.summaries["phase_ns"][trace.summary_rank == rank][:, Phase.SYNC].sum())
        for rank in (0, 1)
    ]
    assert blocked[0] > blocked[1]  # rank 1 sleeps in every step


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two ranks with one plan. Whether holding pays is decided by what steps take: on a machine
    that does nothing else, the delay of rank 1 decides."""
    folder = tmp_path_factory.mktemp("shared")
    return finish(start("tests.agent.pair_job", folder, "shared", cwd=folder), folder)


@pytest.mark.clock
def test_with_a_shared_plan_the_early_rank_alone_is_held(shared):
    trace = shared.trace("shared")
    decisions = trace.of_kind(Kind.PACING)
    applied = decisions.select((decisions.flags & Flag.APPLIED) != 0)
    assert set(applied.rank) == {0}  # rank 1 is the one they wait for
    assert {trace.names[name] for name in applied.name} == {"spends persistent slack"}


@pytest.mark.clock
def test_what_is_booked_is_no_more_than_what_was_held(shared):
    account = shared.trace("shared").ranks[0].facts["pacing_account"]
    assert account["held_ns"] > 0
    assert account["booked_ns"] <= account["held_ns"]


def test_the_agent_states_what_it_costs(pair):
    cost = pair.trace("observe").ranks[0].facts["cost"]
    assert cost["ns_per_collective"] > 0
    assert cost["background_cpu_ns"] > 0


# -- killed ----------------------------------------------------------------------------------------


def opened(folder, ranks, patience_s=240.0):
    """The live trace once these ranks hang in an all-reduce of 4,000 bytes."""
    end, seen = time.monotonic() + patience_s, "nobody has begun"
    while time.monotonic() < end:
        try:
            trace = evenstep.load(folder)
        except TraceError:
            time.sleep(0.2)
            continue
        events = trace.of_kind(Kind.COLLECTIVE)
        hung = events.select((events.exit_ns == 0) & (events.bytes_in == 4000))
        ended = [len(steps_of(trace, rank)) for rank in range(3)]  # rank 1 may be a moment later
        if sorted(hung["rank"].tolist()) == sorted(ranks) and ended == [20, 20, 20]:
            return trace
        seen = f"{ended} steps, {trace.limits}"
        time.sleep(0.2)
    raise AssertionError(f"nobody hangs: {seen}")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(folder, trace while it hung, the survivor's exit code and error) of a job killed hard."""
    folder = tmp_path_factory.mktemp("killed")
    ranks = [start("tests.agent.stalled_job", folder, rank) for rank in range(3)]
    try:
        live = opened(folder, [0, 2])
        for rank in ranks[:2]:
            rank.send_signal(signal.SIGKILL)
        _, error = ranks[2].communicate(timeout=300)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return folder, live, ranks[2].returncode, error


def test_a_hanging_job_is_read_while_it_hangs(killed):
    _, live, _, _ = killed
    assert sorted(live.ranks) == [0, 1, 2]
    assert not any(info.closed for info in live.ranks.values())


def test_a_killed_rank_shows_what_it_hung_in_and_all_before(killed):
    trace = evenstep.load(killed[0])
    events = trace.of_kind(Kind.COLLECTIVE)
    mine = events.select(events["rank"] == 0)
    assert (mine.exit_ns[-1], mine.op[-1], mine.bytes_in[-1]) == (0, Op.ALL_REDUCE, 4000)
    assert (mine.exit_ns[:-1] > 0).all()
    assert len(steps_of(trace)) == 20
    assert not trace.ranks[0].closed


def test_the_survivor_fails_as_it_would_have_and_closes_its_trace(killed):
    folder, _, code, error = killed
    assert code != 0
    assert re.search("Connection (closed|reset) by peer|Broken pipe", error)
    assert evenstep.load(folder).ranks[2].facts["closed"]["reason"] == "exit"


def test_threads_that_attach_at_once_open_one_trace(monkeypatch):
    entered, go_on = threading.Event(), threading.Event()

    def opens(*_):
        entered.set()
        go_on.wait(10)
        return True

    monkeypatch.setattr(attaching, "_open", opens)
    first = threading.Thread(target=attaching._open_once, args=(None, None, None))
    first.start()
    assert entered.wait(10)
    assert attaching._open_once(None, None, None)  # says so at once, and opens nothing
    go_on.set()
    first.join()
    assert not attaching._opening.locked()
