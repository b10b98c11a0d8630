"""A change of pacing on its way from a file to every rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent import control
from evenstep.agent.control import Change, Control, lead
from evenstep.errors import ConfigError
from evenstep.pacing import PacerSettings

ON = Change(1, "on", 0.02, 0.2)
LOOK = {"step_ns": 100_000_000, "period_ns": 1_000_000_000}


class Store:
    """What a rank may do to the job's store from the background: nothing that blocks."""

    def __init__(self):
        self.kept = {}

    def set(self, key, value):
        self.kept[key] = value

    def check(self, keys):
        return all(key in self.kept for key in keys)

    def multi_get(self, keys):
        return [self.kept[key] for key in keys]


def ranks(folder, store=None):
    """The ears of two ranks."""
    found = [Control(folder, "r", leads=rank == 0) for rank in range(2)]
    for each in found:
        if store is not None:
            each.connect(store, "run/0")
    return found


def looks(ears, step=0):
    for each in ears:
        each.poll(step, **LOOK)
    return [list(each.due) for each in ears]


def test_each_rank_alone_hears_of_a_change_once(tmp_path):
    ears = ranks(tmp_path)
    assert looks(ears) == [[], []]
    control.write(tmp_path, ON, "r")
    assert looks(ears) == looks(ears) == [[ON], [ON]]


def test_ranks_that_pace_together_are_told_one_step_ahead_of_them_all(tmp_path):
    ears = ranks(tmp_path, Store())
    control.write(tmp_path, ON, "r")
    leader, other = looks(ears, step=50)
    assert leader == other
    assert leader[0].first_step == 50 + lead(LOOK["step_ns"], LOOK["period_ns"])


def test_every_rank_has_looked_before_the_step_comes():
    # 0.1 s a step, 1 s between looks: one look is ten steps
    assert lead(100_000_000, 1_000_000_000) > 2 * 10


def test_a_change_read_before_the_store_was_there_is_told_to_all(tmp_path):
    ears = ranks(tmp_path)
    control.write(tmp_path, ON, "r")
    ears[0].poll(0, **LOOK)
    store = Store()
    for each in ears:
        each.connect(store, "run/0")
    assert [change.number for change in looks(ears)[1]] == [1]


def test_without_its_store_a_rank_reads_the_file_itself(tmp_path):
    ears = ranks(tmp_path, Store())
    ears[1].disconnect()
    control.write(tmp_path, ON, "r")
    assert looks(ears[1:]) == [[ON]]


def test_what_was_asked_of_another_run_in_the_folder_does_not_count(tmp_path):
    control.write(tmp_path, ON, "an earlier run")
    assert looks(ranks(tmp_path)) == [[], []]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "evenstep.control/1", "number": 0}',
        '{"schema": "evenstep.control/1", "run_id": "r", "number": 1, "mode": "fast"}',
    ],
)
def test_a_damaged_file_is_said_once(tmp_path, content):
    (tmp_path / control.FILE).write_text(content)
    ear = ranks(tmp_path)[0]
    with pytest.raises(ConfigError, match=r"control\.json"):
        ear.poll(0, **LOOK)
    ear.poll(1, **LOOK)
    assert not ear.due


@given(
    mode=st.sampled_from(["on", "off", "observe"]),
    threshold=st.none() | st.floats(0, 0.99),
    max_delay=st.none() | st.floats(0, 0.49),
)
def test_a_pacer_follows_what_is_given_and_keeps_the_rest(mode, threshold, max_delay):
    before = PacerSettings(imbalance=0.05, max_delay=0.15, sharing=True)
    after = Change(1, mode, threshold, max_delay).applied_to(before)
    assert after.mode == mode
    assert after.imbalance == (0.05 if threshold is None else threshold)
    assert after.max_delay == (0.15 if max_delay is None else max_delay)
    assert after.sharing


def test_a_killed_pacer_stays_killed():
    from evenstep.pacing import Pacer, Reason

    pacer = Pacer(PacerSettings(mode="on"))
    pacer.kill()
    pacer.settings = ON.applied_to(pacer.settings)
    decision = pacer.decide(1)
    assert (decision.delay_ns, decision.reason) == (0, Reason.KILLED)
