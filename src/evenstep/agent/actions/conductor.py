"""The actions of one rank: one of them on trial at a time, one account for all.

What an action did and why stands in the trace: a record whenever its word changes, and a fact at
the end. All ranks draw the same order of blocks from the run's name and the number of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.agent.actions.action import FACTS_STEPS, OFF, Action, Facts
from evenstep.agent.actions.link import LinkToken, StorageTurns
from evenstep.agent.recording.steps import ClosedStep
from evenstep.errors import EvenstepError
from evenstep.pacing.account import TrialBudget
from evenstep.pacing.random_trial import BLOCK_STEPS, RandomTrial
from evenstep.pacing.token import TOKEN
from evenstep.trace.spool.layout import Actuator, Kind
from evenstep.trace.spool.spool import Spool

ELSEWHERE = (TOKEN, "pace")  # whose trials are their own
CALM_STEPS = 2  # steady ones in a row after an unsteady one, before anything is acted on


class TriedAction:
    """An action and its trial."""

    def __init__(self, action: Action, trial: RandomTrial) -> None:
        self.action = action
        self.trial = trial
        self.acting = False
        self.acted_steps = 0
        self.reason = ""
        self.said = ""
        trial.wanted = False


@dataclass(eq=False)
class Conductor:
    """Tries the actions that were asked for; told of every step, on the training thread."""

    spool: Spool
    seed: str
    account: TrialBudget
    place: tuple[int, int, int]  # local rank, local world, world
    makers: dict[str, Callable[[], Action]]
    make_turns: Sequence[Callable[[], LinkToken | StorageTurns]] = ()

    def __post_init__(self) -> None:
        self.parts: list[TriedAction] = []
        self.turns: list[LinkToken | StorageTurns] = []  # while the token is asked for
        self.told: list[dict[str, Any]] = []  # what was done, once it is over
        self._calm = 0
        self._seen: list[tuple[int, ...]] = []  # of each steady step what `Facts` are made of

    @property
    def names(self) -> tuple[str, ...]:
        """What is asked for now."""
        return tuple(part.action.name for part in self.parts)

    @property
    def acts(self) -> bool:
        """Whether it wants to hear of each step as it ends."""
        return bool(self.parts or self.turns)

    def ask(self, names: Iterable[str], step: int) -> None:
        """Act in these ways from now on; what is not among them is ended."""
        names = list(names)
        wanted = [name for name in names if name in self.makers]
        for part in self.parts:
            if part.action.name not in wanted:
                self._end(part, step)
                part.trial.reset()
        self._take_turns(TOKEN in names)
        kept = {part.action.name: part for part in self.parts}
        self.parts = [kept.get(name) or self._made(name) for name in wanted]
        asked = [name for name in names if name in wanted or name in ELSEWHERE]
        self.spool.add_fact("act", {"asked": ",".join(asked) or OFF, "since_step": step})

    def _take_turns(self, wanted: bool) -> None:
        if wanted and not self.turns:
            try:
                self.turns.extend(make() for make in self.make_turns)
            except EvenstepError as error:  # nothing waits then
                self.spool.add_fact("token", str(error))
                wanted = False
        while self.turns and not wanted:
            self.turns.pop().stop()

    def _made(self, name: str) -> TriedAction:
        action = self.makers[name]()
        seed = f"{self.seed}/{name}"
        trial = RandomTrial(
            self.account, seed=seed, scale=action.scale, outlier=action.outlier,
            aftereffect=action.leaves, bounded=action.bounded,
        )  # fmt: skip
        return TriedAction(action, trial)

    def end_step(self, closed: ClosedStep, waited_ns: int) -> None:
        """A step is over; what is done in the next one begins here."""
        for turns in self.turns:
            turns.end_step(closed)
        if not self.parts:
            return
        step, step_ns = closed.number, closed.end_ns - closed.start_ns
        self._calm = 0 if closed.unsteady else self._calm + 1
        if self._calm:
            self.account.tick(step)
            self._look(closed, step_ns, waited_ns)
            for part in self.parts:
                part.trial.learn(step // BLOCK_STEPS, step_ns, part.acting)
        calm = self._calm >= CALM_STEPS
        for part in self.parts:
            self._turn(part, step + 1, calm=calm)

    def _look(self, closed: ClosedStep, step_ns: int, waited_ns: int) -> None:
        """Every so many steps: whether there is something to gain, as long as nothing is done."""
        pauses = [end - start for start, end in closed.pauses]
        longest_ns = max(pauses, default=0)
        self._seen.append((step_ns, sum(pauses), closed.run_delay_ns, waited_ns, longest_ns))
        if len(self._seen) < FACTS_STEPS:
            return
        *sums, longest = zip(*self._seen, strict=True)
        self._seen.clear()
        means = (sum(each) // FACTS_STEPS for each in sums)
        facts = Facts._make([*means, max(longest), *self.place])
        for part in self.parts:
            if part.trial.span:
                continue
            part.reason = part.action.applies(facts)
            part.trial.first_scale = part.action.scale
            part.trial.wanted = bool(part.reason) and not part.action.note

    def _turn(self, part: TriedAction, step: int, *, calm: bool) -> None:
        """Begin, go on or end before this step."""
        trial, action = part.trial, part.action
        acts = calm and not action.note and trial.acts(step // BLOCK_STEPS)
        if part.acting and not acts:
            self._end(part, step)
        elif acts and not part.acting:
            action.begin(step)
            part.acting = True
        if acts:
            part.acted_steps += 1
            trial.spend(action.during(step, last=not trial.acts((step + 1) // BLOCK_STEPS)))
        said = f"{action.name}: {action.note or trial.word}" if part.reason else ""
        if said != part.said:
            part.said = said
            if said:
                self._record(f"{said} ({part.reason})", step)

    def _end(self, part: TriedAction, step: int) -> None:
        if part.acting:
            part.acting = False
            part.action.end(step)

    def _record(self, words: str, step: int) -> None:
        now = time.monotonic_ns()
        name = self.spool.name_id(words)
        self.spool.put(now, now, int(Kind.PACING), int(Actuator.NONE), step, name=name)

    def stop(self, step: int = 0) -> None:
        """Give everything back."""
        self.told = self.told or self.account_of()
        for part in self.parts:
            self._end(part, step)
        self._take_turns(False)

    def account_of(self) -> list[dict[str, Any]]:
        """What each action did and what its trial found; JSON-able."""
        told = [turn.account_of() for each in self.turns for turn in each.turns if turn.token.steps]
        return told + [
            {
                "action": part.action.name,
                "reason": part.reason,
                "note": part.action.note,
                "acted_steps": part.acted_steps,
                **part.trial.verdict.plain,
            }
            for part in self.parts
        ]
