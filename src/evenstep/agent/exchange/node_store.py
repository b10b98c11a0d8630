"""One connection per node to the job's store: the first rank of a node serves the others.

The store is a server in the process of rank 0, and every client costs it a connection. So only the
first rank of a node has a client; the others reach that rank by a local socket named after the run
(unix(7), "abstract": not a file, it ends with its process). Values they write are passed on to the
store, except those that only their own node reads; keys they ask for are looked up once for all of
them and pushed when their values change. Nothing blocks. A rank that cannot connect although the
first rank of its node must listen makes a client of its own.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

DIRECT_RANKS = 64

SET, DELETE, WATCH = range(3)
MOST_BYTES = 1 << 14  # of a message, the key included
MOST_WAITING = 64  # messages queued until the socket takes them
_HEAD = struct.Struct("<BH")
_CREDENTIALS = struct.Struct("iII")


class JobStore(Protocol):
    """The operations of the job's store that a background thread uses; none blocks."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """The values of keys for which `check` was true."""

    def delete_key(self, key: str) -> object:
        """Delete a value."""


def gathers_by_node(world: int, local_world: int) -> bool:
    """Whether the first rank of each node reads its node's messages and passes on two of them."""
    return world > DIRECT_RANKS and local_world > 1 and world % local_world == 0


def socket_name(*job: str) -> str:
    """The name of a node's socket, from the values that identify a job and its process group."""
    return "evenstep-" + hashlib.blake2b("\0".join(job).encode(), digest_size=16).hexdigest()


def pack(kind: int, key: str, value: bytes = b"") -> bytes:
    """A message between two ranks of a node."""
    name = key.encode()
    return _HEAD.pack(kind, len(name)) + name + value


def unpack(message: bytes) -> tuple[int, str, bytes]:
    """The inverse of `pack`. Raises ValueError or `struct.error` for anything else."""
    kind, length = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    if kind > WATCH or end > len(message):
        raise ValueError("not a message of a rank")
    return kind, message[_HEAD.size : end].decode(), message[end:]


class StoreServer:
    """The store as the first rank of a node uses it and serves it to the others.

    `stays_on_node` tells which keys only this rank reads.
    """

    def __init__(self, store: JobStore, name: str, stays_on_node: Callable[[str], bool]) -> None:
        self._store = store
        self._stays_on_node = stays_on_node
        self._local: dict[str, bytes] = {}  # written by the ranks of this node
        self._watched: dict[str, tuple[bytes, list[socket.socket]]] = {}  # value as pushed, readers
        self._clients: list[socket.socket] = []
        self._listener = _socket()
        with suppress(OSError):  # the name is taken: the others make clients of their own
            self._listener.bind("\0" + name)
            self._listener.listen()

    def pump(self) -> None:
        """Take messages of the other ranks, and push values that have changed."""
        while (client := _accept(self._listener)) is not None:
            self._clients.append(client)
        for client in tuple(self._clients):
            try:
                while (message := _receive(client)) is not None:
                    self._take(client, *unpack(message))
            except (OSError, ValueError, struct.error):  # the rank has ended, or sent no message
                self._clients.remove(client)
                client.close()
        for key in tuple(self._watched):
            self._push(key)

    def _take(self, client: socket.socket, kind: int, key: str, value: bytes) -> None:
        if kind == WATCH:
            _, readers = self._watched.get(key, (b"", []))
            self._watched[key] = (b"", [*readers, client])  # pushed to all again
        elif kind == SET:
            self._local[key] = value
            if not self._stays_on_node(key):
                self._store.set(key, value)
        else:
            self._local.pop(key, None)
            if not self._stays_on_node(key):
                self._store.delete_key(key)

    def _push(self, key: str) -> None:
        pushed, readers = self._watched[key]
        if not self.check([key]):
            return
        value = bytes(self.multi_get([key])[0])
        if value == pushed:
            return
        for client in readers:
            with suppress(OSError):  # `pump` notices when it next receives
                client.send(pack(SET, key, value))
        self._watched[key] = (value, readers)

    def set(self, key: str, value: bytes) -> None:
        self._local[key] = value
        self._store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        rest = [key for key in keys if key not in self._local]
        return not rest or bool(self._store.check(rest))

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """The values of keys for which `check` was true."""
        rest = [key for key in keys if key not in self._local]
        found = dict(zip(rest, self._store.multi_get(rest), strict=True)) if rest else {}
        return [self._local[key] if key in self._local else bytes(found[key]) for key in keys]

    def delete_key(self, key: str) -> object:
        self._local.pop(key, None)
        return self._store.delete_key(key)

    def close(self) -> None:
        for each in (self._listener, *self._clients):
            each.close()


class StoreClient:
    """The store as another rank of the node uses it. `make_store` makes a client of its own, where
    `listens` says that the first rank must have made its socket, and it is not reached: a network
    namespace has abstract names of its own (network_namespaces(7)).
    """

    def __init__(
        self, name: str, make_store: Callable[[], JobStore], listens: Callable[[], bool]
    ) -> None:
        self._name = "\0" + name
        self._make_store = make_store
        self._listens = listens
        self._socket: socket.socket | None = None
        self._own: JobStore | None = None  # where no first rank of the node could be reached
        self._waiting: list[bytes] = []
        self._values: dict[str, bytes] = {}
        self._watched: set[str] = set()

    def pump(self) -> None:
        """Send and receive messages. Raises OSError when the first rank of the node has gone."""
        if self._own is not None:
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
        while (message := _receive(self._socket)) is not None:
            _, key, value = unpack(message)
            self._values[key] = value

    def _connect(self) -> bool:
        made = _socket()
        try:
            made.connect(self._name)
        except OSError:
            made.close()
            if self._listens():
                store = self._own = self._make_store()
                for message in self._waiting:
                    kind, key, value = unpack(message)
                    if kind == SET:
                        store.set(key, value)
                self._waiting.clear()
            return False
        self._socket = made
        return True

    def _send(self, message: bytes) -> None:
        if len(message) <= MOST_BYTES and len(self._waiting) < MOST_WAITING:
            self._waiting.append(message)
        self.pump()

    def set(self, key: str, value: bytes) -> None:
        if self._own is not None:
            self._own.set(key, value)
        else:
            self._send(pack(SET, key, value))

    def check(self, keys: list[str]) -> bool:
        """Whether the values of all keys have arrived; the first check of a key asks for it."""
        if self._own is not None:
            return bool(self._own.check(keys))
        for key in keys:
            if key not in self._watched:
                self._watched.add(key)
                self._send(pack(WATCH, key))
        return all(key in self._values for key in keys)

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        """The values as last received."""
        if self._own is not None:
            return self._own.multi_get(keys)
        return [self._values[key] for key in keys]

    def delete_key(self, key: str) -> object:
        if self._own is not None:
            return self._own.delete_key(key)
        self._send(pack(DELETE, key))
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _accept(listener: socket.socket) -> socket.socket | None:
    """The next connection by a process of the same user; None where there is none."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # none waits, or the name was taken
            return None
        client.setblocking(False)
        packed_ids = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(packed_ids)[1] == os.geteuid():
            return client
        client.close()


def _receive(peer: socket.socket) -> bytes | None:
    """The next message; None where there is none. Raises OSError where the peer has gone."""
    try:
        message = peer.recv(MOST_BYTES)
    except BlockingIOError:
        return None
    if not message:
        raise ConnectionResetError("the other rank of this node has gone")
    return message
