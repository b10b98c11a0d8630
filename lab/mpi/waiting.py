"""Two ways to wait for an all-reduce: to spin, as MPI does, or to look now and then and sleep."""

from __future__ import annotations

import time
from typing import Any, Protocol

POLL_S = 50e-6  # what a sleep of the kernel takes at least, unless a process asks for less


class Exchange(Protocol):
    """Sums a bucket over all ranks; returns when it is there."""

    def __call__(self, send: Any, receive: Any, operation: Any) -> None: ...


def spinning(communicator: Any) -> Exchange:
    """The library's own blocking call: it polls without rest, and so keeps its core busy."""

    def exchange(send: Any, receive: Any, operation: Any) -> None:
        communicator.Allreduce(send, receive, op=operation)

    return exchange


def blocking(communicator: Any) -> Exchange:
    """The same, leaving the core to others while there is nothing to do."""

    def exchange(send: Any, receive: Any, operation: Any) -> None:
        request = communicator.Iallreduce(send, receive, op=operation)
        while not request.Test():
            time.sleep(POLL_S)

    return exchange
