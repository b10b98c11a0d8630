"""The pacer of one rank: observations in, a bounded delay out. Pure: no clock, no I/O, no torch.

The same object runs in a live rank and in the simulator. Everything it decides is a function of
what it was told, in every mode; the mode only says what happens to the decision. Fed with the same
observations, `observe` proposes what `on` holds. That its proposals are not applied, so that the
trial has nothing to compare, is part of what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.pacing.account import SHARE, PacingAccount, TrialBudget
from evenstep.pacing.ledger import RankLedger
from evenstep.pacing.observation import Decision, Proposal, Reason, StepObservation
from evenstep.pacing.paper import PaperRule
from evenstep.pacing.plans import Plan, PlanBook
from evenstep.pacing.random_trial import ALWAYS, BLOCK_STEPS, RandomTrial, acts
from evenstep.pacing.slack import LocalSlack, SharedSlack
from evenstep.pacing.window import RollingWindow

STEP_WINDOW = 128
FEWEST_STEPS = 16  # steady steps before the first delay
RESCALE_STEPS = 8  # the median moves slowly
SAMPLE = 4  # one step in so many counts for it, once the window has been filled
CALM_STEPS = 2  # steady steps in a row before a delay after an unsteady one
SHORTEST_DELAY_NS = 10_000  # a host cannot sleep less than about this
CREDIT_BOUNDS = 2  # b0 of the ledger, in longest delays
LONGEST_DELAY_NS = 1_000_000_000  # whatever a step lasts
OBJECTIVES = ("throughput", "stability")
CONTROLLERS = ("slack", "paper")
_BLOCK = Proposal(0, Reason.GUARD_BLOCK)
_RESTING = Proposal(0, Reason.GUARD_OFF)
_UNSTEADY = Proposal(0, Reason.UNSTEADY)
_LEARNING = Proposal(0, Reason.LEARNING)
_BALANCED = Proposal(0, Reason.BALANCED)
_SPENT = Proposal(0, Reason.LEDGER)
_NO_PLAN = Proposal(0, Reason.NO_PLAN)
_new = tuple.__new__  # a third of what a named tuple's own costs, once a step


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerSettings:
    """How a job may be paced, as whoever read it has found valid.

    Shares are fractions of the median step. `guarded=False` switches the trial and the ledger off:
    for comparisons in the simulator, never for a job somebody needs.
    """

    mode: str = "observe"
    controller: str = "slack"
    objective: str = "throughput"
    imbalance: float = 0.03  # slack below this share of a step is left alone
    max_delay: float = 0.10  # no step is ever held longer than this share of the median step
    stability_cost: float = 0.006  # throughput that steadier steps may cost
    loss_share: float = 0.005  # ε of the ledger
    sharing: bool = False  # decide by the published plan and shared work, not alone
    exchange_ns: int = 0  # how often ranks exchange what they share; a plan lasts two of these
    guarded: bool = True
    run_id: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1


class Pacer:
    """Decides before each step how long one rank is held.

    `account` is what the trials of this job share; a pacer that is given none is alone.
    """

    def __init__(self, settings: PacerSettings, account: TrialBudget | None = None) -> None:
        self.settings = settings
        self.leads = settings.rank == 0  # publishes the plan; the host moves it when it is gone
        self.killed = False
        self._batch: int | None = None
        self._odd_batch: int | None = None  # a batch seen once that differs
        self._times = RollingWindow(STEP_WINDOW)  # of steady steps, own delay excluded
        self._calm = 0
        self._bound_ns = 0
        self._threshold_ns = 0
        self._asked = (-1, False, False)  # step, left to the rule, held by it if it wants to
        self._plans = PlanBook(attempt=settings.attempt, world=settings.world)
        self._steps = self._held_steps = self._held_ns = 0
        self._idle = Decision(0, Reason.LEARNING)  # the last of its kind
        self._controller = self._fresh_controller()
        self._seed = f"{settings.run_id}/{settings.attempt}/pace"
        self.trial = RandomTrial(
            TrialBudget() if account is None else account,
            seed=self._seed,
            objective=settings.objective,
            share=SHARE if settings.objective == "throughput" else settings.stability_cost,
        )
        self._ledger = self._fresh_ledger()

    def _fresh_controller(self) -> PaperRule | SharedSlack | LocalSlack:
        if self.settings.controller == "paper":
            return PaperRule()
        world = self.settings.world
        return SharedSlack(world) if self.settings.sharing else LocalSlack(world)

    def _fresh_ledger(self) -> RankLedger:
        share = self.settings.loss_share
        if self.settings.objective == "stability":
            share = max(share, self.settings.stability_cost)
        return RankLedger(share=share, ranks=self.settings.world)

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
            self.trial.verdict,
        )

    def kill(self) -> None:
        """Hold nothing from now on, whatever anybody plans; there is no way back."""
        self.killed = True

    def adopt(self, plan: Plan) -> bool:
        """Take a published plan; False if it is not for us, or came too late to be followed."""
        return self._plans.adopt(plan, asked_step=self._asked[0])

    def observe(self, seen: StepObservation) -> None:
        """Take the finished step; call it once per step, before `decide` for the next."""
        # Taken apart at once: each look at a named field costs more than all of this together.
        step, step_ns, _, _, _, _, _, delay_ns, _, steady, batch, _ = seen
        asked, due, acted = self._asked
        if asked != step:
            due = acted = False
        self._steps = steps = self._steps + 1
        if delay_ns > 0:
            self._held_steps += 1
            self._held_ns += delay_ns
        self._ledger.book(seen)
        plain = batch == self._batch and self._odd_batch is None
        if not (steady and step_ns > 0 if plain else self._is_steady(seen)):
            self._calm = 0
            return
        self._calm += 1
        unknown = self._bound_ns == 0
        if unknown or steps % SAMPLE == 0:
            self._times.push(max(1, step_ns - max(0, delay_ns)))
        self._controller.learn(seen, due=due)
        if self.settings.guarded and self.settings.mode != "off":
            self.trial.account.tick(step)
            self.trial.learn(step // BLOCK_STEPS, step_ns, acted)
        if unknown or steps % RESCALE_STEPS == 0:
            self._rescale()

    def _is_steady(self, seen: StepObservation) -> bool:
        """Whether to learn from the step; a change of batch starts everything anew."""
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
        self._plans = PlanBook(attempt=self.settings.attempt, world=self.settings.world)
        self._bound_ns = self._threshold_ns = 0
        self._controller = self._fresh_controller()
        self.trial.reset()

    def _rescale(self) -> None:
        times = self._times.ordered
        if len(times) < FEWEST_STEPS:
            return
        median = times[(len(times) - 1) // 2]
        self._threshold_ns = int(self.settings.imbalance * median)
        self._bound_ns = min(int(self.settings.max_delay * median), LONGEST_DELAY_NS)
        self._ledger.grant(CREDIT_BOUNDS * self._bound_ns)

    def decide(self, step: int) -> Decision:
        """What to hold before `step`, and what this rank should publish now."""
        settings = self.settings
        plan = self._publishable(step) if settings.sharing and self.leads else None
        if settings.mode == "off" or self.killed:
            reason = Reason.KILLED if self.killed else Reason.OFF
            self._asked = (step, False, False)
            return Decision(0, reason, plan)
        delay_ns, reason = self._judge(step)
        if delay_ns <= 0 and plan is None:
            if self._idle.reason is not reason:
                self._idle = Decision(0, reason)
            return self._idle
        if settings.mode == "observe":
            return _new(Decision, (0, reason, plan, delay_ns))
        return _new(Decision, (delay_ns, reason, plan, delay_ns))

    def _judge(self, step: int) -> Proposal:
        """What comes of the rule before a step; `_asked` says how it was scheduled."""
        settings, trial = self.settings, self.trial
        span, scale = (trial.span, trial.scale) if settings.guarded else (ALWAYS, 0)
        self._asked = (step, False, False)
        if settings.sharing:
            plan = self._plans.at(step)
            if plan is None:
                return _NO_PLAN
            span, scale = plan.span, plan.scale
        acted = acts(self._seed, step // BLOCK_STEPS, span, scale)
        if span and not acted:
            return _BLOCK
        calm = self._calm >= CALM_STEPS
        self._asked = (step, calm, acted)
        if not calm:
            return _UNSTEADY
        if self._bound_ns == 0:
            return _LEARNING
        wanted = self._controller.propose(threshold_ns=self._threshold_ns, bound_ns=self._bound_ns)
        if acted:
            return self._bounded(wanted)
        # Alone, a rank that would hold nothing has nothing to try; together, others may.
        trial.wanted = settings.sharing or wanted.delay_ns >= SHORTEST_DELAY_NS
        return _RESTING if trial.wanted else wanted

    def _bounded(self, proposal: Proposal) -> Proposal:
        """As much of it as bound and ledger leave room for."""
        wanted_ns, room_ns = proposal.delay_ns, self._bound_ns
        if wanted_ns <= 0:
            return proposal
        if self.settings.guarded:
            room_ns = self._ledger.room_ns(room_ns)
        if SHORTEST_DELAY_NS <= wanted_ns <= room_ns:
            return proposal
        if room_ns < wanted_ns:
            return Proposal(room_ns, proposal.reason) if room_ns >= SHORTEST_DELAY_NS else _SPENT
        return _BALANCED

    def _publishable(self, step: int) -> Plan | None:
        """The plan the leader should publish now."""
        span = self.trial.span if self.settings.guarded else ALWAYS
        return self._plans.next(step, span, self.trial.scale, least_steps=self._exchange_steps)

    @property
    def _exchange_steps(self) -> int:
        """Steps in two exchanges: one to publish, one to be read."""
        step_ns = max(1, self._times.quantile(0.5))
        return 2 * self.settings.exchange_ns // step_ns if len(self._times) else 0
