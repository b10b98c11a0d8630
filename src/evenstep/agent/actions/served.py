"""A board between hosts: a small server of a link group that distributes the jobs' posts.

Datagrams are sent both ways, and no side waits for one. A job sends its post when it changes; the
server sends all posts to all jobs, which read them when they ask for their turns: the kernel stamps
the arrival, so no thread is needed. Times are of the server's clock, whose offset a job derives
from the quickest recent datagram. Without a server received posts expire: no job waits.

Each datagram has a keyed hash (BLAKE2) under the group's name: a sender that does not know the name
is ignored. A replayed datagram is outdated, and delays no job beyond the token's bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from evenstep.agent.actions.board import SHORTEST_LEASE_NS, SLOTS, lease_ns
from evenstep.errors import EvenstepError
from evenstep.pacing.token import Post

_MAC_BYTES = 16
_UPWARD = struct.Struct("<8s8sQ10q")  # magic, topic, member, post
_DOWNWARD = struct.Struct("<8sq")  # magic, the server's clock; then, in order of joining:
_SLOT = struct.Struct("<Q10q")  # member, post
_POSTS, _LEAVES, _DISTRIBUTES = b"EVLINKS1", b"EVLINKL1", b"EVLINKH1"
_TIMESTAMPNS = 35  # SO_TIMESTAMPNS of Linux; Python has no name for it
_TIMESPEC = struct.Struct("@qq")
_LARGEST = 8192
_BUFFER = 1 << 20  # datagrams that arrive while a step is computed
LINK = "link"  # the topic of the link, of which one rank of a job is a member
MOST = 4 * SLOTS  # members on all topics
DRIFT = 1 << 13  # inverse of the largest drift between two clocks
JUMP_NS = 1_000_000_000  # a larger change of the offset means another clock


def _seal(data: bytes, key: bytes) -> bytes:
    return data + blake2b(data, key=key, digest_size=_MAC_BYTES).digest()


def _open_sealed(data: bytes, key: bytes) -> bytes:
    """The data that was sealed with this key; else empty."""
    whole = data[:-_MAC_BYTES]
    return whole if compare_digest(_seal(whole, key), data) else b""


def _place(group: str) -> tuple[str, int, bytes]:
    """Host, port and key of NAME@HOST:PORT."""
    name, _, place = group.partition("@")
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port), name.encode()


def _socket(host: str, port: int, use: Callable[[socket.socket, Any], None]) -> socket.socket:
    """A socket, bound or connected there by `use`. Raises `EvenstepError`."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        use(made, place)
    except OSError as error:
        raise EvenstepError(f"no server at {host}:{port}: {error.strerror or error}") from error
    return made


class ServedBoard:
    """A job's side of a served board at NAME@HOST:PORT; the interface and errors of `LinkBoard`.

    No call blocks.
    """

    def __init__(self, group: str, topic: str) -> None:
        host, port, self._key = _place(group)
        self._topic = topic.encode()
        self._socket = _socket(host, port, lambda made, place: made.connect(place))
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # without stamps a datagram arrives when it is read
            self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        self._process = os.getpid()
        self._member = int.from_bytes(os.urandom(8), "little") | 1
        self._received_posts: list[tuple[bool, Post]] = []
        self._stamped_ns = 0  # the server's clock in the newest datagram
        self._known = False  # whether `shift_ns` is known:
        self.shift_ns = 0  # how far the server's clock is ahead of ours
        self._ahead: int | None = None  # the same by the quickest datagram since `sync_clock`
        self._synced_ns = 0
        self._published: Post | None = None
        self._published_ns = 0
        self.publish(Post(), 0)

    def posts(self, now_ns: int) -> list[tuple[bool, Post]]:
        """(Whether it is this job's, post) of all jobs, in order of joining."""
        newest = b""
        while data := self._received():
            newest = data
        if newest:
            self._stamped_ns = _DOWNWARD.unpack_from(newest)[1]
            self._received_posts = [
                (member == self._member, Post(*values))
                for member, *values in _SLOT.iter_unpack(newest[_DOWNWARD.size :])
            ]
        age_ns = abs(now_ns - self._stamped_ns)
        posts = self._received_posts if self._known else []
        return [each for each in posts if age_ns < lease_ns(each[1].step_ns)]

    def _received(self) -> bytes:
        """The server's next datagram; empty where there is none, or not of the server."""
        try:
            data, stamps, _, _ = self._socket.recvmsg(_LARGEST, socket.CMSG_SPACE(_TIMESPEC.size))
        except OSError:  # no datagram, or no server there
            return b""
        waited_ns = 0
        for level, kind, stamp in stamps:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS):
                seconds, ns = _TIMESPEC.unpack_from(stamp)
                waited_ns = max(0, time.time_ns() - seconds * 1_000_000_000 - ns)
        whole = _open_sealed(data, self._key)
        if not whole.startswith(_DISTRIBUTES) or (len(whole) - _DOWNWARD.size) % _SLOT.size:
            return b""
        ahead = int(_DOWNWARD.unpack_from(whole)[1]) - (time.monotonic_ns() - waited_ns)
        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)
        return whole

    def sync_clock(self) -> None:
        """Follow the server's clock, between two steps."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        now_ns = time.monotonic_ns()
        if self._known and abs(ahead - self.shift_ns) < JUMP_NS:
            # A delayed datagram makes the offset too small.
            ahead = max(ahead, self.shift_ns - (now_ns - self._synced_ns) // DRIFT)
        self._known, self.shift_ns, self._synced_ns = True, ahead, now_ns

    def publish(self, post: Post, now_ns: int) -> None:
        """Send our post, if it has changed or would soon expire."""
        if not self._known:
            post = Post()  # its times would be of a clock that no other job shares
        if post == self._published and 0 <= now_ns - self._published_ns < SHORTEST_LEASE_NS // 4:
            return
        self._published, self._published_ns = post, now_ns
        self._send(_UPWARD.pack(_POSTS, self._topic, self._member, *post))

    def close(self) -> None:
        """Leave."""
        if self._process == os.getpid():
            self._send(_UPWARD.pack(_LEAVES, self._topic, self._member, *Post()))
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is lost, as a datagram may be
            self._socket.send(_seal(data, self._key))


class LinkServer:
    """The server of one link group. Raises `EvenstepError` where it cannot listen.

    It keeps the last post of each job until the job leaves or the post's lease ends.
    """

    def __init__(self, group: str) -> None:
        host, port, self._key = _place(group)
        self._socket = _socket(host, port, lambda made, place: made.bind(place))
        self._socket.settimeout(SHORTEST_LEASE_NS / 4e9)
        #: By topic and member: address, end of the lease, slot.
        self._members: dict[tuple[bytes, int], tuple[Any, int, bytes]] = {}

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def members(self) -> tuple[int, int]:
        """Number of jobs, one rank of each on the link, and of ranks that take turns on storage."""
        topics = Counter(topic.rstrip(b"\0") for topic, _ in self._members)
        jobs = topics.pop(LINK.encode(), 0)
        return jobs, max(topics.values(), default=0)

    def serve(self) -> None:
        """Wait for one datagram, a quarter of a lease at most; send all posts to its topic."""
        try:
            data, place = self._socket.recvfrom(_LARGEST)
        except TimeoutError:
            data, place = b"", None
        except OSError:  # a job that was sent to has gone
            return
        now_ns = time.monotonic_ns()
        self._members = {who: kept for who, kept in self._members.items() if now_ns < kept[1]}
        whole = _open_sealed(data, self._key)
        if len(whole) != _UPWARD.size:
            return
        magic, topic, member, *post = _UPWARD.unpack_from(whole)
        known = (topic, member) in self._members
        if magic == _LEAVES:
            self._members.pop((topic, member), None)
        elif magic == _POSTS and (known or len(self._members) < MOST):
            lease_end_ns = now_ns + lease_ns(Post(*post).step_ns)
            self._members[topic, member] = place, lease_end_ns, whole[-_SLOT.size :]
        members = [kept for (about, _), kept in self._members.items() if about == topic]
        slots = b"".join(slot for _, _, slot in members[:SLOTS])
        message = _seal(_DOWNWARD.pack(_DISTRIBUTES, now_ns) + slots, self._key)
        for each, _, _ in members:
            with contextlib.suppress(OSError):  # it has gone
                self._socket.sendto(message, each)

    def close(self) -> None:
        """Stop; then no job waits."""
        self._socket.close()
