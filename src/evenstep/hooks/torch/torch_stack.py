"""Torch as a stack: ranks are known once the process group is made."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from evenstep.agent.pulse.heartbeat import joining
from evenstep.agent.stacks import Hooks, ObservedRank, RankInWorld
from evenstep.hooks.repeating import InferredSteps
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import TorchHooks
from evenstep.hooks.torch.native import NativeGroups, Session, new_session
from evenstep.hooks.wrapping import Wrapped
from evenstep.stores import second_client
from evenstep.trace.spool.layout import Flag

if TYPE_CHECKING:
    from evenstep.agent.recording.phases import Compiled
    from evenstep.trace.spool.spool import Spool


class TorchStack:
    """torch.distributed of this process."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._wrapped = Wrapped()
        self.groups: Groups | None = None  # of the agent's trace
        self._session: Session | None = None  # of the same, where compiled kernels record it
        self._instead = "torch was imported after something else had begun to record"
        self.meetings = 0  # default process groups so far

    @property
    def available(self) -> bool:
        """Whether this torch was built with torch.distributed."""
        return bool(_torch_distributed().is_available())

    def arm(self, ready: Callable[[], None]) -> None:
        """Follow the process group: wrap the functions that make and destroy it, in all modules."""
        if self._wrapped or not self.available:
            return
        from torch.distributed import distributed_c10d

        if self.place() is not None:  # made before
            self.meetings = max(self.meetings, 1)

        def made() -> None:
            self.meetings += 1
            ready()

        def ended() -> None:
            if self.groups is not None:
                self.groups.forget()  # their names may come back with other members

        for name, after, within in (
            ("init_process_group", made, self._joining),
            ("destroy_process_group", ended, None),
        ):
            self._wrapped.around(
                distributed_c10d, name, after=after, within=within, holders="torch.distributed"
            )

    def _joining(self, keywords: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Mark this rank while it meets the others for the first time."""
        if self.meetings:
            return nullcontext()
        rank, world = keywords.get("rank"), keywords.get("world_size")
        return joining("init_process_group", rank, world, _address(keywords))

    def disarm(self) -> None:
        self._wrapped.restore()

    def place(self) -> RankInWorld | None:
        """The rank in the default process group."""
        distributed = _torch_distributed()
        if not self.available or not distributed.is_initialized():
            return None
        return RankInWorld(distributed.get_rank(), distributed.get_world_size())

    def compiled(self, spool: Spool, *, allowed: bool) -> Compiled | None:
        """Make compiled kernels record into a new spool; None where there are none."""
        if not (self.available and allowed):
            self._instead = "the setting `compiled` is off"
            return None
        self._session, self._instead = new_session(self._torch, spool)
        return None if self._session is None else self._session.compiled

    def hooks(self, agent: ObservedRank) -> Hooks:
        """Hooks of collectives, phases and steps."""
        session = self._session
        if session is None or session.spool is not agent.spool:
            self.groups, session = Groups(agent.spool, _torch_distributed()), None
        else:
            self.groups = NativeGroups(session, _torch_distributed())
        return TorchHooks(
            self._torch, agent, self.groups, session=session, instead=self._instead,
            steps=InferredSteps(agent, "torch", int(Flag.INFERRED)),
        )  # fmt: skip

    def store(self) -> Any:
        """Make a client of the job's own store for a background thread. Raises where it cannot."""
        return second_client(_torch_distributed().distributed_c10d._get_default_store())


def _torch_distributed() -> Any:
    """torch.distributed, which is no attribute of `torch` yet while that is being imported."""
    return importlib.import_module("torch.distributed")


def _address(keywords: Mapping[str, Any]) -> str:
    """Where a rank meets the others; "" where the script gave a store."""
    method, environ = keywords.get("init_method"), os.environ
    if keywords.get("store") is not None:
        return ""
    if method and method != "env://":
        return str(method).removeprefix("tcp://").partition("?")[0]  # `?rank=3&world_size=8`
    return f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
