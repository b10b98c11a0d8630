"""What rank 0 says while the job runs."""

import json
import logging

import pytest

from evenstep.agent.exchange.live import STEADY, LiveView
from evenstep.agent.exchange.windows import Late
from evenstep.trace.spool.layout import WINDOW_STEPS
from tests.agent.test_sharing import report


@pytest.fixture
def view(tmp_path):
    return LiveView(tmp_path)


def late(rank, window=0):
    return Late(rank, window, 5_000_000, 0.25, 3)


def test_the_file_says_who_is_late_in_which_steps_and_how_often(view):
    view.update([report(0, 4), report(1, 4)], None)
    view.update([report(0, 5), report(1, 5)], late(1, 5))
    said = json.loads(view.path.read_text())
    assert said["steps"] == [5 * WINDOW_STEPS, 6 * WINDOW_STEPS - 1]
    assert said["late"]["rank"] == 1
    assert (said["windows"], said["late_windows"]) == (2, {"1": 1})
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1]


def test_the_file_is_replaced_whole_and_nothing_is_left_beside_it(view):
    view.update([report(0, 0)], None)
    assert [path.name for path in view.path.parent.iterdir()] == ["live.json"]


def test_a_folder_that_is_gone_is_the_callers_to_handle(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        LiveView(tmp_path / "gone").update([report(0, 0)], None)


def said_of(view, caplog, ranks):
    """Lines of the log after windows in which these ranks (None: nobody) were late."""
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for window, rank in enumerate(ranks):
            view.update([report(0, window)], None if rank is None else late(rank, window))
    return [record.getMessage() for record in caplog.records]


def test_a_rank_that_stays_late_is_told_once_and_its_recovery_too(view, caplog):
    lines = said_of(view, caplog, [2] * 5 * STEADY + [None] * 5 * STEADY)
    assert [line.split(":")[1].strip()[:16] for line in lines] == [
        "rank 2 is late b",
        "nobody waits for",
    ]


def test_a_rank_that_is_late_now_and_then_is_not_worth_a_line(view, caplog):
    assert said_of(view, caplog, [2, None, 1] * 10) == []


def test_a_job_where_nobody_is_late_says_nothing(view, caplog):
    assert said_of(view, caplog, [None] * 20) == []


def test_a_rank_that_is_late_in_every_step_is_told_a_window_sooner(view, caplog):
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for window in range(STEADY - 1):
            assert not caplog.records
            view.update([report(0, window)], late(2, window)._replace(always=True))
    assert "rank 2 is late" in caplog.text
