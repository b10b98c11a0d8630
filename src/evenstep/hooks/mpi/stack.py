"""mpi4py as a stack: ranks are known once MPI is initialised, usually by its import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenstep.agent.stacks import Hooks, ObservedRank, RankInWorld
from evenstep.hooks.tested import Tested
from evenstep.hooks.wrapping import Wrapped

TESTED = Tested("mpi4py", "4.1", "4.1")
INITIALIZERS = ("Init", "Init_thread")


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

        from evenstep.hooks.mpi.mpi import MpiHooks

        found = str(mpi4py.__version__)
        library = str(self._mpi.Get_library_version()).split("\n")[0].strip("\0 ")
        agent.spool.add_fact("mpi", {"mpi4py": found, "library": " ".join(library.split())})
        TESTED.check(found, agent)
        return MpiHooks(self._mpi, agent)
