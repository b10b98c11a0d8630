"""What makes a process a rank: torch.distributed, MPI or JAX, each asked the same few questions.

A job may use several at once; each is found when it has been imported. The agent opens with the
first that knows its rank, and takes the hooks of the others in when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from evenstep.agent.recording.recorder import Recorder
    from evenstep.host.resources import ResourceCounters
    from evenstep.trace.spool.identity import Identity
    from evenstep.trace.spool.spool import Spool


class RankInWorld(NamedTuple):
    """A rank of how many."""

    rank: int
    world: int


class ObservedRank(Protocol):
    """The rank as hooks know it: where they write, and what they tell."""

    identity: Identity
    spool: Spool
    recorder: Recorder

    @property
    def gate(self) -> Callable[[], None] | None:
        """Called before each collective is issued; it may sleep."""

    def end_step(self, now_ns: int) -> None:
        """A step has ended, on the training thread."""

    def end_past_step(self, end_ns: int, standing: ResourceCounters, upto: int) -> None:
        """A step ended at `end_ns`, as is known only now, where the counters stood so."""

    def standing(self) -> ResourceCounters:
        """The kernel's counters of now."""

    def give_up(self, error: Exception) -> None:
        """Our own code failed: observe nothing from here on."""


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

    def begins_step(self, step: int, *, spared: bool) -> None:
        """A step begins, on the training thread; `spared`: not every collective is needed."""

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

    def place(self) -> RankInWorld | None:
        """This process among the ranks; None while they are not known."""

    def hooks(self, agent: ObservedRank) -> Hooks:
        """What watches it, feeding the agent's recorder."""


def combined(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several stacks' hooks say of themselves as one; of what they share, the first's."""
    found: dict[str, Any] = {}
    for one in reversed(described):
        found |= one
    if described:
        found["instead"] = "; ".join(filter(None, (one.get("instead") for one in described)))
        found["mechanism"] = ", ".join(one["mechanism"] for one in described)
        found["unseen"] = [name for one in described for name in one.get("unseen", [])]
    return found
