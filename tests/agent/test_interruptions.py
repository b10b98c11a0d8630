"""When the log says that training stands still for all ranks together."""

import pytest

from evenstep.agent.pulse.alarm import Interruptions
from evenstep.agent.recording.steps import ClosedStep
from evenstep.trace.spool.layout import Phase

MS = 1_000_000


def said(caplog, steps, every, lasts_ms, phase=Phase.CHECKPOINT, step_ms=50):
    """The lines of a job of so many steps, each `every`-th of which has the phase."""
    watch, now = Interruptions(), 0
    for number in range(steps):
        account = [0] * len(Phase)
        account[phase] = int(lasts_ms * MS) * (number % every == every - 1)
        since, now = now, now + step_ms * MS + account[phase]
        watch.add(ClosedStep(number, since, now, account))
    return [record.message for record in caplog.records]


def test_checkpoints_are_told_once_with_their_share_of_the_time(caplog):
    """Every fifteenth step of 50 ms has one of 750 ms: half of the time."""
    assert said(caplog, 90, 15, 750) == [
        "evenstep: training stands still for checkpoints, 750 ms each, 50 % of the time, "
        "in 2 of 30 steps looked at"
    ]


def test_two_whole_periods_are_needed(caplog):
    assert not said(caplog, 44, 15, 750)
    assert said(caplog, 45, 15, 750)


@pytest.mark.parametrize(("lasts_ms", "lines"), [(25, 0), (39, 0), (40, 1)])
def test_what_costs_less_than_watch_tells_is_not_told(caplog, lasts_ms, lines):
    """25 of 775 ms are 3.2 %, 39 of 789 are 4.9 %, 40 of 790 are 5.1 %."""
    assert len(said(caplog, 90, 15, lasts_ms)) == lines


def test_evaluations_have_their_own_line(caplog):
    [line] = said(caplog, 60, 10, 500, Phase.EVALUATION)
    assert line.startswith("evenstep: training stands still for evaluations, 500 ms each, 50 %")


def test_what_more_than_half_of_the_steps_have_is_no_interruption(caplog):
    assert not said(caplog, 90, 1, 500, Phase.EVALUATION)
    assert said(caplog, 90, 2, 500, Phase.EVALUATION)
