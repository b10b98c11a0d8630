"""What the replaced methods of mpi4py see of the hooks behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from evenstep.hooks.mpi.groups import MpiGroups
from evenstep.hooks.mpi.requests import Requests, Ticket


class Watch(Protocol):
    """Told of every call while it is armed."""

    armed: bool
    gate: Callable[[], None] | None  # called before a collective is issued; it may sleep
    groups: MpiGroups
    requests: Requests

    def safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """What our own code gives; where it fails, None (see `missed`)."""

    def missed(self, error: Exception) -> None:
        """Our part of a call failed."""

    def returned(self, ticket: Ticket, enter_ns: int) -> None:
        """A blocking call that began at `enter_ns` has returned."""

    def failed(self, ticket: Ticket | None) -> None:
        """A call raised."""
