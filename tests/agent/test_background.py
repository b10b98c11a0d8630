"""What goes round on the background thread, without the thread."""

import json
import time
from types import SimpleNamespace

import pytest

from evenstep.agent.background import EXCHANGE_S, SOONEST_S, Background, _soon_s
from evenstep.agent.notes import Notes
from evenstep.agent.pulse.vigil import Standstill
from evenstep.agent.recording.phases import WORDS, Word
from evenstep.agent.stacks import combine
from evenstep.agent.step_work import FIRST_STEP_NS
from evenstep.errors import ConfigError
from tests.agent.test_sharing import FakeStore


class Control:
    """Counts what it is told."""

    def __init__(self):
        self.told, self.due = [], ()

    def connect(self, *_, **__):
        self.told.append("connect")

    def reconnect(self, *_, **__):
        self.told.append("reconnect")

    def disconnect(self):
        self.told.append("disconnect")

    def poll(self, *_):
        return 1


@pytest.fixture
def background():
    config = SimpleNamespace(
        share=True, pace_sharing=False, pace_threshold=0.1, sample_period_s=1.0
    )  # fmt: skip
    identity = SimpleNamespace(run_id="r", attempt=0, rank=0, local_rank=0, node=0, world=2)
    facts = {}
    spool = SimpleNamespace(add_fact=facts.__setitem__, flush=lambda: None)
    recorder = SimpleNamespace(spool=spool, sample=print, step=0)
    work = SimpleNamespace(
        sharing=None, step_ns=1, at_once=True, single_steps=False, window_over=True,
        window_due_ns=0, share_begun_step=lambda: 0,
    )  # fmt: skip
    made = Background(
        config, identity, recorder, {}, work, Control(), None, Notes(spool), lambda: None, print,
    )  # fmt: skip
    made.facts, made.work = facts, work
    return made


def gone(*_):
    raise ConnectionError("the server has left")


def test_a_rank_that_shares_nothing_processes_its_steps_when_it_is_woken(background):
    processed = []
    background.work.at_once, background._control.needs_polling = False, False
    background.work.process_pending = lambda: processed.append(1)
    assert background._between_rounds() == float("inf")
    assert processed == [1]


def test_ranks_share_from_their_first_meeting_on(background):
    for _ in range(2):
        background.connect(FakeStore, 1)
    background._join()
    assert background._control.told == ["connect"]
    assert background.work.sharing is not None


@pytest.mark.parametrize(
    ("steps", "still"), [((0, 1), (None, None)), ((0, 0), (None, "in its first"))]
)
def test_a_rank_that_cannot_reach_its_nodes_first_has_its_own_client_once_a_step_has_ended_or_hangs(
    background, steps, still
):
    store = FakeStore()
    background._identity.local_rank, background._local_world = 1, 2
    stands = iter(still)
    background._standstill = lambda: next(stands)
    background.connect(lambda: store, 77)  # a meeting of which no first rank listens here
    clients = []
    for background._recorder.step in steps:
        background._store.pump()
        clients.append(background._store._own)
    assert clients == [None, store]


def test_ranks_that_meet_again_share_in_the_store_of_now(background):
    first, second = FakeStore(), FakeStore()
    background.connect(lambda: first, 1)
    first.set = first.check = gone
    background._join()
    background._round()
    assert background.work.sharing is not None  # there was nothing to say
    background._exchange(SimpleNamespace(exchange=gone))  # of an earlier meeting: late news
    assert background.work.sharing is not None
    background.connect(lambda: second, 2)
    assert background._store._store is second
    assert background._control.told == ["connect", "reconnect"]


def test_where_a_rank_stands_still_is_told_in_the_store_of_the_latest_meeting(background):
    first, second = FakeStore(), FakeStore()
    for meeting, store in enumerate((first, second)):
        background.connect(lambda store=store: store, meeting)
    since_ns = time.monotonic_ns() - 10 * 10**9
    stands = Standstill(5, since_ns, "all_reduce 7", "train.py:3 f")
    background._alarm._standstill = lambda: stands
    background._alarm.round()
    assert not any("/still/" in key for key in first.values)
    (note,) = (value for key, value in second.values.items() if "/still/" in key)
    assert json.loads(note) == ["all_reduce 7", "train.py:3 f"]


def test_a_store_that_is_gone_leaves_each_rank_to_itself(background):
    background.connect(FakeStore, 1)
    background._join()
    background.work.sharing.exchange = gone
    background._exchange(background.work.sharing)
    assert background.work.sharing is None
    background._round()
    assert "sharing" not in background.facts  # the job may be ending
    background._recorder.step += 2
    background._round()
    assert "the server has left" in background.facts["sharing"]
    assert background._control.told[-1] == "disconnect"


@pytest.mark.parametrize(
    ("error", "left"), [(ConfigError, []), (OSError, []), (RuntimeError, ["disconnect"])]
)
def test_a_request_that_cannot_be_read_is_said_and_only_a_store_that_fails_is_left(
    background, error, left
):
    def fails(*_):
        raise error("no such request")

    background._control.poll = fails
    assert background._poll_control() == FIRST_STEP_NS
    assert "no such request" in background.facts["control"]
    assert background._control.told == left


def test_a_store_that_cannot_be_cloned_is_said_and_no_loss(background):
    background.connect(gone, 1)
    assert background.work.sharing is None
    assert background.facts["sharing"].startswith("local only")


def test_where_nobody_speaks_for_the_node_any_more_each_rank_is_left_to_itself(background):
    background.connect(FakeStore, 1)
    background._store.pump = gone
    background._pump()
    assert background._store is background._alarm.store is background.work.sharing is None
    assert background._control.told[-1] == "disconnect"
    background._pump()  # there is nobody to hear


def test_a_node_that_met_again_meanwhile_stays_together(background):
    background.connect(FakeStore, 1)

    def meets_again():
        background.connect(FakeStore, 2)
        gone()

    background._store.pump = meets_again
    background._pump()
    background._join()
    assert background.work.sharing is not None
    assert background._control.told == ["connect", "reconnect"]


@pytest.mark.parametrize("at_once", [False, True])
def test_steps_are_worked_through_here_unless_each_is_at_its_end(background, monkeypatch, at_once):
    given_up = []
    monkeypatch.setattr(background, "_give_up", given_up.append)
    background.work.at_once, background.work.process_pending = at_once, gone
    background._process_steps()
    assert [type(error) for error in given_up] == ([] if at_once else [ConnectionError])


def test_steps_wait_until_their_window_is_over(background):
    processed = []
    background.work.at_once, background.work.process_pending = False, lambda: processed.append(1)
    background.work.window_over = False
    background._process_steps()
    assert not processed
    background.work.window_over = True
    background._process_steps()
    assert processed


@pytest.mark.parametrize(
    ("due_s", "read_s", "pause_s"), [(0, 0, EXCHANGE_S), (13, 0, 3), (13, 9, EXCHANGE_S)]
)
def test_a_rank_looks_again_when_its_window_should_be_over_or_others_are_read(
    background, monkeypatch, due_s, read_s, pause_s
):
    monkeypatch.setattr("time.monotonic_ns", lambda: 10 * 10**9)
    background._control.needs_polling = False
    background.work.window_due_ns = due_s * 10**9
    background.work.sharing = SimpleNamespace(exchange=lambda: None, due_ns=read_s * 10**9)
    assert background._between_rounds() == pause_s


@pytest.mark.parametrize(("since_s", "pause_s"), [(-3, 3), (0, SOONEST_S), (4, 2)])
def test_what_should_have_come_is_looked_for_after_half_as_long_again(
    monkeypatch, since_s, pause_s
):
    monkeypatch.setattr("time.monotonic_ns", lambda: 10 * 10**9)
    assert _soon_s((10 - since_s) * 10**9) == pause_s


def test_hooks_that_cannot_be_polled_are_said_and_the_round_goes_on(background):
    background.once.clear()
    background._hooks["torch"] = SimpleNamespace(poll=gone)
    background._alarm = SimpleNamespace(round=lambda: background.facts.update(alarm=True))
    background._sources = []
    background._round()
    assert background.facts["hooks of torch"].startswith("ConnectionError")
    assert background.facts["alarm"]


def test_what_nccl_says_is_noted_when_it_changes(background):
    told, words = [], iter(["rank 1 fails", "rank 1 fails", "", "", "rank 1 fails"])
    background._spool = SimpleNamespace(add_fact=lambda *fact: told.append(fact))
    status = SimpleNamespace(in_words=lambda: next(words))
    background._sources = [SimpleNamespace(latest=None), SimpleNamespace(latest=status), object()]
    for _ in range(5):
        background._record_nccl()
    assert told == [("nccl", "rank 1 fails"), ("nccl", ""), ("nccl", "rank 1 fails")]


def test_what_several_stacks_say_of_themselves_is_put_together():
    first = {"mechanism": "compiled kernels", "unseen": ["a"], "on": True}
    second = {"mechanism": "mpi4py", "instead": "no compiler", "unseen": ["b"], "on": False}
    assert combine([]) == {}
    assert combine([first, second]) == {
        "mechanism": "compiled kernels, mpi4py", "instead": "no compiler", "unseen": ["a", "b"],
        "on": True,
    }  # fmt: skip


def test_windows_of_a_node_stay_there_where_messages_are_gathered_by_node(background):
    for world, gathered in ((128, True), (64, False)):
        background._identity.world, background._local_world = world, 8
        background.connect(FakeStore, world)
        stays = background._store._stays_on_node
        assert stays(f"{background._prefix}/48/r3") is gathered
        for key in ("orders", "48/n0max", "48/r3x", "x48/r3"):
            assert not stays(f"{background._prefix}/{key}")
        background.close()


def test_a_task_that_fails_is_said_and_the_next_is_done(background):
    done = []
    background._alarm, background._sources = SimpleNamespace(round=lambda: None), []
    background.once = [lambda: done.append(1), gone]
    background._round()
    assert (done, background.once) == ([1], [])
    assert background.facts["background"] == "ConnectionError: the server has left"


def test_an_alarm_whose_store_is_gone_goes_on_without(background):
    background.once.clear()
    background._alarm, background._sources = SimpleNamespace(round=gone, store=1), []
    background._round()
    assert background._alarm.store is None
    assert background.facts["alarm"].startswith("ConnectionError")


def test_a_request_that_is_due_has_the_training_thread_attend_to_it(background):
    words = background._recorder.words = [9] * WORDS
    background._poll_control()
    assert words[Word.ATTENDED] == 9
    background._control.due = ["a change"]
    assert background._poll_control() == 1
    assert words[Word.ATTENDED] == 0


def test_a_complete_window_is_told_in_the_runs_folder(background, tmp_path):
    background._folder = tmp_path
    background._on_window([], None)
    assert (tmp_path / "live" / "window.json").exists()
    background._live.update = gone
    background._on_window([], None)
    assert background.facts["live"].startswith("ConnectionError")


def test_what_the_host_has_is_read_from_the_first_round_on(background, monkeypatch):
    given = []
    source = SimpleNamespace(name="host", open=lambda: None, read=lambda: [("watts", 0, 300.0)])
    monkeypatch.setattr("evenstep.host.sources.all_sources", lambda **_: [source])
    monkeypatch.setattr(background, "_record_locality", lambda: None)
    monkeypatch.setattr(background.sampler, "_emit", lambda *reading: given.append(reading))
    background._control.needs_polling = False
    background.sampler.tick()
    background.sampler.tick()
    assert given[:1] == [("watts", 0, 300.0)]


def test_sources_that_give_nothing_are_said_whenever_that_changes(background):
    told = []
    background._spool = SimpleNamespace(add_fact=lambda *fact: told.append(fact))
    background.record_absent()
    for absent in ({"nvml": "none"}, {"nvml": "none"}, {}):
        background.sampler._absent = absent
        background.record_absent()
    assert told == [("absent", {"nvml": "none"}), ("absent", {})]


@pytest.mark.parametrize(
    ("share", "world", "meeting", "shares"),
    [(True, 2, 1, True), (False, 2, 1, False), (True, 1, 1, False), (True, 2, None, False)],
)
def test_only_jobs_of_several_ranks_that_may_share_do(background, share, world, meeting, shares):
    background._config.share, background._identity.world = share, world
    background.connect(FakeStore, meeting)
    background._join()
    assert (background.work.sharing is not None) is shares


@pytest.mark.parametrize("shares", [True, False])
def test_where_steps_are_windows_the_next_look_is_when_the_next_message_is_due(
    background, monkeypatch, shares
):
    """Now it is 10 s; the open step's first collective is expected at 10.1, others' at 10.02."""
    monkeypatch.setattr("time.monotonic_ns", lambda: 10 * 10**9)
    background._control.needs_polling = False
    background.work.single_steps = True
    background.work.share_begun_step = lambda: 10_100_000_000
    if not shares:
        assert background._between_rounds() == float("inf")
        return
    for due_ns, pause_s in ((0, 0.1), (10_020_000_000, 0.02), (9_000_000_000, 0.1)):
        background.work.sharing = SimpleNamespace(exchange=lambda: None, due_ns=due_ns)
        assert background._between_rounds() == pytest.approx(pause_s)
    background.work.share_begun_step = lambda: 0
    assert background._between_rounds() == EXCHANGE_S
    background._control.needs_polling = True
    assert background._between_rounds() == 1e-9  # as the control says


def test_the_device_is_the_first_that_any_hooks_know(background):
    assert background.device_index is None
    for name, index in (("mpi", None), ("torch", 3), ("jax", 5)):
        background._hooks[name] = SimpleNamespace(device_index=index)
    assert background.device_index == 3


def test_the_store_of_a_meeting_before_is_left(background):
    background.connect(FakeStore, 1)
    first = background._store
    background.connect(FakeStore, 2)
    assert first._listener.fileno() == -1
    second = background._store
    background.close()
    assert second._listener.fileno() == -1
