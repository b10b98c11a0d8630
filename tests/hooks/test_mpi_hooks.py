"""What hooks of MPI record of every call, and that the program's own calls stay as they are."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.agent.recording.phases import Word
from evenstep.hooks.mpi import calls
from evenstep.hooks.mpi.mpi import MpiHooks, MpiStack
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import NO_PEER, DType, Flag, Kind, Op, Phase
from tests.hooks.small_mpi import ANY_TAG, ANYBODY, NOBODY, REFUSED, small_mpi

ROW, WIDE = np.ones(8, "f4"), np.ones(32, "f4")  # 32 bytes; of all four ranks
IN_PLACE = 1
BLOCKED, LATER = int(Flag.HOST_BLOCKED), int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)


class Scene:
    """A rank on a small MPI whose hooks are installed."""

    def __init__(self, recorder):
        self.mpi, self.recorder, self.failures, self.ends = small_mpi(), recorder, [], []
        self.agent = SimpleNamespace(
            recorder=recorder, spool=recorder.spool, gate=None, counters=tuple,
            give_up=self.failures.append, end_step=self.end_step,
            end_past_step=lambda end, there, upto: recorder.end_step(end, upto=upto),
        )  # fmt: skip
        self.hooks = MpiHooks(self.mpi, self.agent)
        self.hooks.install()
        self.comm = self.mpi.Comm()

    def end_step(self, now):
        self.ends.append(now)
        self.recorder.end_step(now)

    def rows(self):
        found = read_spool(self.recorder.spool.path).records
        return found[np.isin(found["kind"], [Kind.COLLECTIVE, Kind.POINT_TO_POINT])]

    def told(self, *fields):
        return [tuple(row) for row in self.rows()[list(fields)].tolist()]

    def open(self):
        return (self.rows()["exit_ns"] == 0).tolist()


@pytest.fixture
def scene(recorder):
    made = Scene(recorder)
    yield made
    made.hooks.remove()


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "op", "sizes", "root"),
    [
        ("Allreduce", (ROW, ROW), {}, Op.ALL_REDUCE, (32, 32), NO_PEER),
        ("Allreduce", (IN_PLACE, ROW), {}, Op.ALL_REDUCE, (32, 32), NO_PEER),
        ("Allreduce", (), {"recvbuf": ROW, "sendbuf": ROW}, Op.ALL_REDUCE, (32, 32), NO_PEER),
        ("Reduce", (ROW, None), {}, Op.REDUCE, (32, 0), 3),
        ("Reduce", (ROW, ROW, "sum", 1), {}, Op.REDUCE, (32, 32), 2),
        ("Bcast", (WIDE,), {"root": 3}, Op.BROADCAST, (128, 128), 0),
        ("Bcast", (WIDE, 1), {}, Op.BROADCAST, (128, 128), 2),
        ("Allgather", (ROW, WIDE), {}, Op.ALL_GATHER, (32, 128), NO_PEER),
        ("Allgather", (IN_PLACE, WIDE), {}, Op.ALL_GATHER, (32, 128), NO_PEER),
        ("Gather", (ROW, None, 1), {}, Op.GATHER, (32, 0), 2),
        ("Scatter", (WIDE, IN_PLACE), {"root": 1}, Op.SCATTER, (128, 32), 2),
        ("Scatter", (None, ROW, 1), {}, Op.SCATTER, (32, 32), 2),
        ("Reduce_scatter_block", (WIDE, ROW), {}, Op.REDUCE_SCATTER, (128, 32), NO_PEER),
        ("Alltoallv", (ROW, WIDE), {}, Op.ALL_TO_ALL, (32, 128), NO_PEER),
        ("Barrier", (), {}, Op.BARRIER, (0, 0), NO_PEER),
        ("Exscan", (ROW, ROW), {}, Op.OTHER, (32, 32), NO_PEER),
        ("allreduce", (3,), {}, Op.ALL_REDUCE, (0, 0), NO_PEER),
        ("allreduce", (ROW,), {}, Op.ALL_REDUCE, (32, 32), NO_PEER),
        ("bcast", (b"text",), {"root": 2}, Op.BROADCAST, (4, 4), 1),
        ("gather", (ROW, 1), {}, Op.GATHER, (32, 0), 2),
    ],
)  # fmt: skip
def test_a_collective_is_recorded_and_made_once(scene, name, args, kwargs, op, sizes, root):
    scene.recorder.words[Word.LAST_ENTRY] = 1
    assert getattr(scene.comm, name)(*args, **kwargs) == f"of {name}"
    fields = ("op", "bytes_in", "bytes_out", "peer_or_root", "flags", "group_seq")
    assert scene.told(*fields) == [(op, *sizes, root, BLOCKED, 0)]
    assert not any(scene.open())
    assert scene.recorder.words[Word.LAST_ENTRY] == 0
    assert scene.mpi.made == [(name, args, kwargs)]
    assert not scene.failures


@pytest.mark.parametrize("name", sorted(calls.NONBLOCKING))
def test_what_does_not_block_is_open_until_it_was_waited_for(scene, name):
    call = calls.NONBLOCKING[name]
    request = getattr(scene.comm, name)(*[ROW][: len(call.parameters)])
    assert scene.told("op", "flags") == [(call.op, LATER)]
    assert scene.open() == [True]
    assert scene.recorder.words[Word.LAST_ENTRY] == scene.rows()["enter_ns"][0]
    scene.mpi.result = "waited"
    assert request.Wait() == "waited"
    assert scene.open() == [False]
    assert scene.recorder.words[Word.LAST_ENTRY] == 0


def test_the_type_of_what_moves_is_that_of_either_buffer(scene):
    scene.comm.Allreduce(ROW, ROW)
    scene.comm.Allreduce(IN_PLACE, ROW)
    scene.comm.Scatter(None, np.ones(4))
    assert scene.told("dtype") == [(DType.FLOAT32,), (DType.FLOAT32,), (DType.FLOAT64,)]


def test_a_gate_is_asked_before_each_collective_and_its_failure_is_ours(scene):
    asked = []
    scene.hooks.pause_by(lambda: asked.append(len(scene.mpi.made)))
    scene.comm.Barrier()
    scene.comm.Ibarrier()
    scene.comm.Send(ROW, 1)
    assert asked == [0, 1]
    scene.hooks.pause_by(lambda: 1 / 0)
    assert scene.comm.Barrier() == "of Barrier"
    assert [type(one) for one in scene.failures] == [ZeroDivisionError]


@pytest.mark.parametrize(
    ("name", "args"),
    [("Bcast", (ROW, 0, REFUSED)), ("Ibarrier", (REFUSED,)), ("Send", (ROW, 1, 2, REFUSED))],
)
def test_a_call_that_mpi_refuses_ends_as_failed_and_raises_for_the_program(scene, name, args):
    with pytest.raises(scene.mpi.Exception, match=name):
        getattr(scene.comm, name)(*args)
    assert scene.open() == [False]
    assert scene.rows()["flags"][0] & Flag.FAILED
    scene.comm.Barrier()
    assert len(scene.rows()) == 2
    assert not scene.failures


@pytest.mark.parametrize("name", ["Barrier", "Ibarrier", "Send"])
@pytest.mark.parametrize("ours", [False, True])
def test_a_failure_of_our_part_ends_observation_but_not_the_call(scene, name, ours):
    error = RuntimeError("ours") if ours else scene.mpi.Exception("a freed communicator")

    def fail():
        raise error

    scene.comm.Get_group = fail
    result = getattr(scene.comm, name)(*[ROW, 1][: 2 * (name == "Send")])
    assert result == f"of {name}" if name != "Ibarrier" else result.handle == 5
    assert scene.failures == [error] * ours
    scene.mpi.Comm(7).Barrier()
    assert len(scene.rows()) == (not ours)


def test_a_thread_beside_the_training_one_waits_for_itself(scene):
    scene.recorder.words[Word.LAST_ENTRY] = 7
    before = list(scene.recorder.stack.leaf_ns)
    other = threading.Thread(target=lambda: [scene.comm.Barrier() for _ in range(64)])
    other.start()
    other.join()
    assert scene.recorder.words[Word.LAST_ENTRY] == 7
    assert list(scene.recorder.stack.leaf_ns) == before
    assert not scene.ends
    assert set(scene.rows()["thread"].tolist()) == {1}


def test_the_time_in_a_blocking_call_is_waited(scene):
    scene.hooks.pause_by(lambda: time.sleep(0.002))  # before the call: no wait
    scene.comm.Barrier()
    row = scene.rows()[0]
    assert scene.recorder.stack.leaf_ns[Phase.SYNC] == row["exit_ns"] - row["enter_ns"]


def test_messages_have_peer_tag_and_number_of_their_kind(scene):
    comm = scene.comm
    assert comm.Send(ROW, 1, 7) == "of Send"
    comm.send(b"abc", dest=1)
    comm.Isend(ROW, dest=1, tag=7)
    comm.Recv(WIDE, 1, 7)
    comm.Irecv(WIDE, source=0, tag=7)
    comm.Send(ROW, NOBODY)
    fields = ("op", "bytes_in", "peer_or_root", "payload", "group_seq", "flags", "dtype")
    assert scene.told(*fields) == [
        (Op.SEND, 32, 2, 7, 0, BLOCKED, DType.FLOAT32),
        (Op.SEND, 3, 2, 0, 0, BLOCKED, 0),
        (Op.SEND, 32, 2, 7, 1, LATER, DType.FLOAT32),
        (Op.RECV, 128, 2, 7, 0, BLOCKED, DType.FLOAT32),
        (Op.RECV, 128, 3, 7, 0, LATER, DType.FLOAT32),
    ]
    assert scene.open() == [False, False, True, False, True]
    assert len(scene.mpi.made) == 6


@pytest.mark.parametrize(
    ("args", "kwargs", "asks"),
    [
        ((WIDE,), {}, True), ((WIDE, ANYBODY, 9), {}, True), ((WIDE, 2), {"tag": ANY_TAG}, True),
        ((WIDE, 2, 9), {}, False),
    ],
)  # fmt: skip
def test_a_receive_that_leaves_something_open_is_completed_by_a_status(scene, args, kwargs, asks):
    scene.comm.Recv(WIDE, 2, 9)
    assert scene.comm.Recv(*args, **kwargs) == "of Recv"
    assert scene.told("peer_or_root", "payload", "group_seq") == [(1, 9, 0), (1, 9, 1)]
    assert isinstance(scene.mpi.made[-1][2].get("status"), scene.mpi.Status) == asks
    own = scene.mpi.Status()
    own.source, own.tag = 0, 4
    scene.comm.Recv(WIDE, ANYBODY, ANY_TAG, own)
    assert scene.told("peer_or_root", "payload", "group_seq")[-1] == (3, 4, 0)
    assert scene.mpi.made[-1] == ("Recv", (WIDE, ANYBODY, ANY_TAG, own), {})


def test_a_receive_that_is_completed_stays_in_its_phase(scene):
    scene.recorder.clock.begins(Phase.BACKWARD, time.monotonic_ns())
    records = read_spool(scene.recorder.spool.path).records
    (phase,) = records[records["kind"] == Kind.PHASE]["seq"].tolist()
    scene.comm.Recv(WIDE)
    scene.comm.Recv(WIDE, 2, 9)
    assert scene.told("parent", "peer_or_root", "payload") == [(phase, 1, 9)] * 2
    assert scene.told("device", "kind", "op") == [(-1, Kind.POINT_TO_POINT, Op.RECV)] * 2


def test_a_receive_whose_status_nobody_has_stays_open_in_that(scene):
    request = scene.comm.Irecv(WIDE)
    scene.mpi.Request.Waitall([request], [])
    assert scene.told("peer_or_root", "payload", "group_seq") == [(NO_PEER, 0, 0)]
    assert scene.open() == [False]


def test_a_cancelled_receive_has_no_peer(scene, monkeypatch):
    monkeypatch.setattr(scene.mpi.Status, "source", NOBODY)
    scene.comm.Recv(WIDE)
    assert scene.told("peer_or_root", "payload", "group_seq") == [(NO_PEER, 0, 0)]


def test_an_exchange_is_two_messages_which_end_together(scene):
    scene.comm.Sendrecv(ROW, 1, 7, WIDE, 2, 8)
    scene.comm.Isendrecv(ROW, 1, 7, WIDE, 2, 8).Wait()
    halves = [(Op.SEND, 32, 2, 7), (Op.RECV, 128, 1, 8)]
    assert scene.told("op", "bytes_in", "peer_or_root", "payload") == halves * 2
    exits = scene.rows()["exit_ns"].tolist()
    assert exits[0] == exits[1] > 0
    assert exits[2] == exits[3] > 0
    scene.comm.Sendrecv_replace(ROW, NOBODY, 7, 2, 8)
    assert scene.told("op", "peer_or_root", "payload")[4:] == [(Op.RECV, 1, 8)]


@pytest.mark.parametrize(
    ("name", "result", "ended"),
    [
        ("Waitall", None, [0, 1, 2]), ("waitall", ["a", "b", "c"], [0, 1, 2]),
        ("Testall", False, []), ("Testall", True, [0, 1, 2]), ("testall", (True, []), [0, 1, 2]),
        ("testall", (False, None), []),
        ("Waitany", 1, [1]), ("Waitany", 0, [0]), ("Waitany", -5, []), ("waitany", (2, "c"), [2]),
        ("Testany", (1, True), [1]), ("Testany", (-5, False), []), ("Testany", (3, False), []),
        ("Waitsome", [0, 2], [0, 2]), ("Waitsome", None, []), ("Testsome", [], []),
        ("waitsome", ([1], ["b"]), [1]), ("testsome", ([0, 3], []), [0]),
    ],
)  # fmt: skip
def test_of_several_requests_those_have_ended_that_mpi_says(scene, name, result, ended):
    requests = []
    for scene.mpi.handle in (5, 6, 7):
        requests.append(scene.comm.Ibarrier())
    scene.mpi.result = result
    assert getattr(scene.mpi.Request, name)(requests) == result
    assert scene.open() == [place not in ended for place in range(3)]
    assert scene.mpi.made[-1] == (name, (requests,), {})


@pytest.mark.parametrize(
    ("name", "result", "ended"),
    [
        ("Wait", None, True), ("wait", "object", True), ("Test", True, True),
        ("Test", False, False), ("test", (True, "object"), True), ("test", (False, None), False),
        ("Free", None, False),
    ],
)  # fmt: skip
def test_one_request_ends_when_mpi_says_so_and_never_after_it_was_freed(scene, name, result, ended):
    request, scene.mpi.result = scene.comm.Ibarrier(), result
    assert getattr(request, name)() == result
    assert scene.open() == [not ended]
    request.Free()
    request.Wait()
    assert scene.open() == [not ended]


def test_a_wait_for_receives_left_open_gets_statuses_in_the_order_of_their_ends(scene):
    scene.mpi.handle = 5
    first = scene.comm.Irecv(WIDE)
    scene.mpi.handle = 6
    second = scene.comm.Irecv(WIDE, 0, 4)
    scene.mpi.Request.Waitall([second, first])
    statuses = scene.mpi.made[-1][2]["statuses"]
    assert [type(one) for one in statuses] == [scene.mpi.Status] * 2
    assert scene.told("peer_or_root", "payload") == [(1, 9), (3, 4)]
    scene.mpi.handle = 5
    request, scene.mpi.result = scene.comm.Irecv(WIDE), 0
    scene.mpi.Request.Waitany([request])
    assert isinstance(scene.mpi.made[-1][2]["status"], scene.mpi.Status)
    assert scene.told("peer_or_root", "payload", "group_seq")[-1] == (1, 9, 1)
    request, own = scene.comm.Irecv(WIDE), scene.mpi.Status()
    own.source = 1
    request.Wait(own)
    assert scene.mpi.made[-2][1:] == ((own,), {})
    assert scene.told("peer_or_root")[-1] == (2,)


def test_calls_of_the_same_handle_end_in_the_order_they_were_made(scene):
    requests = [scene.comm.Isend(ROW, 1), scene.comm.Isend(ROW, 1)]
    requests[0].Wait()
    assert scene.open() == [False, True]
    requests[1].Wait()
    assert scene.open() == [False, False]


def test_a_handle_that_comes_back_is_another_communicator(scene):
    scene.mpi.handle = 11
    for make in (scene.comm.Dup, scene.comm.Dup, scene.comm.Split):
        child = make()
        child.Barrier()
        child.Free()
    scene.mpi.Comm(11).Barrier()
    groups = scene.rows()["group"].tolist()
    assert len(set(groups)) == 4
    assert scene.told("group_seq") == [(0,)] * 4


def test_removed_hooks_leave_the_methods_as_they_were(recorder):
    untouched = small_mpi()
    made = Scene(recorder)
    for owner in ("Comm", "Request", "Intracomm", "Intercomm"):
        methods = vars(getattr(untouched, owner)).items()
        for name, method in [one for one in methods if not isinstance(one[1], classmethod)]:
            ours = vars(getattr(made.mpi, owner))[name]
            assert getattr(ours, "__name__", "") == getattr(method, "__name__", "")
            assert getattr(ours, "__doc__", "") == getattr(method, "__doc__", "")
    barrier = vars(made.mpi.Comm)["Barrier"]
    assert barrier.__qualname__ == "Comm.Barrier"
    request = made.comm.Ibarrier()
    made.hooks.remove()
    assert vars(made.mpi.Comm)["Barrier"] is barrier.__wrapped__
    for call in (made.comm.Barrier, request.Wait, made.comm.Ibarrier):
        call()
    assert barrier(made.comm) == "of Barrier"  # a script may hold it
    assert len(made.rows()) == 1
    assert made.mpi.made[-1] == ("Barrier", (), {})


@pytest.mark.parametrize("disarmed", [False, True])
def test_what_repeats_are_steps_unless_it_was_ended_before(recorder, disarmed):
    scene = Scene(recorder)
    for _ in range(40):
        scene.comm.Allreduce(ROW, ROW)
        scene.comm.Bcast(ROW, 1)
        scene.comm.Sendrecv(ROW, 1, 7, WIDE, 1, 7)
    assert len(scene.ends) >= 8
    if disarmed:
        scene.hooks.disarm()
        scene.comm.Barrier()
        assert len(scene.rows()) == 160
    scene.hooks.remove()
    assert recorder.step >= 38
    records = read_spool(recorder.spool.path).records
    assert not records["flags"][records["kind"] == Kind.STEP].any()  # as if they were marked


def test_a_stack_waits_for_mpi_to_begin_and_knows_its_place(recorder):
    mpi, ready = small_mpi(), []
    mpi.initialized = False
    stack = MpiStack(mpi)
    assert stack.place() is None
    start = mpi.Init
    stack.arm(lambda: ready.append(1))
    stack.arm(lambda: ready.append(2))  # again: nothing
    assert (mpi.Init(), mpi.Init_thread()) == ("started", "started")
    assert ready == [1, 1]
    stack.disarm()
    assert mpi.Init is start
    mpi.initialized = True
    assert stack.place() == (3, 4)
    stack.arm(lambda: ready.append(3))
    assert mpi.Init is start
    mpi.finalized = True
    assert stack.place() is None


def test_a_world_of_several_is_told_what_is_not_seen(recorder):
    scene = Scene(recorder)
    facts = read_spool(recorder.spool.path).facts
    assert facts["framework"] == calls.LIMIT
    assert scene.hooks.describe()["not_recorded"] == list(calls.UNSEEN)
    scene.hooks.remove()


@pytest.mark.parametrize("name", ["Wait", "wait", "Test"])
def test_a_wait_for_a_receive_left_open_asks_for_the_status(scene, name):
    scene.mpi.result = True
    request = scene.comm.Irecv(WIDE)
    getattr(request, name)()
    assert isinstance(scene.mpi.made[-2][2]["status"], scene.mpi.Status)
    assert scene.told("peer_or_root", "payload", "group_seq") == [(1, 9, 0)]
    own = scene.mpi.Status()
    own.source = 0
    getattr(scene.comm.Irecv(WIDE), name)(status=own)
    assert scene.mpi.made[-2][2]["status"] is own
    assert scene.told("peer_or_root")[-1] == (3,)
    getattr(scene.comm.Irecv(WIDE, 2, 9), name)()
    assert scene.mpi.made[-2][1:] == ((), {})


def test_of_more_requests_than_are_remembered_the_oldest_is_let_go(scene, monkeypatch):
    monkeypatch.setattr("evenstep.hooks.mpi.requests.MOST_OPEN", 2)
    requests = []
    for scene.mpi.handle in (21, 22, 23):
        requests.append(scene.comm.Isend(ROW, 1))
    for request in requests:
        request.Wait()
    assert scene.open() == [True, False, False]
    requests = [scene.comm.Isend(ROW, 1) for scene.mpi.handle in (31, 32)]
    for request in requests:
        request.Wait()
    assert scene.open()[3:] == [False, False]
