"""A run watched from outside: ranks come, end, die and come again; and what stands out."""

import json
import shutil
from types import SimpleNamespace

import pytest

from evenstep.cli.watch import StandstillDiagnosis
from evenstep.trace.spool.layout import Kind, Op
from evenstep.watch.findings import Journal, live_findings
from evenstep.watch.frame import frame
from evenstep.watch.run import WINDOW_STEPS, LiveRun
from evenstep.watch.terminal import pacing_text
from tests.report.live_ranks import MS, LiveRank, job

DEAD_PID = 2**22 + 1  # above the kernel's largest (proc(5): pid_max is at most 2^22)


class Watched:
    """A run with a clock of its own."""

    def __init__(self, path):
        self.now = 1000.0
        self.run = LiveRun(path, clock=lambda: self.now)
        self.journal = Journal()

    def look(self, after_s=1.0):
        self.now += after_s
        self.run.refresh()
        found = live_findings(self.run)
        shown = frame(self.run, found)
        self.journal.note(found, shown.step)
        return shown

    def modes(self, after_s=1.0):
        return [finding.mode for finding in self.look(after_s).findings]


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def watched(run):
    return Watched(run)


def test_a_run_that_has_not_begun_is_waited_for(watched, run):
    assert watched.look().state == "waiting"
    run.mkdir()
    assert watched.look().state == "waiting"
    ranks = [LiveRank(run, rank) for rank in range(3)]
    seen = watched.look()
    assert (seen.state, seen.ranks_seen, seen.world) == ("starting", 3, 4)
    ranks[0].steps(1)
    assert watched.look().state == "running"


def test_the_late_rank_is_named_with_what_it_costs(watched, run):
    job(run, late=2)
    seen = watched.look()
    assert [(f.mode, f.ranks) for f in seen.findings] == [("straggler", (2,))]
    assert seen.findings[0].share == pytest.approx(0.3)  # 90 ms of own work beside 60, of 100
    assert seen.verdict == "Rank 2 is late by 30 ms, 30 % of a step; the other 3 wait for it"
    assert seen.rows[0].rank == 2


def test_a_few_steps_name_a_rank_that_is_certainly_late(watched, run):
    job(run, late=2, steps=4)  # of which the first is set aside
    assert [(f.mode, f.ranks) for f in watched.look().findings] == [("straggler", (2,))]


def test_a_few_steps_that_scatter_name_nobody(watched, run):
    ranks = [LiveRank(run, rank) for rank in range(4)]
    for own_ms in ((90, 60, 50, 60), (60, 70, 50, 60), (60, 60, 70, 50)):
        for live, own in zip(ranks, own_ms, strict=True):
            live.steps(1, own_ms=own)
    assert list(watched.look().findings) == []


def test_steps_that_are_long_over_are_not_told_from(watched, run):
    ranks = job(run, steps=20)
    for live in ranks:
        live.wait(20.0)
    for rank, live in enumerate(ranks):
        live.steps(9, own_ms=90 if rank == 1 else 60)
    assert watched.look().findings[0].share == pytest.approx(0.3)


def test_a_job_in_step_has_no_finding(watched, run):
    job(run)
    seen = watched.look()
    assert list(seen.findings) == []
    assert seen.step_time["p50_ns"] == 100 * MS
    assert seen.steps_per_s == pytest.approx(10.0)


def test_what_comes_before_the_loop_is_no_step_of_it(watched, run):
    LiveRank(run, 0, world=1).steps(4)
    assert len(watched.look().curve_ns) == 3


def test_lateness_within_the_scatter_of_steps_is_no_finding(watched, run):
    ranks = job(run, steps=8)
    for own_ms in (38, 90) * 12:  # on average 4 ms above the others, with 26 ms of scatter
        ranks[1].steps(1, own_ms=own_ms)
    for rank in (0, 2, 3):
        ranks[rank].steps(24)
    assert "straggler" not in watched.modes()


def test_of_two_ranks_the_late_one_is_named(watched, run):
    job(run, late=0, world=2)
    assert watched.look().findings[0].ranks == (0,)


def test_shares_are_those_that_were_written_and_sum_to_one(watched, run):
    job(run)
    shares = watched.look().shares
    # of 100 ms: 60 backward, 40 blocked of which 30 waiting
    assert shares == pytest.approx(
        {"compute": 0.6, "exposed_communication": 0.1, "wait": 0.3, "input": 0.0, "other": 0.0}
    )


def test_where_waits_cannot_be_told_all_blocking_is_communication(watched, run):
    LiveRank(run, 0, world=1).steps(20, known=False)
    row = watched.look().rows[0]
    assert not row.wait_known
    assert row.shares["exposed_communication"] == pytest.approx(0.4)
    assert "wait" not in row.shares | watched.look().shares


def test_waits_that_one_rank_alone_can_tell_are_no_share_of_all(watched, run):
    for rank in range(2):
        LiveRank(run, rank, world=2).steps(20, known=rank == 0)
    seen = watched.look()
    assert [row.wait_known for row in seen.rows] == [True, False]
    assert seen.shares["exposed_communication"] == pytest.approx(0.4)
    assert "wait" not in seen.shares


def test_a_late_rank_is_named_though_steps_are_of_two_kinds(watched, run):
    """What all ranks share in a step, as of two models in turn, is no scatter of its lateness."""
    ranks = [LiveRank(run, rank) for rank in range(4)]
    for step in range(40):
        for rank, live in enumerate(ranks):
            live.steps(1, own_ms=(20 if step % 2 else 80) + 10 * (rank == 2))
    found = watched.look().findings
    assert [(f.mode, f.ranks) for f in found] == [("straggler", (2,))]


def test_ranks_that_take_turns_are_not_called_stragglers(watched, run):
    ranks = [LiveRank(run, rank) for rank in range(4)]
    for step in range(40):
        for rank, live in enumerate(ranks):
            live.steps(1, own_ms=90 if step % 4 == rank else 60)
    found = watched.look().findings
    assert [f.mode for f in found] == ["synchronization_amplification"]
    assert found[0].share == pytest.approx(0.3)


def test_input_and_pauses_stand_out(watched, run):
    for rank in range(4):
        LiveRank(run, rank).steps(20, input_ms=25, pause_ns=4 * MS * (rank == 1))
    found = {finding.mode: finding for finding in watched.look().findings}
    assert found["input_pipeline"].share == pytest.approx(0.25)
    assert found["runtime_jitter"].ranks == (1,)


@pytest.mark.parametrize("workers", [2, 0])
def test_who_waits_for_its_workers_as_the_others_do_is_not_late(watched, run, workers):
    for rank in range(2):
        live = LiveRank(run, rank, world=2).steps(
            40, own_ms=60 + 30 * rank, input_ms=20 + 30 * rank
        )
        live.spool.add_fact("loader_workers", workers)
    modes = [finding.mode for finding in watched.look().findings]
    assert ("straggler" in modes) == (workers == 0)
    assert "input_pipeline" in modes


def test_a_rank_that_never_came_is_told_from_those_that_wait_for_it(watched, run):
    ranks = job(run)
    watched.look()
    for rank in (0, 1, 3):
        ranks[rank].enters()
    assert watched.modes(5.0) == []
    seen = watched.look(20.0)
    assert (seen.state, [f.ranks for f in seen.findings]) == ("silent", [(2,)])
    assert "ranks 0, 1 and 3 wait in all_reduce" in seen.verdict


def test_a_run_of_other_hosts_that_stood_still_is_seen_at_the_first_look(watched, run):
    """Copied from there: its ranks lived on after their last step."""
    ranks = job(run, hostname="elsewhere", boot_id="other")
    for rank in ranks:
        rank.spool.beat(rank._start_ns + 60_000 * MS)
    for rank in (0, 1, 3):
        ranks[rank].enters()
    seen = watched.look()
    assert (seen.state, [f.ranks for f in seen.findings]) == ("silent", [(2,)])
    assert "no step for 60 s" in seen.verdict


def test_who_makes_no_progress_is_shown_above_who_is_late(watched, run):
    ranks = job(run, late=0)
    watched.look()
    ranks[2].enters()
    watched.look(20.0)
    for rank in (0, 1):
        ranks[rank].steps(1, own_ms=90 if rank == 0 else 60)
    rows = watched.look().rows
    states = ["silent", "silent", "", ""]
    assert [(row.rank, row.state) for row in rows] == list(zip((2, 3, 0, 1), states, strict=True))


def test_steps_after_a_silence_end_the_finding(watched, run):
    ranks = job(run)
    watched.look()
    assert watched.modes(30.0) == ["hang"]
    for rank in ranks:
        rank.steps(1)
    assert watched.modes() == []
    assert len(watched.journal.past) == 1


def test_a_rank_whose_process_is_gone_has_died(watched, run):
    job(run, world=3)
    LiveRank(run, 3, pid=DEAD_PID).steps(40)
    watched.look()
    assert watched.look(4.0).verdict == "Rank 3 has died: no such process now"
    assert watched.modes() == ["rank_failed"]


def test_the_last_step_of_a_rank_that_died_is_that_of_its_records(watched, run):
    for rank in range(2):
        LiveRank(run, rank, world=2, pid=DEAD_PID).steps(40)
    dead = LiveRank(run, 2, world=3, pid=DEAD_PID).steps(40)
    dead.spool.put(1, 0, Kind.COLLECTIVE, Op.ALL_GATHER, 45, 0, 1, 7)  # summaries come later
    watched.look()
    rows = {row.rank: row for row in watched.look(4.0).rows}
    assert (rows[0].step, rows[2].step, rows[2].inside) == (39, 44, "all_gather")


def test_a_copy_of_a_spool_beside_it_is_the_same_rank(watched, run):
    path = LiveRank(run, 0, world=1).steps(40).spool.path
    shutil.copy(path, path.with_name("rank-00000-copy.spool"))
    watched.look()
    assert watched.run.window.last_step.tolist() == [39]


def test_ranks_that_died_are_told_and_none_is_accused_before_the_diagnosis(watched, run):
    """Of a job whose ranks die, most do so because another one did."""
    lost = {"type": "RuntimeError", "message": "Connection closed by peer", "monotonic_ns": 50}
    ranks = job(run, world=2)
    ranks[0].spool.add_fact("raised", lost)
    seen = watched.look()
    assert (seen.state, seen.verdict[:35]) == ("running", "Rank 0 has died: RuntimeError: Conn")
    ranks[1].ends(ended={"signal": "SIGKILL", "monotonic_ns": 40})
    seen = watched.look()
    assert seen.verdict == "Ranks 0 and 1 have died"
    assert [(each.mode, each.ranks) for each in seen.findings[:1]] == [("rank_failed", ())]


def test_a_rank_that_its_launcher_saw_end_is_gone_at_once(watched, run):
    ranks = job(run)
    for live in ranks:
        live.spool.add_fact("ended", {"signal": "SIGKILL", "monotonic_ns": 40})
    seen = watched.look()
    assert (seen.state, {row.state for row in seen.rows}) == ("ended", {"gone"})


def test_ranks_that_a_signal_to_the_launcher_ended_have_not_died(watched, run):
    for rank in range(2):
        how = {"signal": "SIGTERM", "monotonic_ns": 9, "asked": "SIGINT"}
        live = LiveRank(run, rank, world=2, pid=DEAD_PID).steps(40)
        live.spool.add_fact("ended", how)
    watched.look()
    assert watched.look(4.0).verdict.startswith("the run has ended")


def test_a_rank_on_another_machine_is_not_called_dead(watched, run):
    LiveRank(run, 0, world=1, pid=DEAD_PID, hostname="elsewhere").steps(40)
    watched.look()
    assert watched.modes(5.0) == []


def test_a_new_attempt_takes_the_place_of_the_one_before(watched, run):
    job(run, late=1)
    assert watched.modes() == ["straggler"]
    job(run, attempt=1)
    seen = watched.look()
    assert (seen.attempt, seen.attempts) == (1, 2)
    assert [f.mode for f in seen.findings] == ["restart_amplification"]
    assert seen.findings[0].text == "the run was restarted: 2 attempts so far"


def test_a_run_has_ended_when_every_rank_has(watched, run):
    ranks = job(run)
    for rank in ranks[:3]:
        rank.ends()
    assert watched.look().state == "running"
    ranks[3].ends()
    assert watched.look().state == "ended"


def test_the_steps_a_rank_took_last_are_seen_although_it_has_closed(watched, run):
    rank = LiveRank(run, 0, world=1).steps(3)
    watched.look()
    rank.steps(4).ends()
    assert watched.look().step == 6
    assert watched.look().step == 6


def test_an_agent_that_gave_up_is_said(watched, run):
    ranks = job(run)
    ranks[1].spool.add_fact("failure", "OSError: no\nroom")
    found = watched.look().findings[0]
    assert (found.mode, found.ranks) == ("agent", (1,))
    assert "\n" not in found.text


def test_pacing_says_what_is_in_force_and_what_was_asked(watched, run):
    ranks = job(run)
    for rank in ranks:
        rank.spool.add_fact("pace", {"mode": "observe"})
    for rank in ranks[:2]:
        fact = {"mode": "on", "threshold": 0.02, "max_delay": 0.1, "request": 1, "since_step": 40}
        rank.spool.add_fact("pace", fact)
        rank.steps(WINDOW_STEPS, held_ns=5 * MS)
    (run / "control.json").write_text(json.dumps({"number": 1, "mode": "on"}))
    pacing = watched.look().pacing
    assert pacing["modes"] == {"on": 2, "observe": 2}
    assert (pacing["followed_by"], pacing["requested_mode"]) == (2, "on")
    assert pacing["held"] == pytest.approx(0.025)  # 5 of 100 ms on two of four ranks
    assert pacing["held_ranks"] == 2


def test_what_was_asked_of_actions_is_said_of_actions(watched, run):
    for rank in job(run):
        rank.spool.add_fact("pace", {"mode": "observe"})
    asked = {
        "number": 1,
        "mode": "observe",
        "act": "gc",
    }  # the mode that goes with actions but pace
    (run / "control.json").write_text(json.dumps(asked))
    assert pacing_text(watched.look()) == (
        "observe: no rank is delayed; requested: act gc; 0 of 4 ranks follow so far"
    )


def test_the_picture_is_json_without_anything_json_lacks(watched, run):
    LiveRank(run, 0, world=2).steps(20, known=False)
    LiveRank(run, 1, world=2)
    text = json.dumps(watched.look().to_json(), allow_nan=False)
    assert json.loads(text)["schema"] == "evenstep.watch/1"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"number": "x"}'])
def test_a_strange_control_file_does_no_harm(watched, run, content):
    job(run)
    (run / "control.json").write_text(content)
    assert watched.look().state == "running"


def test_a_run_that_takes_the_place_of_another_is_followed(watched, run):
    for rank in job(run, late=3):
        rank.ends()
    assert watched.look().state == "ended"
    for spool in run.rglob("*.spool"):
        spool.unlink()
    job(run, late=1, steps=12)
    watched.look()
    seen = watched.look()
    assert (seen.state, seen.step, seen.rows[0].rank) == ("running", 11, 1)


def test_a_folder_that_is_removed_is_waited_for_again(watched, run):
    job(run, world=5)[4].spool.path.unlink()
    watched.look()
    shutil.rmtree(run)
    watched.look()
    job(run, late=1)
    watched.look()
    assert watched.look().rows[0].rank == 1


# -- a run that takes no step any more -------------------------------------------------------------


class Judge:
    """Diagnoses runs, and counts how often."""

    def __init__(self):
        self.times, self.modes = 0, ["hang"]

    def __call__(self, trace, read_s):
        self.times += 1
        found = [SimpleNamespace(mode=mode) for mode in self.modes]
        return SimpleNamespace(findings=found, ranks=len(trace.ranks))


@pytest.fixture
def judge():
    return Judge()


@pytest.fixture
def told(watched, judge):
    """Look after a while, and diagnose where that is due: whether the run has a diagnosis now."""
    still = StandstillDiagnosis(judge=judge)

    def call(after_s):
        watched.look(after_s)
        if still.is_due(watched.run):
            still.renew(watched.run)
        return still.diagnosis is not None

    call.still = still
    return call


def test_a_job_that_takes_steps_is_not_diagnosed(told, run, judge):
    job(run)
    assert not told(1.0)
    assert judge.times == 0


def test_a_run_that_has_ended_is_diagnosed_once(told, run, judge):
    judge.modes = []
    for rank in job(run):
        rank.ends()
    assert [told(1.0) for _ in range(3)] == [True] * 3
    assert judge.times == 1


def job_with_a_death(told, run, judge):
    """The ranks of a job of which rank 1 has raised, which is told."""
    ranks = job(run, world=3)
    assert not told(1.0)
    judge.modes = ["rank_failed"]
    ranks[1].spool.add_fact("raised", {"type": "ValueError"})
    assert told(1.0)
    return ranks


def test_a_job_is_diagnosed_at_each_death(told, run, judge):
    ranks = job_with_a_death(told, run, judge)
    assert told(1.0)
    assert judge.times == 1
    ranks[2].spool.add_fact("raised", {"type": "RuntimeError"})
    assert told(1.0)
    assert judge.times == 2


def test_a_job_that_goes_on_without_its_dead_is_watched_by_its_latest_steps(told, run, judge):
    ranks = job_with_a_death(told, run, judge)
    for rank in (ranks[0], ranks[2]):
        rank.steps(2)  # that were under way
    assert told(1.0)
    for _ in range(3):
        for rank in (ranks[0], ranks[2]):
            rank.steps(10)
        shown = told(1.0)
    assert not shown
    assert judge.times == 1
    ranks[2].spool.add_fact("raised", {"type": "ValueError"})
    assert told(1.0)
    assert judge.times == 2


def test_ranks_that_hang_are_diagnosed_again_whenever_their_silence_has_doubled(told, run, judge):
    job(run)
    told(1.0)
    assert [told(1.0) for _ in range(160)][-1]
    assert judge.times == 5  # from 10 s of silence, 16 s, 32 s, 64 s and 128 s


def test_a_silence_that_the_whole_trace_does_not_explain_stays_with_the_latest_steps(
    told, run, judge
):
    job(run)
    judge.modes = ["straggler"]
    told(1.0)
    assert not told(20.0)
    assert judge.times == 1


def test_steps_after_a_silence_end_its_diagnosis(told, run):
    ranks = job(run)
    told(1.0)
    assert told(20.0)
    for rank in ranks:
        rank.steps(1)
    assert not told(1.0)


@pytest.mark.parametrize("missing", [1, 4])
def test_a_part_of_the_traces_is_no_whole_run(told, run, watched, judge, missing):
    ranks = job(run)
    told(1.0)
    for rank in ranks:
        rank.ends()
    watched.look()
    for rank in ranks[:missing]:
        rank.spool.path.unlink()
    told.still.renew(watched.run)
    assert told.still.diagnosis is None
    assert f": traces of {missing} of 4 ranks are elsewhere" in told.still.notes[0].text
    assert judge.times == 0


def test_ranks_that_start_while_a_run_is_read_are_not_missing(told, run, watched):
    rank = LiveRank(run, 0).steps(40)
    watched.look()
    rank.ends()
    watched.look()
    for other in range(1, 4):
        LiveRank(run, other).steps(40).ends()
    told.still.renew(watched.run)
    assert told.still.notes == []


def test_a_file_that_is_no_spool_is_told_unless_its_rank_is_just_starting(watched, run):
    ranks = [LiveRank(run, rank) for rank in range(3)]
    spool = ranks[2].spool.path
    spool.write_bytes(bytes(8192))
    assert not watched.look().findings
    spool.write_text("something else")
    (finding,) = watched.look().findings
    assert finding.text.startswith(f"left out: {spool} is not a spool")
