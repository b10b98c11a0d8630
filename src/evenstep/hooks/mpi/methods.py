"""Replacements of mpi4py's methods, which record a call and make it by the original method.

Whatever our part does, the call is made once, with its own arguments, and its result and errors are
passed on.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Protocol

from evenstep.hooks.mpi.groups import MpiGroups
from evenstep.hooks.mpi.requests import Requests, Ticket

#: Records a call: communicator, positional and keyword arguments -> its ticket.
Enter = Callable[[Any, tuple[Any, ...], dict[str, Any]], Ticket | None]


class Watch(Protocol):
    """The hooks as replaced methods see them; they report every call while `armed`."""

    armed: bool
    gate: Callable[[], None] | None  # called before a collective is issued; it may sleep
    groups: MpiGroups
    requests: Requests

    def safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """The result of our own code; None where it fails (see `missed`)."""

    def missed(self, error: Exception) -> None:
        """Our part of a call failed."""

    def returned(self, ticket: Ticket, enter_ns: int) -> None:
        """A blocking call that began at `enter_ns` has returned."""

    def failed(self, ticket: Ticket | None) -> None:
        """A call raised."""


class Methods:
    """Makes the replacements, which report to `watch`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def blocking(self, original: Any, enter: Enter) -> Callable[..., Any]:
        """A call that returns when it has ended."""
        watch = self._watch
        return self._reported(
            original, enter, lambda ticket, enter_ns, _: watch.returned(ticket, enter_ns)
        )

    def issuing(self, original: Any, enter: Enter) -> Callable[..., Any]:
        """A call that returns a request."""
        watch = self._watch
        return self._reported(
            original, enter, lambda ticket, _, request: watch.requests.opened(request, ticket)
        )

    def _reported(
        self, original: Any, enter: Enter, done: Callable[[Ticket, int, Any], None]
    ) -> Callable[..., Any]:
        """`done` gets the ticket, the time before the call, and the result."""
        watch = self._watch

        def method(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            if not watch.armed:
                return original(communicator, *args, **kwargs)
            enter_ns = monotonic_ns()
            ticket = failure = None
            try:
                ticket = enter(communicator, args, kwargs)
            except Exception as error:  # none of ours, if MPI refuses the call as well
                failure = error
            try:
                result = original(communicator, *args, **kwargs)
            except BaseException:
                watch.safely(watch.failed, ticket)
                raise
            if ticket is not None:
                watch.safely(done, ticket, enter_ns, result)
            elif failure is not None:
                watch.missed(failure)
            return result

        return method

    def making(self, original: Any, name: str) -> Callable[..., Any]:
        """A call that makes a communicator."""
        made = self._watch.groups.made
        return self._told(original, after=lambda parent, child: made(parent, name, child))

    def ending(self, original: Any) -> Callable[..., Any]:
        """A call that frees a communicator."""
        ended = self._watch.groups.ended
        return self._told(original, before=lambda communicator: ended(communicator.handle))

    def freeing(self, original: Any) -> Callable[..., Any]:
        """A call that frees a request."""
        freed = self._watch.requests.freed
        return self._told(original, before=lambda request: freed(request.handle))

    def _told(
        self, original: Any, before: Callable[[Any], Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:  # fmt: skip
        """`before` gets the call's object; `after` also the result."""
        watch = self._watch

        def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None and watch.armed:
                watch.safely(before, owner)
            result = original(owner, *args, **kwargs)
            if after is not None and watch.armed:
                watch.safely(after, owner, result)
            return result

        return method


def assign(owner: type, name: str, method: Any) -> None:
    """Set a method of a class, which may be immutable. Raises TypeError."""
    with suppress(TypeError):  # immutable
        setattr(owner, name, method)
        return
    for found in gc.get_referents(owner.__dict__)[:1]:
        if isinstance(found, dict):
            found[name] = method
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    if owner.__dict__.get(name) is not method:
        raise TypeError(f"the methods of {owner.__name__} cannot be replaced in this Python")
