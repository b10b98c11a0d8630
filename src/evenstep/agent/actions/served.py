"""A board between hosts: one small server of a link group, to which every job says what it does.

Datagrams both ways, and nobody waits for one. A job sends its post when it changes; the server
sends the posts of all to all. What has been heard is read where the job asks: the kernel notes when
each datagram came, so that no thread has to. Times are those of the server's clock; a job knows how
far its own is from it by the quickest datagram of late. Without a server, or with one that has
died, posts are lost and what was heard grows old: nobody is waited for.

Each datagram bears a keyed hash (BLAKE2) under the group's name: who does not know the name is not
heard. One that is sent again says what was true once, and delays nobody beyond the token's bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from evenstep.agent.actions.board import SHORTEST_LEASE_NS, SLOTS, lease_ns
from evenstep.errors import EvenstepError
from evenstep.pacing.token import Post

_MAC_BYTES = 16
_SAID = struct.Struct("<8s8sQ10q")  # magic, topic, who, the post
_HEARD = struct.Struct("<8sq")  # magic, the server's clock; then, in the order they came:
_SLOT = struct.Struct("<Q10q")  # who, the post
_SAYS, _LEAVES, _HEARS = b"EVLINKS1", b"EVLINKL1", b"EVLINKH1"
_TIMESTAMPNS = 35  # SO_TIMESTAMPNS of Linux; Python has no name for it
_TIMESPEC = struct.Struct("@qq")
_LARGEST = 8192
_BUFFER = 1 << 20  # heard while a step is computed; the newest is what counts
MOST = 4 * SLOTS  # on all topics
DRIFT = 1 << 13  # a clock gains or loses at most one part in so many
JUMP_NS = 1_000_000_000  # further apart, it is another clock


def _sealed(data: bytes, key: bytes) -> bytes:
    return data + blake2b(data, key=key, digest_size=_MAC_BYTES).digest()


def _opened(data: bytes, key: bytes) -> bytes:
    """What was sealed; empty where it was not, by this key."""
    whole = data[:-_MAC_BYTES]
    return whole if compare_digest(_sealed(whole, key), data) else b""


def _place(group: str) -> tuple[str, int, bytes]:
    """Host, port and key of NAME@HOST:PORT."""
    name, _, place = group.partition("@")
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port), name.encode()


def _socket(host: str, port: int, use: Callable[[socket.socket, Any], None]) -> socket.socket:
    """Bound or connected there. Raises `EvenstepError`."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        use(made, place)
    except OSError as error:
        raise EvenstepError(f"no board at {host}:{port}: {error.strerror or error}") from error
    return made


class ServedBoard:
    """A job's place on a served board of NAME@HOST:PORT; as `Board`, and raises as it does.

    All calls return at once.
    """

    def __init__(self, group: str, topic: str) -> None:
        host, port, self._key = _place(group)
        self._topic = topic.encode()
        self._socket = _socket(host, port, lambda made, place: made.connect(place))
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # elsewhere, a datagram came when it is read
            self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        self._process = os.getpid()
        self._who = int.from_bytes(os.urandom(8), "little") | 1
        self._heard: list[tuple[bool, Post]] = []
        self._told_ns = 0  # the server's clock in the newest of them
        self._known = False  # how far the server's clock is ahead of ours, which is:
        self.shift_ns = 0
        self._ahead: int | None = None  # what the quickest datagram since `settle` says of that
        self._settled_ns = 0
        self._said: Post | None = None
        self._said_ns = 0
        self.say(Post(), 0)

    def posts(self, now_ns: int) -> list[tuple[bool, Post]]:
        """Whether it is ours, and the post, of all who are there, in the order they came."""
        newest = b""
        while data := self._received():
            newest = data
        if newest:
            self._told_ns = _HEARD.unpack_from(newest)[1]
            self._heard = [
                (who == self._who, Post(*values))
                for who, *values in _SLOT.iter_unpack(newest[_HEARD.size :])
            ]
        age_ns = abs(now_ns - self._told_ns)
        return [each for each in self._heard if self._known and age_ns < lease_ns(each[1].step_ns)]

    def _received(self) -> bytes:
        """The next of what the server has sent; empty: there is no more, or none from it."""
        try:
            data, noted, _, _ = self._socket.recvmsg(_LARGEST, socket.CMSG_SPACE(_TIMESPEC.size))
        except OSError:  # nothing came, or nobody listens there
            return b""
        waited_ns = 0
        for level, kind, stamp in noted:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS):
                seconds, ns = _TIMESPEC.unpack_from(stamp)
                waited_ns = max(0, time.time_ns() - seconds * 1_000_000_000 - ns)
        whole = _opened(data, self._key)
        if not whole.startswith(_HEARS) or (len(whole) - _HEARD.size) % _SLOT.size:
            return b""
        ahead = int(_HEARD.unpack_from(whole)[1]) - (time.monotonic_ns() - waited_ns)
        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)
        return whole

    def settle(self) -> None:
        """Between two steps: follow the server's clock."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        now_ns = time.monotonic_ns()
        if self._known and abs(ahead - self.shift_ns) < JUMP_NS:
            # A datagram that was late says too little.
            ahead = max(ahead, self.shift_ns - (now_ns - self._settled_ns) // DRIFT)
        self._known, self.shift_ns, self._settled_ns = True, ahead, now_ns

    def say(self, post: Post, now_ns: int) -> None:
        """Send our post, if it has changed or would soon be forgotten."""
        if not self._known:
            post = Post()  # by a clock that nobody shares
        if post == self._said and 0 <= now_ns - self._said_ns < SHORTEST_LEASE_NS // 4:
            return
        self._said, self._said_ns = post, now_ns
        self._send(_SAID.pack(_SAYS, self._topic, self._who, *post))

    def close(self) -> None:
        """Leave."""
        if self._process == os.getpid():
            self._send(_SAID.pack(_LEAVES, self._topic, self._who, *Post()))
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is lost, as a datagram may be
            self._socket.send(_sealed(data, self._key))


class LinkServer:
    """The server of one link group. Raises `EvenstepError` where it cannot listen.

    It keeps the last post of each job until it leaves or has been silent for longer than its lease,
    and judges nothing.
    """

    def __init__(self, group: str) -> None:
        host, port, self._key = _place(group)
        self._socket = _socket(host, port, lambda made, place: made.bind(place))
        self._socket.settimeout(SHORTEST_LEASE_NS / 4e9)
        #: Of (topic, who): its place, until when it is believed, its slot.
        self._members: dict[tuple[bytes, int], tuple[Any, int, bytes]] = {}

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def members(self) -> int:
        """How many are there, each topic by itself."""
        return len(self._members)

    def serve(self) -> None:
        """Take one datagram, or a quarter of a lease; tell all."""
        try:
            data, place = self._socket.recvfrom(_LARGEST)
        except TimeoutError:
            data, place = b"", None
        except OSError:  # somebody we told is gone
            return
        now_ns = time.monotonic_ns()
        self._members = {who: kept for who, kept in self._members.items() if now_ns < kept[1]}
        whole = _opened(data, self._key)
        if len(whole) != _SAID.size:
            return
        magic, topic, who, *post = _SAID.unpack_from(whole)
        if magic == _LEAVES:
            self._members.pop((topic, who), None)
        elif magic == _SAYS and ((topic, who) in self._members or len(self._members) < MOST):
            self._members[topic, who] = (
                place,
                now_ns + lease_ns(Post(*post).step_ns),
                whole[-_SLOT.size :],
            )
        those = [kept for (about, _), kept in self._members.items() if about == topic]
        told = _HEARD.pack(_HEARS, now_ns) + b"".join(slot for _, _, slot in those[:SLOTS])
        told = _sealed(told, self._key)
        for each, _, _ in those:
            with contextlib.suppress(OSError):  # it is gone
                self._socket.sendto(told, each)

    def close(self) -> None:
        """Stop; nobody waits for anybody then."""
        self._socket.close()
