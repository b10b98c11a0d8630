"""A board between hosts: what is heard of whom, and that nobody waits for who has died."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from hashlib import blake2b
from types import SimpleNamespace

import pytest

from evenstep.agent.actions import served
from evenstep.agent.actions.board import SHORTEST_LEASE_NS, SLOTS
from evenstep.agent.actions.served import DRIFT, JUMP_NS, LinkServer, ServedBoard
from evenstep.errors import EvenstepError
from evenstep.pacing import TrialBudget
from evenstep.pacing.token import MOST_WAIT, Post, Token

MS = 1_000_000
PATIENCE_S = 20


class Served:
    """A server in a thread, and boards of its jobs."""

    def __init__(self) -> None:
        self.server = LinkServer("team@127.0.0.1:0")
        self.server._socket.settimeout(0.02)
        self.group = f"team@127.0.0.1:{self.server.port}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            self.server.serve()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def link():
    made = Served()
    yield made
    made.end()


def now_of(board: ServedBoard) -> int:
    return time.monotonic_ns() + board.shift_ns


def until(condition) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < PATIENCE_S
        time.sleep(0.001)


def known(group: str, topic: str = "link") -> ServedBoard:
    """A job that the server has answered."""
    board = ServedBoard(group, topic)

    def answered() -> bool:
        board.posts(now_of(board))
        board.sync_clock()
        return board._known

    until(answered)
    return board


def test_a_job_hears_what_others_say(link):
    one, other = known(link.group), known(link.group)
    post = Post(asked_ns=now_of(one), alone_ns=5 * MS, step_ns=100 * MS)
    one.publish(post, now_of(one))
    until(lambda: other.posts(now_of(other)) == [(False, post), (True, Post())])
    one.close()
    until(lambda: other.posts(now_of(other)) == [(True, Post())])
    other.close()


def test_topics_and_names_are_apart(link):
    boards = [known(link.group), known(link.group, "input")]
    stranger = ServedBoard(link.group.replace("team", "other"), "link")
    for board in (*boards, stranger):
        board.publish(Post(step_ns=1), now_of(board))
    until(lambda: all(b.posts(now_of(b)) == [(True, Post(step_ns=1))] for b in boards))
    assert stranger.posts(now_of(stranger)) == []
    assert link.server.members == (1, 1)


def test_what_is_not_sealed_by_the_name_is_not_heard(link):
    board = known(link.group)
    place = board._socket.getsockname()
    for data in (
        b"",
        b"x" * 16,
        b"x" * 500,
        served._DOWNWARD.pack(served._DISTRIBUTES, 1) + b"0" * 16,
    ):
        link.server._socket.sendto(data, place)
    board.publish(Post(step_ns=7), now_of(board))
    until(lambda: board.posts(now_of(board)) == [(True, Post(step_ns=7))])


def test_what_is_sealed_but_no_message_is_not_heard(link):
    board = known(link.group)
    for data in (b"", b"x", served._DOWNWARD.pack(served._DISTRIBUTES, 1) + b"xyz"):
        sealed = data + blake2b(data, key=b"team", digest_size=16).digest()
        link.server._socket.sendto(sealed, board._socket.getsockname())
        board._send(data)
    board.publish(Post(step_ns=7), now_of(board))
    until(lambda: board.posts(now_of(board)) == [(True, Post(step_ns=7))])


def test_there_is_room_for_so_many(link):
    boards = [ServedBoard(link.group, "link") for _ in range(SLOTS + 2)]
    until(lambda: link.server.members == (len(boards), 0))
    assert len(known(link.group).posts(time.monotonic_ns())) <= SLOTS


def test_a_server_keeps_posts_alone_and_no_more_than_it_has_room_for(monkeypatch):
    monkeypatch.setattr(served, "MOST", 2)
    server, post = LinkServer("team@127.0.0.1:0"), Post()._replace(step_ns=10**12)
    line = socket.socket(type=socket.SOCK_DGRAM)
    line.connect(("127.0.0.1", server.port))

    def kept(magic: bytes, member: int) -> int:
        said = served._UPWARD.pack(magic, b"link", member, *post)
        line.send(served._seal(said, b"team"))
        server.serve()
        return server.members[0]

    assert [kept(served._POSTS, member) for member in (1, 2, 3, 1)] == [1, 2, 2, 2]
    assert [kept(served._LEAVES, 2), kept(b"EVLINKX1", 4), kept(served._POSTS, 4)] == [1, 1, 2]
    line.close()
    server.close()


def test_the_clock_of_the_server_is_followed_however_late_datagrams_come():
    board = ServedBoard("team@127.0.0.1:9", "link")
    for late_ms in (3, 0, 50, 1):
        board._ahead = 700 * MS - late_ms * MS
        board.sync_clock()
    assert 700 * MS - 50 * MS / DRIFT <= board.shift_ns <= 700 * MS
    board._ahead = board.shift_ns - 2 * JUMP_NS  # another server
    board.sync_clock()
    assert board.shift_ns < 0


@pytest.mark.parametrize("group", ["team@nowhere.invalid:1", "team@256.1.1.1:80"])
def test_a_server_that_has_no_address_is_said(group):
    with pytest.raises(EvenstepError, match="no server at"):
        ServedBoard(group, "link")


def steps(board: ServedBoard, count: int) -> list[int]:
    """How long a job of 200 ms is held before each of its exchanges of 60 ms."""
    token, waits = Token(TrialBudget(), guarded=False), []
    token.post = Post(alone_ns=60 * MS, step_ns=200 * MS)
    token._acts = True
    for _ in range(count):
        now = begin = now_of(board)
        while wait := token.ask(now, [post for ours, post in board.posts(now) if not ours]):
            board.publish(token.post, now)
            now += wait
        waits.append(now - begin)
        token.leave(now)
        board.publish(token.post, now)
        board.sync_clock()
        time.sleep(0.05)
    return waits


HOLDER = """
import sys, time
from evenstep.agent.actions.served import LinkServer, ServedBoard
from evenstep.pacing.token import Post
if sys.argv[1] == "serve":
    server = LinkServer(sys.argv[2])
    print(server.port, flush=True)
    while True:
        server.serve()
board = ServedBoard(sys.argv[2], "link")
while not board._known:
    board.posts(0)
    board.sync_clock()
while True:
    now = time.monotonic_ns() + board.shift_ns
    board.publish(Post(now, now, 50_000_000, 200_000_000), now)
    print("held", flush=True)
    time.sleep(.02)
"""


def started(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("victim", ["server", "holder"])
def test_whoever_is_killed_holds_nobody_up_for_longer_than_the_bound(victim):
    server = started("serve", "team@127.0.0.1:0")
    group = f"team@127.0.0.1:{server.stdout.readline().strip()}"
    holder = started("hold", group)
    try:
        assert holder.stdout.readline() == "held\n"
        board = known(group)
        until(lambda: any(steps(board, 1)))  # it is heard, and waited for
        os.kill({"server": server, "holder": holder}[victim].pid, signal.SIGKILL)
        waits = steps(board, 12)
        assert max(waits) <= MOST_WAIT * 200 * MS
        assert waits[-1] == 0
    finally:
        for process in (server, holder):
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_server_that_is_gone_makes_no_call_wait():
    board = ServedBoard("team@127.0.0.1:9", "link")
    begin = time.process_time_ns()
    for number in range(1000):
        board.publish(Post(step_ns=number), number * SHORTEST_LEASE_NS)
        assert board.posts(number) == []
        board.sync_clock()
    assert time.process_time_ns() - begin < 5e9  # of work, not of waiting
    board.close()


class Line:
    """A socket that hands over what is laid there, each with the time it arrived, and keeps what
    is sent."""

    def __init__(self):
        self.arrived, self.sent, self.closed = [], [], False

    def lay(self, data, at_ns, key=b"team"):
        stamp = struct.pack("@qq", at_ns // 10**9, at_ns % 10**9)
        stamps = [(socket.SOL_SOCKET, 35, stamp), (socket.SOL_SOCKET, 36, b"another")]
        self.arrived.append((served._seal(data, key), stamps, 0, None))

    def recvmsg(self, *_):
        if not self.arrived:
            raise BlockingIOError
        return self.arrived.pop(0)

    def send(self, data):
        self.sent.append(data)

    def close(self):
        self.closed = True


@pytest.fixture
def lone(monkeypatch):
    """A board at a line of the test's own, at 1,000 s by its clock and 2,000 s by the wall's."""
    board = ServedBoard("team@127.0.0.1:9", "link")
    board._socket.close()
    board._socket = board.line = Line()
    clock = SimpleNamespace(now_ns=1000 * 10**9)
    clock.monotonic_ns = lambda: clock.now_ns
    clock.time_ns = lambda: clock.now_ns + 1000 * 10**9
    monkeypatch.setattr(served, "time", clock)
    board.clock = clock
    return board


def distributed(at_ns, *slots):
    return served._DOWNWARD.pack(b"EVLINKH1", at_ns) + b"".join(
        served._SLOT.pack(member, *post) for member, post in slots
    )


def test_the_clock_is_that_of_the_quickest_datagram_when_it_arrived(lone):
    """The server is 5 s ahead; datagrams take 3, 1 and 7 ms, and wait 20 ms here."""
    ahead_ns, arrived_ns = 5 * 10**9, lone.clock.now_ns - 20 * MS
    for took_ms in (3, 1, 7):
        data = distributed(arrived_ns - took_ms * MS + ahead_ns)
        lone.line.lay(data, arrived_ns + 1000 * 10**9)
    assert lone.posts(0) == []
    assert lone.shift_ns == 0  # until it is synchronised
    lone.sync_clock()
    assert lone.shift_ns == ahead_ns - 1 * MS
    lone.clock.now_ns += DRIFT * 1000
    lone.line.lay(distributed(lone.clock.now_ns + ahead_ns - 9 * MS), lone.clock.time_ns())
    lone.posts(0)
    lone.sync_clock()
    assert lone.shift_ns == ahead_ns - 1 * MS - 1000  # as far as clocks drift
    lone.sync_clock()  # without a datagram
    assert lone.shift_ns == ahead_ns - 1 * MS - 1000


def test_posts_are_the_newest_ones_in_order_until_their_leases_end(lone):
    first, own, long = Post(step_ns=1), Post(step_ns=2), Post(step_ns=SHORTEST_LEASE_NS)
    at_ns = lone.clock.now_ns
    for number, slots in enumerate(([(9, first)], [(9, first), (lone._member, own), (8, long)])):
        lone.line.lay(distributed(at_ns + number, *slots), lone.clock.time_ns())
    assert lone.posts(at_ns) == []  # its times mean nothing before the clock is known
    lone.sync_clock()
    at_ns += 1
    everyone = [(False, first), (True, own), (False, long)]
    assert lone.posts(at_ns) == everyone
    assert lone.posts(at_ns + SHORTEST_LEASE_NS - 1) == everyone
    assert lone.posts(at_ns + SHORTEST_LEASE_NS) == everyone[2:]
    assert lone.posts(at_ns - SHORTEST_LEASE_NS) == everyone[2:]  # of a clock that was set back
    assert lone.posts(at_ns + 4 * SHORTEST_LEASE_NS) == []


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (distributed(1, (9, Post())), b"other"),
        (distributed(1, (9, Post()))[:-1], b"team"),
        (b"EVLINKX1" + distributed(1, (9, Post()))[8:], b"team"),
        (b"", b"team"),
    ],
)
def test_what_is_not_the_servers_tells_neither_posts_nor_a_time(lone, data, key):
    lone.line.lay(data, lone.clock.time_ns(), key)
    lone.posts(0)
    lone.sync_clock()
    assert (lone._known, lone.shift_ns) == (False, 0)


def test_a_post_is_sent_when_it_has_changed_or_would_expire(lone):
    post, other = Post(step_ns=5), Post(step_ns=6)
    lone.publish(post, 0)
    assert lone.line.sent == []  # the empty one was sent at the start; nobody shares its clock yet
    lone._known = True
    quarter = SHORTEST_LEASE_NS // 4
    sends = []
    for now_ns, said in ((0, post), (quarter - 1, post), (quarter, post), (quarter + 1, other),
                         (quarter, other)):  # fmt: skip
        lone.publish(said, now_ns)
        sends.append(len(lone.line.sent))
    assert sends == [1, 1, 2, 3, 4]
    told = [served._UPWARD.unpack(served._open_sealed(data, b"team")) for data in lone.line.sent]
    assert told[0] == (b"EVLINKS1", b"link\0\0\0\0", lone._member, *post)
    lone.close()
    left = served._UPWARD.unpack(served._open_sealed(lone.line.sent[-1], b"team"))
    assert (left[0], lone.line.closed) == (b"EVLINKL1", True)


def test_a_forked_child_closes_its_end_without_a_word(lone):
    lone._process += 1
    lone.close()
    assert (lone.line.sent, lone.line.closed) == ([], True)


def test_members_leave_when_their_leases_end(monkeypatch):
    server, line = LinkServer("team@127.0.0.1:0"), socket.socket(type=socket.SOCK_DGRAM)
    line.connect(("127.0.0.1", server.port))
    clock = SimpleNamespace(now_ns=10**15)
    clock.monotonic_ns = lambda: clock.now_ns
    monkeypatch.setattr(served, "time", clock)

    def members(after_ns, member, step_ns=0):
        clock.now_ns += after_ns
        said = served._UPWARD.pack(b"EVLINKS1", b"link", member, *Post(step_ns=step_ns))
        line.send(served._seal(said, b"team"))
        server.serve()
        return server.members[0]

    lasts = SHORTEST_LEASE_NS
    assert [members(0, 1, lasts), members(0, 2), members(lasts - 1, 3), members(1, 4)] == [
        1, 2, 3, 3
    ]  # fmt: skip
    assert members(3 * lasts, 4) == 1
    line.settimeout(5)
    answers = [served._open_sealed(line.recv(8192), b"team") for _ in range(1 + 2 + 3 + 3 + 1)]
    stamp = served._DOWNWARD.unpack_from(answers[-1])
    assert stamp == (b"EVLINKH1", clock.now_ns)
    slots = list(served._SLOT.iter_unpack(answers[8][16:]))
    assert [slot[0] for slot in slots] == [1, 3, 4]
    line.close()
    server.close()


@pytest.mark.parametrize(
    ("group", "place"),
    [("team@host:80", ("host", 80, b"team")), ("a@[::1]:7000", ("::1", 7000, b"a"))],
)
def test_a_group_names_its_key_and_its_server(group, place):
    assert served._place(group) == place
