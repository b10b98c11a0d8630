"""A pacer that is another one in each block: how an unmodified job's agent follows a comparison.

The agent asks it as it asks any pacer. Each arm has a pacer of its own, which sees the steps of its
own blocks under the job's own numbers, so that all ranks speak of the same step whenever each of
them saw the change. A plan carries its arm in the place of the attempt: no other arm adopts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, StepObservation
from evenstep.pacing.account import PacingAccount


class TurnPacer(Pacer):
    """The pacers of all arms behind the face of one. `arm_now` says whose turn a step is."""

    def __init__(self, settings: Sequence[PacerSettings], arm_now: Callable[[int], int]) -> None:
        super().__init__(settings[0])
        self._arm_now = arm_now
        self._turns = [Pacer(chosen) for chosen in settings]
        self._arm = 0
        self._changed = True  # the step that runs began under another arm, or in the middle

    @property
    def account(self) -> PacingAccount:
        """That of the arm whose turn it is."""
        return self._turns[self._arm].account

    def told(self) -> list[dict[str, object]]:
        """What pacing did in each arm, and where its guards stand; JSON-able."""
        return [
            {
                "steps": account.steps,
                "held_steps": account.held_steps,
                "held_ns": account.held_ns,
                "verdict": account.verdict.word,
            }
            for account in (pacer.account for pacer in self._turns)
        ]

    @property
    def bound_ns(self) -> int:
        """The longest delay before any one step, at the moment."""
        return self._turns[self._arm].bound_ns

    def kill(self) -> None:
        """Hold nothing from now on, in any arm."""
        self.killed = True
        for pacer in self._turns:
            pacer.kill()

    def adopt(self, plan: Plan) -> bool:
        """Hand a plan to the arm that made it."""
        adopted = [pacer.adopt(plan) for pacer in self._turns]
        return any(adopted)

    def observe(self, seen: StepObservation) -> None:
        """A finished step, to the arm that decided it; the first after a change teaches nothing."""
        changed, self._changed = self._changed, False
        turn = self._turns[self._arm]
        heard = seen.slowest if turn.settings.sharing else None  # others may share, this arm not
        turn.observe(seen._replace(steady=seen.steady and not changed, slowest=heard))

    def decide(self, step: int) -> Decision:
        """What the arm whose turn it is now holds before `step`."""
        arm = self._arm_now(step)
        self._changed = arm != self._arm
        self._arm = arm
        return self._turns[arm].decide(step)


def settings_of(arms: Sequence[PacerSettings]) -> list[PacerSettings]:
    """The arms' settings, with the number of the arm in the place of the attempt."""

    return [replace(chosen, attempt=number) for number, chosen in enumerate(arms)]
