"""Observe mpi4py programs: record every call of every communicator and pass it on.

The methods of mpi4py's types are replaced, so all communicators are observed, whether they exist
already, are made later or by a library, and `MPI.COMM_WORLD` stays the same object.

A blocking call ends when it returns. A nonblocking one ends when a wait or test for it succeeds: an
upper bound. No MPI call is added on any path that communicates; to name a communicator, once, MPI
is asked for its members, which is local.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from evenstep.agent.stacks import HostHooks
from evenstep.hooks.mpi import calls
from evenstep.hooks.mpi.calls import Message
from evenstep.hooks.mpi.collectives import MpiCollectives
from evenstep.hooks.mpi.groups import ENDERS, MAKERS, MpiGroups
from evenstep.hooks.mpi.messages import MpiMessages
from evenstep.hooks.mpi.methods import Enter, Methods, assign
from evenstep.hooks.mpi.requests import Requests, Ticket, all_if, all_of, one_of, some_of
from evenstep.hooks.repeating import MESSAGE, InferredSteps
from evenstep.hooks.wrapping import replace_attribute, undo
from evenstep.trace.spool.layout import Flag

if TYPE_CHECKING:
    from evenstep.agent.stacks import ObservedRank

_get_ident = threading.get_ident


class MpiHooks(HostHooks):
    """Collectives, messages, requests and communicators of mpi4py."""

    def __init__(self, mpi: Any, agent: ObservedRank) -> None:
        self.armed = True
        self.gate: Callable[[], None] | None = agent.gate
        self._mpi = mpi
        self._agent = agent
        self._recorder = agent.recorder
        self.groups = MpiGroups(agent.spool, mpi)
        self._steps = InferredSteps(agent, "MPI")
        self._collectives = MpiCollectives(self, agent.recorder, self.groups, self._steps)
        self._messages = MpiMessages(mpi, agent.recorder, self.groups)
        self.requests = Requests(mpi, self._ended, self._waited, lambda: self.armed, self.missed)
        self._methods = Methods(self)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace the methods. Raises TypeError where this Python does not let it."""
        try:
            for owner in (self._mpi.Comm, self._mpi.Intracomm, self._mpi.Topocomm):
                self._communicator(owner)
            for owner in (self._mpi.Intercomm, self._mpi.Cartcomm):
                self._makers(owner)
            self._request(self._mpi.Request)
            if self._mpi.Is_initialized() and self._mpi.COMM_WORLD.Get_size() > 1:
                self._agent.spool.add_fact("framework", calls.LIMIT)
        except BaseException:
            undo(self._undo)
            raise

    def pause_by(self, gate: Callable[[], None] | None) -> None:
        """Call `gate` before each collective from now on."""
        self.gate = gate

    def disarm(self) -> None:
        """Pass every call through from now on."""
        self.armed = False

    def remove(self) -> None:
        """Restore the methods, and infer the last steps."""
        armed, self.armed = self.armed, False
        undo(self._undo)
        if armed:
            self._steps.conclude()
        self.groups.release()

    def describe(self) -> dict[str, Any]:
        """The mechanism, and the calls that are not recorded."""
        return {"mechanism": "mpi4py's communicators", "not_recorded": list(calls.UNSEEN)}

    # -- replaced methods ------------------------------------------------------------------------

    def _communicator(self, owner: type) -> None:
        methods, messages = self._methods, self._messages
        collected = self._collectives.issuing

        def sent(call: Message, *, blocking: bool = False) -> Enter:
            return self._message(messages.entering(call, blocking=blocking))

        makes: tuple[tuple[Mapping[str, Any], Callable[[Any, Any], Any]], ...] = (
            (calls.BLOCKING, self._collectives.blocking),
            (calls.NONBLOCKING, lambda own, call: methods.issuing(own, collected(call))),
            (calls.BLOCKING_MESSAGES, lambda own, call: messages.receiving(
                own, call, methods.blocking, sent(call, blocking=True)
            )),
            (calls.NONBLOCKING_MESSAGES, lambda own, call: methods.issuing(own, sent(call))),
            (dict.fromkeys(ENDERS), lambda own, _: methods.ending(own)),
        )  # fmt: skip
        for table, make in makes:
            self._each(owner, table, make)
        self._makers(owner)

    def _makers(self, owner: type) -> None:
        self._each(owner, {name: name for name in MAKERS}, self._methods.making)

    def _each(self, owner: type, table: Mapping[str, Any], make: Callable[[Any, Any], Any]) -> None:
        """Replace the methods of a table that `owner` has by what is made of them."""
        for name, call in table.items():
            if name in owner.__dict__:
                self._replace(owner, name, make(owner.__dict__[name], call))

    def _request(self, owner: type) -> None:
        own, requests = owner.__dict__, self.requests
        for name in ("Wait", "wait", "Test", "test"):
            tests = name in ("Test", "test")
            self._replace(owner, name, requests.one(own[name], tests=tests))
        choosers = {"Waitall": all_of, "Testall": all_if, "Waitany": one_of, "Testany": one_of}
        choosers |= {"Waitsome": some_of, "Testsome": some_of}
        for name, chosen in choosers.items():
            for spelling in (name, name.lower()):
                self._place(owner, spelling, requests.several(own[spelling], chosen))
        names = dict.fromkeys(("Free", "free"))
        self._each(owner, names, lambda own, _: self._methods.freeing(own))

    def _replace(self, owner: type, name: str, method: Any) -> None:
        original = owner.__dict__[name]
        method.__name__, method.__doc__ = name, getattr(original, "__doc__", None)
        method.__qualname__, method.__wrapped__ = f"{owner.__name__}.{name}", original
        self._place(owner, name, method)

    def _place(self, owner: type, name: str, method: Any) -> None:
        self._undo.append(replace_attribute(owner, name, method, assign))

    # -- what is recorded ------------------------------------------------------------------------

    def _message(self, enter: Callable[..., tuple[Ticket, Any] | None]) -> Enter:
        """Enter a message by `MpiMessages`, and pass its signature to the inferred steps."""

        def entering(
            communicator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Ticket | None:
            enter_ns = monotonic_ns()
            begun = enter(enter_ns, communicator, args, kwargs)
            if begun is None:
                return None
            ticket, signature = begun
            if _get_ident() == self._recorder.ident:
                self._steps.entered(ticket.record, MESSAGE, signature, enter_ns)
            return ticket

        return entering

    def returned(self, ticket: Ticket, enter_ns: int) -> None:
        """End a blocking call, which was a wait."""
        now = monotonic_ns()
        self._waited(enter_ns, now, _get_ident())
        self._ended(ticket, now, None)

    def _waited(self, enter_ns: int, exit_ns: int, ident: int) -> None:
        self._recorder.host_waited(enter_ns, exit_ns, ident=ident)

    def _ended(self, ticket: Ticket, exit_ns: int, status: Any) -> None:
        if ticket.wildcard is not None:
            self._messages.resolve(ticket, status)
        self._recorder.spool.close(ticket.record, exit_ns)
        if ticket.also:
            self._recorder.spool.close(ticket.also, exit_ns)
        if _get_ident() == self._recorder.ident:
            self._steps.left(ticket.record, exit_ns)

    def failed(self, ticket: Ticket | None) -> None:
        """End a call that raised."""
        if ticket is None:
            return
        self._recorder.spool.add_flags(ticket.record, int(Flag.FAILED))
        self._recorder.spool.close(ticket.record, monotonic_ns())

    # -- our own failures ------------------------------------------------------------------------

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
        if self.armed and not isinstance(error, self._mpi.Exception):
            self._agent.give_up(error)
            self.armed = False
