"""Attempts on disk, and what their restarts cost by arithmetic."""

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure import attempts
from evenstep.diagnose.measure.effects import account, restarts, running_share
from evenstep.diagnose.sentences import verdict
from evenstep.report.terminal.terminal import render
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.spool.spool import Spool
from tests.diagnose.attempts_run import STEP_NS, Start, write
from tests.diagnose.synthetic import MS, World


@pytest.fixture
def known(tmp_path):
    """Attempts of a run folder made of these starts."""
    return lambda *starts: attempts.read_attempts(write(tmp_path / "run", starts))


@pytest.fixture
def finding(tmp_path):
    """The finding about the restarts of such a run, and its evidence by name."""

    def of(*starts, **run):
        root = write(tmp_path / "run", starts)
        trace = attempts.with_attempts(load(root), root)
        trace.run.update(run)
        found = [one for one in diagnose(trace).findings if one.mode == "restart_amplification"]
        return found[0], {item.metric: item.measured for item in found[0].evidence}

    return of


def test_what_follows_the_last_checkpoint_is_done_again(known):
    total = account(known(Start(0, 50, [19, 39]), Start(100, 40)))
    # 50 steps of 1 s and two checkpoints of 2 s end at 54 s; steps 40 to 49 are lost
    assert (total.lost_steps, total.losses[0].work_s) == (10, pytest.approx(10))
    assert total.losses[0].gap_s == pytest.approx(100 - 54)
    assert total.elapsed_s == pytest.approx(140)


def test_what_steps_lose_is_a_share_of_the_time_that_restarts_left(known):
    found = known(Start(0, 50, [19, 39]), Start(100, 40))
    assert running_share(found) == pytest.approx(1 - (10 + 46) / 140)
    assert running_share(found[:1]) == 1.0


def test_a_logged_count_of_steps_tells_what_was_done_again(known):
    total = account(known(Start(0, 50, first_progress=0), Start(60, 50, first_progress=30)))
    assert total.lost_steps == 20
    assert total.net_steps == 80


def test_the_larger_part_is_the_cause_and_no_step_is_said_to_get_shorter(finding):
    found, _ = finding(Start(0, 50, [19, 39]), Start(100, 40))  # 46 s of waiting, 10 of work again
    assert found.cause.startswith("after a failure 46 s pass until steps go on")
    assert "attempt-000" in found.cause
    said = verdict([found], {"step_time": {"mean_ns": 10**9}, "steps": 40})
    assert said.cost == ": 40 % of the job's time"
    assert not said.change


def test_shares_of_what_slows_steps_are_said_to_be_of_the_time_that_restarts_are_part_of(tmp_path):
    root = write(tmp_path / "run", (Start(0, 50, [19, 39]), Start(100, 40)))  # 40 % is lost
    slow = World().slow(1, Phase.BACKWARD, 20 * MS)
    found = diagnose(attempts.with_attempts(slow.trace(), root))
    assert [one.mode for one in found.findings] == ["restart_amplification", "straggler"]
    assert found.findings[1].severity == pytest.approx(0.6 * slow.injected_share(), rel=0.02)
    text = " ".join(render(found, width=200).split())
    assert text.count("of the job's time recoverable") == 2
    assert "of step time recoverable" not in text


def test_without_any_checkpoint_only_the_gap_counts_and_the_rest_is_said(finding):
    found, evidence = finding(Start(0, 50), Start(60, 50))
    assert evidence["steps_done_again"] == 0
    assert found.severity == pytest.approx(10 / 110, abs=1e-4)
    assert "up to 50 of 100 steps were done again" in found.observation
    assert "no checkpoint was seen" in found.cause
    assert [option.gain for option in found.options] == [pytest.approx(10 / 110, abs=1e-4), None]


def test_amplification_is_elapsed_time_per_step_that_counts(finding):
    _, evidence = finding(Start(0, 50, [19, 39]), Start(100, 40))
    # 140 s for 80 steps that count; 94 s ran for 90 steps
    assert evidence["restart_amplification"] == pytest.approx((140 / 80) / (94 / 90), rel=1e-3)


def test_cost_and_energy_are_told_per_step_that_counts(finding):
    starts = (Start(0, 50, [39], joules=1000.0), Start(100, 40, joules=800.0))
    _, evidence = finding(*starts, price_per_rank_hour=3.6)
    assert evidence["energy_per_step_that_counts"] == pytest.approx(2 * 1800 / 80)
    # two ranks, 140 s of which 80 steps count, 3.6 an hour
    assert evidence["cost_per_1000_steps"] == pytest.approx(1000 * 2 * 140 / 80 * 0.001)


def test_checkpoints_too_rare_are_told_with_dalys_interval(finding):
    found, evidence = finding(Start(0, 400, [199]), Start(410, 400, [199]), Start(820, 10))
    assert found.options[0].action.startswith("checkpoint more often")
    assert evidence["time_between_checkpoints"] == pytest.approx(814 / 2 * 1e9)
    assert evidence["mean_time_between_failures"] == pytest.approx(814 / 2 * 1e9)


def test_a_run_that_was_never_restarted_has_no_finding(tmp_path):
    root = write(tmp_path / "run", [Start(0, 50)])
    trace = attempts.with_attempts(load(root), root)
    assert "attempts" not in trace.run
    assert not any(one.mode == "restart_amplification" for one in diagnose(trace).findings)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(0, 400_000_000, "amplified"), (400_000_000, 0, "reset"), (1000, 1000, "unchanged")],
)
def test_a_restart_is_told_to_reset_or_amplify_variation(known, before, after, verdict):
    first, second = known(
        Start(0, 50, uneven_ns=before or 1000), Start(99, 50, uneven_ns=after or 1000)
    )
    assert [one["verdict"] for one in restarts([first, second])] == [verdict]


def test_the_summary_counts_restarts_with_checkpoints(tmp_path):
    root = write(tmp_path / "run", [Start(0, 50, uneven_ns=1000), Start(99, 50, uneven_ns=400_000)])
    found = diagnose(attempts.with_attempts(load(root), root)).summary["checkpoints"]
    assert (found["amplified"], found["events"][0]["kind"]) == (1, "restart")


def test_an_unreadable_spool_does_not_hide_the_other_ranks(tmp_path):
    root = write(tmp_path / "run", [Start(0, 50, [19]), Start(100, 40)])
    (root / "attempt-000/rank-00000.spool").write_bytes(b"not a spool")
    assert [one.steps for one in attempts.read_attempts(root)] == [50, 40]


def test_who_failed_before_the_restart_and_how_comes_first(finding):
    raised = {"type": "OSError", "message": "no shard 17", "frames": ["data.py:31 batch"]}
    died = {1: {"raised": raised | {"monotonic_ns": 60 * 10**9}}}
    found, _ = finding(Start(0, 50, [19, 39], facts=died), Start(100, 40))
    assert found.cause.startswith(
        "attempt 0: rank 1 died: OSError at data.py:31 batch: no shard 17; after a failure 46 s"
    )


ENDED_WELL = {"closed": {"reason": "exit"}, "ended": {"exit_code": 0, "realtime_ns": 1}}


def test_what_a_script_starts_after_a_job_that_ended_well_is_no_restart(known):
    well = dict.fromkeys(range(2), ENDED_WELL)
    crashed = {0: ENDED_WELL, 1: {"ended": {"exit_code": 1, "realtime_ns": 1}}}
    found = known(
        Start(0, 50, facts=well), Start(60, 40, facts=crashed), Start(120, 30, facts=well)
    )
    assert [one.steps for one in found] == [40, 30]


@pytest.mark.parametrize(("begins_at", "steps"), [(40, [50, 40]), (0, [40])])
def test_a_job_that_ended_well_goes_on_where_its_count_of_steps_does(known, begins_at, steps):
    well = dict.fromkeys(range(2), ENDED_WELL)
    found = known(
        Start(0, 50, first_progress=0, facts=well),
        Start(60, 40, first_progress=begins_at, facts=well),
    )
    assert [one.steps for one in found] == steps


def test_who_failed_before_the_first_step_is_told_though_no_step_was_lost(tmp_path):
    died = {0: {"ended": {"signal": "SIGKILL", "monotonic_ns": 1, "realtime_ns": 1}}}
    root = write(tmp_path / "run", [Start(0, 0, facts=died), Start(100, 40)])
    trace = attempts.with_attempts(load(root), root)
    assert "attempt 0 finished no step: rank 0 died: SIGKILL" in trace.limits


def test_calls_of_a_first_step_that_did_not_end_are_no_steps_of_an_attempt(tmp_path):
    """20 equal calls of two ranks, as the layers of a model make them."""
    root = write(tmp_path / "run", [Start(0, 0), Start(100, 40)])
    for rank in range(2):
        path = root / f"attempt-000/rank-{rank:05d}.spool"
        path.unlink()
        identity = {"run_id": "r", "rank": rank, "world": 2, "hostname": "h", "boot_id": "b"}
        spool = Spool.create(path, identity, ring_bytes=1 << 18, summary_bytes=1 << 18)
        group = spool.add_group({"uid": "world", "name": "world", "ranks": "0-1"})
        for call in range(20):
            at = STEP_NS + call * STEP_NS // 100
            spool.put(at, at + 1000, Kind.COLLECTIVE, group=group, group_seq=call, bytes_in=8)
        spool.add_fact("ended", {"signal": "SIGKILL", "monotonic_ns": 2 * STEP_NS})
        spool.shut()
    assert [one.number for one in attempts.read_attempts(root)] == [1]
