"""Run the trials of one rank's actions: one at a time, with one budget for all.

The trace gets a record whenever the verdict on an action changes, and a fact when one is ended. All
ranks draw the same order of blocks from the run's name and the number of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.agent.actions.link import LinkToken, StorageTurns
from evenstep.agent.recording.steps import ClosedStep
from evenstep.agent.settings.selection import OFF, PACE
from evenstep.errors import EvenstepError
from evenstep.pacing.account import TrialBudget
from evenstep.pacing.random_trial import BLOCK_STEPS, OUTLIER, RandomTrial
from evenstep.pacing.token import TOKEN
from evenstep.trace.spool.layout import Actuator, Kind
from evenstep.trace.spool.spool import Spool

FACTS_STEPS = 64  # steady steps that facts are means of
WORTH = 0.05  # smallest share of a step spent waiting that is worth a proposal
SPENT = 0.8  # share of the wait by which the rank could be slower
ELSEWHERE = (TOKEN, PACE)  # actions that run their own trials
CALM_STEPS = 2  # steady steps in a row before acting again after an unsteady one


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
    """One action: changes the time of events, never what is computed or the order of collectives.

    All methods run on the training thread, between two steps. `begin` and `end` are called in
    turns, many times; after `end` the process is as if `begin` had never been called.
    """

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


class TriedAction:
    """An action and its trial."""

    def __init__(self, action: Action, budget: TrialBudget, seed: str) -> None:
        self.action = action
        self.trial = RandomTrial(
            budget, seed=seed, scale=action.scale, outlier=action.outlier,
            aftereffect=action.aftereffect, bounded=action.bounded,
        )  # fmt: skip
        self.trial.wanted = False
        self.acting = False
        self.acted_steps = 0
        self.reason = ""
        self.recorded = ""  # last words in the trace

    def end(self, step: int) -> None:
        """End acting, if it does."""
        if self.acting:
            self.acting = False
            self.action.end(step)

    def outcome(self) -> dict[str, Any]:
        """What it did, with the verdict of its trial; JSON-able."""
        action = self.action
        return {
            "action": action.name, "reason": self.reason, "note": action.note,
            "acted_steps": self.acted_steps, **self.trial.verdict.plain,
        }  # fmt: skip


@dataclass(eq=False)
class Conductor:
    """Tries the requested actions; takes every step, on the training thread."""

    spool: Spool
    seed: str
    budget: TrialBudget
    place: tuple[int, int, int]  # local rank, local world, world
    makers: dict[str, Callable[[], Action]]
    make_turns: Callable[[], Iterable[LinkToken | StorageTurns]] = tuple
    soon: Callable[[Callable[[], object]], object] = lambda task: task()  # run off this thread

    def __post_init__(self) -> None:
        self.parts: list[TriedAction] = []
        self.turns: list[LinkToken | StorageTurns] = []  # while the token is requested
        self.outcomes: list[dict[str, Any]] = []  # of all actions, once stopped
        self._ended: dict[str, TriedAction] = {}  # of each action, the longest trial ended before
        self._calm = 0
        self._seen: list[tuple[int, ...]] = []  # per steady step, the values of `Facts`

    @property
    def acts(self) -> bool:
        """Whether `end_step` has to be called."""
        return bool(self.parts or self.turns)

    def ask(self, names: Iterable[str], step: int) -> None:
        """Request these actions from now on; end the others."""
        names = list(names)
        wanted = [name for name in names if name in self.makers]
        for part in self.parts:
            if part.action.name not in wanted:
                part.end(step)
                self.budget.close(part.trial)
                self._keep(part)
        self._take_turns(TOKEN in names)
        kept = {part.action.name: part for part in self.parts}
        self.parts = [
            kept.get(name) or TriedAction(self.makers[name](), self.budget, f"{self.seed}/{name}")
            for name in wanted
        ]
        asked = [name for name in names if name in wanted or name in ELSEWHERE]
        self.spool.add_fact("act", {"asked": ",".join(asked) or OFF, "since_step": step})

    def _take_turns(self, wanted: bool) -> None:
        if wanted and not self.turns:
            try:
                self.turns.extend(self.make_turns())
            except EvenstepError as error:  # without a board there are no turns
                self.spool.add_fact("token", str(error))
                wanted = False
        while self.turns and not wanted:
            self.turns.pop().stop()

    def end_step(self, closed: ClosedStep, waited_ns: int) -> None:
        """End a step, and begin or end actions for the next."""
        for turns in self.turns:
            turns.end_step(closed)
        if not self.parts:
            return
        step, step_ns = closed.number, closed.end_ns - closed.start_ns
        self._calm = 0 if closed.unsteady else self._calm + 1
        if self._calm:
            self.budget.tick(step)
            self._look(closed, step_ns, waited_ns)
            for part in self.parts:
                part.trial.learn(step // BLOCK_STEPS, step_ns, part.acting)
        calm = self._calm >= CALM_STEPS
        for part in self.parts:
            self._turn(part, step + 1, calm=calm)

    def _look(self, closed: ClosedStep, step_ns: int, waited_ns: int) -> None:
        """Every `FACTS_STEPS`, ask the actions not on trial whether they apply."""
        pauses = [0, *(end - start for start, end, called in closed.pauses if not called)]
        self._seen.append((step_ns, sum(pauses), closed.used.run_delay_ns, waited_ns, max(pauses)))
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
        """Begin, continue or end an action before this step."""
        trial, action = part.trial, part.action
        acts = calm and not action.note and trial.acts(step // BLOCK_STEPS)
        if not acts:
            part.end(step)
        elif not part.acting:
            action.begin(step)
            part.acting = True
        if acts:
            part.acted_steps += 1
            trial.spend(action.during(step, last=not trial.acts((step + 1) // BLOCK_STEPS)))
        words = f"{action.name}: {action.note or trial.word}" if part.reason else ""
        if words != part.recorded:
            part.recorded = words
            if words:
                now, name = time.monotonic_ns(), self.spool.name_id(f"{words} ({part.reason})")
                self.spool.put(now, now, int(Kind.PACING), int(Actuator.NONE), step, name=name)

    def stop(self, step: int = 0) -> None:
        """End all actions, and keep their outcomes."""
        self.outcomes = self.outcomes or self.account()
        self.end_all(step)

    def _keep(self, part: TriedAction) -> None:
        """Have written what an ended action did: a job that is killed later has no other moment."""
        before = self._ended.get(part.action.name)
        if before is None or len(part.trial.gains) > len(before.trial.gains):
            self._ended[part.action.name] = part
            self.soon(lambda: self.spool.add_fact("actions", _outcomes(self._ended.values())))

    def end_all(self, step: int = 0) -> None:
        """End all actions, whatever the end of one raises; cheap, for a forked child."""
        with ExitStack() as ends:
            ends.callback(self._take_turns, False)
            for part in self.parts:
                ends.callback(part.end, step)

    def account(self) -> list[dict[str, Any]]:
        """What each action did, with the verdict of its trial; JSON-able."""
        turns = [turn.account() for each in self.turns for turn in each.turns if turn.token.steps]
        return [*turns, *_outcomes([*self._ended.values(), *self.parts])]


def _outcomes(parts: Iterable[TriedAction]) -> list[dict[str, Any]]:
    return [part.outcome() for part in tuple(parts)]
