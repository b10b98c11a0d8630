import re

import pytest

from evenstep.agent.actions import cores, garbage
from evenstep.report.terminal.sentences import (
    APPLIES,
    describe_actions,
    pacing,
    pacing_in_brief,
)


def found(**changes):
    plain = {"ranks": [0, 1, 2, 3], "held_ranks": [0, 1, 3], "held_share": 0.4}
    plain |= {"held_mean_ns": 2e6, "lost_at_most": 0.004, "verdicts": {"undecided": 4}}
    return plain | {"effect": {"pairs": 9, "gain": 0.0, "low": -0.01, "high": 0.01}} | changes


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.01, 0.03, "gains"), (-0.03, -0.01, "costs"), (-0.01, 0.01, "no effect can be told")],
)
def test_the_words_follow_the_interval(low, high, words):
    effect = {"pairs": 9, "gain": (low + high) / 2, "low": low, "high": high}
    assert words in " ".join(pacing(found(effect=effect)))


def test_too_few_pairs_get_no_interval():
    said = " ".join(pacing(found(effect={"pairs": 3, "gain": 0.0, "low": None, "high": None})))
    assert "3 pairs" in said
    assert "too few for an interval" in said


def test_ranks_and_delays_are_named():
    assert next(pacing(found())) == (
        "pacing delayed ranks 0, 1 and 3 in 40 % of the paced ranks' steps, by 2 ms on average"
    )


def test_where_nobody_was_held_only_the_verdict_is_left():
    said = list(pacing(found(held_ranks=[], verdicts={"untested": 3, "does not pay": 1})))
    assert "delayed no rank" in said[0]
    assert said[1:] == ["result of its trials: untested (3 ranks), does not pay (1 rank)"]


def test_what_no_rank_has_tried_has_no_result():
    brief = pacing_in_brief(found(held_ranks=[], verdicts={"untested": 4}))
    assert brief == "pacing delayed no rank: none was early often enough; it was not tried"


def test_a_part_of_the_job_is_named_and_compared_with_the_rest():
    plain = {"step_mean_ns": 100e6, "step_cv": 0.1, "held": 0.05, "wait": None}
    beside = {
        "paced": plain | {"ranks": [0, 1]},
        "unpaced": plain | {"ranks": [2, 3], "held": 0.0, "wait": 0.2},
    }
    said = list(pacing(found(part="ranks 0-1", beside=beside)))
    assert said[0] == (
        "only ranks 0 and 1 may be paced, as chosen (ranks 0-1); "
        "ranks 2 and 3 only decided and recorded"
    )
    assert said[1] == (
        "paced ranks: steps of 100 ms, CV 0.1, delayed 5 % of the time; "
        "unpaced ranks: steps of 100 ms, CV 0.1, delayed 0 % of the time, waiting 20 %"
    )


@pytest.mark.parametrize(("reason", "told"), [("", True), ("the collector pauses", False)])
def test_of_an_action_that_was_not_tried_it_is_said_where_it_applies(reason, told):
    untested = {"action": "gc", "rank": 0, "word": "untested", "reason": reason}
    (said,) = describe_actions({"acted": [untested]})
    assert ("that the script has not called" in said) == told


@pytest.mark.parametrize(
    ("action", "limits"),
    [("gc", (garbage.WORTH, garbage.LONG)), ("cores", (cores.WORTH,))],
)
def test_where_an_action_applies_is_told_by_its_own_limits(action, limits):
    told = [float(share) / 100 for share in re.findall(r"([\d.]+) %", APPLIES[action])]
    assert told == pytest.approx(limits)
