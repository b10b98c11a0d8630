"""The pacer of one rank: observations in, a bounded delay out. Pure: no clock, no I/O, no torch.

The same object runs in a live rank and in the simulator. Everything it decides is a function of
what it was told, in every mode; the mode only says what happens to the decision. Fed with the same
observations, `observe` proposes what `on` holds. That its proposals are not applied, so that the
guard has nothing to compare, is part of what it sees.
"""

from __future__ import annotations

from evenstep.pacing.account import PacingAccount
from evenstep.pacing.contention import Contention
from evenstep.pacing.controller import Controller
from evenstep.pacing.gap import Gaps
from evenstep.pacing.guard import Guard
from evenstep.pacing.ledger import JobLedger, RankLedger
from evenstep.pacing.observation import (
    Decision,
    Plan,
    Proposal,
    Reason,
    Stance,
    StepObservation,
)
from evenstep.pacing.paper import PaperRule
from evenstep.pacing.plans import PlanBook
from evenstep.pacing.settings import PacerSettings
from evenstep.pacing.slack import LocalSlack, SharedSlack
from evenstep.pacing.window import RollingWindow

STEP_WINDOW = 128
FEWEST_STEPS = 16  # steady steps before the first delay
RESCALE_STEPS = 8  # the median moves slowly
SAMPLE = 4  # one step in so many counts for it, once the window has been filled
CALM_STEPS = 2  # steady steps in a row before a delay after an unsteady one
SHORTEST_DELAY_NS = 10_000  # a host cannot sleep less than about this
CREDIT_BOUNDS = 2  # b0 of the ledger, in longest delays


class Pacer:
    """Decides before each step how long one rank is held."""

    def __init__(self, settings: PacerSettings) -> None:
        self.settings = settings
        self.leads = (
            settings.rank == 0
        )  # publishes the plan; the host moves it when that rank is gone
        self.killed = False
        self._world = settings.world
        self._batch: int | None = None
        self._odd_batch: int | None = None  # a batch seen once that differs
        self._times = RollingWindow(STEP_WINDOW)  # of steady steps, own delay excluded
        self._calm = 0
        self._bound_ns = 0
        self._threshold_ns = 0
        self._asked: tuple[int, bool, bool] = (
            -1,
            False,
            False,
        )  # step, scheduled, left to the rule
        self._plans = PlanBook(attempt=settings.attempt, world=settings.world)
        self._others_held = False  # by the last news of them
        self._steps = self._held_steps = self._held_ns = self._gaps_ns = 0
        self._acting = (False, 0)  # the step asked for is left to `_contention`, by this delay
        self._controller = self._fresh_controller()
        self._contention = self._fresh_contention()
        self._guard = Guard(
            objective=settings.objective,
            cost=settings.stability_cost,
            run_id=settings.run_id,
            attempt=settings.attempt,
        )
        self._ledger = self._fresh_ledger()

    def _fresh_controller(self) -> Controller | None:
        if self.settings.controller in ("phase", "gap"):
            return None
        if self.settings.controller == "paper":
            return PaperRule()
        return SharedSlack(self._world) if self.settings.sharing else LocalSlack(self._world)

    def _fresh_contention(self) -> Contention | None:
        chosen = self.settings
        if chosen.controller in ("slack", "paper"):
            return None
        return Contention(
            chosen.controller,
            guarded=chosen.guarded,
            shared=chosen.sharing,
            run_id=chosen.run_id,
            attempt=chosen.attempt,
        )

    def _fresh_ledger(self) -> RankLedger:
        share = self.settings.loss_share
        if self.settings.objective == "stability":
            share = max(share, self.settings.stability_cost)
        if self.settings.ledger == "job":
            return JobLedger(share=share)
        return RankLedger(share=share, ranks=self._world)

    @property
    def bound_ns(self) -> int:
        """The longest delay before any one step, at the moment."""
        return self._bound_ns

    @property
    def account(self) -> PacingAccount:
        """What pacing did and cost so far."""
        return PacingAccount(
            self._steps,
            self._held_steps,
            self._held_ns,
            self._ledger.loss_ns,
            max(0, int(self._ledger.allowance_ns)),
            self._guard.verdict,
            self._gaps_ns,
            "" if self._contention is None else self._contention.word,
            None if self._contention is None else self._contention.applicable,
        )

    def kill(self) -> None:
        """Hold nothing from now on, whatever anybody plans; there is no way back."""
        self.killed = True

    def adopt(self, plan: Plan) -> bool:
        """Take a published plan; False if it is not for us, or came too late to be followed."""
        return self._plans.adopt(plan, asked_step=self._asked[0])

    def observe(self, seen: StepObservation) -> None:
        """Take the finished step; call it once per step, before `decide` for the next."""
        self._count(seen)
        acted = self._acting[0] and self._asked[0] == seen.step
        # What phase and gaps cost their trial judges; the ledger is for a rank's own delay.
        self._ledger.book(seen._replace(delay_ns=0) if acted else seen)
        if not self._is_steady(seen):
            self._calm = 0
            return
        self._calm += 1
        spent = max(0, seen.delay_ns) + max(0, seen.gaps_ns)
        if self._steps % SAMPLE == 0 or not self._times.full:
            self._times.push(max(1, seen.step_ns - spent))
        asked, scheduled, due = self._asked
        if asked != seen.step:
            scheduled = due = False
        others = self._contention
        if others is not None and others.learn(seen, acted=acted, delay_ns=self._acting[1]):
            self._guard.disturb()
        if self._controller is not None:
            self._controller.learn(seen, due=due)
        if seen.slowest is not None:
            self._others_held = seen.slowest.held_ns > 0
        if self.settings.guarded and not acted:
            held = seen.delay_ns > 0 or self._others_held
            self._guard.learn(seen, paced=scheduled, held=held)
        if self._bound_ns == 0 or self._steps % RESCALE_STEPS == 0:
            self._rescale()

    def _count(self, seen: StepObservation) -> None:
        self._steps += 1
        if seen.delay_ns > 0:
            self._held_steps += 1
            self._held_ns += seen.delay_ns
        self._gaps_ns += max(0, seen.gaps_ns)

    def _is_steady(self, seen: StepObservation) -> bool:
        """Whether to learn from the step; a change of world or batch starts everything anew."""
        if seen.world != self._world:
            self._world = seen.world
            self._ledger.rebase(seen.world)
            self._reset()
            return False
        if seen.batch is not None and seen.batch != self._batch:
            return self._is_first_batch(seen.batch)
        self._odd_batch = None
        return seen.steady and seen.step_ns > 0

    def _is_first_batch(self, batch: int) -> bool:
        # The odd last batch of an epoch is left out; only a batch seen twice in a row is a change.
        if self._batch is None or batch == self._odd_batch:
            changed = self._batch is not None
            self._batch, self._odd_batch = batch, None
            if changed:
                self._reset()
        else:
            self._odd_batch = batch
        return False

    def _reset(self) -> None:
        self._times.clear()
        self._plans = PlanBook(attempt=self.settings.attempt, world=self._world)
        self._bound_ns = self._threshold_ns = 0
        self._controller = self._fresh_controller()
        self._contention = self._fresh_contention()
        self._guard.reset()

    def _rescale(self) -> None:
        if len(self._times) < FEWEST_STEPS:
            return
        median = self._times.quantile(0.5)
        self._threshold_ns = int(self.settings.imbalance * median)
        self._bound_ns = min(int(self.settings.max_delay * median), self.settings.max_delay_ns)
        self._ledger.grant(CREDIT_BOUNDS * self._bound_ns)

    def decide(self, step: int) -> Decision:
        """What to hold before `step`, and what this rank should publish now."""
        plan = self._publishable(step)
        if self.settings.mode == "off" or self.killed:
            reason = Reason.KILLED if self.killed else Reason.OFF
            self._asked, self._acting = (step, False, False), (False, 0)
            return Decision(0, "none", reason, plan)
        others, gaps = self._beside_others(step), None
        if others is None:
            scheduled, due, proposal = self._judge(step)
            self._asked, self._acting = (step, scheduled, due), (False, 0)
        else:  # one actuator at a time, so that each is judged by what it does
            proposal, gaps = others
            self._asked, self._acting = (step, False, False), (True, proposal.delay_ns)
        if self.settings.mode == "observe":
            return Decision(0, "none", proposal.reason, plan, proposal.delay_ns)
        delay_ns = proposal.delay_ns
        actuator = "before_step" if delay_ns > 0 else "none" if gaps is None else "gap"
        return Decision(delay_ns, actuator, proposal.reason, plan, delay_ns, gaps)

    def _beside_others(self, step: int) -> tuple[Proposal, Gaps | None] | None:
        """Phase or gaps, the bound holding for all of it; None where contention is left alone."""
        contention = self._contention
        if contention is None or self._bound_ns == 0 or self._calm < CALM_STEPS:
            return None
        if self.settings.sharing:
            plan = self._plans.at(step)
            if plan is None or not (plan.gaps or plan.delay_ns >= 0):
                return None
            delay, reason = min(max(0, plan.delay_ns), self._bound_ns), Reason.COMMON
            gaps = contention.gaps(self._bound_ns - delay) if plan.gaps else None
        elif contention.wanted:
            delay, reason = contention.delay_ns(self._bound_ns), Reason.PHASE
            gaps = contention.gaps(self._bound_ns)
        else:
            return None
        if delay < SHORTEST_DELAY_NS:
            return Proposal(0, Reason.BALANCED if gaps is None else Reason.GAPS), gaps
        return Proposal(delay, reason), gaps

    def _judge(self, step: int) -> tuple[bool, bool, Proposal]:
        """Is the step scheduled to be paced, is it left to the rule, and what comes of it."""
        stance, common_ns = self._stance(step)
        if stance is None:
            return False, False, Proposal(0, Reason.NO_PLAN)
        if not self._guard.paces(step, stance):
            resting = stance is Stance.OFF
            return False, False, Proposal(0, Reason.GUARD_OFF if resting else Reason.GUARD_BLOCK)
        if self._calm < CALM_STEPS:
            return True, False, Proposal(0, Reason.UNSTEADY)
        if self._bound_ns == 0:
            return True, True, Proposal(0, Reason.LEARNING)
        if common_ns >= 0:
            return True, True, self._bounded(Proposal(common_ns, Reason.COMMON))
        if self._controller is None:
            return True, False, Proposal(0, Reason.BALANCED)
        proposal = self._controller.propose(
            threshold_ns=self._threshold_ns, bound_ns=self._bound_ns
        )
        return True, True, self._bounded(proposal)

    def _stance(self, step: int) -> tuple[Stance | None, int]:
        """What the guard or the published plan says of `step`, and a delay common to all."""
        if not self.settings.sharing:
            return (self._guard.stance if self.settings.guarded else Stance.ON), -1
        plan = self._plans.at(step)
        return (None, -1) if plan is None else (plan.stance, plan.delay_ns)

    def _bounded(self, proposal: Proposal) -> Proposal:
        if proposal.delay_ns <= 0:
            return proposal
        room = self._bound_ns
        if self.settings.guarded:
            room = self._ledger.room_ns(self._bound_ns)
        delay = min(proposal.delay_ns, room)
        if delay >= SHORTEST_DELAY_NS:
            return Proposal(delay, proposal.reason)
        spent = room < proposal.delay_ns
        return Proposal(0, Reason.LEDGER if spent else Reason.BALANCED)

    def _publishable(self, step: int) -> Plan | None:
        """The plan this rank should publish now, if it leads."""
        if not (self.settings.sharing and self.leads):
            return None
        stance = self._guard.stance if self.settings.guarded else Stance.ON
        delay_ns, gaps, contention = -1, False, self._contention
        if contention is not None and contention.wanted:
            gaps = contention.by_gaps
            delay_ns = -1 if gaps else contention.delay_ns(self._bound_ns)
        return self._plans.next(
            step, stance, least_steps=self._exchange_steps, delay_ns=delay_ns, gaps=gaps
        )

    @property
    def _exchange_steps(self) -> int:
        """Steps in two exchanges: one to publish, one to be read."""
        step_ns = max(1, self._times.quantile(0.5))
        return 2 * self.settings.exchange_ns // step_ns if len(self._times) else 0
