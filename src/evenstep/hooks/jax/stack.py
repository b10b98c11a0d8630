"""JAX as a stack: processes are ranks once `jax.distributed.initialize` has returned."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evenstep.agent.stacks import Hooks, RankInWorld
from evenstep.hooks.tested import Tested
from evenstep.hooks.wrapping import Wrapped

if TYPE_CHECKING:
    from evenstep.agent.stacks import ObservedRank

log = logging.getLogger("evenstep")

TESTED = Tested("jax", "0.10", "0.10")


class JaxStack:
    """The processes of a JAX job."""

    name = "jax"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._wrapped = Wrapped()

    def arm(self, ready: Callable[[], None]) -> None:
        """Follow the initialisation."""
        if not self._wrapped:
            module = sys.modules["jax.distributed"]  # jax itself may still be importing
            self._wrapped.around(module, "initialize", after=ready)

    def disarm(self) -> None:
        """Take back what `arm` did."""
        self._wrapped.restore()

    def place(self) -> RankInWorld | None:
        """This process among all; asked of the coordination client, which starts no backend."""
        from jax._src import distributed

        state = distributed.global_state
        if getattr(state, "client", None) is None:
            return None
        return RankInWorld(int(state.process_id), int(state.num_processes))

    def hooks(self, agent: ObservedRank) -> Hooks:
        """What the host can see."""
        from evenstep.hooks.jax.jax import JaxHooks

        found = str(self._jax.__version__)
        agent.spool.add_fact("jax", {"jax": found})
        outside = TESTED.outside(found)
        if outside:
            agent.spool.add_fact("stack", outside)
            if agent.identity.rank == 0:
                log.warning("evenstep: %s", outside)
        return JaxHooks(self._jax, agent)
