"""A change of pacing on its way from a file to every rank."""

import os
import select
from collections import deque
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent import control
from evenstep.agent.control import (
    LOOK_STEPS,
    Control,
    folder_identity,
    lead,
    mode_fact,
    record,
)
from evenstep.agent.exchange.live import LiveView
from evenstep.agent.notes import Notes
from evenstep.agent.settings import config, request
from evenstep.agent.settings.request import SettingsChange
from evenstep.agent.settings.selection import Selection, Whereabouts
from evenstep.agent.steering import StartingMode, Steering
from evenstep.errors import ConfigError
from evenstep.pacing import PacerSettings
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool

ON = SettingsChange(1, "on", 0.02, 0.2)
STEP_NS = 100_000_000
BAR_STEPS = 10  # a change is in force on all ranks after so many steps


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


@pytest.fixture(autouse=True)
def all_closed(monkeypatch):
    """No ear outlives its test: on all of a machine a user has 128 watches of folders, or fewer."""
    made, begin = [], Control.__init__
    monkeypatch.setattr(
        Control, "__init__", lambda ear, *args, **how: made.append(ear) or begin(ear, *args, **how)
    )
    yield
    for ear in made:
        ear.close()


@pytest.fixture
def run(tmp_path):
    """The run's folder, as two nodes see it: the second has one of its own."""
    for node in ("a", "b"):
        (tmp_path / node / "attempt-000").mkdir(parents=True)
    return tmp_path


def ranks(*folders, store=None, together=False, near=True):
    """The ears of ranks that record in these folders, the first of them rank 0's."""
    found = [Control(at, "r", leads=rank == 0, near=near) for rank, at in enumerate(folders)]
    if store is not None:
        connect(found, store, together=together)
    return found


def connect(ears, store, *, together, times=1):
    """Each as in a process of its own, that attaches for the n-th time."""
    for each in ears:
        control._connections = count(times)
        each.connect(store, "run/0", world=len(ears), together=together)


def steps(ears, first=0, count=1):
    """So many steps of all ranks, with a look of the background after each; what is due then."""
    for step in range(first, first + count):
        for each in ears:
            each.poll(step, STEP_NS)
    return [list(each.due) for each in ears]


def test_each_rank_alone_hears_of_a_change_once_and_at_the_next_step(run):
    ears = ranks(run / "a", run / "a")
    assert steps(ears) == [[], []]
    request.write(run / "a", ON, "r")
    assert steps(ears) == steps(ears) == [[ON], [ON]]


def test_the_kernel_says_when_the_file_is_written_and_of_no_other(run):
    ear = ranks(run / "a")[0]
    LiveView(run / "a").update([], None)
    assert not select.select([ear.written.fd], [], [], 0)[0]
    request.write(run / "a", ON, "r")
    assert ear.needs_polling
    ear.poll(0, STEP_NS)
    assert (list(ear.due), ear.needs_polling) == ([ON], False)
    ear.close()


def test_where_the_kernel_cannot_tell_the_background_looks(run):
    ear = ranks(run / "a", near=False)[0]
    assert ear.needs_polling
    request.write(run / "a", ON, "r")
    ear.poll(0, STEP_NS)
    assert list(ear.due) == [ON]


@pytest.mark.parametrize("other", ["a", "b"])
@pytest.mark.parametrize("near", [True, False])
def test_ranks_that_pace_together_are_told_one_step_ahead_of_them_all(run, other, near):
    ears = ranks(run / "a", run / other, store=Store(), together=True, near=near)
    steps(ears, count=3)  # they find out who reads where
    request.write(run / "a", ON, "r")
    leader, follower = steps(ears, first=50, count=2)
    assert leader == follower
    assert 51 < leader[0].first_step <= 50 + BAR_STEPS - LOOK_STEPS


def test_a_node_with_a_folder_of_its_own_is_told_through_the_store(run):
    ears = ranks(run / "a", run / "b", store=Store())
    steps(ears, count=2)
    request.write(run / "a", ON, "r")
    assert steps(ears, count=2) == [[ON], [ON]]
    assert not (run / "b" / request.FILE).exists()


def test_what_is_asked_on_another_node_is_asked_of_that_node(run):
    ears = ranks(run / "a", run / "b", store=Store())
    request.write(run / "b", ON, "r")
    assert steps(ears, count=3) == [[], [ON]]


def test_rank_zeros_word_comes_before_an_older_view_of_the_file(run):
    ears = ranks(run / "a", run / "b", store=Store())
    steps(ears, count=2)
    for number in (1, 2):
        request.write(run / "a", ON._replace(number=number), "r")
        steps(ears, count=2)
    request.write(run / "b", ON, "r")  # what a server shows of number 1
    assert [change.number for change in steps(ears)[1]] == [1, 2]


def test_background_rests_between_rounds_where_all_see_the_file(run):
    apart, same = (ranks(run / "a", run / other, store=Store()) for other in "ba")
    for ears in (apart, same):
        steps(ears, count=2)
    assert [ear.needs_polling for ear in apart] == [True, True]
    assert [ear.needs_polling for ear in same] == [False, False]


def test_background_that_is_woken_between_rounds_has_something_to_do(run):
    ears = ranks(run / "a", run / "a", store=Store(), together=True)
    steps(ears, count=2)
    request.write(run / "a", ON, "r")
    heard = []
    for ear in ears:
        heard.append(ear.needs_polling)
        ear.poll(2, STEP_NS)
    assert heard == [True, True]
    steps(ears)  # rank 0 has written a file itself
    assert [ear.needs_polling for ear in ears] == [False, False]


def test_many_ranks_share_the_store_of_one(run):
    ear = Control(run / "a", "r", leads=False)
    ear.connect(Store(), "run/0", world=4096, together=False)
    assert ear.poll(0, STEP_NS) == pytest.approx(4096 * 1e6)  # 1,000 looks a second


def test_a_change_read_before_the_store_was_there_is_told_to_all(run):
    ears = ranks(run / "a", run / "a")
    request.write(run / "a", ON, "r")
    ears[0].poll(0, STEP_NS)
    store = Store()
    connect(ears, store, together=True)
    assert [change.number for change in steps(ears, count=2)[1]] == [1]


def test_what_was_said_before_a_detach_is_not_heard_after_the_next_attach(run):
    store = Store()
    ears = ranks(run / "a", run / "b", store=store)
    request.write(run / "a", ON, "r")
    steps(ears, count=3)
    again = ranks(run / "b", run / "a")
    connect(again, store, together=True, times=2)
    again[1].poll(0, STEP_NS)  # before rank 0 has said where it is
    assert [list(ear.due) for ear in again] == [[], []]
    assert again[1]._sees_folder is None


@pytest.mark.parametrize("ended", [False, True])
def test_ranks_that_meet_again_go_on_in_the_store_of_now(run, ended):
    ears = ranks(run / "a", run / "b", store=Store(), together=True)
    steps(ears, count=3)
    request.write(run / "a", ON, "r")
    steps(ears, count=3)
    if ended:  # the old one was found to be gone first
        for ear in ears:
            ear.disconnect()
    anew = Store()
    for ear in ears:
        ear.reconnect(anew, together=True)
    steps(ears, first=10, count=3)
    request.write(run / "a", ON._replace(number=2), "r")
    leader, follower = steps(ears, first=20, count=4)
    assert [change.number for change in follower] == [1, 2]
    assert leader[-1] == follower[-1]


def test_without_its_store_a_rank_reads_the_file_itself(run):
    ears = ranks(run / "a", run / "a", store=Store(), together=True)
    ears[1].disconnect()
    request.write(run / "a", ON, "r")
    assert steps(ears[1:]) == [[ON]]


def test_what_was_asked_of_another_run_in_the_folder_does_not_count(run):
    request.write(run / "a", ON, "an earlier run")
    assert steps(ranks(run / "a", run / "a")) == [[], []]


def test_a_home_is_one_folder_of_one_kernel(run):
    (run / "link").symlink_to(run / "a")
    assert folder_identity(run / "link") == folder_identity(run / "a") != folder_identity(run / "b")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 4000,
        "{}",
        '{"schema": "evenstep.control/1", "number": 0}',
        '{"schema": "evenstep.control/1", "run_id": "r", "number": 1, "mode": "fast"}',
        '{"schema": "evenstep.control/1", "run_id": "r", "number": 1, "mode": "on", "ranks": "x"}',
    ],
)
def test_a_damaged_file_is_said_once(run, content):
    (run / "a" / request.FILE).write_text(content)
    ear = ranks(run / "a")[0]
    with pytest.raises(ConfigError, match=r"control\.json"):
        ear.poll(0, STEP_NS)
    ear.poll(1, STEP_NS)
    assert not ear.due


def planted(path, kind):
    """Something that is no request of this user's."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "long":
        path.write_bytes(request.encode(ON, "r").ljust(request.MOST_BYTES + 1))
    elif kind == "everybody's":
        path.write_bytes(request.encode(ON, "r"))
        path.chmod(0o666)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "long", "everybody's"])
def test_what_somebody_planted_is_not_followed_and_not_waited_for(run, kind):
    planted(run / "a" / request.FILE, kind)
    ear = ranks(run / "a")[0]
    with pytest.raises(ConfigError, match=r"control\.json is not followed"):
        ear.poll(0, STEP_NS)
    assert not ear.due


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_strangers_request_is_not_followed(run):
    path = request.write(run / "a", ON, "r")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        ranks(run / "a")[0].poll(0, STEP_NS)


@pytest.mark.parametrize(
    "said",
    [b"[1, 2, 3]", b"[]", b"{", b"[" * 4000, b'{"schema": "evenstep.control/1", "number": 1}',
     request.encode(ON._replace(max_delay=1e9), "r"), request.encode(ON._replace(mode="x"), "r"),
     request.encode(ON, "r").ljust(request.MOST_BYTES + 1)],
)  # fmt: skip
def test_what_comes_by_the_store_is_validated_as_a_file_is(run, said):
    store = Store()
    ears = ranks(run / "a", run / "b", store=store)
    steps(ears, count=2)
    store.set(ears[1]._key, said)
    with suppress(ConfigError):
        ears[1].poll(0, STEP_NS)
    ears[1].poll(1, STEP_NS)  # it was said once
    assert not ears[1].due


def test_a_planted_scratch_name_is_not_written_through(run):
    target = run / "precious"
    target.write_text("mine")
    for name in (f".{request.FILE}.{os.getpid()}", f".run.json.{os.getpid()}"):
        (run / "a" / name).symlink_to(target)
    request.write(run / "a", ON, "r")
    RunFolder(run / "a").write({"run_id": "r"})
    assert target.read_text() == "mine"


@pytest.mark.parametrize("broken", ["read", "write"])
def test_what_could_not_be_taken_once_is_taken_later(run, broken, monkeypatch):
    ear = ranks(run / "a", store=Store(), together=True)[0]
    request.write(run / "a", ON, "r")
    with monkeypatch.context() as patch:
        patch.setattr(control, broken, refuse)
        with pytest.raises(ConfigError):
            ear.poll(0, STEP_NS)
    ear.poll(1, STEP_NS)
    assert not ear.due  # a file that stays damaged is not read in every step
    monkeypatch.setattr(control, "monotonic_ns", lambda: 1 << 62)
    ear.poll(2, STEP_NS)
    assert [change.number for change in ear.due] == [1]


def refuse(*_, **__):
    raise ConfigError("half written")


@given(step_ns=st.integers(1, 10**11), listening_ns=st.integers(0, 10**11))
def test_every_rank_has_looked_before_the_step_comes(step_ns, listening_ns):
    assert (lead(step_ns, listening_ns) - 2) * step_ns >= listening_ns


@given(
    mode=st.sampled_from(["on", "off", "observe"]),
    threshold=st.none() | st.floats(0, 0.99),
    max_delay=st.none() | st.floats(0, 0.49),
    chosen=st.booleans(),
)
def test_a_pacer_follows_what_is_given_and_keeps_the_rest(mode, threshold, max_delay, chosen):
    before = PacerSettings(imbalance=0.05, max_delay=0.15, sharing=True)
    after = SettingsChange(1, mode, threshold, max_delay).applied_to(before, chosen=chosen)
    assert after.mode == ("observe" if mode == "on" and not chosen else mode)
    assert after.imbalance == (0.05 if threshold is None else threshold)
    assert after.max_delay == (0.15 if max_delay is None else max_delay)
    assert after.sharing


def test_a_part_is_narrowed_kept_and_lifted(run):
    asked = request.valid({"mode": "on", "ranks": "3,0-1", "first_nodes": "2"}, number=1)
    part = asked.part_of(Selection(nodes="gpu[1-2]"))
    assert part == Selection("0-1,3", "gpu[1-2]", None, 2)
    lifted = request.valid({"mode": "on", "ranks": "all", "first_nodes": "all"}, number=2)
    request.write(run / "a", lifted, "r")
    assert request.read(run / "a", "r").part_of(part) == Selection(nodes="gpu[1-2]")


def test_a_rank_says_its_part_only_where_there_is_one():
    assert mode_fact("on", "on", Selection()) == {"mode": "on"}
    beside = {"mode": "observe", "asked": "on", "part": "ranks 0-3"}
    assert mode_fact("on", "observe", Selection(ranks="0-3")) == beside


def test_the_trace_says_who_asked_for_what_from_which_step_on(tmp_path):
    path = tmp_path / "rank-00000.spool"
    spool = Spool.create(path, {"rank": 0}, ring_bytes=10_000, summary_bytes=10_000)
    asked = SettingsChange(3, "on", act="pace,cores")
    record(spool, asked, PacerSettings(mode="observe"), Selection(ranks="1"), step=7)
    spool.shut()
    found = read_spool(path)
    (row,) = found.records
    assert (row["kind"], row["step"]) == (Kind.PACING, 7)
    said = PacerSettings()
    ends = f"(threshold {said.imbalance:g}, max delay {said.max_delay:g})"
    assert found.names[int(row["name"])] == f"asked to: observe, act pace,cores {ends}"
    assert found.facts["pace"] == {
        "mode": "observe", "asked": "on", "part": "ranks 1", "threshold": said.imbalance,
        "max_delay": said.max_delay, "request": 3, "since_step": 7,
    }  # fmt: skip


def test_a_killed_pacer_stays_killed():
    from evenstep.pacing import Pacer, Reason

    pacer = Pacer(PacerSettings(mode="on"))
    pacer.kill()
    pacer.settings = ON.applied_to(pacer.settings)
    decision = pacer.decide(1)
    assert (decision.delay_ns, decision.reason) == (0, Reason.KILLED)


@pytest.mark.parametrize(
    ("act", "mode", "meant"),
    [
        ("pace,gc", None, "on"),
        ("gc", None, "observe"),
        ("gc", "off", "off"),
        ("pace", "off", "on"),
        ("off", "on", "observe"),
        (None, "on", "on"),
    ],
)
def test_pacing_is_one_of_the_actions_that_are_asked_for(act, mode, meant):
    change = request.valid({"act": act, "mode": mode}, number=3)
    assert (change.number, change.mode, change.act) == (3, meant, act and request.valid(
        {"act": act}, number=1).act)  # fmt: skip


def test_the_folder_of_a_part_that_is_not_there_is_not_watched(tmp_path):
    (tmp_path / "here").mkdir()
    assert control.watch_folder(tmp_path / "here", tmp_path / "gone") == -1
    fd = control.watch_folder(tmp_path / "here")
    (tmp_path / "here" / "file").write_text("x")
    assert select.select([fd], [], [], 0)[0]
    os.close(fd)


@pytest.mark.parametrize(
    ("store", "step_ns", "rest_ns"),
    [
        (False, 10**9, 2 * 10**9),  # two steps
        (False, 1, 20_000_000),
        (True, 1, 250_000_000),  # until it is known who sees which folder
        (True, 10**9, 2 * 10**9),
    ],
)
def test_a_look_comes_two_steps_after_the_last(run, store, step_ns, rest_ns):
    ear = ranks(run / "a", run / "a", store=Store() if store else None)[1]
    assert ear.poll(0, step_ns) == rest_ns


@pytest.mark.parametrize(("leads", "sharing", "note"), [
    (True, True, "pace.sharing is on, but this rank shares nothing"), (False, False, None),
])  # fmt: skip
def test_pacing_that_cannot_act_is_said_once(leads, sharing, note):
    facts, applied = [], []
    spool = SimpleNamespace(add_fact=lambda *fact: facts.append(fact))
    work = SimpleNamespace(
        at_once=True, sharing=None, pace=SimpleNamespace(can_hold=True), process_pending=int
    )
    settings = config.resolve({"pace.mode": "on", "pace.sharing": sharing}, {}, {})
    start = StartingMode(settings, Whereabouts(0, 0, frozenset(), ""))
    made = Steering(
        start, SimpleNamespace(due=deque()), work, SimpleNamespace(spool=spool), Notes(spool),
        lambda *asked: applied.append(asked),
    )  # fmt: skip
    made.record_start()
    for step in range(2):
        made.apply_due(step)
    assert facts[0] == ("pace", {"mode": "on"})
    assert [name for name, _ in facts[1:]] == ["pacing"] * (note is not None)
    assert not note or note in facts[1][1]
    work.pace.can_hold, work.at_once = False, False
    made.apply_due(2)
    assert len(facts) == 1 + (note is not None)  # nobody paces
    work.at_once = True
    made.apply_due(3)
    assert "on CUDA holds the stream" in facts[-1][1] or note


def test_a_request_holds_from_its_step_on_and_ends_those_before(monkeypatch):
    asked, recorded, ended = [], [], []
    settings = config.resolve({}, {}, {})
    start = StartingMode(settings, Whereabouts(3, 0, frozenset(), ""))
    pacer = SimpleNamespace(settings=PacerSettings())
    work = SimpleNamespace(
        at_once=False, sharing=None, process_pending=lambda: ended.append(pacer.settings.mode),
        pace=SimpleNamespace(can_hold=True, pacer=pacer),
    )  # fmt: skip
    due = deque([ON._replace(act="gc,pace", first_step=9), ON._replace(mode="off", first_step=30)])
    made = Steering(
        start, SimpleNamespace(due=due), work, SimpleNamespace(spool=None), None,
        lambda *how: asked.append(how),
    )  # fmt: skip
    monkeypatch.setattr(
        "evenstep.agent.steering.record", lambda *what, step: recorded.append((what[1], step))
    )
    made.apply_due(7)
    assert (len(due), work.at_once) == (2, False)
    made.apply_due(8)
    assert asked == [(["gc", "pace"], 9)]
    assert [step for _, step in recorded] == [9]
    assert (work.at_once, pacer.settings.mode, pacer.settings.imbalance) == (True, "on", 0.02)
    due.append(ON._replace(number=2, ranks="0-2", first_step=0))  # without this rank
    made.apply_due(10)
    assert (work.at_once, pacer.settings.mode, len(due)) == (False, "observe", 0)
    assert ended == ["observe", "on"]  # steps that have ended are decided as they were asked then


def test_folders_that_cannot_be_watched_leave_nothing_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(8):
        assert control.watch_folder(tmp_path, tmp_path / "gone") == -1
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
