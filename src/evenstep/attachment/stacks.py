"""The stacks that this process has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable

from evenstep.agent.arming import initializing
from evenstep.agent.stacks import Stack


def add_imported(known: dict[str, Stack], just: str = "") -> None:
    """Add the imported stacks to `known`, also `just`, although that still initializes."""
    for name, module, make in _MAKERS:
        if name in known or module not in sys.modules:
            continue
        if name == just or not initializing(sys.modules[module]):
            known[name] = make()


def torch_stack() -> Stack:
    """Torch's stack; imports torch if necessary. Raises ImportError where there is none."""
    import torch

    from evenstep.hooks.torch.torch_stack import TorchStack

    return TorchStack(torch)


def _mpi_stack() -> Stack:
    from evenstep.hooks.mpi.stack import MpiStack

    return MpiStack(sys.modules["mpi4py.MPI"])


def _jax_stack() -> Stack:
    from evenstep.hooks.jax.jax import JaxStack

    return JaxStack(sys.modules["jax"])


#: In the order in which they are asked for the rank.
_MAKERS: tuple[tuple[str, str, Callable[[], Stack]], ...] = (
    ("torch", "torch.distributed", torch_stack),
    ("mpi", "mpi4py.MPI", _mpi_stack),
    ("jax", "jax.distributed", _jax_stack),
)
