"""Replacements of mpi4py's methods, which record a call and make it by the original method.

Whatever our part does, the call is made once, with its own arguments, and its result and errors are
passed on.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from evenstep.agent.stacks import ObservedRank
from evenstep.trace.spool.layout import Flag


@dataclass(slots=True, eq=False)
class Ticket:
    """A call that was issued and has not ended."""

    record: int
    #: Of a receive of any source or tag: the communicator's state, and the status if there is one.
    wildcard: Any = None
    also: int = 0  # the record of the other half of an exchange


#: Records a call: communicator, positional and keyword arguments -> its ticket.
Enter = Callable[[Any, tuple[Any, ...], dict[str, Any]], Ticket | None]


class Watch:
    """Makes the replacements, which record every call while `armed`."""

    def __init__(self, mpi: Any, agent: ObservedRank) -> None:
        self.armed = True
        #: Called before a collective is issued; it may sleep.
        self.gate: Callable[[], None] | None = agent.gate
        self.mpi = mpi
        self._agent = agent
        self._recorder = agent.recorder

    def reported(
        self, original: Any, enter: Enter, done: Callable[[Ticket, int, Any], None]
    ) -> Callable[..., Any]:
        """A call that is recorded; `done` gets the ticket, the time before it, and the result."""

        def method(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.armed:
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
                self.safely(self.failed, ticket)
                raise
            if ticket is not None:
                self.safely(done, ticket, enter_ns, result)
            elif failure is not None:
                self.missed(failure)
            return result

        return method

    def noticed(
        self, original: Any, before: Callable[[Any], Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:  # fmt: skip
        """A call that is not recorded; `before` gets its object, `after` also the result."""

        def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None and self.armed:
                self.safely(before, owner)
            result = original(owner, *args, **kwargs)
            if after is not None and self.armed:
                self.safely(after, owner, result)
            return result

        return method

    def failed(self, ticket: Ticket | None) -> None:
        """End a call that raised."""
        if ticket is not None:
            self._recorder.spool.add_flags(ticket.record, int(Flag.FAILED))
            self._recorder.spool.close(ticket.record, monotonic_ns())

    def safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """The result of our own code; None where it fails (see `missed`)."""
        try:
            return action(*args)
        except Exception as error:
            self.missed(error)
            return None

    def missed(self, error: Exception) -> None:
        """Stop observing after a failure of our part of a call.

        An error of MPI, such as of a communicator that was freed, only leaves this call unrecorded:
        the program gets the same error by its own call.
        """
        if self.armed and not isinstance(error, self.mpi.Exception):
            self._agent.give_up(error)
            self.armed = False


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
