"""The pacer's host in a live rank: turn steps into observations, apply its delays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from evenstep.agent.exchange.messages import FirstCollective, Orders, SharedFloor, StepRow
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.recording.steps import ClosedStep
from evenstep.agent.settings.config import Config
from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, Slowest, StepObservation
from evenstep.pacing.waits import Collective, StepWait, WaitEstimator
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.layout import WORD_ENTER, WORD_EXIT, Actuator, Flag, Kind, Phase

_UPPER_BOUND, _ON_DEVICE = int(Flag.EXIT_UPPER_BOUND), int(Flag.ON_DEVICE)
_OVERLAPPED = int(Flag.OVERLAPPED)  # plain numbers: an enumeration's operators cost a microsecond
_PACING, _APPLIED = int(Kind.PACING), int(Flag.APPLIED)


class PaceHost:
    """Passes each step of a rank to the pacer, records its decisions and, in mode `on`, sleeps.

    Lives on the training thread; `take_orders` is called by the background thread.
    """

    def __init__(
        self, pacer: Pacer, recorder: Recorder, *, can_hold: bool,
        on_stream: Callable[[int, int], bool] | None = None,
    ) -> None:  # fmt: skip
        self.pacer = pacer
        self.waits = WaitEstimator()
        self._plans: deque[Plan] = deque(maxlen=8)  # received, not adopted yet
        self._slowest: Slowest | None = None  # received, not passed to the pacer yet
        self._floor: SharedFloor | None = None
        #: False where a host's sleep does not hold the device: known by its first collective.
        self.can_hold = can_hold
        #: Holds the device's stream instead, given the delay and the record that the realised delay
        #: is written to; False where it cannot.
        self.on_stream = on_stream
        self._recorder = recorder
        self._recorded: tuple[str, int] = ("", 0)  # reason and delay of the last record

    def after_step(self, closed: ClosedStep) -> tuple[StepRow, StepWait, Decision]:
        """Observe a finished step and decide on the delay before the next.

        Work includes time without a core: the others wait for that, too.
        """
        delay_ns = closed.held_ns
        finished = self._finished(closed)
        wait = self.waits.step(finished, closed.pauses)
        first = _first(finished, wait)
        floor_ns, margin_ns, shared = wait.floor_lower_ns, wait.margin_ns, self._floor
        if floor_ns is None and first and shared and first[:2] == (shared.op, shared.nbytes):
            floor_ns, margin_ns = shared.lower_ns, shared.margin_ns
        step_ns = closed.end_ns - closed.start_ns
        own_ns = max(step_ns - closed.phase_ns[Phase.SYNC] - delay_ns, 0)
        entry_ns = max((wait.since_last_ns or own_ns + delay_ns) - delay_ns, 0)
        slowest, self._slowest = self._slowest, None
        while self._plans:
            self.pacer.adopt(self._plans.popleft())
        seen = StepObservation(
            step=closed.number, step_ns=step_ns, work_ns=entry_ns, wait_ns=wait.first_ns,
            margin_ns=margin_ns, in_flight_ns=wait.in_flight_ns, floor_lower_ns=floor_ns,
            delay_ns=delay_ns, steady=not closed.unsteady, batch=closed.samples or None,
            slowest=slowest,
        )  # fmt: skip
        self.pacer.observe(seen)
        decision = self.pacer.decide(closed.number + 1)
        if wait.total_ns is not None:
            closed.counted["wait_ns"] += wait.total_ns
            closed.counted["wait_known"] += 1
        queued_ns = closed.phase_ns[Phase.INPUT] if self._recorder.loader_workers else 0
        row = StepRow(step_ns, own_ns, wait.total_ns, delay_ns, entry_ns, first, queued_ns)
        return row, wait, decision

    def take_orders(self, orders: Orders) -> None:
        """Take rank 0's orders; they count from the next step on."""
        if orders.plan is not None:
            self._plans.append(orders.plan)
        self._slowest = orders.slowest or self._slowest
        self._floor = orders.floor or self._floor

    def hold(self, decision: Decision, step: int) -> None:
        """Apply the decided delay, if any, and record the decision with its reason.

        On a device's stream each delay has a record: its realised length is known later.
        """
        delay_ns = decision.delay_ns if self.can_hold else 0
        on_stream = self.on_stream if decision.delay_ns > delay_ns else None
        begin = time.monotonic_ns()
        if delay_ns > 0:
            time.sleep(delay_ns * 1e-9)
            self._recorder.held_ns += time.monotonic_ns() - begin
        recorded = (str(decision.reason), delay_ns or decision.proposed_ns)
        if recorded == self._recorded and on_stream is None:
            return
        spool, self._recorded = self._recorder.spool, recorded
        actuator = Actuator.BEFORE_STEP if decision.delay_ns > 0 else Actuator.NONE
        seq = spool.put(
            begin, time.monotonic_ns(), _PACING, int(actuator), step,
            held_ns=decision.delay_ns or decision.proposed_ns,
            flags=_APPLIED if delay_ns > 0 else 0, name=spool.name_id(recorded[0]),
        )  # fmt: skip
        if on_stream is not None and on_stream(decision.delay_ns, seq):
            spool.add_flags(seq, _APPLIED)
            self._recorder.held_ns += decision.delay_ns

    def _finished(self, closed: ClosedStep) -> list[Collective]:
        """The step's collectives that have ended on the host, as the estimator takes them."""
        spool = self._recorder.spool
        words, slot = spool.words, spool.word_of
        finished: list[Collective] = []
        reach = in_flight = 0
        for seq, group, op, nbytes, flags in closed.collectives:
            base = slot(seq)
            if flags & _ON_DEVICE:
                self.can_hold = False
                continue
            if words[base] != seq or not words[base + WORD_EXIT]:
                continue
            enter_ns, exit_ns = words[base + WORD_ENTER], words[base + WORD_EXIT]
            finished.append((group, op, nbytes, enter_ns, exit_ns, bool(flags & _UPPER_BOUND)))
            if enter_ns < reach:
                spool.add_flags(seq, _OVERLAPPED)
            in_flight += max(exit_ns - max(enter_ns, reach), 0)
            reach = max(reach, exit_ns)
        closed.counted["in_flight_ns"] += in_flight
        return finished


def _first(finished: list[Collective], wait: StepWait) -> FirstCollective | None:
    """The step's first collective, if its end is trusted and it overlaps no other."""
    if not finished or wait.in_flight_ns is None:
        return None
    _, op, nbytes, enter_ns, exit_ns, _ = finished[0]
    return FirstCollective(op, nbytes, wait.in_flight_ns) if exit_ns > enter_ns else None


def pacer_settings(config: Config, identity: Identity, mode: str) -> PacerSettings:
    """The pacer's part of the configuration."""
    return PacerSettings(
        mode=mode, controller=config.pace_controller, objective=config.pace_objective,
        imbalance=config.pace_threshold, max_delay=config.pace_max_delay,
        stability_cost=config.pace_stability_cost, sharing=config.pace_sharing,
        exchange_ns=int(config.sample_period_s * 1e9), run_id=identity.run_id,
        attempt=identity.attempt, rank=identity.rank, world=identity.world,
    )  # fmt: skip
