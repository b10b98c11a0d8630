"""Protocols of a stack that makes a process a rank (torch.distributed, MPI or JAX), and its hooks.

A job may use several stacks; each is found when it has been imported. The agent starts with the
first that knows its rank, and adds the hooks of the others later.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from evenstep.agent.recording.recorder import Recorder
    from evenstep.trace.spool.identity import Identity
    from evenstep.trace.spool.spool import Spool

log = logging.getLogger("evenstep")


class RankInWorld(NamedTuple):
    """A rank and the number of ranks."""

    rank: int
    world: int


class ObservedRank(Protocol):
    """The agent as hooks see it: where they write, and what they report."""

    identity: Identity
    spool: Spool
    recorder: Recorder

    @property
    def gate(self) -> Callable[[], None] | None:
        """A function to be called before each collective is issued; it may sleep."""

    def end_step(self, now_ns: int) -> None:
        """A step has ended, on the training thread."""

    def end_past_step(self, end_ns: int, counters: Sequence[int], upto: int) -> None:
        """A step ended in the past, at `end_ns` with `counters`, with record `upto` as its last."""

    def counters(self) -> Sequence[int]:
        """The kernel's counters now."""

    def give_up(self, error: Exception) -> None:
        """Stop observing after a failure of our own code."""


class Hooks:
    """The hooks of a stack: installed, disarmed at once, removed. As they are here: those of a
    stack that computes on no device and paces nothing."""

    @property
    def on_device(self) -> bool:
        """Whether this rank computes on a device, found out without touching the device."""
        return False

    @property
    def device_index(self) -> int | None:
        """The device this rank has selected; None on a CPU or before it selected one."""
        return None

    def install(self) -> None:
        """Install all hooks. Raises where it cannot."""

    def disarm(self) -> None:
        """Pass every call through from now on; cheap, and safe on any thread."""

    def remove(self) -> None:
        """Restore everything that was replaced."""

    def begins_step(self, step: int, *, spared: bool) -> int:  # noqa: ARG002
        """A step begins, on the training thread; `spared`: not every collective is needed.

        Return the step that is the next to be told of, where nothing is requested by then.
        """
        return sys.maxsize

    def poll(self) -> None:
        """On the background thread, about once a second."""

    def pause_by(self, gate: Callable[[], None] | None) -> None:
        """Call `gate` before each collective is issued from now on; it may sleep. None: nothing."""

    def hold_device(self, delay_ns: int, seq: int) -> bool:  # noqa: ARG002
        """Delay work queued on the device from now on; False where it cannot.

        The realised delay is written to record `seq` when the device has finished it.
        """
        return False

    def describe(self) -> dict[str, Any]:
        """The mechanism of observation and its blind spots, for the trace."""
        raise NotImplementedError


class Stack(Protocol):
    """A library that makes a process a rank."""

    name: str

    def arm(self, ready: Callable[[], None]) -> None:
        """Call `ready` whenever the ranks become known."""

    def disarm(self) -> None:
        """Undo `arm`."""

    def place(self) -> RankInWorld | None:
        """The rank of this process; None while it is not known."""

    def hooks(self, agent: ObservedRank) -> Hooks:
        """Make the hooks that feed the agent's recorder."""


def combine(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the descriptions of several stacks' hooks; of equal keys, the first's value."""
    found: dict[str, Any] = {}
    for one in reversed(described):
        found |= one
    if described:
        found["instead"] = "; ".join(filter(None, (one.get("instead") for one in described)))
        found["mechanism"] = ", ".join(one["mechanism"] for one in described)
        found["unseen"] = [name for one in described for name in one.get("unseen", [])]
    return found


class Tested(NamedTuple):
    """Versions of a package that an integration has been tested with, both ends included."""

    package: str
    first: str  # major.minor, as `last`
    last: str

    def outside(self, found: str) -> str:
        """A warning for a version outside the tested ones; else empty."""
        if _version_numbers(self.first) <= _version_numbers(found) <= _version_numbers(self.last):
            return ""
        tested = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return (
            f"found {self.package} {found}, but its callback was tested with {tested}: check that "
            "steps and phases look right"
        )

    def check(self, found: str, agent: ObservedRank) -> None:
        """Record the warning for a version outside the tested ones; rank 0 logs it."""
        if outside := self.outside(found):
            agent.spool.add_fact("stack", outside)
            if agent.identity.rank == 0:
                log.warning("evenstep: %s", outside)


def _version_numbers(version: str) -> tuple[int, ...]:
    """Major and minor as numbers; what is no number counts as 0."""
    parts = [*version.split("."), "0"][:2]
    return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in parts)
