"""The pacer of one rank: observations in, a bounded delay out. Pure: no clock, no I/O, no torch.

The same object runs in a live rank and in the simulator. Everything it decides is a function of
what it was told, in every mode; the mode only says what happens to the decision. Fed with the same
observations, `observe` proposes what `on` holds. That its proposals are not applied, so that the
guard has nothing to compare, is part of what it sees.
"""

from __future__ import annotations

from evenstep.pacing.account import PacingAccount
from evenstep.pacing.buckets import Buckets
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
_BLOCK = Proposal(0, Reason.GUARD_BLOCK)
_RESTING = Proposal(0, Reason.GUARD_OFF)
_UNSTEADY = Proposal(0, Reason.UNSTEADY)
_LEARNING = Proposal(0, Reason.LEARNING)
_BALANCED = Proposal(0, Reason.BALANCED)
_SPENT = Proposal(0, Reason.LEDGER)
_PAUSING = Proposal(0, Reason.GAPS)
_NO_PLAN = Proposal(0, Reason.NO_PLAN)
_NOT_ACTING = (False, 0)
_ON, _OFF = Stance.ON, Stance.OFF  # an enumeration looks its members up by name
_new = tuple.__new__  # a third of what a named tuple's own costs, once a step


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
        self._acting = (False, 0)  # `_contention` acts in the step asked for, by this delay
        self._idle = Decision(0, "none", Reason.LEARNING)  # the last of its kind
        self._now_ns = 0  # when the last step ended, by the clock it was told with
        self._buckets = Buckets()
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
            self._buckets,
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
        # Taken apart at once: each look at a named field costs more than all of this together.
        (
            step, step_ns, _, _, _, _, _, delay_ns, _, steady, world, batch, slowest, _,
            buckets_ns, sizes, gaps_ns, serial, ended_ns, clouded,
        ) = seen  # fmt: skip
        asked, scheduled, due = self._asked
        acted, acted_ns = self._acting
        if asked != step:
            scheduled = due = acted = False
        self._steps = steps = self._steps + 1
        if delay_ns > 0 or gaps_ns > 0:
            self._count(delay_ns, gaps_ns)
        began_ns = self._now_ns
        self._now_ns = began_ns + step_ns if ended_ns is None else ended_ns
        plain = world == self._world and batch == self._batch and self._odd_batch is None
        # What phase and gaps cost their trial judges; the ledger is for a rank's own delay.
        if not plain:  # booked before a change opens another account
            self._ledger.book(seen, not acted)
        if not (steady and step_ns > 0 if plain else self._is_steady(seen)):
            if plain:
                self._ledger.book(seen, not acted)
            self._calm = 0
            return
        self._calm += 1
        unknown = self._bound_ns == 0
        if unknown or steps % SAMPLE == 0:
            self._times.push(max(1, step_ns - max(0, delay_ns) - max(0, gaps_ns)))
        found = self._buckets.learn(buckets_ns, sizes, free=not acted)
        if found is not None and found.clouded and not clouded:
            seen = seen._replace(clouded=True)
        if plain:
            self._ledger.book(seen, not acted)
        others, busy = self._contention, acted
        if others is not None:
            before = others.open
            spent_ns = min(max(0, delay_ns), acted_ns) + max(0, gaps_ns) if acted else 0
            pauses = len(buckets_ns) - 1
            others.learn(found, pauses, serial, step_ns, spent_ns, began_ns, acted)
            if others.open != before:
                self._guard.disturb()
            busy = acted or others.open
        if self._controller is not None:
            self._controller.learn(seen, due=due)
        if slowest is not None:
            self._others_held = slowest.held_ns > 0
        if not busy and self.settings.guarded:
            self._guard.learn(seen, scheduled, delay_ns > 0 or self._others_held)
        if unknown or steps % RESCALE_STEPS == 0:
            self._rescale()

    def _count(self, delay_ns: int, gaps_ns: int) -> None:
        self._held_steps += delay_ns > 0
        self._held_ns += max(0, delay_ns)
        self._gaps_ns += max(0, gaps_ns)

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
        self._buckets = Buckets()
        self._controller = self._fresh_controller()
        self._contention = self._fresh_contention()
        self._guard.reset()

    def _rescale(self) -> None:
        times = self._times.ordered
        if len(times) < FEWEST_STEPS:
            return
        median = times[(len(times) - 1) // 2]
        self._threshold_ns = int(self.settings.imbalance * median)
        self._bound_ns = min(int(self.settings.max_delay * median), self.settings.max_delay_ns)
        self._ledger.grant(CREDIT_BOUNDS * self._bound_ns)

    def decide(self, step: int) -> Decision:
        """What to hold before `step`, and what this rank should publish now."""
        settings = self.settings
        plan = self._publishable(step) if settings.sharing and self.leads else None
        if settings.mode == "off" or self.killed:
            reason = Reason.KILLED if self.killed else Reason.OFF
            self._asked, self._acting = (step, False, False), _NOT_ACTING
            return Decision(0, "none", reason, plan)
        contention, others = self._contention, None
        if contention is not None and self._bound_ns and (contention.open or settings.sharing):
            others = self._beside_others(step, contention)
        if others is None:
            (delay_ns, reason), gaps, self._acting = self._judge(step), None, _NOT_ACTING
        else:  # one actuator at a time, so that each is judged by what it does
            acts, (delay_ns, reason), gaps = others
            self._asked, self._acting = (step, False, False), (acts, delay_ns)
        observes = settings.mode == "observe"
        if delay_ns <= 0 and plan is None and (gaps is None or observes):
            if self._idle.reason is not reason:
                self._idle = Decision(0, "none", reason)
            return self._idle
        if observes:
            return _new(Decision, (0, "none", reason, plan, delay_ns, None))
        actuator = "before_step" if delay_ns > 0 else "none" if gaps is None else "gap"
        return _new(Decision, (delay_ns, actuator, reason, plan, delay_ns, gaps))

    def _beside_others(
        self, step: int, contention: Contention
    ) -> tuple[bool, Proposal, Gaps | None] | None:
        """Whether phase or gaps act, and how; None where contention is not being dealt with."""
        plan = None
        if self.settings.sharing:
            plan = self._plans.at(step)
            if plan is None or not (plan.gaps or plan.delay_ns >= 0):
                return None
            acts = plan.applies(step)
        else:
            acts = contention.acts(self._now_ns)
        if self._calm < CALM_STEPS:
            return False, _UNSTEADY, None
        if not acts:
            return False, _BLOCK, None
        return True, *self._act(contention, plan)

    def _act(self, contention: Contention, plan: Plan | None) -> tuple[Proposal, Gaps | None]:
        """The delay before a step and the pauses in it, by the plan or by what this rank saw."""
        bound_ns, delay, gaps = self._bound_ns, 0, None
        if plan is not None:
            delay = min(max(0, plan.delay_ns), bound_ns)
            gaps = contention.gaps(bound_ns - delay) if plan.gaps else None
        elif contention.by_gaps:
            gaps = contention.gaps(bound_ns)
        else:
            delay = contention.delay_ns(bound_ns)
        if delay < SHORTEST_DELAY_NS:
            return _BALANCED if gaps is None else _PAUSING, gaps
        return Proposal(delay, Reason.PHASE if plan is None else Reason.COMMON), gaps

    def _judge(self, step: int) -> Proposal:
        """What comes of a rank's own rule before a step; `_asked` says how it was scheduled."""
        settings, guard, bound_ns = self.settings, self._guard, self._bound_ns
        self._asked = (step, False, False)
        if settings.sharing:
            plan = self._plans.at(step)
            if plan is None:
                return _NO_PLAN
            stance, common_ns = plan.stance, plan.delay_ns
        else:
            stance, common_ns = guard.stance if settings.guarded else _ON, -1
        if not guard.paces(step, stance):
            return _RESTING if stance is _OFF else _BLOCK
        rule, calm = self._controller, self._calm >= CALM_STEPS
        due = calm and (bound_ns == 0 or common_ns >= 0 or rule is not None)
        self._asked = (step, True, due)
        if not calm:
            return _UNSTEADY
        if bound_ns == 0:
            return _LEARNING
        if common_ns >= 0:
            return self._bounded(Proposal(common_ns, Reason.COMMON))
        if rule is None:
            return _BALANCED
        return self._bounded(rule.propose(threshold_ns=self._threshold_ns, bound_ns=bound_ns))

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
        stance = self._guard.stance if self.settings.guarded else Stance.ON
        plan = self._plans.next(step, stance, least_steps=self._exchange_steps)
        contention = self._contention
        if plan is None or contention is None or not contention.open:
            return plan
        gaps = contention.by_gaps
        delay_ns = -1 if gaps else contention.delay_ns(self._bound_ns)
        quarters = self._quarters(contention, plan, step)
        return plan._replace(gaps=gaps, delay_ns=delay_ns, quarters=quarters)

    def _quarters(self, contention: Contention, plan: Plan, step: int) -> int:
        """In which quarters of a plan to act, by when their middles will be."""
        steps, step_ns = plan.last_step + 1 - plan.first_step, self._times.quantile(0.5)
        middles = (plan.first_step - step + steps * (2 * n + 1) // 8 for n in range(4))
        acting = (contention.acts(self._now_ns + ahead * step_ns) for ahead in middles)
        return sum(acts << n for n, acts in enumerate(acting))

    @property
    def _exchange_steps(self) -> int:
        """Steps in two exchanges: one to publish, one to be read."""
        step_ns = max(1, self._times.quantile(0.5))
        return 2 * self.settings.exchange_ns // step_ns if len(self._times) else 0
