"""A pacer that is another one in each block: how one rank's host follows a comparison.

The host asks it as it asks any pacer. Each arm has a pacer of its own, which sees the steps of its
own blocks under the job's own numbers, so that all ranks speak of the same step whenever each of
them saw the change. A plan carries its arm in the place of the attempt: no other arm adopts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenstep.agent.actions.link import LinkToken
from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, StepObservation


class TurnPacer(Pacer):
    """The pacers of all arms behind the face of one. `arm_now` says whose turn a step is."""

    def __init__(self, settings: Sequence[PacerSettings], arm_now: Callable[[int], int]) -> None:
        super().__init__(settings[0])
        self._arm_now = arm_now
        self._turns = [
            Pacer(replace(chosen, attempt=number)) for number, chosen in enumerate(settings)
        ]
        self.arm = 0
        self.changed = True  # the step that runs began under another arm, or in the middle

    @property
    def account(self) -> dict[str, object]:
        """That of the arm whose turn it is."""
        return self._turns[self.arm].account

    def told(self, tokens: Sequence[LinkToken | None]) -> list[dict[str, object]]:
        """What pacing did in each arm, and where its guard or its token's stands; JSON-able."""
        return [
            {
                "steps": pacer.steps,
                "held_steps": pacer.held_steps,
                "held_ns": pacer.held_ns,
                "verdict": (pacer if token is None else token.turn.token).trial.word,
            }
            for pacer, token in zip(self._turns, tokens, strict=True)
        ]

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
        changed, self.changed = self.changed, False
        turn = self._turns[self.arm]
        heard = seen.slowest if turn.settings.sharing else None  # others may share, this arm not
        turn.observe(seen._replace(steady=seen.steady and not changed, slowest=heard))

    def decide(self, step: int) -> Decision:
        """What the arm whose turn it is now holds before `step`."""
        arm = self._arm_now(step)
        self.changed = arm != self.arm
        self.arm = arm
        return self._turns[arm].decide(step)
