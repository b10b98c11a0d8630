"""Traffic that is no job of ours: flows that come and go, or a job that computes and exchanges.

    python -m lab.tcp.traffic sink
    python -m lab.tcp.traffic flows ADDRESS FLOWS ON_MS OFF_MS SEED
    python -m lab.tcp.traffic job ADDRESS COMPUTE_MS BYTES

Runs until it is killed. Standard library only.
"""

from __future__ import annotations

import random
import selectors
import socket
import sys
import time
from contextlib import ExitStack

PORT = 5201
_CHUNK = bytes(1 << 16)
_DONE = b"."  # what the sink answers when it has had an announced number of bytes
_HEAD_BYTES = 8  # how many bytes follow; 0: without end, and without an answer
_WITHOUT_END = 1 << 62


class Sink:
    """Takes whatever comes, and answers where somebody waits for it."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._ready = selectors.DefaultSelector()
        self._ready.register(server, selectors.EVENT_READ)
        self._left: dict[socket.socket, int] = {}  # of what was announced; 0: a head comes next

    def serve(self) -> None:
        """Take what has come; waits until something has."""
        for key, _ in self._ready.select():
            if key.fileobj is self._server:
                connection = self._server.accept()[0]
                self._ready.register(connection, selectors.EVENT_READ)
                self._left[connection] = 0
            elif isinstance(key.fileobj, socket.socket):
                self._take(key.fileobj)

    def _take(self, connection: socket.socket) -> None:
        left = self._left[connection]
        if left:
            got = len(connection.recv(min(left, 1 << 18)))
            left -= got
        else:
            head = connection.recv(_HEAD_BYTES, socket.MSG_WAITALL)
            got, left = len(head), int.from_bytes(head, "little") or _WITHOUT_END
        self._left[connection] = left
        if not got:
            self._ready.unregister(connection)
            connection.close()
            del self._left[connection]
        elif not left:
            connection.sendall(_DONE)


def flows(address: str, number: int, on_s: float, off_s: float, seed: str) -> None:
    """Send as fast as the network takes it for a while, then nothing for a while."""
    draws = random.Random(seed)
    while True:
        time.sleep(draws.expovariate(1 / off_s))
        flood(address, number, draws.expovariate(1 / on_s))


def flood(address: str, number: int, seconds: float) -> None:
    """So many connections that send all the time."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as ready, ExitStack() as all_of_them:
        for _ in range(number):
            connection = all_of_them.enter_context(_connected(address))
            connection.sendall(bytes(_HEAD_BYTES))
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_WRITE, connection)
        while (left_s := until - time.monotonic()) > 0:
            for key, _ in ready.select(left_s):
                _send_some(key.data)


def _send_some(connection: socket.socket) -> None:
    try:
        connection.send(_CHUNK)
    except BlockingIOError:
        return


def job(address: str, compute_s: float, nbytes: int) -> None:
    """Compute, exchange, and again."""
    connection = _connected(address)
    head = nbytes.to_bytes(_HEAD_BYTES, "little")
    message = bytes(nbytes)
    while True:
        time.sleep(compute_s)
        connection.sendall(head + message)
        if connection.recv(1) != _DONE:
            return


def _connected(address: str) -> socket.socket:
    """A connection to the sink, which may have to come up first."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main(argv: list[str]) -> None:
    """Do what the first argument says."""
    kind, rest = argv[0], argv[1:]
    if kind == "sink":
        with socket.create_server(("", PORT)) as server:
            sink = Sink(server)
            while True:
                sink.serve()
    elif kind == "flows":
        flows(rest[0], int(rest[1]), float(rest[2]) / 1e3, float(rest[3]) / 1e3, rest[4])
    else:
        job(rest[0], float(rest[1]) / 1e3, int(rest[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
