"""Communicators in the order of their first use, with names that all their members agree on.

MPI numbers communicators differently on every rank. Members agree on how one was made: the parent,
the call, and its number among those with the same ranks. One whose making was not observed (before
the start, or by a library) is numbered by its ranks alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import LONGEST_NAME
from evenstep.trace.spool.spool import Spool

MAKERS = (  # methods that return a new communicator
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group",
    "Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub",
    "Merge", "Create_intercomm", "Shrink",
)  # fmt: skip
ENDERS = ("Free", "free", "Disconnect")


class MpiGroups:
    """The communicators that this rank has used, by handle; MPI reuses handles."""

    def __init__(self, spool: Spool, mpi: Any) -> None:
        self._spool = spool
        self._mpi = mpi
        self._null = mpi.COMM_NULL
        self._undefined = mpi.UNDEFINED
        self._world = mpi.COMM_WORLD.Get_group()
        self.known: dict[int, GroupState] = {}
        self._names: dict[int, str] = {}
        self._made: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def state(self, communicator: Any) -> GroupState:
        """The state of a communicator, entered at its first use. Raises as `meet`."""
        return self.known.get(communicator.handle) or self.meet(communicator)

    def made(self, parent: Any, method: str, child: Any) -> None:
        """A communicator was made from `parent`."""
        if child is None or child == self._null:
            return
        self.ended(child.handle)
        origin = self._names.get(parent.handle) or str(parent.Get_name()) or "communicator"
        name = shorten(f"{origin}.{method}")
        self._names[child.handle] = numbered(self._made, name, self._ranks(child))

    def ended(self, handle: int) -> None:
        """A communicator was freed."""
        self.known.pop(handle, None)
        self._names.pop(handle, None)

    def release(self) -> None:
        """Free the handle of the world's group, unless MPI has ended before us."""
        if self._world and not self._mpi.Is_finalized():
            self._world.Free()

    def meet(self, communicator: Any) -> GroupState:
        """Enter an unknown communicator. Raises MPI's error for an invalid one."""
        handle = communicator.handle
        ranks = self._ranks(communicator)
        own = str(communicator.Get_name())
        name = self._names.get(handle)
        if name is None:
            name = self._names[handle] = numbered(self._made, own or "communicator", ranks)
        state = GroupState.entered(self._spool, name, ranks, shown=own, backend="mpi")
        self.known[handle] = state
        return state

    def _ranks(self, communicator: Any) -> tuple[int, ...]:
        """Global ranks in the order of the communicator's own; of an intercommunicator, both."""
        ranks = self._members(communicator.Get_group())
        if communicator.Is_inter():
            ranks = self._members(communicator.Get_remote_group()) + ranks
        return tuple(rank for rank in ranks if rank != self._undefined)

    def _members(self, group: Any) -> list[int]:
        """Global ranks of a group, which is freed."""
        try:
            found = group.Translate_ranks(list(range(group.Get_size())), self._world)
        finally:
            group.Free()
        return list(found)


def numbered(made: Counter[tuple[str, tuple[int, ...]]], name: str, ranks: tuple[int, ...]) -> str:
    """A name that no other communicator with the same ranks has; `made` counts those so far."""
    key = name, tuple(sorted(ranks))
    made[key] += 1
    return name if made[key] == 1 else f"{name} ({made[key]})"


def shorten(name: str) -> str:
    """A name of bounded length, the same on every member: names grow with each parent.

    The beginning of a long name is replaced by its digest.
    """
    if len(name) <= LONGEST_NAME:
        return name
    cut = len(name) - LONGEST_NAME // 2
    digest = hashlib.sha256(name[:cut].encode(errors="replace")).hexdigest()[:12]
    return f"{digest}…{name[cut:]}"
