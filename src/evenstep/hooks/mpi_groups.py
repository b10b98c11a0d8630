"""Communicators as they are met, each with a name that all its members agree on.

MPI numbers communicators differently on every rank. Members agree on how one was made: from which,
by which call, and as the how-many-th with these ranks. One that nobody was seen making (from before
the start, or made by a library) is counted by its ranks alone.
"""

from __future__ import annotations

from typing import Any

from evenstep.agent.entries import GroupState
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.spool import Spool

MAKERS = (  # methods that return a new communicator
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group",
    "Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub",
    "Merge", "Create_intercomm", "Shrink",
)  # fmt: skip
ENDERS = ("Free", "free", "Disconnect")


class MpiGroups:
    """The communicators this rank has used, by handle; a handle comes back once it is free."""

    def __init__(self, spool: Spool, mpi: Any) -> None:
        self._spool = spool
        self._null = mpi.COMM_NULL
        self._undefined = mpi.UNDEFINED
        self._world = mpi.COMM_WORLD.Get_group()
        self._known: dict[int, GroupState] = {}
        self._names: dict[int, str] = {}
        self._made: dict[tuple[str, tuple[int, ...]], int] = {}

    def state(self, communicator: Any) -> GroupState:
        """What is known of a communicator; met now if need be."""
        known = self._known.get(communicator.handle)
        return known if known is not None else self._meet(communicator)

    def made(self, parent: Any, method: str, child: Any) -> None:
        """A communicator was made of another."""
        if child is None or child == self._null:
            return
        self.ended(child.handle)
        origin = self._names.get(parent.handle) or str(parent.Get_name()) or "communicator"
        self._names[child.handle] = self._numbered(f"{origin}.{method}", self._ranks(child))

    def ended(self, handle: int) -> None:
        """A communicator is no more."""
        self._known.pop(handle, None)
        self._names.pop(handle, None)

    def _meet(self, communicator: Any) -> GroupState:
        handle = communicator.handle
        ranks = self._ranks(communicator)
        own = str(communicator.Get_name())
        name = self._names.get(handle)
        if name is None:
            name = self._names[handle] = self._numbered(own or "communicator", ranks)
        uid = group_uid(ranks, name)
        described = {
            "uid": uid, "name": own or name, "ranks": format_ranks(ranks), "base": 0,
            "backend": "mpi",
        }  # fmt: skip
        state = GroupState(self._spool.add_group(described), uid, ranks, 0)
        self._known[handle] = state
        return state

    def _ranks(self, communicator: Any) -> tuple[int, ...]:
        """Global ranks in the order of the communicator's own; of an intercommunicator, both."""
        groups = [communicator.Get_group()]
        if communicator.Is_inter():
            groups = [communicator.Get_remote_group(), *groups]
        ranks: list[int] = []
        for group in groups:
            ranks += group.Translate_ranks(list(range(group.Get_size())), self._world)
            group.Free()
        return tuple(rank for rank in ranks if rank != self._undefined)

    def _numbered(self, name: str, ranks: tuple[int, ...]) -> str:
        key = (name, tuple(sorted(ranks)))
        number = self._made[key] = self._made.get(key, 0) + 1
        return name if number == 1 else f"{name} ({number})"
