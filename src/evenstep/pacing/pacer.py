"""The pacer of one rank: observations in, a bounded delay out. Pure: no clock, no I/O, no torch.

The same object runs in a live rank and in the simulator. Its decisions are a function of its
observations; the mode only says whether a decision is applied. After the same observations,
`observe` proposes the delay that `on` applies. But as its proposals are not applied, its trial has
nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evenstep.pacing.account import SHARE, RankLedger, TrialBudget
from evenstep.pacing.observation import Decision, Plan, PlanBook, Reason, StepObservation
from evenstep.pacing.paper import PaperRule
from evenstep.pacing.random_trial import ALWAYS, BLOCK_STEPS, RandomTrial, acts
from evenstep.pacing.slack import LocalSlack, RollingWindow, SharedSlack

STEP_WINDOW = 128
FEWEST_STEPS = 16  # steady steps before the first delay
SAMPLE = 4  # every fourth step counts for the median, and sets the bound by it, once there is one
CALM_STEPS = 2  # steady steps in a row before a delay after an unsteady one
SHORTEST_DELAY_NS = 10_000  # about the shortest sleep of a host
LOSS_SHARE = 0.005  # of the time, that the ledger allows to be lost
CREDIT_BOUNDS = 2  # initial allowance of the ledger, in longest delays
LONGEST_DELAY_NS = 1_000_000_000
OBJECTIVES = ("throughput", "stability")
CONTROLLERS = ("slack", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerSettings:
    """How a job may be paced; the values have been validated.

    Shares are fractions of the median step. `guarded=False` switches the trial and the ledger off:
    for comparisons in the simulator, never for a real job.
    """

    mode: str = "observe"
    controller: str = "slack"
    objective: str = "throughput"
    imbalance: float = 0.03  # no delay while slack is below this share of a step
    max_delay: float = 0.10  # longest delay before a step
    stability_cost: float = 0.006  # share of throughput that steadier steps may cost
    sharing: bool = False  # decide by the published plan and shared work, not alone
    exchange_ns: int = 0  # period of the ranks' exchange of messages; a plan lasts two
    guarded: bool = True
    run_id: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1


class Pacer:
    """Decides before each step how long one rank is held."""

    def __init__(self, settings: PacerSettings) -> None:
        self.settings = settings
        self.killed = False
        self._batch: int | None = None
        self._odd_batch: int | None = None  # a differing batch size, seen once
        self._calm = 0
        # The step last decided, whether the controller learns from it, and whether it may act.
        self._asked = (-1, False, False)
        self.steps = self.held_steps = self.held_ns = 0  # sums since the job began
        allowed = settings.stability_cost if settings.objective == "stability" else SHARE
        self._seed = f"{settings.run_id}/{settings.attempt}/pace"
        self.trial = RandomTrial(
            TrialBudget(), seed=self._seed, objective=settings.objective, share=allowed
        )
        self.ledger = RankLedger(share=max(LOSS_SHARE, allowed), ranks=settings.world)
        self._reset()

    def _reset(self) -> None:
        """Start anew after a change of the batch."""
        settings = self.settings
        self._times = RollingWindow(STEP_WINDOW)  # of steady steps, own delay excluded
        self._plans = PlanBook(attempt=settings.attempt, world=settings.world)
        self.bound_ns = self._threshold_ns = 0  # longest delay before a step; least slack
        self._controller: PaperRule | SharedSlack | LocalSlack
        if settings.controller == "paper":
            self._controller = PaperRule()
        else:
            slack = SharedSlack if settings.sharing else LocalSlack
            self._controller = slack(settings.world)
        self.trial.reset()

    @property
    def account(self) -> dict[str, Any]:
        """Sums since the job began, and the verdict of the trial; JSON-able."""
        return {
            "steps": self.steps, "held_steps": self.held_steps, "held_ns": self.held_ns,
            "booked_ns": self.ledger.loss_ns, "allowance_ns": int(self.ledger.allowance_ns),
            "verdict": self.trial.verdict.plain, "mode": self.settings.mode,
        }  # fmt: skip

    def kill(self) -> None:
        """Apply no delay from now on, whatever the plan; irreversible."""
        self.killed = True

    def adopt(self, plan: Plan) -> bool:
        """Take a published plan; False if it is of another job or comes too late."""
        return self._plans.adopt(plan, asked_step=self._asked[0])

    def observe(self, seen: StepObservation) -> None:
        """Take the finished step; call it once per step, before `decide` for the next."""
        # Unpacked at once: one access to a named field costs more than this line.
        step, step_ns, _, _, _, _, _, delay_ns, _, steady, batch, _ = seen
        asked, due, acted = self._asked
        if asked != step:
            due = acted = False
        self.steps = steps = self.steps + 1
        if delay_ns > 0:
            self.held_steps += 1
            self.held_ns += delay_ns
        self.ledger.book(step_ns, delay_ns, waited=delay_ns > 0 and seen.waited)
        plain = batch == self._batch and self._odd_batch is None
        if not (steady and step_ns > 0 if plain else self._is_steady(seen)):
            self._calm = 0
            return
        self._calm += 1
        if sampled := self.bound_ns == 0 or steps % SAMPLE == 0:
            self._times.push(max(1, step_ns - max(0, delay_ns)))
        self._controller.learn(seen, due=due)
        if self.settings.guarded and self.settings.mode != "off":
            self.trial.account.tick(step)
            self.trial.learn(step // BLOCK_STEPS, step_ns, acted)
        if sampled:
            self._rescale()

    def _is_steady(self, seen: StepObservation) -> bool:
        """Whether to learn from the step; a change of batch size resets the pacer.

        The smaller last batch of an epoch is left out: a change is seen twice in a row.
        """
        batch = seen.batch
        if batch is None or batch == self._batch:
            self._odd_batch = None
            return seen.steady and seen.step_ns > 0
        first, again = self._batch is None, batch == self._odd_batch
        if again:
            self._reset()
        if first or again:
            self._batch = batch
        self._odd_batch = None if first or again else batch
        return False

    def _rescale(self) -> None:
        times = self._times.ordered
        if len(times) < FEWEST_STEPS:
            return
        median = times[(len(times) - 1) // 2]
        self._threshold_ns = int(self.settings.imbalance * median)
        self.bound_ns = min(int(self.settings.max_delay * median), LONGEST_DELAY_NS)
        self.ledger.credit_ns = self.ledger.credit_ns or CREDIT_BOUNDS * self.bound_ns  # once

    def decide(self, step: int) -> Decision:
        """Decide how long to hold `step`, and which plan this rank should publish now."""
        settings = self.settings
        plan = self._publishable(step) if settings.sharing and settings.rank == 0 else None
        self._asked = (step, False, False)
        if settings.mode == "off" or self.killed:
            return Decision(0, Reason.KILLED if self.killed else Reason.OFF, plan)
        wanted_ns, reason = self._judge(step)
        return Decision(0 if settings.mode == "observe" else wanted_ns, reason, plan, wanted_ns)

    def _judge(self, step: int) -> tuple[int, Reason]:
        """The controller's proposal within trial, bound and ledger; sets `_asked`."""
        settings, trial = self.settings, self.trial
        span, scale = (trial.span, trial.scale) if settings.guarded else (ALWAYS, 0)
        if settings.sharing:
            plan = self._plans.at(step)
            if plan is None:
                return 0, Reason.NO_PLAN
            span, scale = plan.span, plan.scale
        acted = acts(self._seed, step // BLOCK_STEPS, span, scale)
        if span and not acted:
            return 0, Reason.GUARD_BLOCK
        calm = self._calm >= CALM_STEPS
        self._asked = (step, calm, acted)
        if not calm:
            return 0, Reason.UNSTEADY
        if self.bound_ns == 0:
            return 0, Reason.LEARNING
        wish = self._controller.propose(threshold_ns=self._threshold_ns, bound_ns=self.bound_ns)
        if acted:
            return self._bounded(*wish)
        # With a common plan another rank may have a delay to try although this one has none.
        trial.wanted = settings.sharing or wish[0] >= SHORTEST_DELAY_NS
        return (0, Reason.GUARD_OFF) if trial.wanted else wish

    def _bounded(self, wanted_ns: int, reason: Reason) -> tuple[int, Reason]:
        """The wish, cut to the room that bound and ledger leave."""
        if wanted_ns <= 0:
            return wanted_ns, reason
        room_ns = min(self.bound_ns, self.ledger.room_ns if self.settings.guarded else wanted_ns)
        delay_ns = min(wanted_ns, room_ns)
        if delay_ns >= SHORTEST_DELAY_NS:
            return delay_ns, reason
        return 0, Reason.LEDGER if room_ns < wanted_ns else Reason.BALANCED

    def _publishable(self, step: int) -> Plan | None:
        span = self.trial.span if self.settings.guarded else ALWAYS
        step_ns = self._times.quantile(0.5)
        # Two exchanges: one to publish a plan, one to read it.
        steps = 2 * self.settings.exchange_ns // step_ns if step_ns else 0
        return self._plans.next(step, span, self.trial.scale, least_steps=steps)
