"""What one rank does about other jobs on its links: phase or gaps, while they pay.

Gaps are the stronger of the two, but act only where a bucket has completed when the next one is
entered. Where buckets overlap (DDP's reducer enqueues them all) the phase is what is left.
"""

from __future__ import annotations

from evenstep.pacing.buckets import Buckets
from evenstep.pacing.gap import Gaps
from evenstep.pacing.observation import StepObservation
from evenstep.pacing.phase import Phase
from evenstep.pacing.trial import LossTrial

SMOOTHING = 1 / 64  # weight of the newest step in the applicable share
SERIAL = 0.5  # gaps from this applicable share on


class Contention:
    """One rank's phase and gaps with their trial. `rule` is "phase", "gap" or "auto".

    `shared`: the leader's delay takes effect windows later, so a jump would come too late; what is
    published is the integral alone.
    """

    def __init__(
        self, rule: str, *, guarded: bool, shared: bool, run_id: str, attempt: int
    ) -> None:
        self._rule = rule
        self._guarded = guarded
        self._shared = shared
        self._buckets = Buckets()
        self._phase = Phase(run_id, attempt)
        self._trial = LossTrial()
        self.applicable: float | None = None  # share of buckets that had completed at the next

    @property
    def word(self) -> str:
        """What the trial has concluded."""
        return self._trial.word if self._guarded else "unguarded"

    @property
    def wanted(self) -> bool:
        """Whether contention is to be acted on."""
        known = self._buckets.reference_ns > 0
        return known and (self._trial.on or not self._guarded)

    @property
    def by_gaps(self) -> bool:
        """Whether gaps act, not the phase."""
        if self._rule == "auto":
            return self.applicable is not None and self.applicable >= SERIAL
        return self._rule == "gap"

    def learn(self, seen: StepObservation, *, acted: bool, delay_ns: int) -> bool:
        """Take a finished steady step; `acted`: contention was left to us, by `delay_ns`.

        Returns whether the trial goes on or off with it.
        """
        durations_ns = seen.buckets_ns
        if seen.serial is not None and len(durations_ns) > 1:
            share = seen.serial / (len(durations_ns) - 1)
            if self.applicable is None:
                self.applicable = share
            elif share != self.applicable:
                self.applicable += SMOOTHING * (share - self.applicable)
        found = self._buckets.learn(durations_ns, seen.bucket_bytes, free=not acted)
        if found is None:
            return False
        trial = self._trial
        before = trial.on
        wanted = before or not self._guarded
        if acted == wanted:
            spent = min(max(0, seen.delay_ns), delay_ns) + max(0, seen.gaps_ns) if acted else 0
            over = found.total_ns - found.alone_ns
            trial.learn((over if over > 0 else 0) + spent, seen.step_ns, found.excess_ns)
        if wanted and (acted or self._shared) and not self.by_gaps:
            self._phase.learn(found)
        elif self._phase.delay_ns:
            self._phase.rest()
        return trial.on != before

    def delay_ns(self, bound_ns: int) -> int:
        """How long the next step is held, if it is left to us."""
        if self.by_gaps:
            return 0
        planned = self._phase.integral_ns if self._shared else self._phase.delay_ns
        return min(int(planned), bound_ns)

    def gaps(self, bound_ns: int) -> Gaps | None:
        """The pauses allowed inside the next step, if it is left to us."""
        buckets = self._buckets
        if not self.by_gaps or bound_ns <= 0 or not buckets.reference_ns:
            return None
        return Gaps(
            buckets.reference_ns,
            buckets.threshold_ns,
            buckets.weights,
            bound_ns,
            buckets.first_wait_ns if buckets.first_is_trusted else None,
        )
