"""What makes a process a rank: torch.distributed, MPI or JAX, each asked the same few questions.

A job may use several at once; each is found when it has been imported. The agent opens with the
first that knows its rank, and takes the hooks of the others in when they come.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from evenstep.agent.rank import Agent


class Place(NamedTuple):
    """A rank of how many."""

    rank: int
    world: int


class Hooks(Protocol):
    """What watches a stack from inside: installed, disarmed in an instant, removed."""

    @property
    def on_device(self) -> bool:
        """Whether this rank computes on a device, as far as is known without touching it."""

    @property
    def device_index(self) -> int | None:
        """The device this rank has selected; None on a CPU or before it selected one."""

    def install(self) -> None:
        """Put everything in place. Raises where it cannot."""

    def disarm(self) -> None:
        """Pass everything through from now on."""

    def remove(self) -> None:
        """Restore everything that was replaced."""

    def poll(self) -> None:
        """On the background thread, about once a second."""

    def pause_by(self, gate: Callable[[], None] | None) -> None:
        """Call this before each collective is issued from now on; it may sleep. None: nothing."""

    def hold_device(self, delay_ns: int, seq: int) -> bool:
        """Let what the device is given from now on begin so much later; False where it cannot.

        What it took is written to record `seq` when the device has done it.
        """

    def describe(self) -> dict[str, Any]:
        """How it sees, and what it does not, for the trace."""


class Stack(Protocol):
    """One way to be a rank."""

    name: str

    def arm(self, ready: Callable[[], None]) -> None:
        """Have `ready` called whenever the ranks become known."""

    def disarm(self) -> None:
        """Take back what `arm` did."""

    def place(self) -> Place | None:
        """This process among the ranks; None while they are not known."""

    def hooks(self, agent: Agent) -> Hooks:
        """What watches it, feeding the agent's recorder."""


def imported(known: dict[str, Stack], just: str = "") -> None:
    """Add to `known` the stacks that this process has imported by now, and the one it just did."""
    for name, module, make in _MAKERS:
        if name in known or module not in sys.modules:
            continue
        if name == just or not _initializing(module):
            known[name] = make()


def torch_stack() -> Stack:
    """Torch's, importing torch where nobody has yet. Raises ImportError where there is none."""
    import torch

    from evenstep.hooks.torch.torch_stack import TorchStack

    return TorchStack(torch)


def _mpi_stack() -> Stack:
    from evenstep.hooks.mpi.stack import MpiStack

    return MpiStack(sys.modules["mpi4py.MPI"])


def _jax_stack() -> Stack:
    from evenstep.hooks.jax.stack import JaxStack

    return JaxStack(sys.modules["jax"])


#: In the order in which they are asked who this process is.
_MAKERS: tuple[tuple[str, str, Callable[[], Stack]], ...] = (
    ("torch", "torch.distributed", torch_stack),
    ("mpi", "mpi4py.MPI", _mpi_stack),
    ("jax", "jax.distributed", _jax_stack),
)


def _initializing(module: str) -> bool:
    return bool(getattr(getattr(sys.modules[module], "__spec__", None), "_initializing", False))


def combined(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several stacks' hooks say of themselves as one; of what they share, the first's."""
    found: dict[str, Any] = {}
    for one in reversed(described):
        found |= one
    if described:
        found["mechanism"] = ", ".join(one["mechanism"] for one in described)
        found["unseen"] = [name for one in described for name in one.get("unseen", [])]
    return found
