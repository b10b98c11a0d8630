"""What jobs say of themselves on their link: read by others, and gone when they are."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.actions import board as board_module
from evenstep.agent.actions.board import LEASE_STEPS, SHORTEST_LEASE_NS, SIZE, SLOTS, LinkBoard
from evenstep.agent.actions.link import Turn
from evenstep.errors import EvenstepError
from evenstep.pacing import TrialBudget
from evenstep.pacing.token import MOST_WAIT, Post, Token

POSTS = st.builds(Post, *[st.integers(0, 2**62) for _ in Post._fields])
NOW = 10**15


@pytest.fixture
def path(tmp_path):
    return tmp_path / "board"


@given(POSTS)
def test_others_read_what_a_job_says(tmp_path_factory, post):
    path = tmp_path_factory.mktemp("link") / "board"
    one, other = LinkBoard(path), LinkBoard(path)
    one.publish(post, NOW)
    assert other.posts(NOW) == [(False, post)]
    assert one.posts(NOW) == [(True, post)]
    one.close()
    assert other.posts(NOW) == []
    other.close()


def test_who_has_been_silent_for_long_is_not_there(path):
    one, other = LinkBoard(path), LinkBoard(path)
    one.publish(Post(step_ns=1), NOW)
    assert other.posts(NOW + SHORTEST_LEASE_NS - 1) != []
    assert other.posts(NOW + SHORTEST_LEASE_NS) == []


def test_long_steps_are_believed_for_longer(path):
    one, other = LinkBoard(path), LinkBoard(path)
    one.publish(Post(step_ns=SHORTEST_LEASE_NS), NOW)
    assert other.posts(NOW + LEASE_STEPS * SHORTEST_LEASE_NS - 1) != []
    assert other.posts(NOW + LEASE_STEPS * SHORTEST_LEASE_NS) == []


def test_a_slot_that_was_taken_for_empty_is_given_up(path):
    one, other = LinkBoard(path), LinkBoard(path)
    one.publish(Post(), NOW)
    other._process += 1  # another process
    later = NOW + SHORTEST_LEASE_NS
    other.publish(Post(step_ns=2), later)
    one.publish(Post(step_ns=1), later)
    assert sorted(post.step_ns for _, post in other.posts(later)) == [1, 2]


def test_all_see_the_same_order(path):
    boards = [LinkBoard(path) for _ in range(3)]
    for number, board in enumerate(boards):
        board.publish(Post(step_ns=number), NOW)
    for number, board in enumerate(boards):
        assert board.posts(NOW) == [(n == number, Post(step_ns=n)) for n in range(3)]


def test_a_board_has_room_for_so_many_and_nobody_fails_for_want_of_it(path):
    boards = [LinkBoard(path) for _ in range(SLOTS + 1)]
    for board in boards:
        board.publish(Post(step_ns=1), NOW)
    assert len(boards[-1].posts(NOW)) == SLOTS


def test_the_last_to_leave_takes_the_file_away_and_who_had_it_open_makes_another(path):
    one, other, late = LinkBoard(path), LinkBoard(path), LinkBoard(path)
    now = time.monotonic_ns()
    one.publish(Post(), now)
    other.publish(Post(), now)
    one.close()
    assert path.exists()
    LinkBoard(path).close()  # says nothing
    assert path.exists()
    other.close()
    assert not path.exists()
    LinkBoard(path).close()
    assert not path.exists()
    late.publish(Post(step_ns=5), now)
    newest = LinkBoard(path)
    assert newest.posts(now) == [(False, Post(step_ns=5))]
    late.close()
    assert not path.exists()


@pytest.mark.parametrize("make", ["link", "folder", "pipe", "foreign"])
def test_what_is_no_board_of_ours_is_left_alone(path, make):
    if make == "link":
        path.symlink_to("/dev/zero")
    elif make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"x" * SIZE)
    with pytest.raises(EvenstepError, match="no board"):
        LinkBoard(path)


HOLDER = """
import sys, time
from pathlib import Path
from evenstep.agent.actions.board import LinkBoard
from evenstep.pacing.token import Post
now = time.monotonic_ns()
LinkBoard(Path(sys.argv[1])).publish(Post(now, now, 50_000_000, 200_000_000), now)
print("held", flush=True)
time.sleep(60)
"""


def test_a_holder_that_is_killed_holds_nobody_up_for_longer_than_the_bound(path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGKILL)  # nobody has waited for it before the last job leaves
    board, token = LinkBoard(path), Token(TrialBudget(), guarded=False)
    token.post = Post(alone_ns=60_000_000, step_ns=200_000_000)
    token._acts = True
    waits = []
    for _ in range(5):
        now = begin = time.monotonic_ns()
        while wait := token.ask(now, [post for _, post in board.posts(now)]):
            now += wait
        waits.append(now - begin)
        token.leave(now)
        time.sleep(0.1)
    assert max(waits) <= MOST_WAIT * 200_000_000
    assert waits[-1] == 0  # it is seen to be gone
    board.close()
    assert not path.exists()  # whose slot is left in it is no more
    assert holder.wait() == -signal.SIGKILL


def test_who_leaves_the_link_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(board_module, "FOLDER", tmp_path)
    turn = Turn("link", "team", Token(TrialBudget()), SimpleNamespace(held_ns=0))
    turn.token.post = Post(alone_ns=5, step_ns=100)
    asked = time.monotonic_ns()
    turn.ask(asked)
    beside = LinkBoard(board_module.board_path("team-link"))
    entered = [post.entered_ns for _, post in beside.posts(asked)]
    turn.leave(asked + 7)
    assert entered == [asked]
    assert [(post.asked_ns, post.entered_ns) for _, post in beside.posts(asked + 7)] == [(0, 0)]
    assert turn.asked_ns == 0


@pytest.mark.parametrize(
    ("step_ns", "lease_ns"),
    [
        (0, 10**10),
        (2_500_000_001, 10_000_000_004),
        (10**12, 36 * 10**11),
        (9 * 10**11, 36 * 10**11),
    ],
)
def test_a_post_is_valid_for_four_steps_within_bounds(step_ns, lease_ns):
    assert board_module.lease_ns(step_ns) == lease_ns


def test_a_post_that_is_being_written_or_of_the_future_is_not_read(path):
    one, other = LinkBoard(path), LinkBoard(path)
    one.publish(Post(step_ns=1), NOW)
    assert other.posts(NOW - 1) == []
    words, at = one._words, SIZE // 8 - SLOTS * 13
    assert words[at] == 2  # a counter, even once it is written
    words[at] = 3
    assert other.posts(NOW) == []
    words[at] = 2
    assert len(other.posts(NOW)) == 1


def test_a_slot_of_a_job_that_wrote_nothing_for_long_is_taken_again(path):
    boards = [LinkBoard(path) for _ in range(3)]
    for number, board in enumerate(boards):
        board._process += number
        board.publish(Post(step_ns=number + 1), NOW)
    late = LinkBoard(path)
    late._process += 9
    boards[0].publish(Post(step_ns=1), NOW + SHORTEST_LEASE_NS)
    late.publish(Post(step_ns=4), NOW + SHORTEST_LEASE_NS)
    assert [post.step_ns for _, post in late.posts(NOW + SHORTEST_LEASE_NS)] == [1, 4]


def test_a_board_of_another_version_is_said_to_be(path):
    LinkBoard(path).publish(Post(), NOW)
    data = bytearray(path.read_bytes())
    data[6:7] = b"9"
    path.write_bytes(bytes(data))
    with pytest.raises(EvenstepError, match="another version has made it"):
        LinkBoard(path)


def test_a_board_is_of_one_user_and_one_group(tmp_path, monkeypatch):
    monkeypatch.setattr(board_module, "FOLDER", tmp_path)
    assert board_module.board_path("team") == tmp_path / f"evenstep-{os.getuid()}-team"
    monkeypatch.setattr(board_module, "FOLDER", tmp_path / "gone")
    assert board_module.board_path("team").name == f"evenstep-{os.getuid()}-team"
    LinkBoard(tmp_path / "made").publish(Post(), NOW)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
