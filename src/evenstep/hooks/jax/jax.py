"""Observe JAX programs on the host: compilation, host-level collectives, and marked steps.

The collectives and waits of compiled functions run inside XLA and are not visible to Python.
Visible are the duration of compilations, and the blocking calls of
`jax.experimental.multihost_utils`, which are recorded as collectives of all processes. Steps are
marked by `evenstep.step()`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any

from evenstep.agent.arming import arm, disarm
from evenstep.agent.pulse.heartbeat import joining
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.stacks import Hooks, ObservedRank, RankInWorld, Tested
from evenstep.hooks.mpi.calls import nbytes
from evenstep.hooks.wrapping import Wrapped, replace_attribute, undo
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op

HOST_COLLECTIVES = {
    "sync_global_devices": Op.BARRIER,
    "process_allgather": Op.ALL_GATHER,
    "broadcast_one_to_all": Op.BROADCAST,
}
COMPILATION = {  # events of jax.monitoring, with their names in the trace
    "/jax/core/compile/jaxpr_trace_duration": "jax trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "jax lower",
    "/jax/core/compile/backend_compile_duration": "jax compile",
}
UTILITIES = "jax.experimental.multihost_utils"
SHORTEST_NS = 100_000  # shorter compilations are not recorded
GROUP = "jax processes"
LIMIT = (
    "jax: collectives inside compiled functions run in XLA and are not seen; of waiting between "
    "processes only that in jax.experimental.multihost_utils is"
)


class JaxHooks(Hooks):
    """Hooks of compilation and host-level collectives."""

    def __init__(self, jax: Any, agent: ObservedRank) -> None:
        self.armed = True
        self._jax = jax
        self._agent = agent
        self._recorder = agent.recorder
        self._group: GroupState | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Listen to compilation at once, and wrap the collectives when they are imported."""
        monitoring = self._jax.monitoring
        monitoring.register_event_duration_secs_listener(self._compiled)
        self._undo.append(lambda: monitoring.unregister_event_duration_listener(self._compiled))
        arm(self._wrap_collectives, target=UTILITIES)
        self._undo.append(lambda: disarm(UTILITIES))
        self._agent.spool.add_fact("framework", LIMIT)

    def disarm(self) -> None:
        self.armed = False

    def remove(self) -> None:
        self.armed = False
        undo(self._undo)

    def describe(self) -> dict[str, Any]:
        return {"mechanism": "jax.monitoring and multihost_utils"}

    # -- compilation -----------------------------------------------------------------------------

    def _compiled(self, event: str, duration_s: float, **_: Any) -> None:
        """Record a compilation; a listener of jax.monitoring, called on the compiling thread."""
        name = COMPILATION.get(event)
        took_ns = int(duration_s * 1e9)
        if name is None or took_ns < SHORTEST_NS or not self.armed:
            return
        try:
            now, recorder = monotonic_ns(), self._recorder
            stack, spool = recorder.stack, recorder.spool
            spool.put(
                now - took_ns, now, int(Kind.SPAN), 0, stack.step, stack.parent,
                thread=recorder.thread(threading.get_ident()), name=spool.name_id(name),
            )  # fmt: skip
        except Exception as error:
            self._give_up(error)

    # -- host-level collectives ------------------------------------------------------------------

    def _wrap_collectives(self) -> None:
        from jax.experimental import multihost_utils

        if not self.armed:
            return
        for name, op in HOST_COLLECTIVES.items():
            if hasattr(multihost_utils, name):
                self._wrap(multihost_utils, name, int(op))

    def _wrap(self, module: Any, name: str, op: int) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not self.armed:
                return original(*args, **kwargs)
            enter_ns = monotonic_ns()
            seq = self._begun(enter_ns, op, args[0] if args else None)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._ended(seq, enter_ns, failed=True)
                raise
            self._ended(seq, enter_ns)
            return result

        self._undo.append(replace_attribute(module, name, collective))

    def _begun(self, enter_ns: int, op: int, value: Any) -> int:
        try:
            size = nbytes(value)
            return self._recorder.collective(enter_ns, self._state(), op, size, size, 0, NO_PEER, 0)
        except Exception as error:
            self._give_up(error)
            return 0

    def _ended(self, seq: int, enter_ns: int, *, failed: bool = False) -> None:
        if not seq:
            return
        try:
            if failed:
                self._recorder.spool.add_flags(seq, int(Flag.FAILED))
            self._recorder.host_waited(enter_ns, monotonic_ns(), ident=threading.get_ident())
        except Exception as error:
            self._give_up(error)

    def _state(self) -> GroupState:
        if self._group is None:
            ranks = tuple(range(self._agent.identity.world))
            self._group = GroupState.entered(self._agent.spool, GROUP, ranks, backend="jax")
        return self._group

    def _give_up(self, error: Exception) -> None:
        self._agent.give_up(error)
        self.armed = False


# -- the stack -------------------------------------------------------------------------------------


TESTED = Tested("jax", "0.10", "0.10")


class JaxStack:
    """The processes of a JAX job."""

    name = "jax"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._wrapped = Wrapped()

    def arm(self, ready: Callable[[], None]) -> None:
        """Wait for the initialisation."""
        if not self._wrapped:
            module = sys.modules["jax.distributed"]  # jax itself may still be importing
            self._wrapped.around(module, "initialize", after=ready, within=_joining)

    def disarm(self) -> None:
        self._wrapped.restore()

    def place(self) -> RankInWorld | None:
        """The rank of this process, by the coordination client: that starts no backend."""
        from jax._src import distributed

        state = distributed.global_state
        if getattr(state, "client", None) is None:
            return None
        return RankInWorld(int(state.process_id), int(state.num_processes))

    def hooks(self, agent: ObservedRank) -> Hooks:
        """Hooks of compilation and host-level collectives."""
        found = str(self._jax.__version__)
        agent.spool.add_fact("jax", {"jax": found})
        TESTED.check(found, agent)
        return JaxHooks(self._jax, agent)


def _joining(keywords: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Mark this process while it meets the others."""
    process, processes = keywords.get("process_id"), keywords.get("num_processes")
    address = keywords.get("coordinator_address") or ""
    return joining("jax.distributed.initialize", process, processes, str(address))
