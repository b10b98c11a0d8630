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
from functools import partial
from time import monotonic_ns
from typing import Any

from evenstep.agent.stacks import Hooks, ObservedRank, RankInWorld, Tested
from evenstep.hooks.mpi import calls
from evenstep.hooks.mpi.collectives import MpiCollectives, MpiMessages
from evenstep.hooks.mpi.groups import ENDERS, MAKERS, MpiGroups
from evenstep.hooks.mpi.methods import Enter, Ticket, Watch, assign
from evenstep.hooks.mpi.requests import Requests, all_if, all_of, one_of, some_of
from evenstep.hooks.repeating import InferredSteps
from evenstep.hooks.wrapping import Wrapped, replace_attribute, undo

_get_ident = threading.get_ident
TESTED = Tested("mpi4py", "4.1", "4.1")
INITIALIZERS = ("Init", "Init_thread")


class MpiHooks(Watch, Hooks):
    """Collectives, messages, requests and communicators of mpi4py."""

    def __init__(self, mpi: Any, agent: ObservedRank) -> None:
        super().__init__(mpi, agent)
        self._groups = MpiGroups(agent.spool, mpi)
        self._steps = InferredSteps(agent, "MPI")
        self._collectives = MpiCollectives(self, agent.recorder, self._groups, self._steps)
        self._messages = MpiMessages(mpi, agent.recorder, self._groups, self._steps)
        self._requests = Requests(self, self._ended, self._waited)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace the methods. Raises TypeError where this Python does not let it."""
        try:
            for owner in (self.mpi.Comm, self.mpi.Intracomm, self.mpi.Topocomm):
                self._communicator(owner)
            for owner in (self.mpi.Intercomm, self.mpi.Cartcomm):
                self._makers(owner)
            self._request(self.mpi.Request)
            if self.mpi.Is_initialized() and self.mpi.COMM_WORLD.Get_size() > 1:
                self._agent.spool.add_fact("framework", calls.LIMIT)
        except BaseException:
            undo(self._undo)
            raise

    def pause_by(self, gate: Callable[[], None] | None) -> None:
        self.gate = gate

    def disarm(self) -> None:
        self.armed = False

    def remove(self) -> None:
        """Restore the methods, and infer the last steps."""
        armed, self.armed = self.armed, False
        undo(self._undo)
        if armed:
            self._steps.conclude()
        self._groups.release()

    def describe(self) -> dict[str, Any]:
        """The mechanism, and the calls that are not recorded."""
        return {"mechanism": "mpi4py's communicators", "not_recorded": list(calls.UNSEEN)}

    # -- replaced methods ------------------------------------------------------------------------

    def _communicator(self, owner: type) -> None:
        collectives, messages, ended = self._collectives, self._messages, self._groups.ended

        def issuing(original: Any, enter: Enter) -> Callable[..., Any]:
            """A call that returns a request."""
            return self.reported(
                original, enter, lambda ticket, _, request: self._requests.opened(request, ticket)
            )

        makes: tuple[tuple[Mapping[str, Any], Callable[[Any, Any], Any]], ...] = (
            (calls.BLOCKING, collectives.blocking),
            (calls.NONBLOCKING, lambda own, call: issuing(own, collectives.issuing(call))),
            (calls.BLOCKING_MESSAGES, lambda own, call: messages.receiving(
                self.reported(own, messages.entering(call, blocking=True), self._returned), call
            )),
            (calls.NONBLOCKING_MESSAGES, lambda own, call: issuing(own, messages.entering(call))),
            (dict.fromkeys(ENDERS), lambda own, _: self.noticed(own, lambda it: ended(it.handle))),
        )  # fmt: skip
        for table, make in makes:
            self._each(owner, table, make)
        self._makers(owner)

    def _makers(self, owner: type) -> None:
        def making(original: Any, name: str) -> Callable[..., Any]:
            made = self._groups.made
            return self.noticed(original, after=lambda parent, child: made(parent, name, child))

        self._each(owner, {name: name for name in MAKERS}, making)

    def _each(self, owner: type, table: Mapping[str, Any], make: Callable[[Any, Any], Any]) -> None:
        """Replace the methods of a table that `owner` has by what is made of them."""
        for name, call in table.items():
            if name in owner.__dict__:
                self._replace(owner, name, make(owner.__dict__[name], call))

    def _request(self, owner: type) -> None:
        own, requests = owner.__dict__, self._requests
        for name in ("Wait", "wait", "Test", "test"):
            tests = name in ("Test", "test")
            self._replace(owner, name, requests.one(own[name], tests=tests))
        choosers = {"Waitall": all_of, "Testall": all_if, "Waitany": one_of, "Testany": one_of}
        choosers |= {"Waitsome": some_of, "Testsome": some_of}
        for name, chosen in choosers.items():
            for spelling in (name, name.lower()):
                self._place(owner, spelling, requests.several(own[spelling], chosen))
        freeing = partial(self.noticed, before=lambda request: requests.taken(request.handle))
        self._each(owner, dict.fromkeys(("Free", "free")), lambda own, _: freeing(own))

    def _replace(self, owner: type, name: str, method: Any) -> None:
        original = owner.__dict__[name]
        method.__name__, method.__doc__ = name, getattr(original, "__doc__", None)
        method.__qualname__, method.__wrapped__ = f"{owner.__name__}.{name}", original
        self._place(owner, name, method)

    def _place(self, owner: type, name: str, method: Any) -> None:
        self._undo.append(replace_attribute(owner, name, method, assign))

    # -- what is recorded ------------------------------------------------------------------------

    def _returned(self, ticket: Ticket, enter_ns: int, _: Any) -> None:
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


class MpiStack:
    """MPI of this process by mpi4py. MPI 4's sessions alone make no rank."""

    name = "mpi"

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._wrapped = Wrapped()

    def arm(self, ready: Callable[[], None]) -> None:
        """Wait for a later initialisation (`mpi4py.rc.initialize = False`)."""
        if self._wrapped or self._mpi.Is_initialized():
            return
        for name in INITIALIZERS:
            self._wrapped.around(self._mpi, name, after=ready)

    def disarm(self) -> None:
        self._wrapped.restore()

    def place(self) -> RankInWorld | None:
        """The rank in MPI_COMM_WORLD."""
        mpi = self._mpi
        if not mpi.Is_initialized() or mpi.Is_finalized():
            return None
        return RankInWorld(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())

    def hooks(self, agent: ObservedRank) -> Hooks:
        """Hooks of communicators and requests."""
        import mpi4py

        found = str(mpi4py.__version__)
        library = str(self._mpi.Get_library_version()).split("\n")[0].strip("\0 ")
        agent.spool.add_fact("mpi", {"mpi4py": found, "library": " ".join(library.split())})
        TESTED.check(found, agent)
        return MpiHooks(self._mpi, agent)
