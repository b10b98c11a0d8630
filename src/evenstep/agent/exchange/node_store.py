"""One connection of a node to the job's store: its first rank speaks for the others.

The store is a server in the process of rank 0, and every client costs it a connection. So the first
rank of a node has a client, and the others reach it by a socket of the machine's own, whose name
tells the run (unix(7), "abstract": it is no file, and goes with its process). What they write is
passed on, but for what only their own node reads; what they ask for is looked up once for all of
them and pushed when it changes. Nothing waits. Who finds nobody to speak for it gets a client of
its own.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

SET, DELETE, WATCH = range(3)
MOST_BYTES = 1 << 14  # of a message, the key included
MOST_WAITING = 64  # messages to somebody who does not listen yet
ALONE_AFTER_S = 20.0
_HEAD = struct.Struct("<BH")
_CREDENTIALS = struct.Struct("iII")


class JobStore(Protocol):
    """What a background thread does with the job's store; nothing of it blocks."""

    def set(self, key: str, value: bytes) -> None:
        """Keep a value."""

    def check(self, keys: list[str]) -> bool:
        """Whether there is a value for each."""

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """The values of keys that were found by `check`."""

    def delete_key(self, key: str) -> object:
        """Keep the value no longer."""


def place_of(*job: str) -> str:
    """The name of a node's socket, from all that tells one job, and its meetings, from another."""
    return "evenstep-" + hashlib.blake2b("\0".join(job).encode(), digest_size=16).hexdigest()


def packed(kind: int, key: str, value: bytes = b"") -> bytes:
    """A message between two ranks of a node."""
    name = key.encode()
    return _HEAD.pack(kind, len(name)) + name + value


def unpacked(message: bytes) -> tuple[int, str, bytes]:
    """The inverse. Raises ValueError or `struct.error` for what is no such message."""
    kind, length = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    if kind > WATCH or end > len(message):
        raise ValueError("not a message of a rank")
    return kind, message[_HEAD.size : end].decode(), message[end:]


class Spokesman:
    """The store as the first rank of a node uses it, and lets the others use it.

    `inner` says which keys nobody reads but this rank.
    """

    def __init__(self, store: JobStore, name: str, inner: Callable[[str], bool]) -> None:
        self._store = store
        self._inner = inner
        self._kept: dict[str, bytes] = {}  # what the others wrote
        self._watched: dict[str, tuple[bytes, list[socket.socket]]] = {}  # as last pushed, to whom
        self._others: list[socket.socket] = []
        self._door = _socket()
        with suppress(OSError):  # the name is taken: the others get clients of their own
            self._door.bind("\0" + name)
            self._door.listen()

    def pump(self) -> None:
        """Take what the others wrote, and tell them what is new of what they ask for."""
        while (other := _accepted(self._door)) is not None:
            self._others.append(other)
        for other in tuple(self._others):
            try:
                while (message := _received(other)) is not None:
                    self._take(other, *unpacked(message))
            except (OSError, ValueError, struct.error):  # it has ended, or is none of ours
                self._others.remove(other)
                other.close()
        for key in tuple(self._watched):
            self._push(key)

    def _take(self, other: socket.socket, kind: int, key: str, value: bytes) -> None:
        if kind == WATCH:
            _, watching = self._watched.get(key, (b"", []))
            self._watched[key] = (b"", [*watching, other])  # pushed to all again
        elif kind == SET:
            self._kept[key] = value
            if not self._inner(key):
                self._store.set(key, value)
        else:
            self._kept.pop(key, None)
            if not self._inner(key):
                self._store.delete_key(key)

    def _push(self, key: str) -> None:
        told, others = self._watched[key]
        if not self.check([key]):
            return
        value = bytes(self.multi_get([key])[0])
        new = others if value != told else []
        for other in new:
            with suppress(OSError):  # found out when it is next listened to
                other.send(packed(SET, key, value))
        self._watched[key] = (value, others)

    def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        """Whether there is a value for each."""
        rest = [key for key in keys if key not in self._kept]
        return not rest or bool(self._store.check(rest))

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """Their values."""
        rest = [key for key in keys if key not in self._kept]
        found = dict(zip(rest, self._store.multi_get(rest), strict=True)) if rest else {}
        return [self._kept[key] if key in self._kept else bytes(found[key]) for key in keys]

    def delete_key(self, key: str) -> object:
        """Keep the value no longer."""
        return self._store.delete_key(key)

    def close(self) -> None:
        """Speak for nobody any more."""
        for each in (self._door, *self._others):
            each.close()


class SpokenFor:
    """The store as another rank of the node uses it. `make_store` gives a client of its own."""

    def __init__(
        self,
        name: str,
        make_store: Callable[[], JobStore],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = "\0" + name
        self._make_store = make_store
        self._clock = clock
        self._since_s = clock()
        self._socket: socket.socket | None = None
        self._alone: JobStore | None = None
        self._waiting: list[bytes] = []
        self._values: dict[str, bytes] = {}
        self._watched: set[str] = set()

    def pump(self) -> None:
        """Send what waits, take what has come. Raises OSError when nobody speaks any more."""
        if self._alone is not None:
            return
        if self._socket is None and not self._connect():
            return
        assert self._socket is not None
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                break
            self._waiting.pop(0)
        while (message := _received(self._socket)) is not None:
            _, key, value = unpacked(message)
            self._values[key] = value

    def _connect(self) -> bool:
        made = _socket()
        try:
            made.connect(self._name)
        except OSError:
            made.close()
            if self._clock() - self._since_s > ALONE_AFTER_S:
                self._go_alone()
            return False
        self._socket = made
        return True

    def _go_alone(self) -> None:
        store = self._alone = self._make_store()
        for message in self._waiting:
            kind, key, value = unpacked(message)
            if kind == SET:
                store.set(key, value)
        self._waiting.clear()

    def _say(self, message: bytes) -> None:
        if len(message) <= MOST_BYTES and len(self._waiting) < MOST_WAITING:
            self._waiting.append(message)
        self.pump()

    def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        if self._alone is not None:
            self._alone.set(key, value)
        else:
            self._say(packed(SET, key, value))

    def check(self, keys: list[str]) -> bool:
        """Whether a value of each is known here; who asks for the first time hears of it later."""
        if self._alone is not None:
            return bool(self._alone.check(keys))
        for key in keys:
            if key not in self._watched:
                self._watched.add(key)
                self._say(packed(WATCH, key))
        return all(key in self._values for key in keys)

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """Their values, as they were last heard."""
        if self._alone is not None:
            return self._alone.multi_get(keys)
        return [self._values[key] for key in keys]

    def delete_key(self, key: str) -> object:
        """Keep the value no longer."""
        if self._alone is not None:
            return self._alone.delete_key(key)
        self._say(packed(DELETE, key))
        return None

    def close(self) -> None:
        """Be spoken for no more."""
        if self._socket is not None:
            self._socket.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _accepted(door: socket.socket) -> socket.socket | None:
    """Who has come, if it is this very user; None where nobody has."""
    while True:
        try:
            other, _ = door.accept()
        except OSError:  # nobody, or nobody can come
            return None
        other.setblocking(False)
        packed_ids = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(packed_ids)[1] == os.geteuid():
            return other
        other.close()


def _received(other: socket.socket) -> bytes | None:
    """The next message; None where there is none. Raises OSError where the other has gone."""
    try:
        message = other.recv(MOST_BYTES)
    except BlockingIOError:
        return None
    if not message:
        raise ConnectionResetError("the other rank of this node has gone")
    return message
