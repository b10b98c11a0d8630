import numpy as np
import pytest

from evenstep.diagnose.measure.effects import ENDED_EARLY, effects_of_actions, pacing
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import RankInfo, Trace

WORLD, STEPS = 2, 40
STEP_NS, HELD_NS, BOOKED_NS = 100_000_000, 5_000_000, 2_000_000


def account(**changes):
    verdict = {"word": "pays", "pairs": 9, "gain": 0.1 / 1.1, "low": 0.05 / 1.05, "high": 0.2 / 1.2}
    plain = {"mode": "on", "booked_ns": BOOKED_NS, "verdict": verdict}
    return {"pacing_account": plain | changes}


@pytest.fixture
def run():
    """A run whose rank 0 is held in every other step."""
    rank = np.repeat(np.arange(WORLD), STEPS)
    step = np.tile(np.arange(STEPS), WORLD)
    held = np.where((rank == 0) & (step % 2 == 0), HELD_NS, 0)
    columns = {"rank": rank, "step": step, "enter_ns": 0 * step, "exit_ns": 0 * step + STEP_NS}
    columns |= {"kind": np.full(len(step), int(Kind.STEP)), "held_ns": held}
    ranks = {number: RankInfo(number, {}, facts=account()) for number in range(WORLD)}
    return Trace({}, WORLD, 0, ranks, Columns(columns))


def test_held_ranks_and_steps_are_counted(run):
    found = pacing(run)
    assert found["held_ranks"] == [0]
    assert found["held_share"] == 1 / 4
    assert found["held_mean_ns"] == HELD_NS


def test_the_loss_is_bounded_by_what_was_booked(run):
    assert pacing(run)["lost_at_most"] == pytest.approx(BOOKED_NS / (STEPS * STEP_NS))


def test_the_effect_is_that_of_the_guard_with_most_pairs(run):
    run.ranks[0].facts["pacing_account"]["verdict"] = {"pairs": 0}
    effect = pacing(run)["effect"]
    assert effect == pytest.approx({"pairs": 9, "gain": 0.1, "low": 0.05, "high": 0.2})


def test_too_few_pairs_have_no_interval(run):
    for info in run.ranks.values():
        info.facts["pacing_account"]["verdict"] |= {"low": None, "high": None}
    assert pacing(run)["effect"]["low"] is None


def test_a_rank_that_was_killed_leaves_the_loss_unknown(run):
    run.ranks[1].facts.clear()
    run.ranks[1].facts["pace"] = {"mode": "on"}
    found = pacing(run)
    assert found["ranks"] == [0, 1]
    assert found["lost_at_most"] is None
    assert found["verdicts"] == {"pays": 1, ENDED_EARLY: 1}


def test_a_run_that_was_only_observed_has_nothing_to_tell(run):
    for info in run.ranks.values():
        info.facts["pacing_account"]["mode"] = "observe"
    assert pacing(run) is None


def test_a_job_that_is_paced_as_a_whole_has_nothing_to_be_compared_with(run):
    assert pacing(run)["beside"] is None


def test_paced_and_unpaced_ranks_are_compared(run):
    run.ranks[1].facts["pacing_account"]["mode"] = "observe"
    run.ranks[1].facts["pace"] = {"mode": "observe", "asked": "on", "part": "ranks 0"}
    found = pacing(run)
    assert (found["ranks"], found["part"]) == ([0], "ranks 0")
    paced, unpaced = found["beside"]["paced"], found["beside"]["unpaced"]
    assert (paced["ranks"], unpaced["ranks"]) == ([0], [1])
    # Steps 3 to 39, in 18 of which rank 0 is held.
    assert paced["held"] == pytest.approx(18 / 37 * HELD_NS / STEP_NS)
    assert (unpaced["held"], unpaced["step_cv"]) == (0.0, 0.0)
    assert unpaced["step_mean_ns"] == STEP_NS


def test_of_each_action_the_trial_that_has_compared_most_is_told(run):
    words = ((0, "on trial", 3), (1, "pays", 9))
    for rank, word, pairs in words:
        told = {"action": "gc", "word": word, "pairs": pairs}
        run.ranks[rank].facts["actions"] = [told, {"action": "token", "of": "link", "word": word}]
    gc, token = effects_of_actions(run)
    assert (gc["rank"], gc["word"], gc["pairs"]) == (1, "pays", 9)
    assert (token["rank"], token["of"]) == (0, "link")
