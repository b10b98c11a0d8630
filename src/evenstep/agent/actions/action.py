"""What an action is, and what it is told.

An action changes when things happen, never what is computed nor the order of collectives. `begin`
and `end` come in turns, many times; after `end` the process is as if it had never begun.
"""

from __future__ import annotations

from typing import NamedTuple

from evenstep.pacing.random_trial import OUTLIER

FACTS_STEPS = 64  # steady steps that facts are of
ACTIONS = ("gc", "token", "pace", "cores", "power")
AUTO, OFF = "auto", "off"


class Facts(NamedTuple):
    """What the last steady steps of this rank were like."""

    step_ns: int  # these four are means of a step
    paused_ns: int  # by Python's collector
    starved_ns: int  # ready, but without a core
    waited_ns: int  # for other ranks
    longest_pause_ns: int
    local_rank: int
    local_world: int
    world: int


class Action:
    """One way to act. All methods run on the training thread, between two steps."""

    name: str
    scale = 0  # blocks of its trial are so often doubled at first
    leaves = False  # something behind, for half of such a block at most
    bounded = False  # costs no more than what `during` says it takes, once it has begun
    outlier = OUTLIER  # mean steps that one can count for at most in its trial
    note = ""  # why it must not act any more

    def applies(self, facts: Facts) -> str:
        """Why there is something to gain here; "" where there is not."""
        raise NotImplementedError

    def begin(self, step: int) -> None:
        """Act from this step on."""

    def during(self, step: int, *, last: bool) -> int:  # noqa: ARG002 (the interface)
        """Before a step that is acted in; `last`: the next one is not. What that took, in ns."""
        return 0

    def end(self, step: int) -> None:
        """Act no longer; everything is as it was."""
