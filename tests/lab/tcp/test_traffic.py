"""Other traffic, over the loopback: what is announced is answered, what floods is not."""

from __future__ import annotations

import socket
import threading

import pytest

from lab.tcp import traffic
from lab.tcp.traffic import Sink


@pytest.fixture
def server():
    """A sink that serves in the background."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sink = Sink(listening)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                sink.serve()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()
        ended.set()
        socket.create_connection(listening.getsockname()).close()  # wakes it
        thread.join(5)


def test_an_exchange_is_answered_when_all_of_it_has_come(server):
    with socket.create_connection(server) as connection:
        for nbytes in (1, 300_000):
            connection.sendall(nbytes.to_bytes(8, "little") + bytes(nbytes))
            assert connection.recv(1) == b"."


def test_a_flood_gets_no_answer(server):
    with socket.create_connection(server) as connection:
        connection.sendall(bytes(8) + bytes(100_000))
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_flood_ends_by_itself(server, monkeypatch):
    monkeypatch.setattr(traffic, "PORT", server[1])
    traffic.flood(server[0], 2, 0.05)
