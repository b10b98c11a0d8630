"""The interface of an action, and the facts that it decides by.

An action changes the time of events, never what is computed or the order of collectives. `begin`
and `end` are called in turns, many times; after `end` the process is as if `begin` had never been
called.
"""

from __future__ import annotations

from typing import NamedTuple

from evenstep.pacing.random_trial import OUTLIER

FACTS_STEPS = 64  # steady steps that facts are means of
WORTH = 0.05  # smallest share of a step spent waiting that is worth a proposal
SPENT = 0.8  # share of the wait by which the rank could be slower


class Facts(NamedTuple):
    """Measurements of this rank's last steady steps."""

    step_ns: int  # these four are means of a step
    paused_ns: int  # by Python's collector, where nobody called it
    starved_ns: int  # ready to run, but without a core
    waited_ns: int  # for other ranks
    longest_pause_ns: int
    local_rank: int
    local_world: int
    world: int


class Action:
    """One action. All methods run on the training thread, between two steps."""

    name: str
    scale = 0  # how often the length of its trial's blocks is doubled at first
    aftereffect = False  # whether it has one, of half such a block at most
    bounded = False  # whether it costs no more than the time that `during` returns
    outlier = OUTLIER  # the longest step that counts in its trial, in mean steps
    note = ""  # why it must not act any more; "" while it may

    def applies(self, facts: Facts) -> str:
        """The reason why there is something to gain; "" where there is not."""
        raise NotImplementedError

    def begin(self, step: int) -> None:
        """Act from this step on."""

    def during(self, step: int, *, last: bool) -> int:  # noqa: ARG002 (the interface)
        """Act before a step; `last`: the last of a block. Return the time that it took, ns."""
        return 0

    def end(self, step: int) -> None:
        """Stop acting; restore everything."""


class Power(Action):
    """Proposes lower clocks for an early rank; never applied.

    Published gains are 20 to 30 % of energy (Perseus, Chung et al. 2024; EnvPipe, Choi et al.
    2023). A clock takes milliseconds to change and needs privileges; until that has been measured
    on a device, the proposal is written into the trace and nothing is changed.
    """

    name = "power"
    note = "planned only"

    def applies(self, facts: Facts) -> str:
        """Where a rank waits for others step after step."""
        waited = facts.waited_ns / max(1, facts.step_ns)
        if waited < WORTH:
            return ""
        return f"early by {waited:.0%} of a step: clocks of {1 - SPENT * waited:.0%} would do"
