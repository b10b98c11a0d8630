"""Real jobs that break: the headline says what, and what breaks of ours stays with us.

Few and short; `python -m benchmarks deaths` and `… seams` run all of them.
"""

from benchmarks import deaths, seams, stacks
from benchmarks.deaths import Case, Outcome
from benchmarks.ranks import run_ranks
from tests.forks import python


def test_what_broke_is_the_first_finding_and_names_the_culprit(monkeypatch):
    monkeypatch.setattr("sys.executable", python())
    case = Case("skipped", "hang")
    assert deaths.ended(case, 2).right(case, 2)


def test_failures_of_ours_reach_no_training_and_change_no_loss(tmp_path):
    options = ("--every", "40", "--at", "1")
    found = run_ranks(seams.JOB, str(tmp_path), *options, world=2, timeout_s=120, python=python())
    assert found["different"] == []
    assert found["reached"] > 0


def test_a_row_is_met_only_when_every_job_was_right():
    case = Case("SIGKILL", "rank_failed")
    good, bad = (Outcome("rank_failed", [rank], 0.5, [], "") for rank in (1, 0))
    assert deaths.rows([(case, 2, good)])[0].met
    assert not deaths.rows([(case, 2, good), (case, 2, bad)])[0].met


def test_a_late_rank_that_was_never_told_misses_the_bar():
    assert not stacks.told("", [None])[0].met
    assert stacks.told("", [2.0, 4.9])[0].met
