"""Requests of MPI: a nonblocking call ends when a wait or a test for it succeeds.

A request is known by its handle, which MPI reuses; MPICH gives all messages that are sent at once
the same one. So each handle has a queue, first in, first out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any

from evenstep.hooks.mpi.methods import Ticket, Watch

MOST_OPEN = 4096  # requests remembered; of more, the program has dropped the oldest

_get_ident = threading.get_ident

#: Called when a request has ended: its ticket, the time, the status if there is one.
Ended = Callable[[Any, int, Any], None]


class Requests:
    """Open requests of this process, and the waits for them."""

    def __init__(self, watch: Watch, ended: Ended, waited: Callable[[int, int, int], None]) -> None:
        self._watch = watch
        self._ended = ended
        self._waited = waited
        self._open: dict[int, deque[Ticket]] = {}
        self._count = 0

    def opened(self, request: Any, ticket: Ticket) -> None:
        """A request was returned to the program."""
        self._open.setdefault(request.handle, deque()).append(ticket)
        self._count += 1
        if self._count > MOST_OPEN:
            self.taken(next(iter(self._open)))

    def taken(self, handle: int) -> Ticket | None:
        """Remove the oldest ticket of a handle, and return it."""
        queue = self._open.get(handle, deque())
        try:
            ticket = queue.popleft()
        except IndexError:  # none of ours, or another thread has taken the last
            return None
        self._count -= 1
        if not queue:
            self._open.pop(handle, None)
        return ticket

    # -- replacements of methods -----------------------------------------------------------------

    def one(self, original: Any, *, tests: bool) -> Callable[..., Any]:
        """`Wait`, `wait`, `Test`, `test` of a request."""

        def method(request: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._watch.armed:
                return original(request, *args, **kwargs)
            handle, enter_ns = getattr(request, "handle", 0), monotonic_ns()
            status = args[0] if args else kwargs.get("status")
            if status is None and self._asks_status(handle):
                status = self._watch.mpi.Status()
                args, kwargs = (), {**kwargs, "status": status}
            result = original(request, *args, **kwargs)
            if not tests or (result if isinstance(result, bool) else result[0]):
                self._watch.safely(self._over, [handle], [status], enter_ns)
            return result

        return method

    def several(self, original: Any, chosen: Callable[[Any, int], Iterable[int]]) -> Any:
        """`Waitall`, `Testsome` and the like; `chosen` reads the ended ones from the result."""

        def method(cls: type, requests: Any, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(None, cls)
            if not self._watch.armed:
                return bound(requests, *args, **kwargs)
            requests = list(requests)
            handles = [getattr(request, "handle", 0) for request in requests]
            enter_ns = monotonic_ns()
            statuses, args, kwargs = self._statuses(bound, handles, args, kwargs)
            result = bound(requests, *args, **kwargs)
            ended = list(chosen(result, len(handles)))
            if ended:
                filled = [_status_at(statuses, place) for place in range(len(ended))]
                handles = [handles[index] for index in ended]
                self._watch.safely(self._over, handles, filled, enter_ns)
            return result

        return classmethod(method)

    def _asks_status(self, handle: int) -> bool:
        queue = self._open.get(handle) or ()
        return any(ticket.wildcard is not None for ticket in tuple(queue)[:1])

    def _statuses(
        self, bound: Any, handles: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The statuses to be filled: the program's own, else ours where a receive needs one."""
        given = args[0] if args else kwargs.get("statuses", kwargs.get("status"))
        if given is not None or not any(self._asks_status(handle) for handle in handles):
            return given, args, kwargs
        if bound.__name__.lower().endswith("any"):
            status = self._watch.mpi.Status()
            return status, (), {**kwargs, "status": status}
        statuses = [self._watch.mpi.Status() for _ in handles]
        return statuses, (), {**kwargs, "statuses": statuses}

    def _over(self, handles: list[int], statuses: list[Any], enter_ns: int) -> None:
        now = monotonic_ns()
        pairs = zip(map(self.taken, handles), statuses, strict=True)
        ended = [(ticket, status) for ticket, status in pairs if ticket is not None]
        if ended:
            self._waited(enter_ns, now, _get_ident())
        for ticket, status in sorted(ended, key=lambda one: one[0].record):
            self._ended(ticket, now, status)


def _status_at(statuses: Any, place: int) -> Any:
    """The status of the `place`-th request that ended; MPI fills them in that order."""
    if not isinstance(statuses, list):
        return statuses
    return statuses[place] if place < len(statuses) else None


def all_of(_: Any, number: int) -> Iterable[int]:
    """The ended requests of `Waitall`."""
    return range(number)


def all_if(result: Any, number: int) -> Iterable[int]:
    """The ended requests of `Testall`: all or none."""
    done = result if isinstance(result, bool) else result[0]
    return range(number) if done else ()


def one_of(result: Any, number: int) -> Iterable[int]:
    """The ended request of `Waitany` and `Testany`: an index, perhaps with a flag or a message."""
    index = result[0] if isinstance(result, tuple) else result
    return (index,) if 0 <= index < number else ()


def some_of(result: Any, number: int) -> Iterable[int]:
    """The ended requests of `Waitsome` and `Testsome`: a list of indices, or None."""
    indices = result[0] if isinstance(result, tuple) else result
    return [index for index in indices or () if 0 <= index < number]
