"""Ranks of a node that share one client of the job's store."""

import os

import pytest

from evenstep.agent.exchange import node_store
from evenstep.agent.exchange.node_store import StoreClient, StoreServer, pack, unpack
from tests.agent.test_sharing import FakeStore


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def name(tmp_path):
    return f"evenstep-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def node(store, name):
    """The rank that speaks, and two it speaks for; what begins with "inner" stays on the node."""
    first = StoreServer(store, name, lambda key: key.startswith("inner"))
    others = [StoreClient(name, refuse, lambda: False) for _ in range(2)]
    yield first, *others
    for each in (first, *others):
        each.close()


def refuse():
    raise AssertionError("a second connection")


def pump(*ranks):
    for _ in range(2):
        for rank in ranks:
            rank.pump()


def test_what_another_rank_writes_is_in_the_store_and_goes_when_it_is_deleted(node, store):
    first, one, _ = node
    one.set("late", b"rank 1")
    pump(*node)
    assert bytes(store.multi_get(["late"])[0]) == b"rank 1"
    assert first.check(["late"])
    one.delete_key("late")
    pump(*node)
    assert not store.check(["late"])


def test_what_only_the_node_reads_does_not_leave_it(node, store):
    first, one, _ = node
    one.set("inner/1", b"17")
    pump(*node)
    assert (first.check(["inner/1"]), store.check(["inner/1"])) == (True, False)
    assert first.multi_get(["inner/1"]) == [b"17"]


def test_what_is_asked_for_is_heard_by_all_who_ask_each_time_it_changes(node, store):
    _, one, other = node
    assert not one.check(["orders"])
    assert not other.check(["orders"])
    for said in (b"first", b"second"):
        store.set("orders", said)
        pump(*node)
        assert one.check(["orders"])
        assert [bytes(each.multi_get(["orders"])[0]) for each in (one, other)] == [said, said]


def test_what_has_not_changed_is_not_said_again(node, store, monkeypatch):
    _, one, _ = node
    one.check(["orders"])
    store.set("orders", b"first")
    pump(*node)
    said = []
    monkeypatch.setattr(node_store, "pack", lambda *what: said.append(what) or pack(*what))
    pump(*node)
    assert said == []
    store.set("orders", b"second")
    pump(*node)
    assert [value for *_, value in said] == [b"second"]


def test_who_hears_that_nobody_speaks_any_more_says_so(node):
    first, one, _ = node
    one.set("late", b"1")
    pump(*node)
    first.close()
    with pytest.raises(OSError, match=r"has gone|Broken pipe"):
        one.pump()


def test_who_finds_nobody_has_a_client_of_its_own_and_loses_nothing(store, name):
    steps = []
    one = StoreClient(name, lambda: store, lambda: bool(steps))
    one.set("late", b"1")
    assert not store.check(["late"])
    steps.append("ended")
    one.pump()
    assert one.check(["late"])
    assert bytes(one.multi_get(["late"])[0]) == b"1"


def test_a_message_comes_back_whole_and_what_is_none_is_refused():
    assert unpack(pack(0, "key", b"value")) == (0, "key", b"value")
    with pytest.raises(ValueError, match="not a message"):
        unpack(pack(0, "key")[:-1])


def test_a_rank_that_asks_later_hears_what_was_said_before(node, store):
    _, one, other = node
    store.set("home", b"here")
    one.check(["home"])
    pump(*node)
    assert not other.check(["home"])
    pump(*node)
    assert other.check(["home"])


def test_what_the_first_rank_has_written_is_not_asked_of_the_store(node, store):
    first, one, _ = node
    first.set("home", b"here")
    store.check = store.multi_get = refuse
    assert not one.check(["home"])  # it asks for it
    pump(*node)
    assert one.multi_get(["home"]) == [b"here"]
    first.delete_key("home")
    assert store.values == {}


def test_a_rank_that_ends_or_speaks_nonsense_is_no_loss_to_the_others(node, store, name):
    first, one, other = node
    third = StoreClient(name, refuse, lambda: False)
    for each in (one, other, third):
        each.check(["orders"])
    pump(first, one, other, third)
    one.close()
    third._socket.send(b"\xff")
    first.pump()
    store.set("orders", b"now")
    pump(first, other)
    assert other.multi_get(["orders"]) == [b"now"]
    with pytest.raises(OSError, match=r"has gone|Broken pipe"):
        third.pump()
    one._socket = None  # closed above
    third.close()


def test_a_client_of_its_own_is_used_for_all_there_is_from_then_on(store, name):
    one = StoreClient(name, lambda: store, lambda: True)
    one.set("late", b"1")
    one.delete_key("late")
    assert store.values == {}
    one.set("late", b"2")
    assert (one.check(["late"]), one.check(["late", "other"])) == (True, False)
    assert one.multi_get(["late"]) == [b"2"]
    one.pump()


def test_of_what_waits_for_the_first_rank_only_so_much_is_kept(store, name):
    """Nobody listens yet; what is too long for a message is not sent at all."""
    made = []
    one = StoreClient(name, lambda: store, lambda: bool(made))
    one.set("long", b"x" * node_store.MOST_BYTES)
    room = node_store.MOST_BYTES - len(pack(0, "fits"))
    one.set("fits", b"x" * room)
    for number in range(node_store.MOST_WAITING):
        one.set(f"{number}", b"1")
    made.append(1)
    one.pump()
    assert set(store.values) == {"fits", *map(str, range(node_store.MOST_WAITING - 1))}
    assert len(store.values["fits"]) == room


def test_a_socket_that_takes_no_more_is_written_to_later_in_order(node, store, monkeypatch):
    _, one, _ = node
    pump(*node)
    sends, full = one._socket.send, [True]

    class Full:
        def __getattr__(self, name):
            return getattr(real, name)

        def send(self, message):
            if full[0]:
                raise BlockingIOError
            return sends(message)

    real = one._socket
    monkeypatch.setattr(one, "_socket", Full())
    for number in range(3):
        one.set("said", b"%d" % number)
    pump(*node)
    assert not store.check(["said"])
    full[0] = False
    pump(*node)
    assert store.multi_get(["said"]) == [b"2"]


@pytest.mark.parametrize(
    ("world", "local_world", "gathers"),
    [(64, 8, False), (65, 5, True), (72, 8, True), (72, 1, False), (72, 7, False)],
)
def test_messages_are_gathered_by_nodes_of_one_size_in_large_jobs(world, local_world, gathers):
    assert node_store.gathers_by_node(world, local_world) is gathers


def test_names_of_two_nodes_or_jobs_differ_and_say_nothing():
    names = {node_store.socket_name(*job) for job in (("a", "b"), ("ab",), ("a", "c"), ("b", "a"))}
    assert len(names) == 4
    assert {len(name) for name in names} == {len("evenstep-") + 32}
    assert node_store.socket_name("a", "b") in names


def test_messages_are_what_they_were_whatever_they_hold():
    for kind in (node_store.SET, node_store.DELETE, node_store.WATCH):
        assert unpack(pack(kind, "ключ", b"\0value")) == (kind, "ключ", b"\0value")
    with pytest.raises(ValueError, match="not a message"):
        unpack(pack(3, "key"))
